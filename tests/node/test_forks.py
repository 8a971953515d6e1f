"""A fork makes all of its children or none, each with an identity of its own."""

from __future__ import annotations

import hashlib

import anyio
import pytest

from dsec.base.errors import (
    AlreadyExistsError,
    DsecError,
    InvalidRequestError,
    LimitExceededError,
    NodeUnavailableError,
    SnapshotNotFoundError,
)
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxSpec, SandboxState
from dsec.model.state import CheckpointRequest, ForkRequest
from dsec.node.node import Node
from dsec.node.settings import NodeSettings
from dsec.node.state.identity import derived_seed
from dsec.testing.faults import Faults, check_no_leak, killed
from dsec.testing.memory_node import MemoryHost

pytestmark = pytest.mark.anyio
BOX = "sbx-box"
IDS = ("sbx-k1", "sbx-k2", "sbx-k3")


async def content(node: Node, sandbox_id: str, path: str = "/tmp/x") -> bytes:
    return b"".join([chunk async for chunk in node.read_file(sandbox_id, path)])


async def begin(node: Node, spec: SandboxSpec = SandboxSpec()) -> None:
    await node.create(spec, sandbox_id=BOX)
    await node.write_file(BOX, "/tmp/x", b"before")


async def check_settled(host: MemoryHost, node: Node) -> None:
    await anyio.wait_all_tasks_blocked()
    await check_no_leak(host, node)


async def test_children_have_the_files_of_the_fork_point_and_go_their_own_ways() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await begin(node)
        children = await node.state.fork(BOX, ForkRequest(count=3))
        await node.write_file(BOX, "/tmp/x", b"parent")
        await node.write_file(children[0].sandbox_id, "/tmp/x", b"child")
        assert [await content(node, child.sandbox_id) for child in children] == [b"child", b"before", b"before"]
        await node.rollback(children[0].sandbox_id)
        assert await content(node, children[0].sandbox_id) == b"before"
        await check_settled(host, node)
        await node.stop(BOX)
        await node.rollback(children[0].sandbox_id)
        assert await content(node, children[0].sandbox_id) == b"before"
        for child in children:
            await node.remove(child.sandbox_id)
        await check_settled(host, node)
        assert host.layers.names() == frozenset()


async def test_a_child_has_an_identity_of_its_own() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await begin(node, SandboxSpec(seed=5, env={"A": "1", "B": "1"}, metadata={"job": "j"}, hostname="parent"))
        await node.write_file(BOX, "/etc/machine-id", b"0123\n", user="root")
        request = ForkRequest(count=2, env={"B": "2"}, metadata={"step": "7"})
        one, two = await node.state.fork(BOX, request)
        assert (one.parent, one.spec.metadata) == (BOX, {"job": "j", "step": "7"})
        assert one.spec.env == {"A": "1", "B": "2"}
        assert (one.spec.hostname, two.spec.hostname) == (one.sandbox_id, two.sandbox_id)
        assert (one.spec.seed, two.spec.seed) == (derived_seed(5, 1), derived_seed(5, 2))
        assert await content(node, one.sandbox_id, "/dev/dsec-seed") == f"{derived_seed(5, 1)}\n".encode()
        ids = {await content(node, name, "/etc/machine-id") for name in (BOX, one.sandbox_id, two.sandbox_id)}
        assert len(ids) == 3
        (seeded,) = await node.state.fork(BOX, ForkRequest(seeds=(9,)))
        assert seeded.spec.seed == 9


def test_a_seed_is_derived_as_documented() -> None:
    digest = hashlib.sha256(b"dsec fork 7 3").digest()
    assert derived_seed(7, 3) == int.from_bytes(digest[:8], "big") % (1 << 63)
    assert len({derived_seed(7, number) for number in range(1, 101)}) == 100


async def test_children_of_a_checkpoint_outlive_it() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await begin(node)
        point = await node.state.checkpoint(BOX, CheckpointRequest(name="a"))
        await node.write_file(BOX, "/tmp/x", b"after")
        (child,) = await node.state.fork(BOX, ForkRequest(checkpoint="a", sandbox_ids=IDS[:1]))
        assert (await node.state.list_checkpoints(BOX))[0].branches == (child.sandbox_id,)
        await node.state.remove_checkpoint(BOX, point.checkpoint_id)
    async with host.node() as node:
        await check_settled(host, node)
        await node.rollback(IDS[0])
        assert await content(node, IDS[0]) == b"before"
        await check_settled(host, node)


async def test_the_ids_of_the_children_are_idempotency_keys() -> None:
    async with MemoryHost().node() as node:
        await begin(node)
        request = ForkRequest(count=3, sandbox_ids=IDS)
        results: list[list[str]] = []

        async def ask() -> None:
            results.append([child.sandbox_id for child in await node.state.fork(BOX, request)])

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(ask)
        assert results == [list(IDS)] * 3
        with pytest.raises(AlreadyExistsError):
            await node.state.fork(BOX, ForkRequest(count=3, sandbox_ids=IDS, env={"A": "1"}))
        with pytest.raises(AlreadyExistsError):
            await node.state.fork(BOX, ForkRequest(count=2, sandbox_ids=(IDS[0], "sbx-new")))


async def test_impossible_forks_are_refused_and_leave_nothing() -> None:
    host = MemoryHost(settings=NodeSettings(runtime="memory", maximum_fork=5, maximum_sandboxes=4))
    async with host.node() as node:
        await begin(node)
        for request, error in (
            (ForkRequest(count=0), InvalidRequestError),
            (ForkRequest(count=6), LimitExceededError),
            (ForkRequest(count=2, sandbox_ids=IDS), InvalidRequestError),
            (ForkRequest(count=2, seeds=(1,)), InvalidRequestError),
            (ForkRequest(count=2, seeds=(1, 1 << 64)), InvalidRequestError),
            (ForkRequest(count=2, sandbox_ids=("sbx-a", "sbx-a")), InvalidRequestError),
            (ForkRequest(checkpoint="none"), SnapshotNotFoundError),
            (ForkRequest(count=4), NodeUnavailableError),
        ):
            with pytest.raises(error):
                await node.state.fork(BOX, request)
        await node.state.fork(BOX, ForkRequest(count=3))
        await check_settled(host, node)


async def test_a_failure_at_any_step_undoes_every_child() -> None:
    step = 0
    while True:
        step += 1
        host, faults = MemoryHost(), Faults(fail_at=step)
        faults.armed = False
        async with Node.open(faults.parts(host)) as node:
            await begin(node)
            faults.armed = True
            try:
                await node.state.fork(BOX, ForkRequest(count=3, sandbox_ids=IDS))
            except DsecError:
                pass
            faults.armed = False
            present = [name for name in IDS if node._core.registry.get(name) is not None]
            for name in present:
                if (await node.inspect(name)).state is SandboxState.FAILED:
                    await node.remove(name)
            present = [name for name in IDS if node._core.registry.get(name) is not None]
            assert present in ([], list(IDS))
            assert (await node.run(BOX, CommandRequest(argv=("true",)))).status.exit_code == 0
        if not faults.struck:
            break
    assert step > 8


async def test_a_kill_at_any_step_leaves_every_child_or_none() -> None:
    step = 0
    while True:
        step += 1
        host = MemoryHost()
        async with host.node() as node:
            await begin(node)

        async def act(node: Node) -> None:
            await node.state.fork(BOX, ForkRequest(count=3, sandbox_ids=IDS))

        was_killed = await killed(host, Faults(kill_at=step), act)
        async with host.node() as node:
            present = [name for name in IDS if node._core.registry.get(name) is not None]
            assert present in ([], list(IDS))
            assert (await node.run(BOX, CommandRequest(argv=("true",)))).status.exit_code == 0
            for name in present:
                assert await content(node, name) == b"before"
            await check_settled(host, node)
        if not was_killed:
            break
    assert step > 12
