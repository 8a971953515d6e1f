"""A node among its peers: seen, emptied, balanced, and forks spread over several."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from dsec.base.errors import (
    InvalidRequestError,
    NodeUnavailableError,
    SandboxMovedError,
    SandboxNotFoundError,
)
from dsec.base.units import GIB
from dsec.model.fleet import DrainProgress, DrainReport, DrainRequest
from dsec.model.pool import PoolChange
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxInfo, SandboxSpec, SandboxState
from dsec.model.state import ForkRequest, MigrationRequest
from dsec.node.fleet.balance import Balance
from dsec.node.node import Node
from dsec.node.settings import NodeSettings
from dsec.scheduling.balancing import BalancePolicy
from dsec.testing.fleet import Fleet, fleet_of

pytestmark = pytest.mark.anyio
HERE, THERE, YONDER = "nodea", "nodeb", "nodec"
POOL = PoolChange(fixed_level=2)


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with fleet_of(HERE, THERE, YONDER) as fleet:
        yield fleet


@pytest.fixture
def here(fleet: Fleet) -> Node:
    return fleet.nodes[HERE]


async def make(node: Node, count: int) -> list[str]:
    return [(await node.create(SandboxSpec(), sandbox_id=f"sbx-{number}")).sandbox_id for number in range(count)]


async def drain(node: Node, request: DrainRequest = DrainRequest()) -> tuple[list[DrainProgress], DrainReport]:
    async with node.fleet.drain(request) as events:
        heard = [event async for event in events]
    report = heard.pop()
    assert isinstance(report, DrainReport)
    return [event for event in heard if isinstance(event, DrainProgress)], report


async def ids(node: Node) -> set[str]:
    return {info.sandbox_id for info in await node.list()}


# -- seen ---------------------------------------------------------------------------------------------------------


async def test_a_node_tells_how_its_peers_are(fleet: Fleet, here: Node) -> None:
    await make(fleet.nodes[THERE], 2)
    fleet.hosts[YONDER].host.memory_bytes = 0
    info = await here.fleet.look()
    assert (info.node, info.draining, info.takes) == (HERE, False, True)
    there, yonder = info.peers
    assert (there.node, there.url, there.answers, there.takes, there.sandboxes) == (
        THERE,
        "memory://nodeb",
        True,
        True,
        2,
    )
    assert (yonder.answers, yonder.takes) == (True, False)
    assert "memory" in yonder.detail
    await fleet.stop(YONDER)
    gone = (await here.fleet.look()).peers[1]
    assert (gone.answers, gone.takes) == (False, False)
    assert "not there" in gone.detail


# -- emptied ------------------------------------------------------------------------------------------------------


async def test_a_drain_moves_everything_and_takes_nothing(fleet: Fleet, here: Node) -> None:
    made = await make(here, 4)
    await here.pause(made[0])
    progress, report = await drain(here)
    assert (progress[0].done, progress[0].total) == (0, 4)
    assert [event.done for event in progress] == [0, 1, 2, 3, 4]
    assert set(report.moved) == set(made)
    assert set(report.moved.values()) == {THERE, YONDER}  # Dealt out, not heaped up.
    assert (report.ended, report.failed) == ((), ())
    assert await ids(here) == set()
    assert await ids(fleet.nodes[THERE]) | await ids(fleet.nodes[YONDER]) == set(made)
    with pytest.raises(NodeUnavailableError, match="drained"):
        await here.create(SandboxSpec())
    with pytest.raises(SandboxMovedError):
        await here.inspect(made[1])
    assert (await here.fleet.look()).draining


async def test_a_drained_node_takes_nothing_from_peers_either(fleet: Fleet, here: Node) -> None:
    await drain(here)
    (box,) = await make(fleet.nodes[THERE], 1)
    with pytest.raises(NodeUnavailableError, match="drained"):
        await fleet.nodes[THERE].state.migrate(box, MigrationRequest(node=HERE))
    assert await ids(fleet.nodes[THERE]) == {box}
    assert not (await fleet.nodes[THERE].fleet.look()).peers[0].takes


async def test_undone_it_takes_sandboxes_again(here: Node) -> None:
    await drain(here)
    await here.fleet.undo_drain()
    await here.fleet.undo_drain()
    await here.create(SandboxSpec())
    assert not (await here.fleet.look()).draining


async def test_a_drain_goes_only_where_it_may(fleet: Fleet, here: Node) -> None:
    made = await make(here, 3)
    _, report = await drain(here, DrainRequest(to=(YONDER, "memory://nodec")))
    assert set(report.moved.values()) == {YONDER}
    assert await ids(fleet.nodes[YONDER]) == set(made)


@pytest.mark.parametrize("request_", [DrainRequest(to=("other",)), DrainRequest(to=(HERE,)), DrainRequest(at_once=0)])
async def test_a_drain_to_nowhere_is_refused_before_it_begins(here: Node, request_: DrainRequest) -> None:
    with pytest.raises(InvalidRequestError):
        await drain(here, request_)
    await here.create(SandboxSpec())


async def test_what_no_peer_takes_stays_and_is_told_and_the_rest_is_done_when_asked_again(
    fleet: Fleet, here: Node
) -> None:
    made = await make(here, 3)
    for name in (THERE, YONDER):
        fleet.hosts[name].host.memory_bytes = 0
    _, report = await drain(here)
    assert [failure.sandbox_id for failure in report.failed] == made
    assert {failure.code for failure in report.failed} == {"node_unavailable"}
    for box in made:
        assert (await here.run(box, CommandRequest(argv=("echo", box)))).stdout == f"{box}\n".encode()
    fleet.hosts[THERE].host.memory_bytes = 16 * GIB
    await fleet.nodes[THERE].fleet.look()
    _, report = await drain(here)
    assert set(report.moved) == set(made)
    assert not report.failed


async def test_one_refusal_sends_a_sandbox_to_the_next_peer(fleet: Fleet, here: Node) -> None:
    made = await make(here, 2)
    await fleet.nodes[THERE].create(SandboxSpec(), sandbox_id=made[0])  # The id is taken there.
    await fleet.nodes[YONDER].create(SandboxSpec())
    _, report = await drain(here)
    assert report.moved[made[0]] == YONDER


async def test_one_that_ends_meanwhile_is_no_failure(fleet: Fleet, here: Node) -> None:
    made = await make(here, 3)
    async with here.fleet.drain(DrainRequest(at_once=1)) as events:
        await anext(events)
        await here.remove(made[2])
        heard = [event async for event in events]
    report = heard[-1]
    assert isinstance(report, DrainReport)
    assert not report.failed
    assert set(report.moved) | set(report.ended) == set(made) or set(report.moved) == set(made[:2])


async def test_leaving_does_not_stop_it(fleet: Fleet, here: Node) -> None:
    await make(here, 3)
    async with here.fleet.drain():
        pass
    assert len(await ids(here)) == 3
    await drain(here)  # Takes its turn after it.
    assert await ids(here) == set()


async def test_a_drain_that_is_undone_moves_nothing_more(fleet: Fleet, here: Node) -> None:
    made = await make(here, 6)
    async with here.fleet.drain(DrainRequest(at_once=1)) as events:
        async for event in events:
            if isinstance(event, DrainProgress) and event.done == 1:
                await here.fleet.undo_drain()
            report = event
    assert isinstance(report, DrainReport)
    assert len(report.moved) <= 2
    assert len(report.moved) + len(report.failed) == len(made)
    assert await ids(here) == set(made) - set(report.moved)


async def test_two_drains_take_turns(fleet: Fleet, here: Node) -> None:
    made = await make(here, 4)
    reports: list[DrainReport] = []

    async def once() -> None:
        reports.append((await drain(here))[1])

    async with anyio.create_task_group() as group:
        group.start_soon(once)
        group.start_soon(once)
    assert sorted(len(report.moved) for report in reports) == [0, 4]
    assert await ids(here) == set()
    assert set().union(*(report.moved for report in reports)) == set(made)


async def test_a_restart_in_the_middle_takes_nothing_in_and_goes_on_when_asked(fleet: Fleet, tmp_path: Path) -> None:
    fleet.hosts[HERE].drain_file = tmp_path / "draining"
    await fleet.stop(HERE)
    here = await fleet.start(HERE)
    assert here is not None
    made = await make(here, 2)
    for name in (THERE, YONDER):
        fleet.hosts[name].host.memory_bytes = 0
    await drain(here)
    await fleet.stop(HERE)
    here = await fleet.start(HERE)
    assert here is not None
    assert (await here.fleet.look()).draining
    with pytest.raises(NodeUnavailableError, match="drained"):
        await here.create(SandboxSpec())
    fleet.hosts[THERE].host.memory_bytes = 16 * GIB
    assert set((await drain(here))[1].moved) == set(made)
    await here.fleet.undo_drain()
    await fleet.stop(HERE)
    here = await fleet.start(HERE)
    assert here is not None
    await here.create(SandboxSpec())


async def test_pools_are_emptied_and_filled_again(here: Node) -> None:
    await here.pools.set_pool(SandboxSpec(), POOL)

    async def until(ready: int) -> None:
        with anyio.fail_after(60):
            while True:
                now = (await here.pools.list_pools())[0].statistics
                if now.ready == now.total == ready:
                    return
                await anyio.sleep(0.001)

    await until(2)
    await drain(here)
    await until(0)
    with pytest.raises(NodeUnavailableError):
        await here.create(SandboxSpec())
    await here.pools.set_pool(SandboxSpec(), PoolChange(fixed_level=1))
    await until(0)
    await here.fleet.undo_drain()
    await until(1)


# -- forks over several nodes -------------------------------------------------------------------------------------


async def test_children_are_dealt_out_to_the_emptiest(fleet: Fleet, here: Node) -> None:
    (parent,) = await make(here, 1)
    await here.write_file(parent, "f", b"of the parent")
    children = await here.state.fork(parent, ForkRequest(count=6, spread=True))
    assert [child.node for child in children].count(HERE) in (1, 2)
    assert {child.node for child in children} == {HERE, THERE, YONDER}
    assert {child.stays_because for child in children} == {""}
    for child in children:
        node = fleet.nodes[child.node]
        assert (await node.inspect(child.sandbox_id)).parent == parent
        assert b"".join([piece async for piece in node.read_file(child.sandbox_id, "f")]) == b"of the parent"
        holders = [name for name, each in fleet.nodes.items() if child.sandbox_id in await ids(each)]
        assert holders == [child.node]


async def test_a_child_that_no_peer_takes_stays(fleet: Fleet, here: Node) -> None:
    (parent,) = await make(here, 1)
    await fleet.stop(YONDER)
    fleet.hosts[THERE].host.memory_bytes = 0
    children = await here.state.fork(parent, ForkRequest(count=3, spread=True))
    assert {child.node for child in children} == {HERE}
    assert all("no peer takes" in child.stays_because and THERE in child.stays_because for child in children)
    assert await ids(here) == {parent, *(child.sandbox_id for child in children)}


async def test_a_full_peer_is_found_out_when_it_refuses(fleet: Fleet, here: Node) -> None:
    (parent,) = await make(here, 1)
    view = fleet.nodes[THERE].migrations.view

    async def boasting() -> object:
        answer = await view()
        fleet.hosts[THERE].host.memory_bytes = 0
        return answer

    fleet.nodes[THERE].migrations.view = boasting  # type: ignore[method-assign, assignment]
    await fleet.stop(YONDER)
    children = await here.state.fork(parent, ForkRequest(count=4, spread=True))
    assert {child.node for child in children} == {HERE}
    assert any(child.stays_because for child in children)
    assert await ids(fleet.nodes[THERE]) == set()


async def test_a_node_without_peers_keeps_all_children() -> None:
    async with fleet_of(HERE) as alone:
        (parent,) = await make(alone.nodes[HERE], 1)
        children = await alone.nodes[HERE].state.fork(parent, ForkRequest(count=2, spread=True))
        assert {(child.node, child.stays_because) for child in children} == {(HERE, f"the node {HERE} has no peers")}


async def test_a_drain_without_peers_is_refused_where_there_is_something_to_move() -> None:
    async with fleet_of(HERE) as alone:
        node = alone.nodes[HERE]
        await make(node, 1)
        with pytest.raises(InvalidRequestError, match="has no peers"):
            await drain(node)
        await node.create(SandboxSpec())
        for info in await node.list():
            await node.remove(info.sandbox_id)
        assert (await drain(node))[1].moved == {}


async def test_a_spread_fork_asked_for_again_makes_no_more_and_says_where_they_are(fleet: Fleet, here: Node) -> None:
    (parent,) = await make(here, 1)
    request = ForkRequest(count=3, spread=True, sandbox_ids=("sbx-c1", "sbx-c2", "sbx-c3"))
    first = await here.state.fork(parent, request)
    again = await here.state.fork(parent, request)
    assert places(again) == places(first)
    assert sum([len(await ids(node)) for node in fleet.nodes.values()]) == 4


def places(children: object) -> list[tuple[str, str]]:
    assert isinstance(children, list)
    return [(child.sandbox_id, child.node) for child in children if isinstance(child, SandboxInfo)]


async def test_all_children_or_none_also_when_spread(fleet: Fleet, here: Node) -> None:
    (parent,) = await make(here, 1)
    with pytest.raises(Exception, match="count"):
        await here.state.fork(parent, ForkRequest(count=100_000, spread=True))
    with pytest.raises(SandboxNotFoundError):
        await here.state.fork("sbx-none", ForkRequest(spread=True))
    assert [len(await ids(node)) for node in fleet.nodes.values()] == [1, 0, 0]


# -- balanced -----------------------------------------------------------------------------------------------------

EAGER = BalancePolicy(looks=1, cooldown_s=0, stay_s=0)


@pytest.fixture
async def small(fleet: Fleet) -> Node:
    """The first node, which holds four sandboxes at most; nothing else is scarce."""
    for host in fleet.hosts.values():
        host.host.memory_bytes = 31 * GIB
    fleet.hosts[HERE].settings = NodeSettings(runtime="memory", maximum_sandboxes=4)
    await fleet.stop(HERE)
    node = await fleet.start(HERE)
    assert node is not None
    return node


async def test_a_full_node_moves_what_is_idle_and_comes_to_rest(fleet: Fleet, small: Node) -> None:
    made = await make(small, 3)
    await small.start_process(made[0], CommandRequest(argv=("sleep", "1000")))
    balance = Balance(small._core, small.state.migrate, EAGER)
    for _ in range(3):
        await balance.look()
    assert await ids(small) == {made[0]}  # A command runs in it, and nobody is far emptier now.
    assert await ids(fleet.nodes[THERE]) | await ids(fleet.nodes[YONDER]) == set(made[1:])


async def test_what_came_to_a_node_stays_for_a_while(fleet: Fleet, small: Node) -> None:
    balance = Balance(small._core, small.state.migrate, BalancePolicy(looks=1, cooldown_s=0, stay_s=100))
    await balance.look()
    made = await make(small, 3)
    await balance.look()
    assert await ids(small) == set(made)
    fleet.hosts[HERE].clock.advance(99)
    await balance.look()
    assert await ids(small) == set(made)
    fleet.hosts[HERE].clock.advance(1)
    await balance.look()
    assert len(await ids(small)) == 1


async def test_with_the_setting_a_node_looks_by_itself(fleet: Fleet, small: Node) -> None:
    made = await make(small, 3)
    fleet.hosts[HERE].settings = NodeSettings(runtime="memory", maximum_sandboxes=4, balance_look_s=0.001)
    await fleet.stop(HERE)
    node = await fleet.start(HERE)
    assert node is not None
    with anyio.fail_after(60):
        while len(found := await ids(node)) > 1:  # noqa: ASYNC110 - nobody tells when a look has happened.
            await anyio.sleep(0.005)
    assert found < set(made)


async def test_a_move_that_is_refused_leaves_everything_as_it_is(fleet: Fleet, small: Node) -> None:
    made = await make(small, 3)
    for name in (THERE, YONDER):
        await fleet.nodes[name].create(SandboxSpec(), sandbox_id=made[0])
        await fleet.nodes[name].create(SandboxSpec(), sandbox_id=made[1])
        await fleet.nodes[name].create(SandboxSpec(), sandbox_id=made[2])
    await Balance(small._core, small.state.migrate, EAGER).look()
    assert await ids(small) == set(made)


async def test_an_even_fleet_moves_nothing(fleet: Fleet, here: Node) -> None:
    made = await make(here, 3)
    for host in fleet.hosts.values():
        host.host.memory_bytes = 4 * GIB
    await Balance(here._core, here.state.migrate, EAGER).look()
    assert await ids(here) == set(made)


async def test_without_the_setting_nobody_looks(fleet: Fleet, here: Node) -> None:
    with anyio.fail_after(60):
        await Balance(here._core, here.state.migrate, EAGER).run()
    assert (await here.fleet.look()).peers[0].answers
    assert all(info.state is SandboxState.READY for info in await here.list())
