"""What would change the answer: each input alone, up and down, until another combination is better or the goal is lost.

The counts of every option stay as they are offered, or, where nothing is feasible as offered, with what had to be
added: the question is how far the answer carries, not what one would buy next. An input is moved by factors from 1/8 to
8; the first change is then bisected.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dsec.planner.additions import lift_limits
from dsec.planner.choice import Choice
from dsec.planner.combination import Combination
from dsec.planner.decision import Lever, Option
from dsec.planner.figure import Figure
from dsec.planner.outer import Key, make_outer, numeric
from dsec.planner.quantity import show
from dsec.planner.table import evaluate
from dsec.planner.workload import Workload

MOST_OPTIONS = 5
_LARGEST = 8.0
_POINTS = 4
_BISECTIONS = 13
_THOUSAND = 1000.0
_CHANGED = 1e-9


@dataclass(frozen=True, slots=True)
class Input:
    """An input that can be moved."""

    figure: Figure
    scaled: Callable[[float], Workload]


def make_levers(workload: Workload, options: Sequence[Option]) -> tuple[Lever, ...]:
    """Return how far each input may move before the answer changes."""
    if not options or not options[0].is_possible:
        return ()
    offered = options[0].combination.feasible
    shown = [item.combination if offered else item.best for item in options if offered or item.is_possible]
    judge = _Judge(workload, shown[:MOST_OPTIONS], lifted=not offered)
    return tuple(_lever(judge, item) for item in _inputs(workload, judge.combinations))


class _Judge:
    """Which of some options is the best, for a workload with one input moved."""

    def __init__(self, workload: Workload, combinations: Sequence[Combination], *, lifted: bool) -> None:
        numpy = numeric()
        self.combinations = combinations
        self.keys = [Key(policy=item.policy, service=item.service, sessions=item.sessions) for item in combinations]
        self._lifted = lifted
        hosts = list(workload.hosts)
        self.choice = Choice(
            row=numpy.arange(len(combinations)),
            host=numpy.array([hosts.index(item.host) for item in combinations]),
            units=numpy.array([item.units for item in combinations]),
            hosts=numpy.array([item.hosts for item in combinations]),
        )

    def answer(self, workload: Workload) -> tuple[str, float]:
        """Return the name of the best option and its cost, and the cost of the first option."""
        numpy = numeric()
        outer = make_outer(workload, self.keys)
        if self._lifted:
            outer = lift_limits(workload, outer)
        table = evaluate(workload, outer, self.choice)
        usd = numpy.where(table.feasible, table.usd, numpy.inf)
        # The first option wins what is equal, or the answer would flicker with rounding.
        best = int(numpy.argmin(usd - (numpy.arange(len(usd)) == 0) * _CHANGED * numpy.abs(table.usd)))
        return (self.combinations[best].name if math.isfinite(float(usd[best])) else ""), float(table.usd[0])


def _lever(judge: _Judge, item: Input) -> Lever:
    here = judge.answer(item.scaled(1.0))
    more = judge.answer(item.scaled(1.1))
    return Lever(
        name=item.figure.name,
        value=str(item.figure),
        down=_change(judge, item, here[0], 1 / _LARGEST),
        up=_change(judge, item, here[0], _LARGEST),
        usd_per_ten_percent=_THOUSAND * (more[1] - here[1]),
    )


def _change(judge: _Judge, item: Input, now: str, furthest: float) -> str:
    """Return where the answer first changes on the way to a factor, and to what."""
    inside = 1.0
    for number in range(1, _POINTS + 1):
        outside = furthest ** (number / _POINTS)
        answer = judge.answer(item.scaled(outside))[0]
        if answer != now:
            break
        inside = outside
    else:
        return ""
    for _ in range(_BISECTIONS):
        middle = math.sqrt(inside * outside)
        found = judge.answer(item.scaled(middle))[0]
        inside, outside, answer = (middle, outside, answer) if found == now else (inside, middle, found)
    figure = item.figure
    edge = show(figure.value * outside, figure.dimension, figure.unit or None, digits=4)
    return f"{edge}: {answer}" if answer else f"{edge}: not feasible as it stands"


def _inputs(workload: Workload, combinations: Sequence[Combination]) -> Iterator[Input]:
    arrivals = workload.arrivals
    yield Input(
        arrivals.rate,
        lambda by: dataclasses.replace(
            workload, arrivals=dataclasses.replace(arrivals, rate=_times(arrivals.rate, by))
        ),
    )
    for name in workload.classes:
        yield from _of(workload, "classes", name, ("tool", "memory", "deadline", "output"))
        for service in workload.classes[name].model:
            if not service or any(item.service == service for item in combinations):
                yield _model(workload, name, service)
    for name in sorted({item.policy for item in combinations}):
        yield from _of(workload, "policies", name, ("prepare", "prepare_cpu"))
    for name in sorted({item.service for item in combinations}):
        yield from _of(workload, "services", name, ("price",))
    for name in sorted({item.host for item in combinations}):
        yield from _of(workload, "hosts", name, ("cpus", "memory", "price", "cpu_price", "memory_price"))


def _of(workload: Workload, group: str, name: str, attributes: Sequence[str]) -> Iterator[Input]:
    members = getattr(workload, group)
    owner = members[name]
    for attribute in attributes:
        figure = getattr(owner, attribute)
        if figure is None or not figure.value:
            continue

        def scaled(by: float, attribute: str = attribute, figure: Figure = figure) -> Workload:
            moved = dataclasses.replace(owner, **{attribute: _times(figure, by)})
            changed: dict[str, Any] = {group: {**members, name: moved}}
            return dataclasses.replace(workload, **changed)

        yield Input(figure, scaled)


def _model(workload: Workload, name: str, service: str) -> Input:
    owner = workload.classes[name]
    figure = owner.model[service]

    def scaled(by: float) -> Workload:
        moved = dataclasses.replace(owner, model={**owner.model, service: _times(figure, by)})
        return dataclasses.replace(workload, classes={**workload.classes, name: moved})

    return Input(figure, scaled)


def _times(figure: Figure, by: float) -> Figure:
    return dataclasses.replace(figure, value=figure.value * by)
