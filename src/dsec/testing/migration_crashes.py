"""Kill either node, fail a call of it, lose a message, cancel or stop, at every step of a migration; then the one
sandbox is whole on one node.

An *attempt* moves a sandbox from one node of a `Fleet` to the other under one fault. Whoever dies is started again,
and dies on its way up, too. When both stand again and had time to ask each other, the invariants of
docs/formats/migration.md hold: exactly one serves, with all that was acknowledged; the other tells where it is or that
it has none; nothing is left on either host, and no migration is open.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anyio

from dsec.base.errors import DsecError, SandboxMovedError
from dsec.images.memory import MemoryImages
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
_ANSWERS = frozenset({SandboxState.READY, SandboxState.PAUSED})
_SERVED = SandboxFilter(states=tuple(_ANSWERS))
Scene = Callable[[Fleet], Awaitable[object]]


class Kind(enum.Enum):
    """What goes wrong."""

    KILL = "kill"
    """The node dies before or after an effect."""
    FAIL = "fail"
    """A call of a mechanism raises; both nodes are started again afterwards, for what could not be cleaned up."""
    CANCEL = "cancel"
    """The caller of the migration goes away."""
    STOP = "stop"
    """Somebody stops the sandbox where it was."""
    LOSE = "lose"
    """A message, or its answer, is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        kind: which.
        node: at whose steps; of no meaning for what is lost.
        at: at which step.
    """

    kind: Kind
    node: str = ""
    at: int = 0


class _Witness(MemoryJournal):
    """A journal that notices when it and another one call the same sandbox ready; memory follows the journal."""

    def __init__(self) -> None:
        super().__init__()
        self.other: _Witness | None = None
        self.both: list[str] = []

    def _ready(self) -> set[str]:
        return {each.sandbox_id for each in self.load().sandboxes if each.state in _ANSWERS}

    async def put_sandbox(self, record: SandboxRecord) -> None:
        await super().put_sandbox(record)
        self._look()

    async def exchange(self, *records: SandboxRecord, **changes: Any) -> None:
        await super().exchange(*records, **changes)
        self._look()

    def _look(self) -> None:
        if self.other is not None:
            self.both += sorted(self._ready() & self.other._ready())


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How an attempt ended.

    Attributes:
        struck: whether the fault came before the end.
        serving: the node that has the sandbox; empty: it was stopped.
    """

    struck: bool
    serving: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A migration whose every step is a point of failure.

    Attributes:
        name: for the test's id.
        sandbox_id: what moves; the only sandbox that is ready in the scene.
        prepare: makes the scene.
        act: moves it from `HERE` to `THERE`.
        verify: looks at what `seen` does not show, on the node that has it; it may change it.
        images: makes what images the nodes have.
    """

    name: str
    sandbox_id: str
    prepare: Scene
    act: Callable[[Node], Awaitable[object]]
    verify: Callable[[Node], Awaitable[object]] | None = None
    images: Callable[[], MemoryImages] = MemoryImages


async def check_every(move: Move, kind: Kind, node: str = "") -> dict[str, int]:
    """Try the migration with every fault of a kind; return how often which node had the sandbox at the end."""
    counts = {HERE: 0, THERE: 0, "": 0}
    for step in range(1, MOST_STEPS):
        fault = Fault(kind=kind, node=node, at=step)
        try:
            outcome = await attempt(move, fault)
        except BaseException as error:
            error.add_note(f"{move.name}: {fault}")
            raise
        if not outcome.struck:
            assert outcome.serving == THERE, "without a fault it moves"
            return counts
        counts[outcome.serving] += 1
    raise AssertionError("the migration has no end")


async def attempt(move: Move, fault: Fault) -> Outcome:
    """Move under one fault, let everybody come to rest, and check."""
    witnesses = _Witness(), _Witness()
    witnesses[0].other, witnesses[1].other = witnesses[1], witnesses[0]
    async with fleet_of(HERE, THERE, journals=witnesses, images=move.images) as fleet:
        await move.prepare(fleet)
        await settle()
        before = (await seen(fleet.hosts[HERE], fleet.nodes[HERE]))[move.sandbox_id]
        acting = _Acting(fleet, move, fault)
        await acting.run()
        await _come_to_rest(fleet)
        serving = await _check(fleet, move, before, may_be_gone=acting.stopped)
        assert not any(witness.both for witness in witnesses), "for a while both served"
        if move.verify is not None and serving:
            await move.verify(fleet.nodes[serving])
        for name in (HERE, THERE):
            await remove_everything(fleet.hosts[name], fleet.nodes[name])
        return Outcome(struck=acting.struck, serving=serving)


class _Acting:
    """The migration of one attempt, with its fault.

    Attributes:
        struck: whether the fault came.
        stopped: whether the sandbox was stopped before it had moved.
    """

    def __init__(self, fleet: Fleet, move: Move, fault: Fault) -> None:
        self._fleet, self._move, self._fault = fleet, move, fault
        self._scope = anyio.CancelScope()
        self._strike = asyncio.Event()
        self.struck = False
        self.stopped = False

    async def run(self) -> None:
        fleet, fault = self._fleet, self._fault
        self._arm()
        async with anyio.create_task_group() as group:
            if fault.kind is Kind.STOP:
                group.start_soon(self._stop)
            await self._act()
            await fleet.wait_alive()
            group.cancel_scope.cancel()
        self.struck = bool(fleet.wire.lost or fleet.deaths or any(each.struck for each in fleet.faults.values()))
        for faults in fleet.faults.values():
            faults.armed, faults.on_strike = False, None
        if fault.kind is Kind.FAIL:
            for name in (HERE, THERE):
                await fleet.stop(name)
                await fleet.start(name)

    def _arm(self) -> None:
        fleet, fault = self._fleet, self._fault
        if fault.kind is Kind.LOSE:
            fleet.wire.lose_at, fleet.wire.chances = fault.at, 0
            return
        faults = fleet.faults[fault.node]
        faults.steps, faults.armed = 0, True
        faults.kill_at, faults.fail_at = (0, fault.at) if fault.kind is Kind.FAIL else (fault.at, 0)
        if fault.kind is Kind.KILL:
            fleet.restart_kill_at = fault.at
        else:
            # A step may be made in a thread.
            loop = asyncio.get_running_loop()
            act = self._scope.cancel if fault.kind is Kind.CANCEL else self._strike.set
            faults.on_strike = lambda: loop.call_soon_threadsafe(act)

    async def _act(self) -> None:
        try:
            with self._scope:
                await self._move.act(self._fleet.nodes[HERE])
        except Killed:
            self._fleet.bury(HERE)
        except DsecError:
            pass
        except BaseExceptionGroup as several:
            # A task group of the node's wraps its deaths.
            if several.split(Killed)[1] is not None:
                raise
            self._fleet.bury(HERE)

    async def _stop(self) -> None:
        await self._strike.wait()
        with anyio.CancelScope(shield=True):
            try:
                await self._fleet.nodes[HERE].stop(self._move.sandbox_id)
                self.stopped = True
            except SandboxMovedError:
                pass


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


async def _check(fleet: Fleet, move: Move, before: object, *, may_be_gone: bool) -> str:
    for name in (HERE, THERE):
        assert not _open(fleet, name), f"{name} has open migrations: {_open(fleet, name)}"
        await check_no_leak(fleet.hosts[name], fleet.nodes[name])
    serving = [name for name in (HERE, THERE) if await fleet.nodes[name].list(_SERVED)]
    _check_records(fleet, move, moved=serving == [THERE])
    if may_be_gone and not serving:
        return ""
    assert len(serving) == 1, f"served by {serving}"
    view = (await seen(fleet.hosts[serving[0]], fleet.nodes[serving[0]]))[move.sandbox_id]
    assert isinstance(before, tuple)
    assert isinstance(view, tuple)
    generations = serving == [THERE]
    assert view == (before[0], before[1] + generations, *before[2:]), f"{view} instead of {before}"
    return serving[0]


def _check_records(fleet: Fleet, move: Move, *, moved: bool) -> None:
    """Of this migration; the scene may have had others, which went the other way."""
    sources = [each.source for each in fleet.hosts[HERE].journal.load().migrations if each.source is not None]
    targets = [each.target for each in fleet.hosts[THERE].journal.load().migrations if each.target is not None]
    assert sources == ([SourcePhase.MOVED] if moved else []), f"{move.name}: {sources}"
    assert targets == ([TargetPhase.DONE] if moved else []), f"{move.name}: {targets}"
