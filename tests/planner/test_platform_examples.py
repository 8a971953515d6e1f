"""The shipped workloads: every number of the chapter's example 11-9 and exercise 11-10."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.planner.making import make_plan
from dsec.planner.picture import Area, Bars, Curves, Timeline
from dsec.planner.plan import Plan

_EXAMPLES = Path(__file__).parents[2] / "examples" / "planner"


def _plan(name: str) -> Plan:
    return make_plan((_EXAMPLES / name).read_text(encoding="utf8"), name=name)


@pytest.mark.parametrize(
    ("name", "numbers"), [("example-11-9.toml", 52), ("exercise-11-10.toml", 19), ("platform.toml", 9)]
)
def test_every_expected_number_comes_out(name: str, numbers: int) -> None:
    plan = _plan(name)
    assert [check for check in plan.checks if not check.holds] == []
    assert len(plan.checks) >= numbers


def test_example_11_9_chooses_fast_calls_and_rebuilt_environments_with_two_more_replicas() -> None:
    decision = _plan("example-11-9.toml").decision
    assert decision is not None
    assert decision.chosen is not None
    assert decision.chosen.best.name == "fast.rebuilt"
    assert decision.chosen.addition is not None
    assert decision.chosen.addition.text == "2 more replicas of fast, 12 in all"


def test_exercise_11_10_goes_back_to_keeping_environments_and_adds_nothing() -> None:
    decision = _plan("exercise-11-10.toml").decision
    assert decision is not None
    assert decision.chosen is not None
    assert decision.chosen.combination.name == "fast.kept"
    assert decision.chosen.combination.feasible


def test_a_workload_has_pictures_of_time_memory_loads_and_costs() -> None:
    kinds = {type(picture) for picture in _plan("example-11-9.toml").pictures}
    assert {Timeline, Area, Bars, Curves} <= kinds


_EXERCISE_11_1 = """
kind = "workload"
title = "Eight tasks a second, half of two rounds and half of four"
[arrivals]
rate = "8 /s"
[class.short]
share = "50 %"
rounds = 2
model = "6 s"
tool = "1 s"
memory = "2 GiB"
[class.long]
share = "50 %"
rounds = 4
model = "6 s"
tool = "1 s"
memory = "2 GiB"
[service.model]
billing = "used"
replicas = 20
sessions = 16
gpus = "4 GPU"
price = "6.79 USD/GPU/h"
[host.metal]
count = 2
cpus = "48 CPU"
memory = "384 GB"
price = "5 USD/h"
[policy.kept]
kind = "kept"
[policy.rebuilt]
kind = "rebuilt"
prepare = "2 s"
"""


def test_classes_of_tasks_add_up_as_in_exercise_11_1() -> None:
    figures = make_plan(_EXERCISE_11_1, name="w.toml").figures
    expected = {
        "model.kept.calls_rate": 24.0,
        "model.kept.slots_mean": 144.0,
        "model.kept.cores_mean": 24.0,
        "model.kept.memory_mean": 336 * 2**30,
        "model.rebuilt.memory_mean": 144 * 2**30,
        "model.rebuilt.creations_rate": 24.0,
        "model.kept.completion": 21.0,
    }
    assert {name: figures[name].value for name in expected} == pytest.approx(expected)
