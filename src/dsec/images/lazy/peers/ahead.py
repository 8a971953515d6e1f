"""What this node is going to fetch, and whom the tracker named for it.

A message costs the tracker ten times as much as a chunk in it. Where it is known in which order the chunks of a layer
are fetched, each lookup therefore asks for the next ones too. An answer is used if the chunk's turn comes soon; what it
named may have changed by then, which costs a refusal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from dsec.distribution.messages import Answer

_CHUNKS = 32
_LASTS_S = 5.0
_AGAIN_S = 0.5
"""What nobody had is not asked for again within this, unless its turn comes."""
_PLANS = 8
"""Layers that are fetched whole at a time; of others each chunk is asked for when it is fetched."""


class _Plan:
    """The chunks of one layer that are yet to be fetched, in order, and whom the tracker named for some of them."""

    __slots__ = ("asked", "known", "left", "names")

    def __init__(self, names: Iterable[str]) -> None:
        self.left = dict.fromkeys(names)
        self.names = frozenset(self.left)
        self.known: dict[str, tuple[float, Answer]] = {}
        self.asked: dict[str, float] = {}
        """When each was asked for in vain."""


class Ahead:
    """All plans of a node. Used from one event loop.

    Args:
        clock: seconds that only go forward.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._plans: list[_Plan] = []

    def plan(self, names: Sequence[str]) -> None:
        """Say in which order the chunks of a layer are going to be fetched."""
        self._plans.append(_Plan(names))
        del self._plans[:-_PLANS]

    def has(self, name: str) -> bool:
        """Say whether a chunk is among those that are known to be fetched."""
        return any(name in plan.left for plan in self._plans)

    def take(self, name: str) -> Answer | None:
        """Begin to fetch a chunk; return whom the tracker named for it lately."""
        found = None
        for plan in self._plans:
            plan.left.pop(name, None)
            plan.asked.pop(name, None)
            told_s, answer = plan.known.pop(name, (0.0, None))
            if answer is not None and self._clock() - told_s < _LASTS_S:
                found = answer
        self._plans = [plan for plan in self._plans if plan.left]
        return found

    def next(self, begun: Sequence[str]) -> tuple[str, ...]:
        """Return what to ask for beside chunks that are being fetched: others of the same layer.

        Args:
            begun: names of chunks of one layer.
        """
        for plan in self._plans:
            self._forget_old(plan)
            if len(plan.known) < _CHUNKS // 2 and not plan.names.isdisjoint(begun):
                now_s = self._clock()
                soon = [
                    name
                    for name in islice(plan.left, _CHUNKS)
                    if name not in plan.known and now_s - plan.asked.get(name, -_AGAIN_S) >= _AGAIN_S
                ]
                plan.asked.update(dict.fromkeys(soon, now_s))
                return tuple(name for name in soon if name not in begun)
        return ()

    def _forget_old(self, plan: _Plan) -> None:
        """Drop chunks whose turn did not come: they came from elsewhere, or nobody fetches them any more."""
        before_s = self._clock() - _LASTS_S
        for name in [name for name, (told_s, _) in plan.known.items() if told_s <= before_s]:
            del plan.known[name]
            del plan.left[name]

    def told(self, answers: Iterable[Answer]) -> None:
        """Keep whom the tracker named."""
        now_s = self._clock()
        for answer in answers:
            for plan in self._plans:
                if answer.chunk in plan.left:
                    plan.known[answer.chunk] = (now_s, answer)
