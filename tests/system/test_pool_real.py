"""Pools over the real container runtime: what a successor sees of its predecessor, and what a clean check catches."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from dsec.model.event import EventKind
from dsec.model.pool import PoolChange, PoolStatistics
from dsec.model.process import CommandRequest
from dsec.model.sandbox import QosClass, Resources, SandboxFilter, SandboxSpec, SandboxState
from dsec.node.builder import open_node
from dsec.node.node import Node
from dsec.node.pools import live
from dsec.node.rollback import rollback
from dsec.node.settings import NodeSettings
from dsec.runtimes.port import SpawnRequest
from dsec.testing.leaks import Leaks

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.anyio]

SPEC = SandboxSpec(image="guest", resources=Resources(memory_bytes=128 << 20, disk_bytes=64 << 20, pids=64))
ONE = PoolChange(floor=1, maximum=1, spreads=0.0, concurrency_share=0.0)
PATIENCE_S = 60.0
LEAVE_ALL_BEHIND = """
echo x > /tmp/left; echo x > /left; mkdir -p /var/left; echo x > /dev/shm/left; echo x > /dev/left 2>/dev/null
mkfifo /tmp/fifo; (sleep 31536000 &) ; (sleep 31536001 < /tmp/fifo &); export SECRET=s3
exit 0
"""
# The shell counts processes itself: of a pipe nobody knows which of its programs have begun.
LOOK = "hostname; ls -A /tmp /dev/shm; ls -d /left /var/left /dev/left 2>/dev/null; set -- /proc/[0-9]*; echo $#; env"


@pytest.fixture
async def node(state_dir: Path) -> AsyncIterator[Node]:
    async with open_node(NodeSettings(state_dir=str(state_dir))) as opened:
        yield opened
        for info in await opened.pools.list_pools():
            await opened.pools.remove_pool(info.pool_id)
        for sandbox in await opened.list(SandboxFilter(states=tuple(SandboxState))):
            await opened.remove(sandbox.sandbox_id)
        await nothing_left(state_dir)


async def nothing_left(state_dir: Path) -> None:
    ends_at = anyio.current_time() + PATIENCE_S
    while left := Leaks.read(state_dir).described(swap=False):
        assert anyio.current_time() < ends_at, left
        await anyio.sleep(0.02)


async def reading(node: Node, *, ready: int = 1) -> PoolStatistics:
    """Wait until nothing is in flight and so many stand ready."""
    ends_at = anyio.current_time() + PATIENCE_S
    while True:
        (info,) = await node.pools.list_pools()
        now = info.statistics
        if now.ready >= ready and not (now.creating or now.recycling or now.recycle_queue or now.leaving):
            return now
        if anyio.current_time() > ends_at:
            raise AssertionError(f"{now}; {[event for event in await node.pools.events() if not event.reading]}")
        await anyio.sleep(0.01)


async def shell(node: Node, sandbox_id: str, script: str) -> str:
    result = await node.run(sandbox_id, CommandRequest(argv=("sh", "-c", script), timeout_s=PATIENCE_S))
    assert result.status.exit_code == 0, result
    return result.stdout.decode()


async def test_a_successor_on_the_same_berth_sees_a_fresh_sandbox(node: Node) -> None:
    await node.pools.set_pool(SPEC, ONE)
    await reading(node)
    first = SandboxSpec(image="guest", resources=SPEC.resources, env={"SECRET": "s3"}, seed=4, metadata={"task": "a"})
    await node.create(first, sandbox_id="sbx-first")
    carrier = node._core.registry.find("sbx-first").record.carrier
    assert (await shell(node, "sbx-first", "hostname")).strip() == "sbx-first"
    await shell(node, "sbx-first", LEAVE_ALL_BEHIND)
    await node.start_process("sbx-first", CommandRequest(argv=("sleep", "31536002"), timeout_s=None))
    await node.remove("sbx-first")
    assert (await reading(node)).recycles == 1
    await node.create(SPEC, sandbox_id="sbx-second")
    assert node._core.registry.find("sbx-second").record.carrier == carrier
    pooled = await shell(node, "sbx-second", LOOK)
    # A limit that no pool serves makes a fresh one to compare with.
    other = SandboxSpec(
        image="guest", resources=Resources(memory_bytes=128 << 20, disk_bytes=64 << 20, open_files=16_000)
    )
    await node.create(other, sandbox_id="sbx-freshie")
    fresh = await shell(node, "sbx-freshie", LOOK)
    assert pooled.replace("sbx-second", "NAME") == fresh.replace("sbx-freshie", "NAME")
    assert (await node.inspect("sbx-second")).generation == 0


async def test_a_hand_out_keeps_its_host_name_over_a_rollback_and_its_limits_hold(node: Node) -> None:
    await node.pools.set_pool(SPEC, ONE)
    await reading(node)
    await node.create(SPEC, sandbox_id="sbx-a")
    await node.rollback("sbx-a")
    assert (await shell(node, "sbx-a", "hostname")).strip() == "sbx-a"
    usage = await node.statistics("sbx-a")
    assert usage.writable is not None
    assert usage.writable.quota_bytes == 64 << 20


async def test_limits_of_a_tenant_hold_whether_above_or_below_those_of_its_pool(node: Node) -> None:
    await node.pools.set_pool(SPEC, ONE)
    for number, (memory_bytes, pids) in enumerate(((32 << 20, 9), (512 << 20, 200))):
        await reading(node)
        limits = Resources(memory_bytes=memory_bytes, disk_bytes=64 << 20, pids=pids, cpu_millis=300)
        name = f"sbx-limits{number}"
        await node.create(SandboxSpec(image="guest", resources=limits), sandbox_id=name)
        assert node._core.registry.find(name).record.pool
        instance = node._core.registry.find(name).running().instance
        groups = [
            path
            for path in Path("/sys/fs/cgroup").glob(f"*/dsec/{node.node_id}/{instance.instance_id}")
            if path.is_dir()
        ]
        found = {
            file: int((group / file).read_text())
            for group in groups
            for file in ("memory.limit_in_bytes", "memory.max", "pids.max", "cpu.cfs_quota_us")
            if (group / file).exists()
        }
        assert memory_bytes in (found.get("memory.limit_in_bytes"), found.get("memory.max"))
        assert found["pids.max"] == pids
        assert found.get("cpu.cfs_quota_us", 30_000) == 30_000
        await node.remove(name)


@pytest.mark.parametrize("what", ["file", "process"])
async def test_what_is_left_after_a_rollback_is_found_and_never_given(
    node: Node, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """A rollback that undoes too little: something is put into the new generation before it is looked at."""

    async def leaky(core, sandbox, snapshot):  # type: ignore[no-untyped-def]
        info = await rollback(core, sandbox, snapshot)
        if what == "file":
            layer = core.parts.layers.get(sandbox.record.layer)
            (layer.upper / "left").write_text("x")
        else:
            instance = sandbox.running().instance
            process = await instance.spawn(SpawnRequest(process_id="left", argv=("sleep", "31536003"), durable=True))
            await process.close()
        return info

    monkeypatch.setattr(live, "rollback", leaky)
    await node.pools.set_pool(SPEC, ONE)
    await reading(node)
    await node.create(SPEC, sandbox_id="sbx-a")
    carrier = node._core.registry.find("sbx-a").record.carrier
    await node.remove("sbx-a")
    now = await reading(node)
    assert (now.failed_checks, now.recycles, now.creations) == (1, 0, 2)
    assert carrier not in node._core.vacant
    (told,) = [event.text for event in await node.pools.events() if event.kind is EventKind.NOT_CLEAN]
    assert ("left" in told) if what == "file" else ("groups of commands that a fresh one has not: left" in told)


async def test_best_effort_and_latency_sensitive_sandboxes_have_pools_of_their_own(node: Node) -> None:
    idle = SandboxSpec(image="guest", resources=SPEC.resources, qos=QosClass.BEST_EFFORT)
    await node.pools.set_pool(SPEC, ONE)
    await node.pools.set_pool(idle, ONE)
    with anyio.fail_after(PATIENCE_S):
        while sum(info.statistics.ready for info in await node.pools.list_pools()) < 2:  # noqa: ASYNC110
            await anyio.sleep(0.01)
    for name, spec, expected in (("sbx-idle", idle, "1"), ("sbx-prompt", SPEC, "0")):
        await node.create(spec, sandbox_id=name)
        instance = node._core.registry.find(name).running().instance
        found = [
            path.read_text().strip()
            for path in Path("/sys/fs/cgroup").glob(f"*/dsec/{node.node_id}/{instance.instance_id}/cpu.idle")
        ]
        assert found[0] == expected, name
        await shell(node, name, "true")


async def test_a_node_that_comes_back_serves_what_it_left_ready(state_dir: Path) -> None:
    settings = NodeSettings(state_dir=str(state_dir))
    async with open_node(settings) as node:
        await node.pools.set_pool(SPEC, PoolChange(floor=2, maximum=2, spreads=0.0, concurrency_share=0.0))
        await reading(node, ready=2)
        await node.create(SPEC, sandbox_id="sbx-a")
        left = frozenset(node._core.vacant)
    async with open_node(settings) as node:
        assert frozenset(node._core.vacant) == left
        await node.create(SPEC, sandbox_id="sbx-b")
        assert node._core.registry.find("sbx-b").record.carrier in left
        assert (await shell(node, "sbx-b", "hostname")).strip() == "sbx-b"
        for info in await node.pools.list_pools():
            await node.pools.remove_pool(info.pool_id)
        await node.remove("sbx-a")
        await node.remove("sbx-b")
        await nothing_left(state_dir)
