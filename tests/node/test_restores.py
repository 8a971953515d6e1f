"""A restore makes a whole sandbox or nothing, once for each id, on any node that has the store and the layers."""

from __future__ import annotations

from dataclasses import replace

import anyio
import msgspec
import pytest

from dsec.base.errors import (
    DeadlineExceededError,
    DsecError,
    HookFailedError,
    HostDiskFullError,
    ImageNotFoundError,
    InvalidRequestError,
    InvalidStateError,
    NodeUnavailableError,
    SandboxExitedError,
    StateCorruptedError,
)
from dsec.base.units import MIB
from dsec.images.memory import MemoryImages
from dsec.model.image import ImageConfig, StateHooks
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxInfo, SandboxSpec, SandboxState
from dsec.model.state import RestoreRequest, SnapshotInfo
from dsec.node.node import Node
from dsec.node.settings import NodeSettings
from dsec.state.memory_trees import MemoryFrozenTree
from dsec.state.snapshots import SnapshotStore
from dsec.stores.chunks import open_chunks
from dsec.testing.faults import Faults, check_no_leak, killed
from dsec.testing.faulty_store import FaultyObjectStore
from dsec.testing.memory_node import MemoryHost

pytestmark = pytest.mark.anyio
BOX = "sbx-test0-box"
NEW = "sbx-test0-new"


async def begin(node: Node, spec: SandboxSpec = SandboxSpec(seed=7)) -> SnapshotInfo:
    await node.create(spec, sandbox_id=BOX)
    await node.write_file(BOX, "/tmp/x", b"before")
    return await node.state.snapshot(BOX)


async def content(node: Node, sandbox_id: str, path: str = "/tmp/x") -> bytes:
    return b"".join([chunk async for chunk in node.read_file(sandbox_id, path)])


def host_over_faults() -> tuple[MemoryHost, FaultyObjectStore]:
    host = MemoryHost()
    store = FaultyObjectStore(host.store)
    host.store = store  # type: ignore[assignment]
    return host, store


async def test_another_node_restores_what_it_finds_in_the_store() -> None:
    first, second = MemoryHost(), MemoryHost()
    second.store = first.store
    async with first.node() as here, Node.open(replace(second.parts(), node_id="test1")) as there:
        info = await begin(here)
        assert [each.snapshot_id for each in await there.state.list_snapshots()] == [info.snapshot_id]
        moved = await there.state.restore(info.snapshot_id)
        assert (moved.node, moved.spec.seed) == ("test1", 7)
        assert await content(there, moved.sandbox_id) == b"before"
        await there.write_file(moved.sandbox_id, "/tmp/y", b"there")
        back = await here.state.restore((await there.state.snapshot(moved.sandbox_id)).snapshot_id)
        assert await content(here, back.sandbox_id, "/tmp/y") == b"there"
        await check_no_leak(second, there)


async def test_layers_that_a_node_lacks_are_named() -> None:
    first, second = MemoryHost(), MemoryHost(images=MemoryImages("other"))
    second.store = first.store
    async with first.node() as here, second.node() as there:
        info = await begin(here)
        with pytest.raises(ImageNotFoundError) as caught:
            await there.state.restore(info.snapshot_id)
        assert first.images.get("python").layers[0].digest in caught.value.detail
        await check_no_leak(second, there)


async def test_a_rollback_leads_to_what_was_restored_also_after_a_restart() -> None:
    host = MemoryHost()
    async with host.node() as node:
        info = await begin(node)
        await node.state.restore(info.snapshot_id, RestoreRequest(sandbox_id=NEW))
        await node.remove(BOX)
        await node.write_file(NEW, "/tmp/x", b"after")
    async with host.node() as node:
        assert await content(node, NEW) == b"after"
        await node.rollback(NEW)
        assert await content(node, NEW) == b"before"
        assert (await node.inspect(NEW)).snapshot == info.snapshot_id
        await anyio.wait_all_tasks_blocked()
        await check_no_leak(host, node)


async def test_a_machine_id_is_made_anew() -> None:
    async with MemoryHost().node() as node:
        await node.create(SandboxSpec(user="root"), sandbox_id=BOX)
        await node.write_file(BOX, "/etc/machine-id", b"0\n")
        info = await node.state.snapshot(BOX)
        boxes = [(await node.state.restore(info.snapshot_id)).sandbox_id for _ in range(2)]
        ids = {await content(node, box, "/etc/machine-id") for box in (BOX, *boxes)}
        assert len(ids) == 3


async def test_who_asks_with_one_id_is_given_one_sandbox() -> None:
    host = MemoryHost()
    async with host.node() as node:
        info = await begin(node)
        made: list[SandboxInfo] = []

        async def ask() -> None:
            made.append(await node.state.restore(info.snapshot_id, RestoreRequest(sandbox_id=NEW)))

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(ask)
        assert {each.sandbox_id for each in made} == {NEW}
        assert len(await node.list()) == 2
        await node.stop(NEW)
        with pytest.raises(InvalidStateError):
            await ask()
        await check_no_leak(host, node)


async def test_a_chunk_that_is_damaged_or_gone_is_named_and_nothing_is_made() -> None:
    host, store = host_over_faults()
    async with host.node() as node:
        info = await begin(node)
    for fault in ("corrupts", "truncates"):
        setattr(store.faults, fault, lambda key: key.startswith("chunks/packs/"))
        async with host.node() as node:
            with pytest.raises(StateCorruptedError):
                await node.state.restore(info.snapshot_id)
            assert len(await node.list()) == 1
            await check_no_leak(host, node)
        setattr(store.faults, fault, lambda key: False)
    packs = [found.key async for found in store.list("chunks/packs/")]
    await store.delete(packs)
    async with host.node() as node:
        with pytest.raises(StateCorruptedError):
            await node.state.restore(info.snapshot_id, RestoreRequest(sandbox_id=NEW))
        await check_no_leak(host, node)


async def test_an_import_hook_that_fails_leaves_nothing() -> None:
    hooks = StateHooks(export_state=("cat", "/tmp/x"), import_state=("sh", "-c", "exit 3"))
    images = MemoryImages()
    layers = [layer.digest for layer in images.get("python").layers]
    images.add_image("hooked", layers, ImageConfig(hooks=hooks), source="test")
    host = MemoryHost(images=images)
    async with host.node() as node:
        info = await begin(node, SandboxSpec(image="hooked"))
        with pytest.raises(HookFailedError):
            await node.state.restore(info.snapshot_id)
        await anyio.wait_all_tasks_blocked()
        await check_no_leak(host, node)


async def test_what_a_node_has_no_room_for_is_refused_before_anything_is_fetched() -> None:
    host, store = host_over_faults()
    async with host.node() as node:
        info = await begin(node)
        host.host.disk_bytes = host.settings.minimum_free_disk_bytes
        store.calls.clear()
        with pytest.raises(HostDiskFullError):
            await node.state.restore(info.snapshot_id)
        assert not [key for _, key in store.calls if key.startswith("chunks/packs/")]
        await check_no_leak(host, node)


async def test_a_sparse_file_needs_room_for_what_is_in_it_alone() -> None:
    host, _ = host_over_faults()
    async with host.node() as node:
        await begin(node)
        await node.write_file(BOX, "/tmp/sparse", bytes(4 * MIB))
        info = await node.state.snapshot(BOX)
        assert info.content_bytes > 4 * MIB
        host.host.disk_bytes = host.settings.minimum_free_disk_bytes + MIB
        box = (await node.state.restore(info.snapshot_id)).sandbox_id
        assert await content(node, box, "/tmp/sparse") == bytes(4 * MIB)


async def test_what_a_store_says_of_a_sandbox_is_checked_like_a_request() -> None:
    host = MemoryHost()
    async with host.node() as node:
        info = await begin(node)
        async with open_chunks(host.store) as chunks:
            store = SnapshotStore(host.store, chunks)
            header = (await store.load(info.snapshot_id)).header
            spec = msgspec.structs.replace(header.spec, env={"A=B\nC": "\0"})
            forged = msgspec.structs.replace(header, spec=spec, name="forged")
            await store.save(MemoryFrozenTree({}), forged)
        with pytest.raises(InvalidRequestError, match="env"):
            await node.state.restore("forged")
        await check_no_leak(host, node)


@pytest.mark.parametrize("seed", [-(1 << 63), (1 << 64) - 1])
async def test_every_seed_that_a_sandbox_may_have_can_be_saved(seed: int) -> None:
    async with MemoryHost().node() as node:
        info = await begin(node, SandboxSpec(seed=seed))
        assert (await node.state.restore(info.snapshot_id)).spec.seed == seed
        beyond = seed + (1 if seed > 0 else -1)
        with pytest.raises(InvalidRequestError, match="seed"):
            await node.state.restore(info.snapshot_id, RestoreRequest(seed=beyond))
        with pytest.raises(InvalidRequestError, match="seed"):
            await node.create(SandboxSpec(seed=beyond))


async def test_a_full_node_takes_no_more() -> None:
    host = MemoryHost(settings=NodeSettings(runtime="memory", maximum_sandboxes=1))
    async with host.node() as node:
        info = await begin(node)
        with pytest.raises(NodeUnavailableError):
            await node.state.restore(info.snapshot_id)
        await check_no_leak(host, node)


async def test_a_restore_that_takes_too_long_is_undone() -> None:
    host = MemoryHost()
    async with host.node() as node:
        info = await begin(node)
        with pytest.raises(DeadlineExceededError):
            await node.state.restore(info.snapshot_id, RestoreRequest(timeout_s=1e-9))
        await anyio.wait_all_tasks_blocked()
        assert len(await node.list()) == 1
        await check_no_leak(host, node)


def first_chunks_asked(store: FaultyObjectStore) -> anyio.Event:
    """Return what is set once chunks are read."""
    reached = anyio.Event()

    def notice(action: str, key: str) -> bool:
        if action.startswith("get") and key.startswith("chunks/packs/"):
            reached.set()
        return False

    store.faults.fails = notice
    return reached


async def test_a_stop_ends_a_restore_and_leaves_nothing() -> None:
    host, store = host_over_faults()
    async with host.node() as node:
        info = await begin(node)
        reached = first_chunks_asked(store)
        errors: list[DsecError] = []

        async def ask() -> None:
            try:
                await node.state.restore(info.snapshot_id, RestoreRequest(sandbox_id=NEW))
            except DsecError as error:
                errors.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(ask)
            await reached.wait()
            await node.stop(NEW)
        assert [type(error) for error in errors] == [SandboxExitedError]
        await check_no_leak(host, node)


async def test_a_restore_that_is_cancelled_leaves_nothing() -> None:
    host, store = host_over_faults()
    async with host.node() as node:
        info = await begin(node)
        reached = first_chunks_asked(store)
        async with anyio.create_task_group() as group:
            group.start_soon(node.state.restore, info.snapshot_id)
            await reached.wait()
            group.cancel_scope.cancel()
        await anyio.wait_all_tasks_blocked()
        await check_no_leak(host, node)


async def test_a_failure_at_any_step_leaves_nothing() -> None:
    step = 0
    while True:
        step += 1
        host, faults = MemoryHost(), Faults(fail_at=step)
        faults.armed = False
        async with Node.open(faults.parts(host)) as node:
            info = await begin(node)
            faults.armed = True
            try:
                await node.state.restore(info.snapshot_id, RestoreRequest(sandbox_id=NEW))
            except DsecError:
                pass
            faults.armed = False
            left = node._core.registry.get(NEW)
            if left is not None and left.state is SandboxState.FAILED:
                await node.remove(NEW)
            box = (await node.state.restore(info.snapshot_id, RestoreRequest(sandbox_id=NEW))).sandbox_id
            assert await content(node, box) == b"before"
            assert (await node.run(BOX, CommandRequest(argv=("true",)))).status.exit_code == 0
        if not faults.struck:
            break
    assert step > 5


async def test_a_kill_at_any_step_leaves_a_whole_sandbox_or_none() -> None:
    step, outcomes = 0, set()
    while True:
        step += 1
        host = MemoryHost()
        async with host.node() as node:
            info = await begin(node)

        async def act(node: Node, info: SnapshotInfo = info) -> None:
            await node.state.restore(info.snapshot_id, RestoreRequest(sandbox_id=NEW))

        was_killed = await killed(host, Faults(kill_at=step), act)
        async with host.node() as node:
            is_there = node._core.registry.get(NEW) is not None
            outcomes.add(is_there)
            await check_no_leak(host, node)
            await act(node)
            assert await content(node, NEW) == b"before"
            await check_no_leak(host, node)
        if not was_killed:
            break
    assert outcomes == {False, True}
    assert step > 12
