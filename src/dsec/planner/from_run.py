"""Plan for a multiple of a rollout's load: fitted tasks, offered services and hosts, three ways.

The middle plan takes every fitted value as it is; the hopeful one takes the good end of every interval at once, the
careful one the bad end. Both together bound what the data allow, wider than 95 %.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from dsec.base.errors import InvalidRequestError
from dsec.planner.decision import Decision
from dsec.planner.document import Document, parse_document
from dsec.planner.fitting import GroupFit, Interval, RunFit, fit_run
from dsec.planner.plan import Plan
from dsec.planner.workload_plan import decide_document, workload_plan
from dsec.verification.attempt_result import AttemptResult

CASES = ("hopeful", "middle", "careful")
_END = {"hopeful": "low", "middle": "middle", "careful": "high"}
_QUALITY_END = {"hopeful": "high", "middle": "middle", "careful": "low"}
_LARGEST = 1e6
_DEADLINE = 1.5
"""Times the 95th percentile of the attempts' time: what `deadline = "run"` means."""
_GOAL = 0.95
"""Of the share that passes at all: what `share_in_time = "run"` means."""
DEFAULT_OFFERS = '''
kind = "workload"
title = "A multiple of a run's load"
assumed = """environments of 512 MiB on hosts of 16 cores and 64 GiB at 1 USD/h; as many model calls as are wanted, \
not paid for; 95 % of what passes shall do so within one and a half times the time that 95 % of the run's attempts \
took; give a FILE to say otherwise"""

[run]
memory = "512 MiB"
deadline = "run"

[goal]
share_in_time = "run"

[service.model]
billing = "tokens"
prices = { output = "0 USD/Mtoken" }

[host.host]
count = "1..10000"
cpus = "16 CPU"
memory = "64 GiB"
price = "1 USD/h"

[policy.kept]
kind = "kept"
prepare = "run"
'''
_RUN_KEYS = ("memory", "tool_cores", "deadline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What one way of reading the intervals comes to.

    Attributes:
        name: hopeful, middle or careful.
        chosen: name of the combination; empty: none reaches the goal.
        units, hosts: how many of it.
        completion_s, usd_per_thousand, share_in_time: of it; NaN: none.
    """

    name: str
    chosen: str
    units: int
    hosts: int
    completion_s: float
    usd_per_thousand: float
    share_in_time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """A fitted plan.

    Attributes:
        fit: what was fitted.
        times: the multiple.
        cases: the three ways.
        plan: the middle one, whole.
    """

    fit: RunFit
    times: float
    cases: tuple[Case, ...]
    plan: Plan


def plan_from_run(
    results: Iterable[AttemptResult], *, offers: str | None, name: str, run: str, times: float
) -> RunPlan:
    """Fit a rollout's results and plan for a multiple of its load.

    Args:
        results: of the rollout.
        offers: text of a file with services, hosts, policies and a table `[run]`; None: `DEFAULT_OFFERS`.
        name: of that file.
        run: name of the rollout's directory, for sources.
        times: the multiple.

    Raises:
        InvalidRequestError: the results are too few, the multiple is not positive, or the file is not right.
    """
    if not 0 < times <= _LARGEST:
        raise InvalidRequestError(f"{times:g} times the load is not between 0 and {_LARGEST:g}", resolution="write 10")
    fit = fit_run(results)
    document = parse_document(DEFAULT_OFFERS if offers is None else offers, name=name)
    for key in ("arrivals", "class"):
        if key in document.data:
            raise document.root().error(key, "this comes from the run", resolution=f"leave [{key}] out")
    sources = _sources(fit, run, times)
    documents = {case: _document(document, fit, times, case) for case in CASES}
    cases = tuple(_case(case, decide_document(documents[case])) for case in CASES)
    return RunPlan(fit=fit, times=times, cases=cases, plan=workload_plan(documents["middle"], sources))


def _sources(fit: RunFit, run: str, times: float) -> Mapping[str, str]:
    def source(item: Interval, by: str = "") -> str:
        low, high = (f"{value:.4g}{item.unit and ' '}{item.unit}" for value in (item.low, item.high))
        return f"fitted to {item.count} attempts in {run}: 95 % interval {low} to {high} ({item.how}){by}"

    found = {"arrivals.rate": source(fit.rate, f", {times:g} times")}
    for group in fit.groups:
        found |= {item.name: source(item) for item in group.intervals}
        found[f"class.{group.name}.share"] = f"fitted to {fit.attempts} attempts in {run}"
    return found


def _document(offers: Document, fit: RunFit, times: float, case: str) -> Document:
    data = dict(offers.data)
    hints = dict(data.pop("run", {}))
    unknown = sorted(set(hints) - set(_RUN_KEYS))
    if unknown or "memory" not in hints:
        raise offers.root().error(
            "run",
            f"{unknown[0]!r} is not known" if unknown else "the memory of an environment is not said",
            resolution=f"[run] has {', '.join(_RUN_KEYS)}; memory is needed, no result tells it",
        )
    if hints.get("deadline") == "run":
        hints["deadline"] = f"{_DEADLINE * fit.attempt_p95_s!r} s"
    if isinstance(data.get("goal"), dict) and data["goal"].get("share_in_time") == "run":
        quality = math.fsum(group.share * group.quality.at(_QUALITY_END[case]) for group in fit.groups)
        data["goal"] = {"share_in_time": _GOAL * quality}
    data["arrivals"] = {"rate": f"{fit.rate.at(_END[case]) * times!r} /s", "pattern": "poisson"}
    shares = _shares(fit.groups)
    data["class"] = {
        group.name: _class(group, share, hints, case) for group, share in zip(fit.groups, shares, strict=True)
    }
    prepare_s = math.fsum(group.share * group.prepare.at(_END[case]) for group in fit.groups)
    data["policy"] = {
        name: {**policy, "prepare": f"{prepare_s!r} s"}
        if isinstance(policy, dict) and policy.get("prepare") == "run"
        else policy
        for name, policy in dict(data.get("policy", {})).items()
    }
    return Document(offers.name, data, offers.lines)


def _shares(groups: Iterable[GroupFit]) -> list[float]:
    """Return the groups' shares, the last one the rest, so that they sum to 1."""
    shares = [group.share for group in groups]
    shares[-1] = 1 - math.fsum(shares[:-1])
    return shares


def _class(group: GroupFit, share: float, hints: Mapping[str, Any], case: str) -> dict[str, Any]:
    end = _END[case]
    return {
        "share": share,
        "rounds": group.rounds,
        "model": f"{group.model.at(end)!r} s",
        "tool": f"{group.tool.at(end)!r} s",
        "commit": f"{group.commit.at(end)!r} s",
        "output": "0 token",
        "quality": group.quality.at(_QUALITY_END[case]),
        "model_variation": group.model_variation,
        "tool_variation": group.tool_variation,
        **hints,
    }


def _case(name: str, decision: Decision) -> Case:
    if decision.chosen is None:
        nothing = math.nan
        return Case(
            name=name, chosen="", units=0, hosts=0, completion_s=nothing, usd_per_thousand=nothing, share_in_time=0.0
        )
    best = decision.chosen.best
    return Case(
        name=name,
        chosen=best.name,
        units=best.units,
        hosts=best.hosts,
        completion_s=best.completion_s,
        usd_per_thousand=best.usd_per_thousand,
        share_in_time=best.share_in_time,
    )
