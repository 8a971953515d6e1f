"""Sandboxes move between two nodes of fakes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from dsec.base.errors import (
    AlreadyExistsError,
    DsecError,
    InvalidRequestError,
    InvalidStateError,
    MigrationFailedError,
    NodeUnavailableError,
    SandboxMovedError,
)
from dsec.lifecycle.migration import Verdict
from dsec.model.pool import PoolChange
from dsec.model.sandbox import SandboxSpec, SandboxState
from dsec.model.state import CheckpointRequest, ForkRequest, MigrationReport, MigrationRequest
from dsec.node.node import Node
from dsec.node.state import migration_source
from dsec.service.migration import MigrationCommit
from dsec.testing.crash_points import seen, settle
from dsec.testing.faults import check_no_leak
from dsec.testing.fleet import Fleet, fleet_of

pytestmark = pytest.mark.anyio
BOX = "sbx-box"
HERE, THERE = "nodea", "nodeb"


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with fleet_of(HERE, THERE) as fleet:
        yield fleet


@pytest.fixture
def here(fleet: Fleet) -> Node:
    return fleet.nodes[HERE]


@pytest.fixture
def there(fleet: Fleet) -> Node:
    return fleet.nodes[THERE]


async def branched(node: Node) -> None:
    """A sandbox with a tree of checkpoints and a file written since."""
    await node.create(SandboxSpec(seed=7, env={"A": "b"}, metadata={"job": "j"}), sandbox_id=BOX)
    await node.write_file(BOX, "f", b"one")
    await node.state.checkpoint(BOX, CheckpointRequest(name="one"))
    await node.write_file(BOX, "f", b"two")
    await node.state.checkpoint(BOX, CheckpointRequest(name="two"))
    await node.rollback(BOX, snapshot="one")
    await node.write_file(BOX, "f", b"three")
    await node.state.checkpoint(BOX, CheckpointRequest(name="three"))
    await node.write_file(BOX, "f", b"four")


async def move(node: Node, target: str = THERE) -> MigrationReport:
    return await node.state.migrate(BOX, MigrationRequest(node=target))


async def filled(node: Node) -> None:
    """Wait until a pool holds one."""
    for _ in range(50):
        await settle()
        (pool,) = await node.pools.list_pools()
        if (pool.statistics.ready, pool.statistics.creating) == (1, 0):
            return
    raise AssertionError(f"never filled: {pool}")


async def told(fleet: Fleet) -> None:
    """Wait until the target knows of no migration that is open; threads may be ending their work."""
    for _ in range(500):
        if all(record.is_over for record in fleet.hosts[THERE].journal.load().migrations):
            return
        await anyio.sleep(0.01)
    raise AssertionError("the target was not told")


async def read(node: Node, path: str = "f") -> bytes:
    return b"".join([piece async for piece in node.read_file(BOX, path)])


async def test_a_sandbox_moves_with_everything_that_it_is(fleet: Fleet, here: Node, there: Node) -> None:
    await branched(here)
    before, view = await here.inspect(BOX), (await seen(fleet.hosts[HERE], here))[BOX]
    report = await move(here)
    after = await there.inspect(BOX)
    assert report.sandbox == after
    assert (report.source, report.target) == (HERE, THERE)
    assert report.rounds == len(report.copied_bytes) >= 5
    assert 0 < report.downtime_s <= report.duration_s
    assert (after.spec, after.created_at_s, after.state) == (before.spec, before.created_at_s, SandboxState.READY)
    assert after.node == THERE
    assert after.generation == before.generation + 1
    moved = (await seen(fleet.hosts[THERE], there))[BOX]
    assert isinstance(view, tuple)
    assert moved == (view[0], view[1] + 1, *view[2:])
    assert await read(there) == b"four"
    for name, content in (("two", b"two"), ("one", b"one"), ("three", b"three")):
        await there.rollback(BOX, snapshot=name)
        assert await read(there) == content
    await settle()
    for name, node in ((HERE, here), (THERE, there)):
        await check_no_leak(fleet.hosts[name], node)
    assert not fleet.hosts[HERE].layers.names()


async def test_who_asks_where_it_was_is_told_where_it_is(fleet: Fleet, here: Node) -> None:
    await branched(here)
    await move(here)
    for ask in (
        lambda: here.inspect(BOX),
        lambda: here.stop(BOX),
        lambda: here.remove(BOX),
        lambda: here.write_file(BOX, "f", b"x"),
        lambda: here.state.checkpoint(BOX),
        lambda: here.create(SandboxSpec(), sandbox_id=BOX),
        lambda: here.rollback(BOX),
    ):
        with pytest.raises(SandboxMovedError, match=THERE) as caught:
            await ask()
        assert caught.value.url == f"memory://{THERE}"
    assert not await here.list()
    await fleet.stop(HERE)
    again = await fleet.start(HERE)
    assert again is not None
    with pytest.raises(SandboxMovedError, match=THERE):
        await again.inspect(BOX)


async def test_a_sandbox_comes_back_and_goes_again(fleet: Fleet, here: Node, there: Node) -> None:
    await branched(here)
    for number in range(3):
        source, target = (here, there) if number % 2 == 0 else (there, here)
        report = await move(source, target.node_id)
        assert report.sandbox.node == target.node_id
        await target.write_file(BOX, "f", b"%d" % number)
        with pytest.raises(SandboxMovedError):
            await source.inspect(BOX)
    assert await read(there) == b"2"
    await fleet.stop(HERE)
    again = await fleet.start(HERE)
    assert again is not None
    with pytest.raises(SandboxMovedError, match=THERE):
        await again.inspect(BOX)
    await there.remove(BOX)


async def test_a_child_of_a_fork_moves_with_its_clean_state(fleet: Fleet, here: Node, there: Node) -> None:
    await here.create(SandboxSpec(seed=1), sandbox_id="sbx-parent")
    await here.write_file("sbx-parent", "f", b"parent")
    await here.state.fork("sbx-parent", ForkRequest(sandbox_ids=(BOX,)))
    await here.write_file(BOX, "g", b"child")
    await move(here)
    assert await read(there, "g") == b"child"
    assert (await there.inspect(BOX)).parent == "sbx-parent"
    await there.rollback(BOX)
    assert await read(there) == b"parent"
    await settle()
    await check_no_leak(fleet.hosts[THERE], there)
    await check_no_leak(fleet.hosts[HERE], here)


async def test_a_target_that_refuses_leaves_everything_as_it_was(fleet: Fleet, here: Node, there: Node) -> None:
    await branched(here)
    await there.create(SandboxSpec(), sandbox_id=BOX)
    with pytest.raises(AlreadyExistsError):
        await move(here)
    assert await read(here) == b"four"
    await settle()
    for name, node in ((HERE, here), (THERE, there)):
        await check_no_leak(fleet.hosts[name], node)
        assert not fleet.hosts[name].journal.load().migrations


async def test_a_node_that_is_no_peer_or_the_node_itself_is_refused(here: Node) -> None:
    await branched(here)
    for target in ("nobody", HERE):
        with pytest.raises(InvalidRequestError):
            await move(here, target)
    assert await read(here) == b"four"


async def test_requests_that_come_during_the_pause_wait_and_are_answered_by_who_has_it(
    fleet: Fleet, here: Node, there: Node
) -> None:
    await branched(here)
    outcomes: list[str] = []

    async def write() -> None:
        try:
            await here.write_file(BOX, "f", b"late")
            outcomes.append("here")
        except SandboxMovedError:
            await there.write_file(BOX, "f", b"late")
            outcomes.append("there")

    async with anyio.create_task_group() as group:
        group.start_soon(move, here)
        while (await here.inspect(BOX)).state is not SandboxState.MIGRATING:
            await anyio.lowlevel.checkpoint()
        group.start_soon(write)
    assert outcomes == ["there"]
    assert await read(there) == b"late"


async def test_what_was_acknowledged_during_the_migration_is_on_the_target(
    fleet: Fleet, here: Node, there: Node
) -> None:
    await branched(here)
    acknowledged: list[int] = []

    async def write() -> None:
        number = 0
        while True:
            number += 1
            try:
                await here.write_file(BOX, "counter", b"%d" % number)
            except SandboxMovedError:
                return
            acknowledged.append(number)
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as group:
        group.start_soon(write)
        await move(here)
    assert len(acknowledged) > 5
    assert await read(there, "counter") == b"%d" % acknowledged[-1]


async def test_a_long_upload_keeps_its_sandbox_where_it_is(
    fleet: Fleet, here: Node, there: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await branched(here)
    monkeypatch.setattr(migration_source, "WRITERS_S", 0.05)
    begun, go_on = anyio.Event(), anyio.Event()

    async def content() -> AsyncIterator[bytes]:
        yield b"first "
        begun.set()
        await go_on.wait()
        yield b"second"

    async with anyio.create_task_group() as group:
        group.start_soon(here.write_file, BOX, "uploaded", content())
        await begun.wait()
        with pytest.raises(MigrationFailedError, match="written"):
            await move(here)
        go_on.set()
    assert await read(here, "uploaded") == b"first second"
    await settle()
    assert not fleet.hosts[THERE].layers.names()


async def test_a_paused_sandbox_stays_paused_and_goes_on_there(fleet: Fleet, here: Node, there: Node) -> None:
    await branched(here)
    await here.pause(BOX)
    report = await move(here)
    assert report.sandbox.state is SandboxState.PAUSED
    assert (await there.inspect(BOX)).state is SandboxState.PAUSED
    await fleet.stop(THERE)
    again = await fleet.start(THERE)
    assert again is not None
    assert (await again.inspect(BOX)).state is SandboxState.PAUSED
    assert await read(again) == b"four"
    assert (await again.inspect(BOX)).state is SandboxState.READY


async def test_who_needs_a_paused_sandbox_need_not_wait_until_it_is_elsewhere(
    fleet: Fleet, here: Node, there: Node
) -> None:
    await branched(here)
    await here.pause(BOX)

    async def moving() -> None:
        with pytest.raises(MigrationFailedError, match="needed"):
            await move(here)

    async with anyio.create_task_group() as group:
        group.start_soon(moving)
        while not fleet.hosts[THERE].journal.load().migrations:
            await anyio.lowlevel.checkpoint()
        assert await read(here) == b"four"
    assert (await here.inspect(BOX)).state is SandboxState.READY
    await settle()
    assert not fleet.hosts[THERE].layers.names()


async def test_destroying_what_is_on_its_way_destroys_it(fleet: Fleet, here: Node, there: Node) -> None:
    await branched(here)
    failures: list[BaseException] = []

    async def moving() -> None:
        try:
            await move(here)
        except Exception as error:  # noqa: BLE001 - which error it is, is what is looked at.
            failures.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(moving)
        while not fleet.hosts[THERE].journal.load().migrations:
            await anyio.lowlevel.checkpoint()
        await here.remove(BOX)
    await told(fleet)
    assert [type(error).__name__ for error in failures] == ["SandboxExitedError"]
    await settle()
    for name, node in ((HERE, here), (THERE, there)):
        await check_no_leak(fleet.hosts[name], node)
        assert not fleet.hosts[name].layers.names()
        assert not fleet.hosts[name].journal.load().migrations


async def test_cancelling_lets_it_go_on_where_it_was(fleet: Fleet, here: Node, there: Node) -> None:
    await branched(here)
    async with anyio.create_task_group() as group:
        group.start_soon(move, here)
        while not fleet.hosts[THERE].journal.load().migrations:
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    await told(fleet)
    await here.write_file(BOX, "f", b"five")
    assert await read(here) == b"five"
    await settle()
    for name, node in ((HERE, here), (THERE, there)):
        await check_no_leak(fleet.hosts[name], node)
        assert not fleet.hosts[name].journal.load().migrations


async def test_a_source_that_falls_silent_costs_its_target_nothing(fleet: Fleet, here: Node, there: Node) -> None:
    await branched(here)
    fleet.wire.lose_at = 2  # The answer to the offer.
    with pytest.raises(NodeUnavailableError):
        await move(here)
    fleet.hosts[THERE].clock.advance(31)
    await there.migrations.look()
    await check_no_leak(fleet.hosts[THERE], there)
    assert not fleet.hosts[THERE].journal.load().migrations


async def test_messages_about_what_is_not_under_way_are_refused(there: Node) -> None:
    with pytest.raises(InvalidStateError):
        await there.migrations.commit("mig-0123456789abcdef", MigrationCommit(rounds=0))
    await there.migrations.abort("mig-0123456789abcdef")
    assert (await there.migrations.release("mig-0123456789abcdef")).sandbox is None
    assert (await there.migrations.status("mig-0123456789abcdef")).verdict is Verdict.GIVEN_UP


@pytest.mark.slow
async def test_many_move_in_both_directions_at_once(fleet: Fleet, here: Node, there: Node) -> None:
    """More than there are threads on either side, each of which waits for one on the other."""
    count = 40
    for node, name in ((here, "a"), (there, "b")):
        for number in range(count):
            await node.create(SandboxSpec(), sandbox_id=f"sbx-{name}{number}")
            await node.write_file(f"sbx-{name}{number}", "f", b"x" * 200_000)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for number in range(count):
                group.start_soon(here.state.migrate, f"sbx-a{number}", MigrationRequest(node=THERE))
                group.start_soon(there.state.migrate, f"sbx-b{number}", MigrationRequest(node=HERE))
    assert {info.sandbox_id for info in await here.list()} == {f"sbx-b{number}" for number in range(count)}
    assert {info.sandbox_id for info in await there.list()} == {f"sbx-a{number}" for number in range(count)}
    await settle()
    for name, node in ((HERE, here), (THERE, there)):
        await check_no_leak(fleet.hosts[name], node)


async def test_a_sandbox_from_a_pool_leaves_it_and_is_nobodys_elsewhere(fleet: Fleet, here: Node, there: Node) -> None:
    """It moves under its own id; its pool makes another."""
    change = PoolChange(floor=1, maximum=2, creations_at_once=1, recycles_at_once=1, spreads=0.0)
    await here.pools.set_pool(SandboxSpec(), change)
    await filled(here)
    await here.create(SandboxSpec(), sandbox_id=BOX)
    assert here._core.registry.find(BOX).record.carrier
    await here.write_file(BOX, "f", b"content")
    report = await move(here)
    assert report.sandbox.generation == 1
    record = there._core.registry.find(BOX).record
    assert (record.carrier, record.pool, record.layer) == ("", "", f"{BOX}-g{record.generation}")
    assert await read(there) == b"content"
    await filled(here)
    (pool,) = await here.pools.list_pools()
    assert (pool.statistics.in_use, pool.statistics.ready) == (0, 1)
    await there.stop(BOX)
    for name, node in ((HERE, here), (THERE, there)):
        await check_no_leak(fleet.hosts[name], node)


async def test_a_sandbox_that_fails_or_ends_while_it_is_copied_ends_its_migration(
    fleet: Fleet, here: Node, there: Node
) -> None:
    await branched(here)
    failures: list[DsecError] = []

    async def moving() -> None:
        try:
            await move(here)
        except DsecError as error:
            failures.append(error)

    async with anyio.create_task_group() as group:
        group.start_soon(moving)
        while not fleet.hosts[THERE].journal.load().migrations:
            await anyio.lowlevel.checkpoint()
        await fleet.hosts[HERE].runtime.instance(f"{BOX}-g1").end_init("killed")
    await settle()
    await there.migrations.look()
    await told(fleet)
    states = [info.state for node in (here, there) for info in await node.list()]
    assert states == ([SandboxState.FAILED] if failures else [SandboxState.READY])
    for name, node in ((HERE, here), (THERE, there)):
        await check_no_leak(fleet.hosts[name], node)
