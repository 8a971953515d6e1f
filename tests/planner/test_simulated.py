"""Formulas beside the simulator."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dsec.base.errors import CapabilityMissingError, NotFoundError
from dsec.planner.document import parse_document
from dsec.planner.from_scenario import is_scenario, scenario_workload
from dsec.planner.making import plan_document
from dsec.planner.simulated import AGREEMENT, Check, check
from dsec.planner.workload import Workload
from dsec.planner.workload_plan import decide

Make = Callable[..., Workload]
_RANDOM = ('pattern = "uniform"', 'pattern = "poisson"')
_GOAL = ('share_in_time = "95 %"', "share_in_time = 0.5")


def _check(workload: Workload, *, tasks: int = 4_000) -> Check:
    decision = decide(workload, brief=True)
    return check(decision, decision.combinations[0].name, tasks=tasks)


def _row(found: Check, name: str) -> object:
    return next(row for row in found.rows if row.name == name)


@pytest.mark.parametrize(
    "changes",
    [
        (),
        (('pattern = "uniform"', 'pattern = "burst"\nburst = 5'),),
        (('kind = "rebuilt"', 'kind = "kept"'), ('memory = "384 GB"', 'memory = "500 GB"')),
    ],
    ids=["uniform", "burst", "kept"],
)
def test_where_nothing_waits_formula_and_simulation_are_the_same(
    make_workload: Make, changes: tuple[tuple[str, str], ...]
) -> None:
    found = _check(make_workload(*changes), tasks=2_000)
    assert found.agrees
    for row in found.rows:
        assert abs(row.off_by) < 0.002, row


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rebuilt", "kept"])
@pytest.mark.parametrize("replicas", [12, 13, 16])
def test_random_arrivals_agree_within_two_per_cent_on_means(make_workload: Make, kind: str, replicas: int) -> None:
    workload = make_workload(
        _RANDOM, _GOAL, ('kind = "rebuilt"', f'kind = "{kind}"'), ("replicas = 12", f"replicas = {replicas}"),
        ("count = 1", "count = 2"),
    )  # fmt: skip
    found = _check(workload, tasks=20_000)
    for row in found.rows:
        if row.name.startswith("mean"):
            assert abs(row.off_by) <= AGREEMENT, row


@pytest.mark.slow
def test_times_that_vary_agree_on_means_and_on_the_share_in_time(make_workload: Make) -> None:
    workload = make_workload(
        _RANDOM, _GOAL, ('tool = "1 s"', 'tool = "1 s"\nmodel_variation = 1'), ("replicas = 12", "replicas = 16"),
        ('kind = "rebuilt"\nprepare = "2 s"\nprepare_cpu = "0.1 CPU*s"', 'kind = "kept"'), ("count = 1", "count = 2"),
    )  # fmt: skip
    assert _check(workload, tasks=20_000).agrees


def test_an_overload_is_reported_as_one_and_not_as_a_small_error(make_workload: Make) -> None:
    workload = make_workload(("replicas = 12", "replicas = 10"))
    found = _check(workload, tasks=2_000)
    assert not found.agrees
    assert any("overloaded" in row.why for row in found.rows)
    assert any("no steady state" in line for line in found.assumptions)


def test_more_than_one_class_or_another_policy_is_not_played(make_workload: Make) -> None:
    two = (
        "[class.repair]",
        '[class.other]\nshare = 0.5\nmodel = "1 s"\ntool = "1 s"\nmemory = "1 GiB"\n[class.repair]\nshare = 0.5',
    )
    with pytest.raises(CapabilityMissingError, match="plays one class"):
        _check(make_workload(two))
    paused = ('kind = "rebuilt"', 'kind = "paused"\nsave = "1 s/GiB"\nrestore = "1 s"')
    with pytest.raises(CapabilityMissingError, match="does not play the policy"):
        _check(make_workload(paused))


def test_a_combination_has_to_be_there(make_workload: Make) -> None:
    decision = decide(make_workload(), brief=True)
    with pytest.raises(NotFoundError, match="no combination 'slow"):
        check(decision, "slow.rebuilt")
    with pytest.raises(NotFoundError, match="none is simulated"):
        check(decide(make_workload(('deadline = "24 s"', 'deadline = "20 s"')), brief=True))


_SCENARIO = """\
model = "rounds"
title = "Random arrivals"
duration = "600 s"
warmup = "60 s"
rounds = 3
model_call = "6 s"
tool = "1 s"
model_slots = 192
cores = 48
environments = 178
environment = "per_round"
prepare = "2 s"
prepare_cpu = "0.1 s"
deadline = "24 s"

[arrivals]
kind = "uniform"
rate = "10 /s"
"""


def test_a_scenario_of_the_simulator_can_be_asked_of_the_formulas() -> None:
    assert is_scenario(parse_document(_SCENARIO, name="s.toml"))
    decision = plan_document(scenario_workload(_SCENARIO, name="s.toml")).decision
    assert decision is not None
    assert decision.combinations[0].completion_s == pytest.approx(21)
    assert check(decision, tasks=2_000).agrees


def test_a_scenario_that_no_formula_covers_is_refused() -> None:
    closed = _SCENARIO.replace('kind = "uniform"\nrate = "10 /s"', 'kind = "closed"\nconcurrency = 10')
    with pytest.raises(CapabilityMissingError, match="no formula covers closed arrivals"):
        scenario_workload(closed, name="s.toml")


def test_a_case_of_a_scenario_can_be_asked_for() -> None:
    text = _SCENARIO + '\n[[cases]]\nname = "slow"\nset = { model_call = "9 s" }\n'
    decision = plan_document(scenario_workload(text, name="s.toml", case="slow")).decision
    assert decision is not None
    assert decision.combinations[0].completion_s == pytest.approx(30)
    with pytest.raises(NotFoundError, match="no case 'slowest'"):
        scenario_workload(text, name="s.toml", case="slowest")
