"""Read a workload file (docs/formats/planner.md), and refuse what cannot be."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dsec.planner.axis import read_axis
from dsec.planner.dimension import BYTES, CPU, GPU, MONEY, PURE, TIME, TOKEN, Dimension
from dsec.planner.document import Table
from dsec.planner.figure import Figure, given
from dsec.planner.profile import model_time_s
from dsec.planner.scatter import LEAST_VARIATION, MOST_VARIATION
from dsec.planner.workload import (
    Arrivals,
    Billing,
    Host,
    Pattern,
    Policy,
    PolicyKind,
    Service,
    TaskClass,
    Workload,
)
from dsec.planner.worksheet import check_name, read_heading

PER_TIME = PURE / TIME
_SHARE_TOLERANCE = 1e-9
_MOST_BURST = 1_000_000
_MOST_ROUNDS = 10_000


@dataclass(frozen=True, slots=True)
class Values:
    """Read figures.

    Attributes:
        source: of what is written.
        sources: of figures that have another one, by name.
    """

    source: str
    sources: Mapping[str, str] = field(default_factory=dict)

    def figure(self, table: Table, key: str, dimension: Dimension, default: str | None = None) -> Figure:
        """Return a quantity of a dimension as a figure that knows its line."""
        quantity = table.quantity(key, dimension, default)
        name = table.label(key)
        if key not in table:
            return given(name, quantity.value, dimension, unit=quantity.unit, source="the default: nothing is written")
        source = self.sources.get(name, self.source)
        note = "" if name in self.sources else f"written at {table.place(key)}"
        return given(name, quantity.value, dimension, unit=quantity.unit, source=source, note=note)

    def optional(self, table: Table, key: str, dimension: Dimension) -> Figure | None:
        """Return a figure, or None if there is none."""
        return self.figure(table, key, dimension) if key in table else None

    def positive(self, table: Table, key: str, dimension: Dimension, default: str | None = None) -> Figure:
        """Return a figure above zero."""
        found = self.figure(table, key, dimension, default)
        if found.value <= 0:
            raise table.error(key, f"{found} is not above zero", resolution=f"write a positive quantity in {dimension}")
        return found

    def not_negative(self, table: Table, key: str, dimension: Dimension, default: str | None = None) -> Figure:
        """Return a figure of at least zero."""
        found = self.figure(table, key, dimension, default)
        if found.value < 0:
            raise table.error(key, f"{found} is negative", resolution=f"write a quantity in {dimension} of at least 0")
        return found

    def probability(self, table: Table, key: str, default: str | None = None) -> Figure:
        """Return a figure from 0 to 1."""
        found = self.figure(table, key, PURE, default)
        if not 0 <= found.value <= 1:
            raise table.error(key, f"{found} is not between 0 and 1", resolution='write 0.95 or "95 %"')
        return found

    def price(self, table: Table, key: str, dimension: Dimension) -> Figure | None:
        """Return a price of at least zero, or None if there is none."""
        return self.not_negative(table, key, dimension) if key in table else None


def read_workload(root: Table, sources: Mapping[str, str] | None = None) -> Workload:
    """Read a workload; keys that belong to other readers are left alone.

    Args:
        root: of the document.
        sources: of figures that do not come from the file, by name.

    Raises:
        InvalidRequestError: something is missing, has the wrong unit, is out of range or contradicts something else.
    """
    heading = read_heading(root)
    values = Values(heading.source or heading.where, sources or {})
    arrivals = _arrivals(root.needed_table("arrivals"), values)
    services = _named(root, "service", values, _service)
    workload = Workload(
        heading=heading,
        arrivals=arrivals,
        goal=_goal(root, values),
        classes=_named(root, "class", values, _class),
        services=services,
        hosts=_named(root, "host", values, _host),
        policies=_named(root, "policy", values, _policy),
    )
    _check_shares(root, workload)
    _check_names(root, workload)
    _check_fit(root, workload)
    return workload


def _named(root: Table, key: str, values: Values, read: Callable[[str, Table, Values], Any]) -> dict[str, Any]:
    found = {}
    for name, table in root.tables(key).items():
        check_name(table, name, at_table=True)
        found[name] = read(name, table, values)
        table.finish()
    if not found:
        raise root.error(None, f"there is no [{key}.NAME]", resolution=f"add at least one [{key}.NAME]")
    return found


def _arrivals(table: Table, values: Values) -> Arrivals:
    pattern = Pattern(table.choice("pattern", tuple(item.value for item in Pattern), "uniform"))
    burst = table.integer("burst", 1)
    if not 1 <= burst <= _MOST_BURST:
        raise table.error("burst", f"{burst} tasks at once are not between 1 and {_MOST_BURST}")
    if (burst > 1) != (pattern is Pattern.BURST):
        raise table.error(
            "burst", "a burst and its size belong together", resolution='write pattern = "burst", burst = 15'
        )
    arrivals = Arrivals(rate=values.positive(table, "rate", PER_TIME), pattern=pattern, burst=burst)
    table.finish()
    return arrivals


def _goal(root: Table, values: Values) -> Figure:
    table = root.table("goal")
    if table is None:
        return given("goal.share_in_time", 0.0, PURE, source="no goal is set", note="every combination reaches it")
    found = values.probability(table, "share_in_time")
    table.finish()
    return found


def _class(name: str, table: Table, values: Values) -> TaskClass:
    rounds = table.integer("rounds", 1)
    if not 1 <= rounds <= _MOST_ROUNDS:
        raise table.error("rounds", f"{rounds} is not between 1 and {_MOST_ROUNDS}")
    return TaskClass(
        name=name,
        share=values.probability(table, "share", "100 %"),
        rounds=rounds,
        model=_by_service(table, "model", TIME, values),
        output=values.optional(table, "output", TOKEN),
        cached=values.not_negative(table, "cached", TOKEN, "0 token"),
        input=values.not_negative(table, "input", TOKEN, "0 token"),
        tool=values.not_negative(table, "tool", TIME),
        tool_cores=values.not_negative(table, "tool_cores", CPU, "1 CPU"),
        memory=values.positive(table, "memory", BYTES),
        quality=_quality(table, values),
        deadline=values.positive(table, "deadline", TIME) if "deadline" in table else None,
        commit=values.not_negative(table, "commit", TIME, "0 s"),
        model_variation=_variation(table, "model_variation", values),
        tool_variation=_variation(table, "tool_variation", values),
        place=table.place(),
    )


def _variation(table: Table, key: str, values: Values) -> Figure:
    found = values.not_negative(table, key, PURE, "0")
    if found.value and not LEAST_VARIATION <= found.value <= MOST_VARIATION:
        raise table.error(
            key,
            f"{found} is neither 0 nor between {LEAST_VARIATION:g} and {MOST_VARIATION:g}",
            resolution="write the squared coefficient of variation: 0 for always the same, 1 for exponential times",
        )
    return found


def _by_service(table: Table, key: str, dimension: Dimension, values: Values) -> dict[str, Figure]:
    """Return a quantity for all services (under "") or one for each."""
    raw = table.raw(key)
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        return {"": values.not_negative(table, key, dimension)}
    inner = table.needed_table(key)
    return {service: values.not_negative(inner, service, dimension) for service in inner.data}


def _quality(table: Table, values: Values) -> dict[str, Figure]:
    raw = table.raw("quality")
    if not isinstance(raw, dict):
        return {"": values.probability(table, "quality", "100 %")}
    inner = table.needed_table("quality")
    one = given(inner.label("others"), 1.0, source="nothing is said of the other services")
    return {"": one, **{service: values.probability(inner, service) for service in inner.data}}


def _service(name: str, table: Table, values: Values) -> Service:
    billing = Billing(table.choice("billing", tuple(item.value for item in Billing)))
    if billing is Billing.TOKENS and "price" in table and "prices" not in table:
        raise table.error(
            "price",
            "the service has no price of tokens; price alone is one of accelerators or seats",
            resolution='write prices = { output = "5 USD/Mtoken" }',
        )
    seat, gpu = MONEY / TIME, MONEY / GPU / TIME
    tokens = table.table("prices")
    service = Service(
        name=name,
        billing=billing,
        replicas=read_axis(table, "seats" if billing is Billing.SUBSCRIPTION else "replicas", 1),
        sessions=read_axis(table, "sessions", 1 if billing is Billing.TOKENS else None),
        gpus=values.positive(table, "gpus", GPU) if "gpus" in table else None,
        price=values.price(table, "price", seat if billing is Billing.SUBSCRIPTION else gpu),
        pace=_pace(table, values),
        first_token=values.not_negative(table, "first_token", TIME, "0 s"),
        prices=_prices(tokens, values) if tokens is not None else {},
        limits=_limits(table, values),
        place=table.place(),
    )
    _check_price(table, service)
    _check_pace(table, service)
    return service


def _prices(table: Table, values: Values) -> dict[str, Figure]:
    found = {
        key: values.not_negative(table, key, MONEY / TOKEN) for key in ("input", "cached", "output") if key in table
    }
    table.finish()
    return found


def _limits(table: Table, values: Values) -> dict[str, Figure]:
    inner = table.table("limits")
    if inner is None:
        return {}
    dimensions = {"calls": PER_TIME, "tokens": TOKEN / TIME}
    found = {key: values.positive(inner, key, dimension) for key, dimension in dimensions.items() if key in inner}
    if "concurrency" in inner:
        found["concurrency"] = values.positive(inner, "concurrency", PURE)
    inner.finish()
    return found


def _check_price(table: Table, service: Service) -> None:
    by_tokens = service.billing is Billing.TOKENS
    if by_tokens and "output" not in service.prices:
        raise table.error(
            None,
            "the service has no price",
            detail=f"{service.billing.value} are billed",
            resolution='add prices = { input = "1 USD/Mtoken", output = "5 USD/Mtoken" }',
        )
    if not by_tokens and service.price is None:
        unit = "USD/h" if service.billing is Billing.SUBSCRIPTION else "USD/GPU/h"
        raise table.error(
            None,
            "the service has no price",
            detail=f"it is billed by {service.billing.value}",
            resolution=f'add price = "... {unit}"; write "0 {unit}" if it costs nothing',
        )
    if service.billing in (Billing.USED, Billing.RESERVED) and service.gpus is None:
        raise table.error(
            None, "the service has no accelerators", resolution='add gpus = "4 GPU", those of one replica'
        )


def _pace(table: Table, values: Values) -> tuple[tuple[int, Figure], ...]:
    raw, dimension = table.raw("pace"), TIME / TOKEN
    if raw is None:
        return ()
    if not isinstance(raw, list):
        return ((0, values.not_negative(table, "pace", dimension)),)
    points = []
    for index, item in enumerate(raw):
        if not (isinstance(item, list) and len(item) == 2 and isinstance(item[0], int) and item[0] >= 1):
            raise table.error("pace", f"element {index} is not a pair", resolution='write [[16, "16.9 ms/token"], ...]')
        quantity = table.checked("pace", item[1], dimension)
        if quantity.value <= 0:
            raise table.error("pace", f"{item[1]!r} is not above zero")
        name = f"{table.label('pace')}.{item[0]}"
        note = f"written at {table.place('pace')}"
        figure = given(name, quantity.value, dimension, unit=quantity.unit, source=values.source, note=note)
        points.append((item[0], figure))
    points.sort(key=lambda point: point[0])
    if len({sessions for sessions, _ in points}) != len(points) or not points:
        raise table.error("pace", "there is no pace, or two for the same number of sessions")
    for (few, faster), (many, slower) in itertools.pairwise(points):
        if slower.value < faster.value:
            raise table.error(
                "pace",
                f"{many} sessions are faster than {few}: {slower} after {faster}",
                resolution="a replica that serves more sessions takes at least as long for a token of each",
            )
    return tuple(points)


def _check_pace(table: Table, service: Service) -> None:
    """Refuse more sessions than the pace was measured for: nobody knows how slow they are."""
    if service.pace and 0 < service.pace[-1][0] < service.sessions.values[-1]:
        raise table.error(
            "sessions",
            f"{service.sessions.values[-1]} sessions are more than the {service.pace[-1][0]} that pace ends with",
            resolution="add the pace at that many sessions, or allow fewer",
        )


def _host(name: str, table: Table, values: Values) -> Host:
    host = Host(
        name=name,
        count=read_axis(table, "count", 1),
        cpus=values.positive(table, "cpus", CPU),
        memory=values.positive(table, "memory", BYTES),
        creations=values.positive(table, "creations", PER_TIME) if "creations" in table else None,
        price=values.price(table, "price", MONEY / TIME),
        cpu_price=values.price(table, "cpu_price", MONEY / CPU / TIME),
        memory_price=values.price(table, "memory_price", MONEY / BYTES / TIME),
        place=table.place(),
    )
    by_use = host.cpu_price is not None or host.memory_price is not None
    if host.price is None and not by_use:
        raise table.error(
            None, "the host has no price", resolution='add price = "... USD/h", or cpu_price and memory_price'
        )
    return host


def _policy(name: str, table: Table, values: Values) -> Policy:
    kind = PolicyKind(table.choice("kind", tuple(item.value for item in PolicyKind)))
    predicted = kind is PolicyKind.PREDICTED
    return Policy(
        name=name,
        kind=kind,
        prepare=values.not_negative(table, "prepare", TIME, "0 s"),
        prepare_cpu=values.not_negative(table, "prepare_cpu", CPU * TIME, "0 CPU*s"),
        save=values.not_negative(table, "save", TIME / BYTES, None if kind is PolicyKind.PAUSED else "0 s/GiB"),
        restore=values.not_negative(table, "restore", TIME, None if kind is PolicyKind.PAUSED else "0 s"),
        hit=values.probability(table, "hit", None if predicted else "0"),
        lead=values.not_negative(table, "lead", TIME, None if predicted else "0 s"),
        place=table.place(),
    )


def _check_shares(root: Table, workload: Workload) -> None:
    total = math.fsum(item.share.value for item in workload.classes.values())
    if abs(total - 1) > _SHARE_TOLERANCE:
        listed = ", ".join(f"{name} {item.share}" for name, item in workload.classes.items())
        raise root.error("class", f"the shares of the classes sum to {total:.10g}, not to 1", detail=listed)


def _check_names(root: Table, workload: Workload) -> None:
    for task_class in workload.classes.values():
        for name in {**task_class.model, **task_class.quality}:
            if name and name not in workload.services:
                raise _inside(root, "class", task_class.name).error(
                    None, f"{task_class.name} names the service {name!r}, which is not offered"
                )
        for service in workload.services.values():
            _check_call(root, task_class, service)


def _check_fit(root: Table, workload: Workload) -> None:
    """Refuse hosts of which one cannot carry one environment: no number of them would."""
    for host in workload.hosts.values():
        for item in workload.classes.values():
            for key, needs, has in (("memory", item.memory, host.memory), ("cpus", item.tool_cores, host.cpus)):
                if needs.value > has.value * (1 + _SHARE_TOLERANCE):
                    raise _inside(root, "host", host.name).error(
                        key,
                        f"a {host.name!r} of {has} cannot carry one environment of {item.name!r}, which needs {needs}",
                        resolution=f"offer larger hosts, leave {host.name!r} out, or let the task need less",
                    )


def _check_call(root: Table, task_class: TaskClass, service: Service) -> None:
    timed = service.name in task_class.model or "" in task_class.model
    if not timed and (task_class.output is None or not service.pace):
        raise _inside(root, "class", task_class.name).error(
            None,
            f"how long a call of {task_class.name!r} takes at {service.name!r} is not said",
            resolution=f'add model = "9 s" to [class.{task_class.name}], or output = "355 token" there and '
            f'pace = "25 ms/token" to [service.{service.name}]',
        )
    needed: Mapping[str, Figure | None] = {"input": task_class.input, "cached": task_class.cached}
    for kind, tokens in needed.items():
        if service.billing is Billing.TOKENS and tokens is not None and tokens.value and kind not in service.prices:
            raise _inside(root, "service", service.name).error(
                "prices", f"{service.name!r} has no price for {kind} tokens", resolution=f"add {kind} to its prices"
            )
    if service.billing is Billing.TOKENS and task_class.output is None:
        raise _inside(root, "class", task_class.name).error(
            None,
            f"{service.name!r} is billed by tokens, and {task_class.name!r} says no output",
            resolution=f'add output = "355 token" to [class.{task_class.name}]',
        )


def check_deadlines(root: Table, workload: Workload) -> None:
    """Refuse a deadline within which no service ends even one round.

    Raises:
        InvalidRequestError: there is one; a longer one that only some services keep is a matter of the comparison.
    """
    for item in workload.classes.values():
        if item.deadline is None:
            continue
        model_s = min(
            model_time_s(item, service, sessions)
            for service in workload.services.values()
            for sessions in (service.sessions.values[0], service.sessions.values[-1])
        )
        round_s = model_s + item.tool.value
        if item.deadline.value < round_s * (1 - _SHARE_TOLERANCE):
            raise _inside(root, "class", item.name).error(
                "deadline",
                f"the deadline of {item.name!r}, {item.deadline}, is shorter than one round, which takes at least "
                f"{round_s:g} s",
                detail=f"model call {model_s:g} s, tool {item.tool.value:g} s",
                resolution=f"allow at least {item.rounds * round_s:g} s for {item.rounds} rounds",
            )


def _inside(root: Table, kind: str, name: str) -> Table:
    """Return the table of one class, service, host or policy, for errors that name its line."""
    return root.needed_table(kind).needed_table(name)
