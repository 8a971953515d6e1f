"""Which chunks to bring before they are read: by the traces of a window of steps, within a budget. Pure.

Theory. An *owner* (a sandbox, or somebody at a terminal) says in which order it will probably want chunks: those of its
current step, then those of the next two (training report; a step is an image and a command). All owners' current steps
come before anybody's next one; among equals, whoever was served least comes first. A chunk is wanted by as many as name
it and brought once: who names one that is under way, or here, has it.

Reads come first. While one waits for a chunk that must come from elsewhere, nothing is begun: what is under way are a
few chunks, and what the budget saves up meanwhile is not lost. Nothing here ever makes a read wait for its turn.

What could not be brought is not tried again for the owners of that moment; a read will say what is wrong with it. When
several chunks of a layer in a row could not be had, where it comes from is away, and the plan gives up the rest of it:
whoever waits is told, and what is ill is not asked for a thousand chunks that nobody has read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dsec.distribution.prefetch_budget import BandwidthMeter, Budget, BudgetSettings
from dsec.model.value import Value

WINDOW = 3
"""Steps ahead that count: the current one and the next two."""
MAXIMUM_OWNERS = 4096
GIVEN_UP_AFTER = 3
"""So many chunks of a layer in a row that could not be had."""
AT_ONCE = 2
"""Chunks under way: one that comes while another is asked for. A read that begins now waits for no more than these."""


class Piece(NamedTuple):
    """A chunk that may be brought.

    Attributes:
        layer: name of the manifest.
        position: number of the chunk in it.
        stored_bytes: what it costs to bring.
    """

    layer: str
    position: int
    stored_bytes: int


class PrefetchSettings(Value, frozen=True):
    """How chunks are brought.

    Attributes:
        budget: how much.
        at_once: chunks under way.
        at_once_full_speed: the same for owners that keep to no budget.
    """

    budget: BudgetSettings = BudgetSettings()
    at_once: int = AT_ONCE
    at_once_full_speed: int = 8


class PrefetchProgress(Value, frozen=True):
    """How far an owner's plan is.

    Attributes:
        wanted: chunks of the window.
        here: of these, those that were here already when their turn came.
        brought: those that were brought, by this plan or another's.
        failed: those that could not be brought, and those that were given up for it.
        brought_bytes: stored bytes of those that this plan brought itself.
        is_over: nothing more will be done for it.
    """

    wanted: int = 0
    here: int = 0
    brought: int = 0
    failed: int = 0
    brought_bytes: int = 0
    is_over: bool = True


@dataclass(slots=True)
class _Plan:
    """What is left of an owner's window, step by step."""

    steps: deque[deque[Piece]]
    is_limited: bool
    progress: PrefetchProgress
    level: int = 0
    served_bytes: int = 0
    waiting: set[tuple[str, int]] = field(default_factory=set)
    failed_in_a_row: dict[str, int] = field(default_factory=dict)
    """Chunks of each layer."""

    def came(self, layer: str) -> None:
        """Note that a chunk of a layer came."""
        self.failed_in_a_row.pop(layer, None)

    def failed(self, layer: str) -> None:
        """Note that a chunk of a layer could not be had."""
        self.failed_in_a_row[layer] = self.failed_in_a_row.get(layer, 0) + 1

    def has_given_up(self, layer: str) -> bool:
        """Whether nothing more of a layer is asked for."""
        return self.failed_in_a_row.get(layer, 0) >= GIVEN_UP_AFTER


@dataclass(frozen=True, slots=True)
class Start:
    """Bring this chunk now.

    Attributes:
        piece: which.
        owner: on whose behalf.
        reason: for events and tests.
    """

    piece: Piece
    owner: str
    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Begin nothing.

    Attributes:
        for_s: ask again after so many seconds; None: when something happened.
        reason: for events and tests.
    """

    for_s: float | None
    reason: str


class Prefetcher:
    """Decides what is brought next. Not for several threads.

    Args:
        settings: how.
        meter: knows the bandwidth; whoever fetches tells it.
    """

    def __init__(self, settings: PrefetchSettings = PrefetchSettings(), meter: BandwidthMeter | None = None) -> None:
        self._settings = settings
        self.meter = meter or BandwidthMeter()
        self._budget = Budget(settings.budget, self.meter)
        self._plans: dict[str, _Plan] = {}
        self._under_way: dict[tuple[str, int], tuple[Piece, str]] = {}

    def begin(self, owner: str, steps: Sequence[Iterable[Piece]], *, is_limited: bool = True) -> None:
        """Take an owner's window, in place of the one before; steps behind the third do not count.

        Args:
            owner: whose; a sandbox's id.
            steps: of each, the chunks in the order in which they are likely to be read.
            is_limited: whether it keeps to the budget.
        """
        self.stop(owner)
        self._make_room()
        seen: set[tuple[str, int]] = set()
        window: deque[deque[Piece]] = deque()
        for step in list(steps)[:WINDOW]:
            pieces = deque(piece for piece in step if _key(piece) not in seen)
            seen.update(map(_key, pieces))
            window.append(pieces)
        wanted = sum(map(len, window))
        progress = PrefetchProgress(wanted=wanted, is_over=not wanted)
        self._plans[owner] = _Plan(steps=window, is_limited=is_limited, progress=progress)

    def _make_room(self) -> None:
        """Forget the oldest plans that are over, or else the oldest, so that one more fits."""
        if len(self._plans) >= MAXIMUM_OWNERS:
            over = (owner for owner, plan in self._plans.items() if plan.progress.is_over)
            self.stop(next(over, next(iter(self._plans))))

    def stop(self, owner: str) -> bool:
        """Bring nothing more on an owner's behalf; return whether it had a plan. What is under way comes."""
        return self._plans.pop(owner, None) is not None

    def progress(self, owner: str) -> PrefetchProgress:
        """Return how far an owner's plan is; one that is not known is over."""
        plan = self._plans.get(owner)
        return PrefetchProgress() if plan is None else plan.progress

    @property
    def owners(self) -> tuple[str, ...]:
        return tuple(self._plans)

    def next(self, now_s: float, *, is_here: Callable[[Piece], bool], waiting_reads: int) -> Start | Wait:
        """Decide.

        Args:
            now_s: seconds of a clock that only goes forward, the meter's.
            is_here: whether a chunk needs not be brought: it is here, or cannot be kept.
            waiting_reads: reads that wait for a chunk at the moment.
        """
        chosen = self._choose(is_here)
        if chosen is None:
            return Wait(None, "nothing is wanted")
        owner, plan, piece = chosen
        if waiting_reads:
            return Wait(None, f"{waiting_reads} reads wait")
        limit = self._settings.at_once if plan.is_limited else self._settings.at_once_full_speed
        if len(self._under_way) >= limit:
            return Wait(None, f"{len(self._under_way)} are under way")
        if plan.is_limited:
            wait_s = self._budget.wait_s(now_s, piece.stored_bytes)
            if wait_s > 0:
                return Wait(None if wait_s == float("inf") else wait_s, "the budget is spent")
            self._budget.spend(piece.stored_bytes)
        plan.steps[plan.level].popleft()
        plan.waiting.add(_key(piece))
        plan.served_bytes += piece.stored_bytes
        self._under_way[_key(piece)] = (piece, owner)
        return Start(piece, owner, f"step {plan.level} of {owner}")

    def done(self, piece: Piece, *, was_brought: bool) -> None:
        """Note that a chunk came, or could not be had."""
        _, owner = self._under_way.pop(_key(piece))
        for name, plan in list(self._plans.items()):
            if _key(piece) in plan.waiting:
                plan.waiting.discard(_key(piece))
                own_bytes = piece.stored_bytes if was_brought and name == owner else 0
                if was_brought:
                    plan.came(piece.layer)
                    self._count(plan, brought=1, brought_bytes=own_bytes)
                else:
                    plan.failed(piece.layer)
                    self._count(plan, failed=1)

    def _choose(self, is_here: Callable[[Piece], bool]) -> tuple[str, _Plan, Piece] | None:
        """Return whose turn it is, and with which chunk; pass over what is here or under way."""
        best: tuple[tuple[bool, int, int], str, _Plan, Piece] | None = None
        for owner, plan in self._plans.items():
            piece = None if plan.progress.is_over else self._head(plan, is_here)
            if piece is None:
                continue
            # Whoever keeps to no budget asked for it by hand, and waits for it.
            rank = (plan.is_limited, plan.level, plan.served_bytes)
            if best is None or rank < best[0]:
                best = (rank, owner, plan, piece)
        return None if best is None else best[1:]

    def _head(self, plan: _Plan, is_here: Callable[[Piece], bool]) -> Piece | None:
        while plan.level < len(plan.steps):
            step = plan.steps[plan.level]
            while step:
                if _key(step[0]) in self._under_way:
                    plan.waiting.add(_key(step.popleft()))
                elif is_here(step[0]):
                    step.popleft()
                    self._count(plan, here=1)
                elif plan.has_given_up(step[0].layer):
                    step.popleft()
                    self._count(plan, failed=1)
                else:
                    return step[0]
            plan.level += 1
        self._count(plan)
        return None

    def _count(self, plan: _Plan, *, here: int = 0, brought: int = 0, failed: int = 0, brought_bytes: int = 0) -> None:
        was = plan.progress
        plan.progress = PrefetchProgress(
            wanted=was.wanted,
            here=was.here + here,
            brought=was.brought + brought,
            failed=was.failed + failed,
            brought_bytes=was.brought_bytes + brought_bytes,
            is_over=not plan.waiting and not any(plan.steps),
        )


def _key(piece: Piece) -> tuple[str, int]:
    return piece.layer, piece.position
