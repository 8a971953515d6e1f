"""Where the numbers of a combination come from: its figures, each with formula, inputs and source.

The values are those of the table; only the way to them is written down here, so that nothing is computed twice. A test
recomputes each from its inputs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

from dsec.planner.additions import Addition
from dsec.planner.combination import THOUSAND, Combination
from dsec.planner.decision import Decision
from dsec.planner.dimension import BYTES, CPU, MONEY, PURE, TIME, Dimension
from dsec.planner.figure import Figure
from dsec.planner.options import take
from dsec.planner.outer import Row
from dsec.planner.profile import Profile
from dsec.planner.table import Table
from dsec.planner.workload import Billing, Host, Policy, PolicyKind, Service, TaskClass, Workload

LITTLE = "Little's law; the chapter, section 11.1.2"
_PATHS = {
    PolicyKind.KEPT: "prepare + rounds * (model + tool) + commit",
    PolicyKind.REBUILT: "rounds * (max(model, prepare) + tool) + commit",
    PolicyKind.ON_DEMAND: "rounds * (model + prepare + tool) + commit",
    PolicyKind.PAUSED: "max(model, prepare) + (rounds - 1) * max(model, save * memory + restore) + rounds * tool"
    " + commit",
    PolicyKind.PREDICTED: "rounds * (model + prepare - hit * min(prepare, lead) + tool) + commit",
}
_RESIDENT = {
    PolicyKind.KEPT: "memory * path",
    PolicyKind.REBUILT: "memory * rounds * (prepare + tool)",
    PolicyKind.ON_DEMAND: "memory * rounds * (prepare + tool)",
    PolicyKind.PAUSED: "memory * (prepare + rounds * tool + commit + (rounds - 1) * (save * memory + restore))",
    PolicyKind.PREDICTED: "memory * rounds * (lead + prepare - hit * min(prepare, lead) + tool)",
}


class WorkloadFigures:
    """The figures of a decision, made when they are asked for."""

    def __init__(self, decision: Decision) -> None:
        self._decision = decision
        self._given = given_figures(decision.workload)
        self._numbers = {item.name: index for index, item in enumerate(decision.combinations)}
        self._options = {option.combination.name: option for option in decision.options}
        self._made: dict[str, dict[str, Figure]] = {}

    def get(self, name: str) -> Figure | None:
        """Return a figure by its whole name; None: there is none."""
        if name in self._given:
            return self._given[name]
        parts = name.split(".")
        for length in range(len(parts) - 1, 1, -1):
            combination = ".".join(parts[:length])
            if combination in self._numbers or combination in self._options:
                return self._of(combination).get(name)
        return None

    def listed(self) -> dict[str, Figure]:
        """Return the given values and the figures of the options; the other combinations' are made when asked for."""
        found = dict(self._given)
        for option in self._decision.options[:20]:
            found.update(self._of(option.combination.name))
        return found

    def _of(self, name: str) -> dict[str, Figure]:
        if name not in self._made:
            self._made[name] = {figure.name: figure for figure in self._figures(name)}
        return self._made[name]

    def _figures(self, name: str) -> Iterator[Figure]:
        decision, option = self._decision, self._options.get(name)
        number = self._numbers.get(name)
        if number is not None:
            table, combination = take(decision.table, [number]), decision.combinations[number]
        else:
            assert option is not None  # `get` and `listed` ask only for names that one of the two knows.
            table, combination = take(decision.table, [option.line]), option.combination
        yield from trace(decision, combination, table)
        if option is not None and option.addition is not None:
            yield from _needed(combination.name, option.addition)


def given_figures(workload: Workload) -> dict[str, Figure]:
    """Return every number that the file says, by its name."""
    groups = (workload.classes, workload.services, workload.hosts, workload.policies)
    found = [workload.arrivals.rate, workload.goal]
    for owner in (item for group in groups for item in group.values()):
        for field in dataclasses.fields(owner):
            found += _figures_of(getattr(owner, field.name))
    return {figure.name: figure for figure in found}


def _figures_of(value: Any) -> list[Figure]:
    if isinstance(value, Figure):
        return [value]
    if isinstance(value, Mapping):
        return [item for item in value.values() if isinstance(item, Figure)]
    if isinstance(value, tuple):
        return [item[1] for item in value if isinstance(item, tuple) and isinstance(item[1], Figure)]
    return []


def count(name: str, number: float, source: str) -> Figure:
    """Return a number of things as a given value."""
    return Figure(name=name, value=float(number), source=source)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """Makes figures whose names begin alike."""

    prefix: str

    def make(
        self,
        name: str,
        value: float,
        dimension: Dimension,
        formula: str,
        inputs: Mapping[str, Figure],
        source: str,
        unit: str = "",
    ) -> Figure:
        return Figure(
            name=f"{self.prefix}.{name}",
            value=value,
            dimension=dimension,
            unit=unit,
            formula=formula,
            inputs=inputs,
            source=source,
        )


def trace(decision: Decision, combination: Combination, table: Table) -> Iterator[Figure]:
    """Return the figures of one combination; `table` is its line."""
    workload = decision.workload
    row = decision.outer.rows[int(table.choice.row[0])]
    host = workload.hosts[combination.host]
    names = _Names(prefix=combination.name)
    by_class = [_class_figures(workload, profile, combination, names) for profile in row.profiles]
    for figures in by_class:
        yield from figures.values()
    means = {
        "path": _mean(names, "path", row.path_s, TIME, by_class, workload, "s"),
        "cpu_time": _mean(names, "cpu_time", row.cpu_s, CPU * TIME, by_class, workload),
        "memory_time": _mean(names, "memory_time", row.memory_byte_s, BYTES * TIME, by_class, workload, "GiB*s"),
        "slot_time": _mean(names, "slot_time", row.call_s * row.calls_per_s / workload.arrivals.rate.value, TIME,
                           by_class, workload, "s"),
        "model_cost": _mean(names, "model_cost", row.model_usd, MONEY, by_class, workload),
    }  # fmt: skip
    yield from means.values()
    times = {figure.name.rpartition(".")[2]: figure for figure in _time_figures(workload, table, names, means)}
    yield from times.values()
    needs = dict(_need_figures(workload, row, table, names, means))
    yield from needs.values()
    yield from _load_figures(workload, combination, table, names, needs)
    means |= {"memory_time_waiting": needs["memory_time_waiting"], "share_in_time": times["share_in_time"]}
    yield from _cost_figures(workload, combination, table, host, names, means)


def _class_figures(workload: Workload, profile: Profile, combination: Combination, names: _Names) -> dict[str, Figure]:
    item, policy, service = profile.task_class, profile.policy, workload.services[combination.service]
    inner = _Names(prefix=f"{names.prefix}.{item.name}")
    model = _model_time(inner, item, service, profile, combination)
    rounds = count(f"class.{item.name}.rounds", item.rounds, item.place)
    made = count(f"{inner.prefix}.made", profile.phases.made, "one, or one for each round and wrong guess")
    common = {"rounds": rounds, "model": model, "tool": item.tool, "commit": item.commit, "prepare": policy.prepare}
    further = _policy_inputs(policy, item)
    path = inner.make(
        "path", profile.phases.path_s, TIME, _PATHS[policy.kind], {**common, **further},
        "the critical path; the chapter, sections 11.1.1, 11.2.3 and 11.2.4", "s",
    )  # fmt: skip
    cpu = inner.make(
        "cpu_time", profile.cpu_s, CPU * TIME, "rounds * tool * tool_cores + made * prepare_cpu",
        {"rounds": rounds, "tool": item.tool, "tool_cores": item.tool_cores, "made": made,
         "prepare_cpu": policy.prepare_cpu},
        "the chapter, sections 11.1.1 and 11.2.4",
    )  # fmt: skip
    memory = inner.make(
        "memory_time", profile.memory_byte_s, BYTES * TIME, _RESIDENT[policy.kind],
        {"memory": item.memory, "path": path, **common, **further},
        "memory over time; the chapter, sections 11.1.1, 11.2.3 and 11.2.4", "GiB*s",
    )  # fmt: skip
    slot = inner.make(
        "slot_time", profile.slot_s, TIME, "rounds * model", {"rounds": rounds, "model": model},
        "the chapter, section 11.1.2", "s",
    )  # fmt: skip
    cost = _model_cost(inner, item, service, profile, combination, model, rounds)
    return {"model_time": model, "path": path, "cpu_time": cpu, "memory_time": memory, "slot_time": slot,
            "model_cost": cost}  # fmt: skip


def _policy_inputs(policy: Policy, item: TaskClass) -> dict[str, Figure]:
    if policy.kind is PolicyKind.PAUSED:
        return {"save": policy.save, "restore": policy.restore, "memory": item.memory}
    if policy.kind is PolicyKind.PREDICTED:
        return {"hit": policy.hit, "lead": policy.lead}
    return {}


def _model_time(inner: _Names, item: TaskClass, service: Service, profile: Profile, combination: Combination) -> Figure:
    given = item.model.get(service.name) or item.model.get("")
    if given is not None:
        return inner.make("model_time", profile.model_s, TIME, "model", {"model": given}, "as given", "s")
    assert item.output is not None  # The reader asked for one or the other.
    inputs = {"first_token": service.first_token, "output": item.output}
    sessions = count("sessions", combination.sessions, "of this combination")
    inputs |= {"sessions": sessions, **{f"pace_at_{at}": figure for at, figure in service.pace}}
    formula = "first_token + output * pace" + (
        ", pace by straight lines between sessions" if len(service.pace) > 1 else ""
    )
    return inner.make("model_time", profile.model_s, TIME, formula, inputs, "the chapter, section 11.4.1", "s")


def _model_cost(
    inner: _Names,
    item: TaskClass,
    service: Service,
    profile: Profile,
    combination: Combination,
    model: Figure,
    rounds: Figure,
) -> Figure:
    if service.billing is Billing.USED:
        assert service.gpus is not None  # The reader asked for both.
        assert service.price is not None
        formula = "rounds * gpus * model / sessions * price"
        sessions = count("sessions", combination.sessions, service.sessions.place)
        inputs = {"rounds": rounds, "gpus": service.gpus, "model": model, "sessions": sessions, "price": service.price}
        source = "the chapter, sections 11.4.3 and 11.4.4"
    elif service.billing is Billing.TOKENS:
        formula = "rounds * (input * price_input + cached * price_cached + output * price_output)"
        output = {} if item.output is None else {"output": item.output}
        inputs = {"rounds": rounds, "input": item.input, "cached": item.cached, **output}
        inputs |= {f"price_{kind}": figure for kind, figure in service.prices.items()}
        source = "the chapter, section 11.4.2"
    else:
        formula, inputs, source = "0; the service is paid for by the time that it is there", {}, "the offer"
    return inner.make("model_cost", profile.model_usd, MONEY, formula, inputs, source)


def _mean(
    names: _Names,
    name: str,
    value: float,
    dimension: Dimension,
    by_class: list[dict[str, Figure]],
    workload: Workload,
    unit: str = "",
) -> Figure:
    inputs: dict[str, Figure] = {}
    for item, figures in zip(workload.classes.values(), by_class, strict=True):
        inputs[f"share_{item.name}"] = item.share
        inputs[f"{name}_{item.name}"] = figures[name]
    formula = " + ".join(f"share_{item} * {name}_{item}" for item in workload.classes)
    return names.make(name, value, dimension, formula, inputs, "mean over the classes", unit)


def _time_figures(workload: Workload, table: Table, names: _Names, means: Mapping[str, Figure]) -> Iterator[Figure]:
    pattern = workload.arrivals.pattern.value
    wait = names.make(
        "wait", float(table.wait_s[0]), TIME, f"waits for model slots and cores, {pattern} arrivals",
        {"rate": workload.arrivals.rate}, "dsec.costs.waiting and dsec.costs.burst", "s",
    )  # fmt: skip
    yield wait
    yield names.make(
        "completion", float(table.completion_s[0]), TIME, "path + wait", {"path": means["path"], "wait": wait},
        "the chapter, section 11.1.1", "s",
    )  # fmt: skip
    inputs: dict[str, Figure] = {"path": means["path"], "wait": wait}
    service = names.prefix.split(".")[0]
    for item in workload.classes.values():
        inputs[f"quality_{item.name}"] = item.quality_with(service)
        if item.deadline is not None:
            inputs[f"deadline_{item.name}"] = item.deadline
    yield names.make(
        "share_in_time", float(table.share_in_time[0]), PURE, "sum of share * quality * P(path + waits <= deadline)",
        inputs, "the chapter, sections 11.4.3 and 11.5.2", "%",
    )  # fmt: skip


def _need_figures(
    workload: Workload, row: Row, table: Table, names: _Names, means: Mapping[str, Figure]
) -> Iterator[tuple[str, Figure]]:
    rate = workload.arrivals.rate
    for name, value, dimension, mean in (
        ("cores_mean", row.cores, CPU, "cpu_time"),
        ("slots_mean", row.slots, PURE, "slot_time"),
    ):
        yield name, names.make(name, value, dimension, f"rate * {mean}", {"rate": rate, mean: means[mean]}, LITTLE)
    held = names.make(
        "memory_time_waiting", float(table.memory_byte_s[0]) - row.memory_byte_s, BYTES * TIME,
        "memory * waits; a kept environment stands through all of them, any other while its tool waits", {},
        "dsec.planner.table", "GiB*s",
    )  # fmt: skip
    yield "memory_time_waiting", held
    yield "memory_mean", names.make(
        "memory_mean", rate.value * float(table.memory_byte_s[0]), BYTES, "rate * (memory_time + memory_time_waiting)",
        {"rate": rate, "memory_time": means["memory_time"], "memory_time_waiting": held}, LITTLE, "GiB",
    )  # fmt: skip
    pattern = workload.arrivals.pattern.value
    how = "mean + 3.09 standard deviations (M/G/infinity)" if pattern == "poisson" else "one task's timeline, folded"
    for name, peak, dimension, unit in (
        ("cores_peak", row.cores_peak, CPU, ""),
        ("memory_peak", float(table.demands["memory"][0]), BYTES, "GiB"),
        ("slots_peak", row.slots_peak, PURE, ""),
    ):
        yield (
            name,
            names.make(name, peak, dimension, how, {"rate": rate, "path": means["path"]}, "dsec.planner.folding", unit),
        )
    for name, value in (("calls_rate", row.calls_per_s), ("creations_rate", row.made_per_s)):
        yield name, names.make(name, value, PURE / TIME, "rate * so many of a task", {"rate": rate}, LITTLE, "/s")


def _load_figures(
    workload: Workload, combination: Combination, table: Table, names: _Names, needs: Mapping[str, Figure]
) -> Iterator[Figure]:
    host, service = workload.hosts[combination.host], workload.services[combination.service]
    hosts = count("hosts", combination.hosts, host.count.place)
    units = count("units", combination.units, service.replicas.place)
    slots = {"units": units, "sessions": count("sessions", combination.sessions, service.sessions.place)}
    if service.billing is Billing.TOKENS:
        # Such a service serves as many calls as its limit says, or any number: then it has no load.
        slots = (
            {"units": units, "concurrency": service.limits["concurrency"]} if "concurrency" in service.limits else {}
        )
    for name, need, inputs in (
        ("cores_load", "cores_mean", {"hosts": hosts, "cpus": host.cpus}),
        ("memory_load", "memory_peak", {"hosts": hosts, "memory": host.memory}),
        ("slots_load", "slots_mean", slots),
    ):
        if not inputs:
            continue
        formula = f"{need} / ({' * '.join(inputs)})"
        load = needs[need].value / math.prod(item.value for item in inputs.values())
        yield names.make(name, load, PURE, formula, {need: needs[need], **inputs}, "the chapter, example 11-1", "%")
    sustained = float(table.sustained_per_s[0])
    if sustained != float("inf"):
        yield names.make(
            "sustained_rate", sustained, PURE / TIME, "rate / largest load, memory by its mean",
            {"rate": workload.arrivals.rate, **needs}, "the chapter, example 11-1", "/s",
        )  # fmt: skip


def _cost_figures(
    workload: Workload,
    combination: Combination,
    table: Table,
    host: Host,
    names: _Names,
    means: Mapping[str, Figure],
) -> Iterator[Figure]:
    rate, service = workload.arrivals.rate, workload.services[combination.service]
    model_inputs = {"model_cost": means["model_cost"], "rate": rate}
    model_formula = "model_cost"
    if service.price is not None and service.billing is not Billing.USED:
        model_inputs |= {"units": count("units", combination.units, service.replicas.place), "price": service.price}
        model_inputs |= {"gpus": service.gpus} if service.gpus is not None else {}
        model_formula = (
            "model_cost + units * gpus * price / rate" if service.gpus else "model_cost + units * price / rate"
        )
    model = names.make(
        "model_total", float(table.model_usd[0]), MONEY, model_formula, model_inputs, "the chapter, section 11.4.4"
    )
    terms = ["0 USD"]
    inputs: dict[str, Figure] = {}
    for price, label, mean in (
        (host.cpu_price, "cpu_price", "cpu_time"),
        (host.memory_price, "memory_price", "memory_time"),
    ):
        if price is not None:
            terms.append(f"{mean} * {label}" if mean == "cpu_time" else f"({mean} + {mean}_waiting) * {label}")
            inputs |= {mean: means[mean], label: price}
            if mean == "memory_time":
                inputs["memory_time_waiting"] = means["memory_time_waiting"]
    if host.price is not None:
        terms.append("hosts * host_price / rate")
        inputs |= {"hosts": count("hosts", combination.hosts, host.count.place), "host_price": host.price, "rate": rate}
    environment = names.make(
        "environment_total", float(table.environment_usd[0]), MONEY, " + ".join(terms[1:] or terms), inputs,
        "the chapter, example 11-9",
    )  # fmt: skip
    yield model
    yield environment
    both = {"model_total": model, "environment_total": environment}
    cost = names.make(
        "cost_per_thousand", THOUSAND * float(table.usd[0]), MONEY, "1000 * (model_total + environment_total)", both,
        "the chapter, example 11-9",
    )  # fmt: skip
    yield cost
    if combination.usd_per_thousand_in_time is not None:
        yield names.make(
            "cost_per_thousand_in_time", combination.usd_per_thousand_in_time, MONEY,
            "cost_per_thousand / share_in_time", {"cost_per_thousand": cost, "share_in_time": means["share_in_time"]},
            "the chapter, section 11.5.2",
        )  # fmt: skip


def _needed(name: str, addition: Addition) -> Iterator[Figure]:
    source = "the least that suffices, by bisection (dsec.planner.additions)"
    for what, value in (
        ("units_needed", addition.units),
        ("hosts_needed", addition.hosts),
        ("more_units", addition.more_units),
        ("more_hosts", addition.more_hosts),
    ):
        yield Figure(name=f"{name}.{what}", value=float(value), formula="least count that is feasible", source=source)
