"""The pictures of a workload: timelines, memory, loads, costs and the front. What is drawn, not how."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from dsec.base.units import GIB
from dsec.planner.additions import lift_limits
from dsec.planner.choice import Choice
from dsec.planner.combination import THOUSAND, Combination, combinations
from dsec.planner.decision import Decision, Option
from dsec.planner.options import take
from dsec.planner.outer import Key, Row, make_outer, numeric
from dsec.planner.picture import (
    Area,
    Bar,
    BarPart,
    Bars,
    Caption,
    Curve,
    Curves,
    Dots,
    Lane,
    Mark,
    Picture,
    Span,
    Steps,
    Timeline,
)
from dsec.planner.profile import Profile
from dsec.planner.table import Table, evaluate
from dsec.planner.workload import Workload

MOST_OPTIONS = 6
_RATE_POINTS = 60
_MOST_DOTS = 2_000
_MOST_AREAS = 4


def workload_pictures(decision: Decision) -> tuple[Picture, ...]:
    """Return what is to be drawn of a decision."""
    options = decision.options[:MOST_OPTIONS]
    if not options:
        return ()
    found: list[Picture] = [*_timelines(decision, options), _loads(decision, options), _costs(decision, options)]
    found.append(_over_rate(decision, options))
    if len(decision.combinations) > len(decision.options):
        found.append(_cloud(decision))
    return tuple(found)


def _rows(decision: Decision, options: tuple[Option, ...]) -> Iterator[tuple[Option, Row]]:
    by_key = {row.key: row for row in decision.outer.rows}
    for option in options:
        yield option, by_key[key_of(option.combination)]


def key_of(combination: Combination) -> Key:
    """Return the row that a combination belongs to."""
    return Key(policy=combination.policy, service=combination.service, sessions=combination.sessions)


def _timelines(decision: Decision, options: tuple[Option, ...]) -> Iterator[Picture]:
    """Return, for each class, who does what when, and how much memory that takes."""
    for index, name in enumerate(decision.workload.classes):
        pairs = [(option.combination.name, row.profiles[index]) for option, row in _rows(decision, options)]
        item = decision.workload.classes[name]
        marks = (Mark(at=item.deadline.value, label="deadline"),) if item.deadline is not None else ()
        lanes = tuple(lane for label, profile in pairs for lane in _lanes(label, profile))
        yield Timeline(
            caption=Caption(name=f"timeline-{name}", title=f"One task of {name}"), unit="s", lanes=lanes, marks=marks
        )
        for label, profile in pairs[:_MOST_AREAS]:
            yield Area(
                caption=Caption(name=f"memory-{name}-{label}", title=f"Memory of one task of {name}: {label}"),
                x_unit="s",
                y_unit="GiB",
                series=(Steps(label="environment", role="memory", points=_memory_steps(profile)),),
                marks=marks,
            )


def _lanes(label: str, profile: Profile) -> Iterator[Lane]:
    phases = profile.phases
    models = [Span(start=a, end=b, role="model") for a, b in phases.models]
    tools = [Span(start=a, end=b, role="tool") for a, b in phases.tools]
    yield Lane(label=label, spans=tuple(sorted([*models, *tools], key=lambda span: span.start)))
    resident = [Span(start=a, end=b, role="memory") for a, b in phases.environments]
    prepared = [Span(start=a, end=b, role="prepare") for a, b in phases.preparations if b > a]
    yield Lane(label="environment", spans=(*resident, *prepared))


def _memory_steps(profile: Profile) -> tuple[tuple[float, float], ...]:
    held = profile.task_class.memory.value / GIB
    edges = sorted(
        [(a, held) for a, _ in profile.phases.environments] + [(b, -held) for _, b in profile.phases.environments]
    )
    points, level = [(0.0, 0.0)], 0.0
    for at, change in edges:
        level += change
        points.append((at, max(level, 0.0)))
    return tuple(points)


def _loads(decision: Decision, options: tuple[Option, ...]) -> Bars:
    """Return what each option needs of what is offered."""
    workload, bars = decision.workload, list[Bar]()
    for option, row in _rows(decision, options):
        offered = option.combination
        host, service = workload.hosts[offered.host], workload.services[offered.service]
        name = offered.name
        bars += [
            _bar(f"{name}: cores", row.cores, "CPU", offered.hosts * host.cpus.value, "cpu"),
            _bar(
                f"{name}: memory", row.memory_peak_bytes / GIB, "GiB", offered.hosts * host.memory.value / GIB, "memory"
            ),
        ]
        if service.gpus is not None:
            slots = float(offered.units * offered.sessions)
            bars.append(_bar(f"{name}: model slots", row.slots, "", slots, "model"))
    return Bars(
        caption=Caption(name="loads", title="What is needed of what is offered"), bars=tuple(bars), as_share=True
    )


def _bar(label: str, value: float, unit: str, capacity: float, role: str) -> Bar:
    return Bar(label=label, parts=(BarPart(label=label, value=value, role=role),), unit=unit, capacity=capacity)


def _costs(decision: Decision, options: tuple[Option, ...]) -> Bars:
    """Return what a thousand tasks cost, by what is paid for."""
    table = _at(decision.workload, options)
    bars = tuple(
        Bar(
            label=option.best.name,
            unit="USD",
            parts=(
                BarPart(label="model", value=THOUSAND * float(table.model_usd[index]), role="model"),
                BarPart(label="environments", value=THOUSAND * float(table.environment_usd[index]), role="memory"),
            ),
        )
        for index, option in enumerate(options)
    )
    return Bars(caption=Caption(name="costs", title="Cost of a thousand submitted tasks"), bars=bars)


def _at(workload: Workload, options: tuple[Option, ...]) -> Table:
    keys = [key_of(option.best) for option in options]
    hosts = list(workload.hosts)
    numpy = numeric()
    choice = Choice(
        row=numpy.arange(len(options)),
        host=numpy.array([hosts.index(option.best.host) for option in options]),
        units=numpy.array([option.best.units for option in options]),
        hosts=numpy.array([option.best.hosts for option in options]),
    )
    return evaluate(workload, lift_limits(workload, make_outer(workload, keys)), choice)


def _over_rate(decision: Decision, options: tuple[Option, ...]) -> Curves:
    """Return cost per thousand over the arrival rate, each curve as far as its capacity goes."""
    workload = decision.workload
    rate = workload.arrivals.rate
    points: list[list[tuple[float, float]]] = [[] for _ in options]
    # Near no load every reservation costs without bound, and would press all the rest flat.
    for number in range(_RATE_POINTS // 8, _RATE_POINTS + 1):
        by = 2.0 * number / _RATE_POINTS
        arrivals = dataclasses.replace(workload.arrivals, rate=dataclasses.replace(rate, value=rate.value * by))
        table = _at(dataclasses.replace(workload, arrivals=arrivals), options)
        for index, line in enumerate(points):
            if bool(table.sustained_per_s[index] >= rate.value * by):
                line.append((rate.value * by, THOUSAND * float(table.usd[index])))
    curves = tuple(
        Curve(label=option.best.name, role=f"option {index + 1}", points=tuple(points[index]))
        for index, option in enumerate(options)
    )
    return Curves(
        caption=Caption(
            name="cost-over-rate",
            title="Cost over the arrival rate",
            text="A curve ends where its replicas or hosts are used up.",
        ),
        x_label="arrival rate",
        x_unit="tasks/s",
        y_label="per thousand tasks",
        y_unit="USD",
        curves=curves,
        marks=(Mark(at=rate.value, label="this workload"),),
    )


def _cloud(decision: Decision) -> Dots:
    """Return every listed combination by time and cost, the front and the chosen one among them."""
    front = {item.name for item in decision.front}
    chosen = decision.chosen.best.name if decision.chosen is not None else ""

    def role(item: Combination) -> str:
        if item.name == chosen:
            return "chosen"
        if item.name in front:
            return "front"
        return "feasible" if item.feasible else "infeasible"

    important = [*decision.front, *([decision.chosen.best] if decision.chosen is not None else [])]
    step = max(1, len(decision.table) // _MOST_DOTS)
    some = combinations(decision.workload, decision.outer, take(decision.table, range(0, len(decision.table), step)))
    shown = {item.name: item for item in (*some, *important)}
    return Dots(
        caption=Caption(name="combinations", title="All combinations"),
        x_label="mean time of a task",
        x_unit="s",
        y_label="per thousand tasks",
        y_unit="USD",
        points=tuple((item.completion_s, item.usd_per_thousand, item.name, role(item)) for item in shown.values()),
    )
