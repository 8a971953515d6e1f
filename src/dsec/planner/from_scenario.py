"""A simulator's scenario of rounds as a workload, so that the formulas can be asked about it."""

from __future__ import annotations

import math
from pathlib import PurePath
from typing import Any

from dsec.base.errors import CapabilityMissingError
from dsec.planner.document import Document
from dsec.sim import Distribution, RoundsScenario
from dsec.sim.scenario_file import parse_scenario

_PLENTY = 1_000_000
_PATTERNS = {"uniform": "uniform", "poisson": "poisson", "bursts": "burst"}
_POLICIES = {"resident": "kept", "per_round": "rebuilt"}


def is_scenario(document: Document) -> bool:
    """Return whether a file is the simulator's."""
    return "model" in document.data and "kind" not in document.data


def scenario_workload(text: str, *, name: str, case: str | None = None) -> Document:
    """Return the workload document that says what a scenario says.

    Args:
        text: of the scenario.
        name: of its file.
        case: of the scenario; None: what it says outside its cases.

    Raises:
        InvalidRequestError: the scenario is not right.
        NotFoundError: it has no such case.
        CapabilityMissingError: it is not one of rounds, or has what no formula covers.
    """
    file = parse_scenario(PurePath(name).stem, text, where=name)
    base = file.base if case is None else file.only((case,)).cases[0][1]
    if not isinstance(base, RoundsScenario):
        raise CapabilityMissingError(
            f"{name} is not a scenario of rounds, and formulas cover no other",
            resolution='check a scenario with model = "rounds", or a workload',
        )
    return Document(name, _data(base, name), {})


def _data(scenario: RoundsScenario, name: str) -> dict[str, Any]:
    environments = scenario.environments or _PLENTY
    item: dict[str, Any] = {
        "rounds": scenario.rounds,
        "model": f"{scenario.model_call_s.expected()!r} s",
        "model_variation": _variation(scenario.model_call_s, name),
        "tool": f"{scenario.tool_s.expected()!r} s",
        "tool_variation": _variation(scenario.tool_s, name),
        "tool_cores": f"{scenario.tool_cores!r} CPU",
        "memory": f"{scenario.environment_bytes} B",
        "commit": f"{scenario.commit_s!r} s",
    }
    if scenario.deadline_s:
        item["deadline"] = f"{scenario.deadline_s!r} s"
    policy = _POLICIES[scenario.environment]
    return {
        "kind": "workload",
        "title": scenario.title or name,
        "source": name,
        "arrivals": _arrivals(scenario, name),
        "class": {"task": item},
        "service": {
            "model": {
                "billing": "reserved", "sessions": scenario.model_slots or _PLENTY, "gpus": "1 GPU",
                "price": "0 USD/GPU/h",
            }
        },
        "host": {
            "hosts": {
                "cpus": f"{scenario.cores or _PLENTY!r} CPU",
                "memory": f"{environments * scenario.environment_bytes} B",
                "price": "0 USD/h",
            }
        },
        "policy": {
            policy: {
                "kind": policy, "prepare": f"{scenario.prepare_s!r} s",
                "prepare_cpu": f"{scenario.prepare_cpu_s!r} CPU*s",
            }
        },
    }  # fmt: skip


def _arrivals(scenario: RoundsScenario, name: str) -> dict[str, Any]:
    arrivals = scenario.arrivals
    pattern = _PATTERNS.get(arrivals.kind)
    if pattern is None or arrivals.profile or arrivals.group_rate_per_s:
        raise CapabilityMissingError(
            f"{name}: no formula covers {arrivals.kind} arrivals as they are described there",
            resolution="use uniform or poisson arrivals, or bursts of equal size",
        )
    size = arrivals.group.expected()
    if _variation(arrivals.group, name) or size != int(size) or (pattern != "burst" and size != 1):
        raise CapabilityMissingError(
            f"{name}: no formula covers groups of varying size", resolution="give bursts a constant size, others none"
        )
    if pattern == "burst":
        return {"pattern": pattern, "burst": int(size), "rate": f"{size / arrivals.every_s!r} /s"}
    return {"pattern": pattern, "rate": f"{arrivals.rate_per_s!r} /s"}


def _variation(distribution: Distribution, name: str) -> float:
    """Return the squared coefficient of variation."""
    mean = distribution.expected()
    if distribution.kind == "constant" or mean == 0:
        return 0.0
    if distribution.kind == "exponential":
        return 1.0
    if distribution.kind == "uniform":
        return (distribution.high - distribution.low) ** 2 / 12 / mean**2
    if distribution.kind == "lognormal" and not distribution.high:
        return math.expm1(distribution.sigma() ** 2)
    raise CapabilityMissingError(
        f"{name}: no formula covers a {distribution.kind} distribution with these bounds",
        resolution="use constant, exponential, uniform or lognormal times",
    )
