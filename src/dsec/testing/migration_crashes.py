"""Kill either node, or lose a message, at every step of a migration; then the one sandbox is whole on one node.

An *attempt* moves a sandbox from one node of a `Fleet` to the other under one fault. Whoever dies is started again,
and dies on its way up, too. When both stand again and had time to ask each other, the invariants of
docs/formats/migration.md hold: exactly one serves, with all that was acknowledged; the other tells where it is or that
it has none; nothing is left on either host, and no migration is open.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio

from dsec.base.errors import DsecError
from dsec.lifecycle.migration import SourcePhase, TargetPhase
from dsec.model.sandbox import SandboxFilter, SandboxState
from dsec.node.node import Node
from dsec.stores.memory import MemoryJournal
from dsec.stores.port import SandboxRecord
from dsec.testing.crash_points import MOST_STEPS, remove_everything, seen, settle
from dsec.testing.faults import Killed, check_no_leak
from dsec.testing.fleet import Fleet, fleet_of

HERE, THERE = "nodea", "nodeb"
_LEASES_S = 100.0
_LOOKS = 20
_SERVED = SandboxFilter(states=(SandboxState.READY,))
Action = Callable[[Node], Awaitable[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What goes wrong.

    Attributes:
        kill: the node that dies; empty: none.
        lose: whether a message is lost.
        at: at which step.
    """

    kill: str = ""
    lose: bool = False
    at: int = 0


class _Witness(MemoryJournal):
    """A journal that notices when it and another one call the same sandbox ready; memory follows the journal."""

    def __init__(self) -> None:
        super().__init__()
        self.other: _Witness | None = None
        self.both: list[str] = []

    def _ready(self) -> set[str]:
        return {each.sandbox_id for each in self.load().sandboxes if each.state is SandboxState.READY}

    async def put_sandbox(self, record: SandboxRecord) -> None:
        await super().put_sandbox(record)
        self._look()

    async def exchange(self, *records: SandboxRecord, **changes: Any) -> None:
        await super().exchange(*records, **changes)
        self._look()

    def _look(self) -> None:
        if self.other is not None:
            self.both += sorted(self._ready() & self.other._ready())


@dataclass(slots=True, kw_only=True)
class Outcome:
    """How an attempt ended.

    Attributes:
        struck: what was killed or lost; empty: the attempt was over before.
        moved: whether the sandbox is on the target.
    """

    struck: str
    moved: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A migration whose every step is a point of failure.

    Attributes:
        sandbox_id: what moves.
        prepare: makes the scene on the source.
        act: moves it; raises when it could not.
    """

    sandbox_id: str
    prepare: Action
    act: Action


async def check_every(move: Move, *, kill: str = "", lose: bool = False) -> dict[bool, int]:
    """Try the migration with every fault of a kind; return how often the sandbox stayed and how often it moved."""
    counts = {False: 0, True: 0}
    for step in range(1, MOST_STEPS):
        fault = Fault(kill=kill, lose=lose, at=step)
        try:
            outcome = await attempt(move, fault)
        except BaseException as error:
            error.add_note(f"{fault}")
            raise
        if not outcome.struck:
            assert outcome.moved, "without a fault it moves"
            return counts
        counts[outcome.moved] += 1
    raise AssertionError("the migration has no end")


async def attempt(move: Move, fault: Fault) -> Outcome:
    """Move under one fault, let everybody come to rest, and check."""
    witnesses = _Witness(), _Witness()
    witnesses[0].other, witnesses[1].other = witnesses[1], witnesses[0]
    async with fleet_of(HERE, THERE, journals=witnesses) as fleet:
        here = fleet.nodes[HERE]
        await move.prepare(here)
        await settle()
        before = (await seen(fleet.hosts[HERE], here))[move.sandbox_id]
        fleet.restart_kill_at = fault.at
        if fault.kill:
            faults = fleet.faults[fault.kill]
            faults.kill_at, faults.steps, faults.armed = fault.at, 0, True
        if fault.lose:
            fleet.wire.lose_at = fault.at
        await _act(fleet, move)
        for faults in fleet.faults.values():
            faults.armed = False
        struck = fleet.wire.lost or ", ".join(fleet.deaths)
        await _come_to_rest(fleet)
        moved = await _check(fleet, move, before)
        assert not any(witness.both for witness in witnesses), "for a while both served"
        for name in (HERE, THERE):
            await remove_everything(fleet.hosts[name], fleet.nodes[name])
        return Outcome(struck=struck, moved=moved)


async def _act(fleet: Fleet, move: Move) -> None:
    try:
        await move.act(fleet.nodes[HERE])
    except Killed:
        fleet.bury(HERE)
    except DsecError:
        pass
    await fleet.wait_alive()


async def _come_to_rest(fleet: Fleet) -> None:
    """Let time pass and both look at what waits, until no migration is open."""
    for _ in range(_LOOKS):
        for name in (HERE, THERE):
            node = fleet.nodes[name]
            fleet.hosts[name].clock.advance(_LEASES_S / _LOOKS)
            await node.migrations.look()
        await settle()
        if not any(_open(fleet, name) for name in (HERE, THERE)):
            break
        await anyio.sleep(0.01)
    await settle()


def _open(fleet: Fleet, name: str) -> list[object]:
    return [each for each in fleet.hosts[name].journal.load().migrations if not each.is_over]


async def _check(fleet: Fleet, move: Move, before: object) -> bool:
    for name in (HERE, THERE):
        assert not _open(fleet, name), f"{name} has open migrations: {_open(fleet, name)}"
        await check_no_leak(fleet.hosts[name], fleet.nodes[name])
    serving = await _serving(fleet)
    assert len(serving) == 1, f"served by {serving}"
    _check_records(fleet, moved=serving == [THERE])
    view = (await seen(fleet.hosts[serving[0]], fleet.nodes[serving[0]]))[move.sandbox_id]
    assert isinstance(before, tuple)
    assert isinstance(view, tuple)
    generations = serving == [THERE]
    assert view == (before[0], before[1] + generations, *before[2:]), f"{view} instead of {before}"
    return serving == [THERE]


async def _serving(fleet: Fleet) -> list[str]:
    """Names of the nodes that answer for the one sandbox of the scene."""
    return [name for name in (HERE, THERE) if await fleet.nodes[name].list(_SERVED)]


def _check_records(fleet: Fleet, *, moved: bool) -> None:
    sources = [each.source for each in fleet.hosts[HERE].journal.load().migrations]
    targets = [each.target for each in fleet.hosts[THERE].journal.load().migrations]
    assert sources == ([SourcePhase.MOVED] if moved else [])
    assert targets == ([TargetPhase.DONE] if moved else [])
