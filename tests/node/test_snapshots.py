"""Snapshots are whole or not there, each is a difference to the last, and nobody waits for long chains to be merged."""

from __future__ import annotations

import anyio
import pytest

from dsec.base.errors import DsecError, SandboxExitedError, StoreUnavailableError
from dsec.images.memory import MemoryImages
from dsec.model.image import ImageConfig, StateHooks
from dsec.model.sandbox import SandboxSpec, SandboxState
from dsec.model.state import CheckpointRequest, ForkRequest, RestoreRequest, SnapshotInfo, SnapshotRequest
from dsec.node.node import Node
from dsec.state.snapshots import MERGE_DEPTH
from dsec.testing import faulty_store
from dsec.testing.faults import Faults, check_no_leak, killed
from dsec.testing.faulty_store import FaultyObjectStore
from dsec.testing.memory_node import MemoryHost

pytestmark = pytest.mark.anyio
BOX = "sbx-test0-box"
PATH = "/tmp/x"


async def begin(node: Node, spec: SandboxSpec = SandboxSpec()) -> None:
    await node.create(spec, sandbox_id=BOX)
    await node.write_file(BOX, PATH, b"before")


async def content(node: Node, sandbox_id: str, path: str = PATH) -> bytes:
    return b"".join([chunk async for chunk in node.read_file(sandbox_id, path)])


async def restored(node: Node, info: SnapshotInfo, path: str = PATH) -> bytes:
    """The content of a file in a sandbox made of a snapshot, which is removed again."""
    box = (await node.state.restore(info.snapshot_id)).sandbox_id
    found = await content(node, box, path)
    await node.remove(box)
    return found


async def settle() -> None:
    """Let what was begun in the background end; its threads are short."""
    for _ in range(20):
        await anyio.wait_all_tasks_blocked()
        await anyio.to_thread.run_sync(lambda: None)


async def merged(node: Node) -> None:
    """Wait until no chain is longer than it may be."""
    with anyio.fail_after(60):
        while max(info.depth for info in await node.state.list_snapshots()) > MERGE_DEPTH:  # noqa: ASYNC110
            await anyio.sleep(0.01)  # What tells is in the store.


def host_over_faults() -> tuple[MemoryHost, FaultyObjectStore]:
    host = MemoryHost()
    store = FaultyObjectStore(host.store)
    host.store = store  # type: ignore[assignment]
    return host, store


async def test_the_base_survives_a_restart() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await begin(node)
        first = await node.state.snapshot(BOX)
    async with host.node() as node:
        await node.write_file(BOX, "/tmp/y", b"after")
        second = await node.state.snapshot(BOX)
        assert (second.parent, second.depth) == (first.snapshot_id, 1)
        assert await restored(node, second, "/tmp/y") == b"after"
        await check_no_leak(host, node)


async def test_the_base_is_the_closest_state_that_is_a_snapshot() -> None:
    async with MemoryHost().node() as node:
        await begin(node)
        await node.state.checkpoint(BOX, CheckpointRequest(name="a"))
        a = await node.state.snapshot(BOX, SnapshotRequest(checkpoint="a"))
        await node.state.checkpoint(BOX, CheckpointRequest(name="b"))
        await node.write_file(BOX, PATH, b"far")
        far = await node.state.snapshot(BOX)
        assert far.parent == a.snapshot_id
        await node.rollback(BOX, snapshot="b")
        near = await node.state.snapshot(BOX)
        assert near.parent == a.snapshot_id
        again = await node.state.snapshot(BOX, SnapshotRequest(checkpoint="a", name="other"))
        assert again.parent == a.snapshot_id
        assert [await restored(node, each) for each in (a, far, near, again)] == [
            b"before",
            b"far",
            b"before",
            b"before",
        ]


async def test_a_forks_child_is_saved_upon_what_it_began_from() -> None:
    async with MemoryHost().node() as node:
        await begin(node)
        await node.state.checkpoint(BOX, CheckpointRequest(name="a"))
        parent = await node.state.snapshot(BOX, SnapshotRequest(checkpoint="a"))
        (child,) = await node.state.fork(BOX, ForkRequest(checkpoint="a"))
        await node.write_file(child.sandbox_id, PATH, b"child")
        info = await node.state.snapshot(child.sandbox_id)
        assert info.parent == parent.snapshot_id
        assert await restored(node, info) == b"child"


async def test_a_child_of_a_restored_sandbox_is_not_taken_for_what_was_restored() -> None:
    async with MemoryHost().node() as node:
        await begin(node)
        box = (await node.state.restore((await node.state.snapshot(BOX)).snapshot_id)).sandbox_id
        await node.write_file(box, "/tmp/y", b"restored")
        (child,) = await node.state.fork(box)
        await node.write_file(child.sandbox_id, PATH, b"child")
        info = await node.state.snapshot(child.sandbox_id)
        assert await restored(node, info) == b"child"
        assert await restored(node, info, "/tmp/y") == b"restored"


async def test_a_base_whose_snapshot_was_removed_is_none() -> None:
    async with MemoryHost().node() as node:
        await begin(node)
        await node.state.remove_snapshot((await node.state.snapshot(BOX)).snapshot_id)
        info = await node.state.snapshot(BOX)
        assert (info.parent, info.depth) == (None, 0)
        assert await restored(node, info) == b"before"


async def test_what_a_hook_exported_goes_along() -> None:
    hooks = StateHooks(export_state=("sh", "-c", "cat /tmp/x"), import_state=("sh", "-c", "cat > /tmp/remembered"))
    images = MemoryImages()
    base = images.get("python")
    images.add_image("hooked", [layer.digest for layer in base.layers], ImageConfig(hooks=hooks), source="test")
    host = MemoryHost(images=images)
    async with host.node() as node:
        await begin(node, SandboxSpec(image="hooked"))
        info = await node.state.snapshot(BOX)
        assert info.exported_bytes == len(b"before")
        await node.remove(BOX)
        box = (await node.state.restore(info.snapshot_id)).sandbox_id
        assert await content(node, box, "/tmp/remembered") == b"before"
        await node.write_file(box, "/tmp/remembered", b"")
        await node.rollback(box)
        assert await content(node, box, "/tmp/remembered") == b"before"
        await settle()
        await check_no_leak(host, node)


async def test_a_paused_sandbox_is_saved_and_stays_paused() -> None:
    async with MemoryHost().node() as node:
        await begin(node)
        await node.pause(BOX)
        info = await node.state.snapshot(BOX)
        assert (await node.inspect(BOX)).state is SandboxState.PAUSED
        assert await restored(node, info) == b"before"


async def test_a_chain_that_grows_long_is_merged_in_the_background_and_stays_what_it_was() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await begin(node)
        infos = []
        for step in range(MERGE_DEPTH + 3):
            await node.write_file(BOX, f"/tmp/{step}", b"%d" % step)
            infos.append(await node.state.snapshot(BOX))
        await merged(node)
        assert [await restored(node, infos[-1], f"/tmp/{step}") for step in (0, MERGE_DEPTH, MERGE_DEPTH + 2)] == [
            b"0",
            b"%d" % MERGE_DEPTH,
            b"%d" % (MERGE_DEPTH + 2),
        ]


async def test_a_merge_that_did_not_happen_is_made_up_for_by_the_next_node() -> None:
    host, store = host_over_faults()
    async with host.node() as node:
        await begin(node)
        store.faults.fails = lambda action, key: action == "put" and key.startswith("merged/")
        for step in range(MERGE_DEPTH + 2):
            await node.write_file(BOX, PATH, b"%d" % step)
            last = await node.state.snapshot(BOX)
        await settle()
        assert last.depth > MERGE_DEPTH
        assert max(info.depth for info in await node.state.list_snapshots()) > MERGE_DEPTH
    store.faults.fails = lambda action, key: False
    async with host.node() as node:
        await merged(node)
        assert await restored(node, last) == b"%d" % (MERGE_DEPTH + 1)


async def test_a_store_that_fails_leaves_the_sandbox_as_it_was() -> None:
    host, store = host_over_faults()
    async with host.node() as node:
        await begin(node)
        store.faults.fails = lambda action, key: True
        for _ in range(2):
            with pytest.raises(StoreUnavailableError):
                await node.state.snapshot(BOX)
            assert await node.state.list_checkpoints(BOX) == []
            await check_no_leak(host, node)
        store.faults.fails = lambda action, key: False
        await node.state.snapshot(BOX)
        store.faults.fails = lambda action, key: action == "put"
        with pytest.raises(StoreUnavailableError):
            await node.state.snapshot(BOX)
        assert len(await node.state.list_checkpoints(BOX)) == 1
        assert len(await node.state.list_snapshots()) == 1


async def test_a_write_that_the_store_lost_is_noticed() -> None:
    host, store = host_over_faults()
    async with host.node() as node:
        await begin(node)
        for lost in ("chunks/packs/", "manifests/", "snapshots/"):
            store.faults = faulty_store.Faults(loses=lambda key, lost=lost: key.startswith(lost))  # type: ignore[misc]
            with pytest.raises(StoreUnavailableError):
                await node.state.snapshot(BOX)
        store.faults = faulty_store.Faults()
        assert await node.state.list_snapshots() == []
        assert await restored(node, await node.state.snapshot(BOX)) == b"before"


async def test_a_snapshot_that_is_cancelled_leaves_nothing() -> None:
    host, store = host_over_faults()
    async with host.node() as node:
        await begin(node)
        reached = anyio.Event()

        def hang(action: str, key: str) -> bool:
            if action == "put" and key.startswith("manifests/"):
                reached.set()
            return False

        store.faults.fails = hang
        async with anyio.create_task_group() as group:
            group.start_soon(node.state.snapshot, BOX)
            await reached.wait()
            group.cancel_scope.cancel()
        await settle()
        assert await node.state.list_snapshots() == []
        assert await node.state.list_checkpoints(BOX) == []
        await check_no_leak(host, node)


async def test_a_sandbox_that_ends_meanwhile_is_saved_as_it_was() -> None:
    host, store = host_over_faults()
    async with host.node() as node:
        await begin(node)
        reached = anyio.Event()

        def notice(action: str, key: str) -> bool:
            if action == "put" and key.startswith("chunks/packs/"):
                reached.set()
            return False

        store.faults.fails = notice
        infos: list[SnapshotInfo] = []

        async def save() -> None:
            infos.append(await node.state.snapshot(BOX))

        async with anyio.create_task_group() as group:
            group.start_soon(save)
            await reached.wait()
            await node.remove(BOX)
        assert await restored(node, infos[0]) == b"before"
        await check_no_leak(host, node)


async def test_a_sandbox_that_ends_before_it_is_frozen_is_not_saved() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await begin(node)
        await node.stop(BOX)
        with pytest.raises((SandboxExitedError, DsecError)):
            await node.state.snapshot(BOX)
        assert await node.state.list_snapshots() == []


async def test_a_failure_at_any_step_leaves_no_checkpoint_of_its_own() -> None:
    step = 0
    while True:
        step += 1
        host, faults = MemoryHost(), Faults(fail_at=step)
        faults.armed = False
        async with Node.open(faults.parts(host)) as node:
            await begin(node)
            faults.armed = True
            saved = False
            try:
                await node.state.snapshot(BOX)
                saved = True
            except DsecError:
                pass
            faults.armed = False
            assert len(await node.state.list_checkpoints(BOX)) <= 1
            assert len(await node.state.list_snapshots()) >= saved
            await node.write_file(BOX, "/tmp/y", b"after")
            assert await restored(node, await node.state.snapshot(BOX), "/tmp/y") == b"after"
        if not faults.struck:
            break
    assert step > 2


async def test_a_kill_at_any_step_leaves_a_whole_snapshot_or_none() -> None:
    step, outcomes = 0, set()
    while True:
        step += 1
        host = MemoryHost()
        async with host.node() as node:
            await begin(node)
            await node.state.snapshot(BOX)
            await node.write_file(BOX, "/tmp/y", b"after")

        async def act(node: Node) -> None:
            await node.state.snapshot(BOX)

        was_killed = await killed(host, Faults(kill_at=step), act)
        async with host.node() as node:
            infos = await node.state.list_snapshots()
            outcomes.add(len(infos))
            assert [await restored(node, info) for info in infos] == [b"before"] * len(infos)
            newer = [info for info in infos if info.parent is not None]
            assert [await restored(node, info, "/tmp/y") for info in newer] == [b"after"] * len(newer)
            next_one = await node.state.snapshot(BOX)
            assert next_one.parent is not None
            assert await restored(node, next_one, "/tmp/y") == b"after"
            assert len(await node.state.list_checkpoints(BOX)) == 1, "a checkpoint that came to nothing has to go"
            await check_no_leak(host, node)
        if not was_killed:
            break
    assert outcomes == {1, 2}
    assert step > 8


async def test_snapshots_side_by_side_are_all_whole() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await begin(node)
        infos: list[SnapshotInfo] = []

        async def save() -> None:
            infos.append(await node.state.snapshot(BOX))

        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(save)
        assert len({info.snapshot_id for info in infos}) == 8
        assert [await restored(node, info) for info in infos] == [b"before"] * 8
        assert len(await node.state.list_checkpoints(BOX)) <= 8
        await node.state.snapshot(BOX)
        assert len(await node.state.list_checkpoints(BOX)) == 1
        await check_no_leak(host, node)


async def test_a_base_that_is_dropped_while_a_snapshot_waits_its_turn_is_not_missed() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await begin(node)
        await node.state.snapshot(BOX)
        infos: list[SnapshotInfo] = []

        async def save(number: int) -> None:
            await node.write_file(BOX, f"/tmp/{number}", b"more")
            infos.append(await node.state.snapshot(BOX))
            for point in await node.state.list_checkpoints(BOX):
                await node.state.remove_checkpoint(BOX, point.checkpoint_id)

        async with anyio.create_task_group() as group:
            for number in range(12):
                group.start_soon(save, number)
        assert len(infos) == 12
        assert [await restored(node, info) for info in infos] == [b"before"] * 12
        await check_no_leak(host, node)


async def test_equal_contents_of_many_sandboxes_are_stored_once() -> None:
    async with MemoryHost().node() as node:
        infos = []
        for number in range(5):
            box = (await node.create(SandboxSpec())).sandbox_id
            await node.write_file(box, PATH, bytes(range(256)) * 400 + b"%d" % number)
            await node.write_file(box, "/tmp/same", bytes(reversed(range(256))) * 4000)
            infos.append(await node.state.snapshot(box))
        assert all(info.stored_bytes < info.content_bytes / 5 for info in infos[1:])
        assert (await node.state.restore(infos[-1].snapshot_id, RestoreRequest())).state is SandboxState.READY
