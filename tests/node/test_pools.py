"""Pools over the in-memory fakes: who is given what, what comes back clean, and what a death or a failure leaves."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import anyio
import msgspec
import pytest

from dsec.base.errors import (
    DeadlineExceededError,
    DsecError,
    HostOutOfMemoryError,
    InvalidRequestError,
    NodeUnavailableError,
    NotFoundError,
    RuntimeFailedError,
)
from dsec.model.event import EventKind
from dsec.model.pool import PoolChange, PoolStatistics
from dsec.model.process import CommandRequest
from dsec.model.sandbox import Lifetime, QosClass, Resources, SandboxSpec, SandboxState
from dsec.model.state import PackRequest
from dsec.node.node import Node
from dsec.node.settings import NodeSettings
from dsec.runtimes.memory import MemoryInstance
from dsec.stores.port import Tenancy
from dsec.testing.faults import Faults, check_no_leak, killed
from dsec.testing.memory_node import MemoryHost

pytestmark = pytest.mark.anyio

SPEC = SandboxSpec()
SMALL = PoolChange(floor=3, maximum=10, creations_at_once=2, recycles_at_once=2, spreads=0.0)


@pytest.fixture
def host() -> MemoryHost:
    return MemoryHost()


@pytest.fixture
async def node(host: MemoryHost) -> AsyncIterator[Node]:
    async with host.node() as opened:
        yield opened
        await quiet(opened)
        await check_no_leak(host, opened)


async def statistics(node: Node) -> PoolStatistics:
    (pool,) = await node.pools.list_pools()
    return pool.statistics


async def quiet(node: Node) -> None:
    """Wait until nothing is in flight, and nothing was for a while."""
    calm = 0
    for _ in range(2000):
        await anyio.lowlevel.checkpoint()
        infos = await node.pools.list_pools()
        now = [info.statistics for info in infos]
        busy = sum(each.creating + each.recycle_queue + each.recycling + each.leaving for each in now)
        strays = len(node._core.vacant) - sum(each.ready for each in now)
        calm = 0 if busy or strays else calm + 1
        if calm > 30:
            return
    raise AssertionError(f"never quiet: {infos}")


async def filled(node: Node, change: PoolChange = SMALL, spec: SandboxSpec = SPEC) -> str:
    pool = await node.pools.set_pool(spec, change)
    await quiet(node)
    return pool.pool_id


def instance_of(host: MemoryHost, node: Node, sandbox_id: str) -> MemoryInstance:
    instance = node._core.registry.find(sandbox_id).running().instance
    return host.runtime.instance(instance.instance_id)


async def ready_ids(node: Node) -> frozenset[str]:
    return frozenset(node._core.vacant)


# -- handing out ----------------------------------------------------------------------------------------------------


async def test_a_pool_fills_to_its_floor_and_a_creation_takes_from_it(host: MemoryHost, node: Node) -> None:
    await filled(node)
    assert (await statistics(node)).ready == 3
    before = await ready_ids(node)
    info = await node.create(SPEC, sandbox_id="sbx-mine")
    assert info.state is SandboxState.READY
    assert info.sandbox_id == "sbx-mine"
    assert info.generation == 0
    taken = node._core.registry.find("sbx-mine").record.carrier
    assert taken in before
    await quiet(node)
    assert (await statistics(node)).ready == 3
    assert (await statistics(node)).in_use == 1


async def test_ready_sandboxes_are_nobodys_and_not_listed(node: Node) -> None:
    await filled(node)
    assert await node.list() == []
    for carrier in await ready_ids(node):
        with pytest.raises(DsecError):
            await node.inspect(carrier)


async def test_a_tenant_brings_its_own_id_name_environment_and_labels(host: MemoryHost, node: Node) -> None:
    await filled(node)
    spec = SandboxSpec(
        env={"WHO": "me"}, metadata={"task": "x"}, seed=7, lifetime=Lifetime(maximum_s=60.0), workdir="/tmp"
    )
    info = await node.create(spec, sandbox_id="sbx-mine")
    assert node._core.registry.find("sbx-mine").record.pool
    assert info.spec.metadata == {"task": "x"}
    assert info.expires_in_s == pytest.approx(60.0)
    assert instance_of(host, node, "sbx-mine").host_name == "sbx-mine"
    shown = await node.run("sbx-mine", CommandRequest(argv=("sh", "-c", "echo $WHO $DSEC_SEED; pwd")))
    assert shown.stdout == b"me 7\n/tmp\n"


async def test_a_successor_sees_nothing_of_its_predecessor(host: MemoryHost, node: Node) -> None:
    await filled(node, PoolChange(floor=1, maximum=1))
    first = SandboxSpec(env={"SECRET": "s3"}, metadata={"task": "first"}, seed=1, hostname="predecessor")
    await node.create(first, sandbox_id="sbx-first")
    carrier = node._core.registry.find("sbx-first").record.carrier
    await node.run("sbx-first", CommandRequest(argv=("sh", "-c", "echo x > /left")))
    await node.start_process("sbx-first", CommandRequest(argv=("sleep", "600"), timeout_s=None))
    await node.remove("sbx-first")
    await quiet(node)
    info = await node.create(SPEC, sandbox_id="sbx-second")
    record = node._core.registry.find("sbx-second").record
    assert record.carrier == carrier
    assert record.generation == 1
    assert info.generation == 0
    assert info.spec.metadata == {}
    assert instance_of(host, node, "sbx-second").host_name == "sbx-second"
    assert await node.list_processes("sbx-second") == []
    shown = await node.run("sbx-second", CommandRequest(argv=("sh", "-c", "echo [$SECRET][$DSEC_SEED]; cat /left")))
    assert (shown.stdout, shown.status.exit_code) == (b"[][]\n", 1)
    assert "predecessor" not in repr(record)


async def test_what_does_not_match_is_created_as_ever(node: Node) -> None:
    await filled(node)
    for spec in (SandboxSpec(resources=Resources(open_files=99)), SandboxSpec(qos=QosClass.BEST_EFFORT)):
        info = await node.create(spec)
        assert node._core.registry.find(info.sandbox_id).record.pool == ""
    assert (await statistics(node)).hand_outs == 0


async def test_limits_that_can_be_set_are_the_tenants_own_and_go_with_it(host: MemoryHost, node: Node) -> None:
    await filled(node, PoolChange(floor=1, maximum=1, spreads=0.0))
    tight = SandboxSpec(resources=Resources(pids=5, memory_bytes=64 << 20, cpu_millis=100))
    info = await node.create(tight, sandbox_id="sbx-tight")
    assert info.spec.resources.pids == 5
    limits = instance_of(host, node, "sbx-tight").request.resources
    assert (limits.pids, limits.memory_bytes, limits.cpu_millis) == (5, 64 << 20, 100)
    await node.rollback("sbx-tight")
    assert instance_of(host, node, "sbx-tight").request.resources.pids == 5
    await node.remove("sbx-tight")
    await quiet(node)
    await node.create(SPEC, sandbox_id="sbx-plain")
    assert instance_of(host, node, "sbx-plain").request.resources.pids == 512
    assert (await statistics(node)).creations == 1


async def test_the_same_id_asked_twice_gets_one_sandbox(node: Node) -> None:
    await filled(node)
    infos = []

    async def ask() -> None:
        infos.append(await node.create(SPEC, sandbox_id="sbx-one"))

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(ask)
    assert {info.sandbox_id for info in infos} == {"sbx-one"}
    await quiet(node)
    assert (await statistics(node)).in_use == 1


async def test_no_berth_is_given_to_two(node: Node) -> None:
    await filled(node, PoolChange(floor=3, maximum=40, creations_at_once=4))
    async with anyio.create_task_group() as group:
        for number in range(40):
            group.start_soon(lambda number=number: node.create(SPEC, sandbox_id=f"sbx-{number}"))
    carriers = [sandbox.record.carrier for sandbox in node._core.registry]
    assert len(carriers) == len(set(carriers)) == 40
    async with anyio.create_task_group() as group:
        for number in range(40):
            group.start_soon(node.remove, f"sbx-{number}")


async def test_the_cap_holds_and_who_waits_is_served_when_one_comes_back(node: Node) -> None:
    await filled(node, PoolChange(floor=2, maximum=2))
    await node.create(SPEC, sandbox_id="sbx-a")
    await node.create(SPEC, sandbox_id="sbx-b")
    done = anyio.Event()

    async def third() -> None:
        await node.create(SPEC, sandbox_id="sbx-c")
        done.set()

    async with anyio.create_task_group() as group:
        group.start_soon(third)
        await quiet(node)
        assert not done.is_set()
        assert (await statistics(node)).waiting == 1
        assert (await statistics(node)).total == 2
        await node.stop("sbx-a")
    assert (await node.inspect("sbx-c")).state is SandboxState.READY
    assert (await node.inspect("sbx-a")).state is SandboxState.STOPPED


async def test_who_waits_too_long_or_is_stopped_leaves_the_queue(node: Node) -> None:
    await filled(node, PoolChange(floor=1, maximum=1))
    await node.create(SPEC, sandbox_id="sbx-a")
    with pytest.raises(DeadlineExceededError):
        await node.create(SPEC, sandbox_id="sbx-late", timeout_s=0.02)

    async def ask() -> None:
        with pytest.raises(DsecError, match="stopped while it was created"):
            await node.create(SPEC, sandbox_id="sbx-stopped")

    async with anyio.create_task_group() as group:
        group.start_soon(ask)
        await anyio.lowlevel.checkpoint()
        await quiet(node)
        await node.stop("sbx-stopped")
    assert (await statistics(node)).waiting == 0


async def test_too_many_that_wait_are_refused_with_when_to_ask_again(node: Node) -> None:
    await filled(node, PoolChange(floor=0, maximum=1, maximum_waiting=1))
    await node.create(SPEC, sandbox_id="sbx-a")
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: node.create(SPEC, sandbox_id="sbx-b"))
        await quiet(node)
        with pytest.raises(NodeUnavailableError, match=r"as many as may \(1\)") as refused:
            await node.create(SPEC, sandbox_id="sbx-c")
        assert "ask again in" in refused.value.resolution
        await node.remove("sbx-a")


async def test_a_tenant_rolls_back_and_its_generations_count_from_its_own_beginning(node: Node) -> None:
    await filled(node, PoolChange(floor=1, maximum=1))
    for name in ("sbx-a", "sbx-b"):
        await node.create(SPEC, sandbox_id=name)
        assert (await node.rollback(name)).generation == 1
        await node.run(name, CommandRequest(argv=("true",)))
        await node.remove(name)
        await quiet(node)


def move_image(host: MemoryHost) -> None:
    """Let the image's name mean another image."""
    config = msgspec.structs.replace(host.images.get("python").config, env={"NEW": "yes"})
    digest = host.images.add_layer(Path("/nonexistent"))
    host.images.add_image("python", [digest], config, source="test")


async def test_an_image_whose_name_moved_is_served_from_no_old_berth(host: MemoryHost, node: Node) -> None:
    await filled(node)
    await node.create(SPEC, sandbox_id="sbx-old")
    await quiet(node)
    old = {*await ready_ids(node), node._core.registry.find("sbx-old").record.carrier}
    move_image(host)
    await node.create(SPEC, sandbox_id="sbx-new")
    assert node._core.registry.find("sbx-new").record.carrier not in old
    assert (await node.run("sbx-new", CommandRequest(argv=("sh", "-c", "echo $NEW")))).stdout == b"yes\n"
    await node.remove("sbx-old")
    await quiet(node)
    assert not old & await ready_ids(node)
    now = await statistics(node)
    assert (now.failed_checks, now.recycles_now) == (0, True)


async def test_an_image_that_moved_while_no_node_ran_is_served_from_no_old_berth(host: MemoryHost) -> None:
    async with host.node() as node:
        await filled(node)
        old = await ready_ids(node)
    move_image(host)
    async with host.node() as node:
        assert await ready_ids(node) == old
        await node.create(SPEC, sandbox_id="sbx-new")
        assert node._core.registry.find("sbx-new").record.carrier not in old
        await quiet(node)
        assert not old & await ready_ids(node)
        await check_no_leak(host, node)


async def test_a_tenant_of_an_earlier_node_comes_back_and_is_recycled(host: MemoryHost) -> None:
    async with host.node() as node:
        await filled(node, PoolChange(floor=2, maximum=2, spreads=0.0))
        await node.create(SPEC, sandbox_id="sbx-a")
        await quiet(node)
    async with host.node() as node:
        await node.remove("sbx-a")
        await quiet(node)
        now = await statistics(node)
        assert (now.recycles, now.failed_checks, now.creations, now.ready) == (1, 0, 0, 2)
        await check_no_leak(host, node)


# -- coming back ----------------------------------------------------------------------------------------------------


async def test_a_paused_sandbox_and_an_expired_one_come_back_too(host: MemoryHost, node: Node) -> None:
    await filled(node, PoolChange(floor=2, maximum=2))
    await node.create(SPEC, sandbox_id="sbx-a")
    await node.create(SandboxSpec(lifetime=Lifetime(maximum_s=5.0)), sandbox_id="sbx-b")
    await node.pause("sbx-a")
    await node.remove("sbx-a")
    host.clock.advance(6.0)
    await node.expire_due()
    await quiet(node)
    assert (await node.inspect("sbx-b")).cause == "its maximum of 5 s passed"
    assert (await statistics(node)).recycles == 2
    assert (await statistics(node)).ready == 2


async def test_how_long_a_tenant_was_paused_is_nothing_that_the_next_one_sees(host: MemoryHost, node: Node) -> None:
    await filled(node, PoolChange(floor=1, maximum=1, spreads=0.0))
    await node.create(SPEC, sandbox_id="sbx-a")
    await node.pause("sbx-a", keep_memory=True)
    host.clock.advance(5.0)
    await node.resume("sbx-a")
    await node.pause("sbx-a", keep_memory=True)
    await node.remove("sbx-a")
    await quiet(node)
    await node.create(SPEC, sandbox_id="sbx-b")
    record = node._core.registry.find("sbx-b").record
    assert (record.paused_s, record.paused_boot_s, record.keeps_memory) == (0.0, None, False)


async def test_one_that_dies_is_lost_to_the_pool_and_replaced(host: MemoryHost, node: Node) -> None:
    await filled(node)
    await node.create(SPEC, sandbox_id="sbx-a")
    await quiet(node)
    await instance_of(host, node, "sbx-a").end_init("test")
    carrier = next(iter(await ready_ids(node)))
    await host.runtime.instance(f"{carrier}-g0").end_init("test")
    await quiet(node)
    assert (await node.inspect("sbx-a")).state is SandboxState.FAILED
    assert carrier not in await ready_ids(node)
    assert (await statistics(node)).ready == 3
    assert (await statistics(node)).in_use == 0
    await node.remove("sbx-a")


async def test_one_that_dies_while_it_is_given_leaves_nothing_behind(host: MemoryHost, node: Node) -> None:
    name = await filled(node)
    pool = node.pools._pools[name]
    berth = await pool.obtain("sbx-a", "")
    assert berth is not None
    await host.runtime.instance(f"{berth.sandbox_id}-g0").end_init("test")
    await quiet_but_given(node)
    assert berth.generation is None
    pool.lose(berth)
    await quiet(node)
    assert berth.sandbox_id not in await ready_ids(node)
    assert (await statistics(node)).ready == 3


async def test_one_that_nobody_took_before_its_pool_was_removed_is_destroyed(host: MemoryHost, node: Node) -> None:
    name = await filled(node)
    pool = node.pools._pools[name]
    berth = await pool.obtain("sbx-a", "")
    assert berth is not None
    await node.pools.remove_pool(name)
    pool.lose(berth)
    await quiet(node)
    assert await host.runtime.instances() == frozenset()


async def quiet_but_given(node: Node) -> None:
    """Let what has happened take its course; a berth that was given out is nobody's to count."""
    for _ in range(200):
        await anyio.lowlevel.checkpoint()


def haunt(host: MemoryHost, *, after: int = 0, mount: str = "/mnt/left tmpfs rw") -> None:
    """Let every later generation have a mount that a fresh one has not."""
    launch = host.runtime.launch

    async def haunted(request):  # type: ignore[no-untyped-def]
        instance = await launch(request)
        if int(request.instance_id.rpartition("-g")[2]) > after:
            instance.mounts = (mount,)
        return instance

    host.runtime.launch = haunted  # type: ignore[method-assign]


async def test_what_fails_its_clean_check_is_destroyed_and_never_given(host: MemoryHost, node: Node) -> None:
    haunt(host)
    await filled(node, PoolChange(floor=1, maximum=1))
    await node.create(SPEC, sandbox_id="sbx-a")
    carrier = node._core.registry.find("sbx-a").record.carrier
    await node.remove("sbx-a")
    await quiet(node)
    assert (await statistics(node)).failed_checks == 1
    await node.create(SPEC, sandbox_id="sbx-b")
    assert node._core.registry.find("sbx-b").record.carrier != carrier
    told = [event.text for event in await node.pools.events() if event.kind is EventKind.NOT_CLEAN]
    assert told == ["mounts that a fresh one has not: /mnt/left tmpfs rw"]


async def test_what_is_left_under_a_name_that_is_no_utf8_is_destroyed_and_told(host: MemoryHost, node: Node) -> None:
    haunt(host, mount="/mnt/\udcff tmpfs rw")
    await filled(node, PoolChange(floor=1, maximum=1))
    await node.create(SPEC, sandbox_id="sbx-a")
    carrier = node._core.registry.find("sbx-a").record.carrier
    await node.remove("sbx-a")
    await quiet(node)
    assert carrier not in await ready_ids(node)
    assert (await statistics(node)).failed_checks == 1
    told = [event.text for event in await node.pools.events() if event.kind is EventKind.NOT_CLEAN]
    assert told == ["mounts that a fresh one has not: /mnt/\\xff tmpfs rw"]
    assert msgspec.json.encode(told)


async def test_a_pool_whose_every_check_fails_stops_recycling_says_so_and_tries_again_later(
    host: MemoryHost, node: Node
) -> None:
    haunt(host)
    await filled(node, PoolChange(floor=1, maximum=1, failed_checks_until_fresh=2, recycle_again_after_s=100.0))
    for number in range(4):
        await node.create(SPEC, sandbox_id=f"sbx-{number}")
        await node.remove(f"sbx-{number}")
        await quiet(node)
    now = await statistics(node)
    assert (now.failed_checks, now.recycles_now, now.creations) == (2, False, 5)
    assert "recycling has stopped" in now.warnings[0]
    assert "/mnt/left" in now.warnings[0]
    host.runtime.launch = type(host.runtime).launch.__get__(host.runtime)  # type: ignore[method-assign]
    host.clock.advance(101.0)
    await node.create(SPEC, sandbox_id="sbx-again")
    await node.remove("sbx-again")
    await quiet(node)
    assert (await statistics(node)).recycles_now
    assert (await statistics(node)).warnings == ()


# -- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (PoolChange(floor=-1), "floor is -1; it must be 0 to 1e\\+06 sandboxes"),
        (PoolChange(concurrency_share=float("nan")), "concurrency_share"),
        (PoolChange(maximum=0), "maximum"),
        (PoolChange(horizon_s=120.0), "horizon_s is 120"),
        (PoolChange(fixed_level=9, maximum=3), "fixed_level"),
        (PoolChange(recycles_at_once=0), "recycles_at_once"),
    ],
)
async def test_a_policy_that_makes_no_sense_is_refused_by_name(node: Node, change: PoolChange, what: str) -> None:
    with pytest.raises(InvalidRequestError, match=what):
        await node.pools.set_pool(SPEC, change)
    assert await node.pools.list_pools() == []


async def test_limits_that_are_set_anew_are_those_of_later_ones_and_the_others_stay(
    host: MemoryHost, node: Node
) -> None:
    await filled(node, SMALL, SandboxSpec(resources=Resources(pids=9)))
    info = await node.pools.set_pool(SandboxSpec(resources=Resources(memory_bytes=64 << 20)), PoolChange(floor=4))
    assert (info.spec.resources.memory_bytes, info.spec.resources.pids) == (64 << 20, 9)
    await quiet(node)
    launched = [host.runtime.instance(f"{carrier}-g0").request.resources for carrier in await ready_ids(node)]
    assert sorted(limits.memory_bytes == 64 << 20 for limits in launched) == [False, False, False, True]
    assert {limits.pids for limits in launched} == {9}
    (kept,) = host.journal.load().pools
    assert kept.spec == info.spec


async def test_a_pool_of_what_no_host_has_is_refused(node: Node) -> None:
    with pytest.raises(NotFoundError):
        await node.pools.set_pool(SandboxSpec(image="nowhere"))
    with pytest.raises(InvalidRequestError):
        await node.pools.set_pool(SandboxSpec(resources=Resources(pids=-1)))
    with pytest.raises(NotFoundError, match="no pool 'x'"):
        await node.pools.remove_pool("x")
    assert await node.pools.list_pools() == []


async def test_creations_that_fail_reach_the_task_and_end(host: MemoryHost, node: Node) -> None:
    await filled(node, PoolChange(floor=0, concurrency_share=0.0, spreads=0.0))

    async def failing(request):  # type: ignore[no-untyped-def]
        raise RuntimeFailedError("the runtime is broken")

    host.runtime.launch = failing  # type: ignore[method-assign]
    with pytest.raises(RuntimeFailedError, match="the runtime is broken"):
        await node.create(SPEC, sandbox_id="sbx-a")
    assert (await statistics(node)).creation_failures == 2
    assert await node.list() == []
    host.runtime.launch = type(host.runtime).launch.__get__(host.runtime)  # type: ignore[method-assign]


async def test_a_host_without_memory_makes_the_pool_give_up_what_stands_ready(host: MemoryHost, node: Node) -> None:
    await filled(node)
    host.host.memory_bytes = 1
    with pytest.raises(HostOutOfMemoryError, match="1 B of memory left") as refused:
        await node.create(SandboxSpec(resources=Resources(open_files=99)))
    assert "memory_available_bytes is 1, the threshold is 2.68435e+08" in refused.value.detail
    assert "ask again in 5 s" in refused.value.resolution
    await quiet(node)
    assert (await statistics(node)).ready == 1


async def test_a_pool_that_wants_more_than_the_node_may_hold_keeps_what_there_is_room_for() -> None:
    host = MemoryHost(settings=NodeSettings(runtime="memory", maximum_sandboxes=3))
    async with host.node() as node:
        await node.pools.set_pool(SPEC, PoolChange(floor=5, maximum=10, spreads=0.0))
        for _ in range(4):
            await quiet(node)
            assert (await statistics(node)).ready == 3
            host.clock.advance(30.0)
            await node.pools.set_pool(SPEC)
        assert any("creations failed" in text for text in (await statistics(node)).warnings)
        # A tenant takes one; somebody else's creation makes the pool give up some of the rest.
        await node.create(SPEC, sandbox_id="sbx-a")
        with pytest.raises(NodeUnavailableError, match="holds 3 sandboxes"):
            await node.create(SandboxSpec(resources=Resources(open_files=99)))
        await quiet(node)
        await node.create(SandboxSpec(resources=Resources(open_files=99)), sandbox_id="sbx-b")
        await check_no_leak(host, node)


async def test_a_host_under_pressure_refuses_with_measure_threshold_and_hysteresis(
    host: MemoryHost, node: Node
) -> None:
    other = SandboxSpec(resources=Resources(open_files=99))
    for share, admitted in ((0.29, True), (0.31, False), (0.29, False), (0.26, True)):
        host.host.shares = {"memory_full": share}
        host.clock.advance(1.0)
        if admitted:
            await node.create(other)
            continue
        with pytest.raises(HostOutOfMemoryError, match=f"waited for memory {100 * share:.1f}% of the last 10 s"):
            await node.create(other)
    for info in await node.list():
        await node.remove(info.sandbox_id)


async def test_a_refusal_that_comes_through_a_pool_says_as_much_as_one_that_does_not(
    host: MemoryHost, node: Node
) -> None:
    await filled(node, PoolChange(floor=0, spreads=0.0))
    host.host.shares = {"memory_full": 0.5}
    host.clock.advance(1.0)
    told = []
    for spec in (SandboxSpec(resources=Resources(open_files=99)), SPEC):
        with pytest.raises(HostOutOfMemoryError) as caught:
            await node.create(spec)
        told.append((caught.value.resolution, caught.value.retry_after_s))
        assert "the threshold is" in caught.value.detail
    assert told[0] == told[1]
    assert "ask again in 10 s" in told[1][0]


async def test_a_time_that_is_no_number_is_refused(node: Node) -> None:
    with pytest.raises(InvalidRequestError, match="since_s is nan"):
        await node.pools.events(since_s=float("nan"))


async def test_a_task_that_creates_and_drops_all_the_time_does_not_starve_another(node: Node) -> None:
    await filled(node, PoolChange(floor=1, maximum=1, spreads=0.0))
    order: list[str] = []

    async def churn(lane: int) -> None:
        for number in range(12):
            name = f"sbx-churn{lane}x{number}"
            await node.create(SandboxSpec(metadata={"task": "churner"}), sandbox_id=name)
            order.append("churner")
            await node.remove(name)

    async def calm() -> None:
        for number in range(6):
            name = f"sbx-calm{number}"
            await node.create(SandboxSpec(metadata={"task": "calm"}), sandbox_id=name)
            order.append("calm")
            await node.remove(name)

    async with anyio.create_task_group() as group:
        for lane in range(4):
            group.start_soon(churn, lane)
        group.start_soon(calm)
    calm_places = [place for place, who in enumerate(order) if who == "calm"]
    assert len(order) == 54
    # One group of others: at most two of theirs between two of ours (one is served while ours is given back).
    assert max(after - before for before, after in itertools.pairwise(calm_places)) <= 3


async def test_a_wall_clock_that_jumps_changes_nothing(host: MemoryHost, node: Node) -> None:
    await filled(node)
    await node.create(SPEC, sandbox_id="sbx-a")
    host.clock.wall += 3600.0
    host.clock.boot += 2.0
    await node.remove("sbx-a")
    await quiet(node)
    host.clock.wall -= 7200.0
    await node.create(SPEC, sandbox_id="sbx-b")
    now = await statistics(node)
    assert now.hold_time_s == 2.0
    (held,) = [event.duration_s for event in await node.pools.events() if event.kind is EventKind.RETURNED]
    assert held == 2.0


# -- taking away, and another node ----------------------------------------------------------------------------------


async def test_removing_a_pool_destroys_what_stands_ready_and_leaves_tenants_alone(
    host: MemoryHost, node: Node
) -> None:
    name = await filled(node)
    await node.create(SPEC, sandbox_id="sbx-a")
    await node.pools.remove_pool(name)
    await quiet(node)
    assert await ready_ids(node) == frozenset()
    await node.run("sbx-a", CommandRequest(argv=("true",)))
    await node.remove("sbx-a")
    assert await host.runtime.instances() == frozenset()


async def test_a_pool_that_is_made_again_knows_the_tenants_of_the_one_before(host: MemoryHost, node: Node) -> None:
    name = await filled(node, PoolChange(floor=0, maximum=2, spreads=0.0, concurrency_share=0.0))
    await node.create(SPEC, sandbox_id="sbx-a")
    await node.create(SPEC, sandbox_id="sbx-b")
    await node.pools.remove_pool(name)
    assert await filled(node, PoolChange(floor=1, maximum=2, spreads=0.0)) == name
    now = await statistics(node)
    assert (now.in_use, now.ready) == (2, 0)
    await node.remove("sbx-a")
    await node.stop("sbx-b")
    await quiet(node)
    now = await statistics(node)
    assert (now.in_use, now.ready) == (0, 2)  # What a clean one looks like is the shape's to know, not the pool's.
    await node.remove("sbx-b")


async def test_who_waits_for_a_pool_that_is_full_is_told_so(node: Node) -> None:
    await filled(node, PoolChange(floor=1, maximum=1, spreads=0.0))
    await node.create(SPEC, sandbox_id="sbx-a")
    with pytest.raises(DeadlineExceededError) as caught:
        await node.create(SPEC, timeout_s=0.01)
    assert "1 in use of at most 1, 0 ready" in caught.value.detail
    await node.remove("sbx-a")


async def test_who_waits_when_a_pool_is_removed_gets_a_fresh_one(node: Node) -> None:
    name = await filled(node, PoolChange(floor=1, maximum=1))
    await node.create(SPEC, sandbox_id="sbx-a")
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: node.create(SPEC, sandbox_id="sbx-b"))
        await quiet(node)
        await node.pools.remove_pool(name)
    assert node._core.registry.find("sbx-b").record.pool == ""


async def test_the_next_node_adopts_what_stands_ready_and_whom_it_serves(host: MemoryHost) -> None:
    async with host.node() as node:
        await filled(node)
        await node.create(SPEC, sandbox_id="sbx-a")
        await quiet(node)
        ready = await ready_ids(node)
    async with host.node() as node:
        assert await ready_ids(node) == ready
        now = await statistics(node)
        assert (now.ready, now.in_use, now.creations) == (3, 1, 0)
        await node.create(SPEC, sandbox_id="sbx-b")
        assert node._core.registry.find("sbx-b").record.carrier in ready
        await node.remove("sbx-a")
        await quiet(node)
        await check_no_leak(host, node)


async def test_the_next_node_gives_nobody_what_was_used(host: MemoryHost) -> None:
    async with host.node() as node:
        await filled(node, PoolChange(floor=1, maximum=1))
        await node.create(SPEC, sandbox_id="sbx-a")
        carrier = node._core.registry.find("sbx-a").record.carrier
        with anyio.CancelScope() as scope:
            scope.cancel()  # The recycle that follows is in the background, and the node ends before it.
            with anyio.CancelScope(shield=True):
                await node.remove("sbx-a")
        kept = {record.sandbox_id: record.tenancy for record in host.journal.load().sandboxes}
        assert kept[carrier] is Tenancy.USED
        node._core.closing = True
    async with host.node() as node:
        await quiet(node)
        assert carrier not in await ready_ids(node)
        await check_no_leak(host, node)


async def test_shutting_down_with_everything_destroys_what_stands_ready(host: MemoryHost) -> None:
    async with host.node() as node:
        await filled(node)
        await node.create(SPEC, sandbox_id="sbx-a")
        await node.shutdown(destroy=True)
    assert await host.runtime.instances() == frozenset()
    assert host.layers.names() == frozenset()


# -- every step fails, every step kills -----------------------------------------------------------------------------

Action = Callable[[Node], Awaitable[object]]
MOST_STEPS = 300


async def serve_and_take_back(node: Node) -> None:
    """Fill, hand out, use, take back, recycle, hand out again, roll back, and take away."""
    name = await filled(node, PoolChange(floor=1, maximum=2, spreads=0.0))
    await node.create(SandboxSpec(resources=Resources(pids=5)), sandbox_id="sbx-a")
    await node.run("sbx-a", CommandRequest(argv=("true",)))
    await node.remove("sbx-a")
    await quiet(node)
    await node.create(SPEC, sandbox_id="sbx-b")
    await node.rollback("sbx-b")
    await node.stop("sbx-b")
    await quiet(node)
    await node.pools.remove_pool(name)
    await quiet(node)


async def check_whole(host: MemoryHost) -> None:
    """The next node holds what it should, serves, and hands nothing out twice."""
    async with host.node() as node:
        await quiet(node)
        await check_no_leak(host, node)
        for sandbox in node._core.vacant.values():
            assert sandbox.record.tenancy is Tenancy.CLEAN
            instance = host.runtime.instance(sandbox.running().instance.instance_id)
            assert instance.request.resources.pids == 512
        await node.pools.set_pool(SPEC, PoolChange(floor=1, maximum=9))
        names = [(await node.create(SPEC)).sandbox_id for _ in range(3)]
        carriers = [node._core.registry.find(name).record.carrier for name in names]
        assert len(set(carriers)) == 3
        for sandbox in list(node._core.registry):
            await node.remove(sandbox.sandbox_id)
        await quiet(node)
        await check_no_leak(host, node)


async def test_a_node_killed_at_any_step_leaves_nothing_and_gives_nothing_twice() -> None:
    struck = set()
    for step in itertools.count(1):
        host, faults = MemoryHost(), Faults(kill_at=step)
        if not await killed(host, faults, serve_and_take_back):
            break
        struck.add(faults.struck)
        await check_whole(host)
    assert step > 40
    assert {"before exchange", "after exchange", "before set_host_name", "after limit", "before fingerprint"} <= struck


async def test_a_step_that_fails_leaves_nothing_and_the_pool_goes_on() -> None:
    struck = set()
    for step in range(1, MOST_STEPS):
        host, faults = MemoryHost(), Faults(fail_at=step)
        async with Node.open(faults.parts(host)) as node:
            try:
                await serve_and_take_back(node)
            except DsecError:
                pass
            if not faults.struck:
                break
            struck.add(faults.struck)
            faults.armed = False
            await quiet(node)
        await check_whole(host)
    assert {"exchange", "set_host_name", "launch", "fingerprint", "kill_processes", "terminate"} <= struck


async def test_what_came_from_a_pool_is_saved_restored_packed_and_given_back(host: MemoryHost, node: Node) -> None:
    await filled(node)
    await node.create(SPEC, sandbox_id="sbx-mine")
    await node.write_file("sbx-mine", "/home/user/x", b"mine")
    info = await node.state.snapshot("sbx-mine")
    await node.state.pack("sbx-mine", PackRequest(name="packed"))
    await node.remove("sbx-mine")
    await quiet(node)
    for box in (await node.state.restore(info.snapshot_id), await node.create(SandboxSpec(image="packed"))):
        assert b"".join([piece async for piece in node.read_file(box.sandbox_id, "/home/user/x")]) == b"mine"
