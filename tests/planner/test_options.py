"""Which combination is taken, and what the others lack."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from dsec.planner.decision import Decision, Lever, Option
from dsec.planner.workload import Workload
from dsec.planner.workload_plan import decide

Make = Callable[..., Workload]
_NORMAL = (
    "[service.fast]",
    """[service.normal]
billing = "used"
replicas = 10
sessions = 32
gpus = "4 GPU"
price = "6.79 USD/GPU/h"
[service.fast]""",
)
_BOTH = (('model = "6 s"', 'model = { normal = "9 s", fast = "6 s" }'), _NORMAL)
_KEPT = ("[policy.rebuilt]", '[policy.kept]\nkind = "kept"\n[policy.rebuilt]')


def _option(decision: Decision, name: str) -> Option:
    return next(option for option in decision.options if option.combination.name == name)


def _lever(decision: Decision, name: str) -> Lever:
    return next(lever for lever in decision.levers if lever.name == name)


@pytest.fixture(scope="module")
def decision(make_workload: Make) -> Decision:
    """The chapter's example 11-9: ten replicas of either service, two policies."""
    return decide(make_workload(*_BOTH, _KEPT, ("replicas = 12", "replicas = 10")))


def test_nothing_fits_as_offered_and_two_replicas_are_enough(decision: Decision) -> None:
    assert decision.chosen is not None
    assert decision.chosen.best.name == "fast.rebuilt"
    addition = decision.chosen.addition
    assert addition is not None
    assert (addition.more_units, addition.more_hosts, addition.units) == (2, 0, 12)
    assert decision.chosen.best.feasible
    assert "2 more replicas of fast, 12 in all" in decision.reasons[0]


def test_a_combination_says_everything_that_it_lacks_and_by_how_much(decision: Decision) -> None:
    kept = _option(decision, "fast.kept")
    assert [item.resource for item in kept.shortfalls] == ["memory", "model slots"]
    assert "420 GiB of 357.628 GiB, 62.3721 GiB missing" in kept.shortfalls[0].text
    assert "180 of 160, 20 missing" in kept.shortfalls[1].text
    assert kept.addition is not None
    assert (kept.addition.more_units, kept.addition.more_hosts) == (2, 1)


def test_a_service_that_is_too_slow_cannot_be_bought_into_time(decision: Decision) -> None:
    normal = _option(decision, "normal.rebuilt")
    assert not normal.is_possible
    assert "6 s beyond its deadline" in normal.shortfalls[0].text
    assert "model calls alone take 27 s" in normal.shortfalls[0].text
    assert any(line.startswith("normal.rebuilt is cheaper") for line in decision.reasons)


def test_an_overload_says_how_fast_work_piles_up(decision: Decision) -> None:
    text = _option(decision, "normal.kept").shortfalls[1].text
    assert "5.96 tasks/s can be worked off, so that 4.04 tasks/s pile up" in text


def test_what_would_change_the_answer_is_found(decision: Decision) -> None:
    rate = _lever(decision, "arrivals.rate")
    assert rate.up.startswith("10.67 /s: not feasible")  # 192 slots over 18 s a task
    assert _lever(decision, "class.repair.deadline").down.startswith("21 s: not feasible")
    gap = _lever(decision, "class.repair.model.fast")
    assert gap.down == "2.156 s: fast.kept"  # the break-even of keeping and rebuilding
    assert gap.usd_per_ten_percent == pytest.approx(0.84875)


def test_equal_costs_of_keeping_and_rebuilding_are_said(decision: Decision) -> None:
    assert "2.156 s" in decision.break_evens[0]


def test_a_cheaper_combination_with_an_addition_is_not_taken_but_named(make_workload: Make) -> None:
    decision = decide(
        make_workload(_KEPT, ("replicas = 12", "replicas = 12"), ('memory = "384 GB"', 'memory = "500 GB"'))
    )
    assert decision.chosen is not None
    assert decision.chosen.combination.feasible
    assert decision.chosen.addition is None


def test_limits_of_a_service_by_the_call_are_raised_not_multiplied(make_workload: Make) -> None:
    tokens = (
        'billing = "used"',
        'billing = "tokens"\nprices = { output = "10 USD/Mtoken" }\nlimits = { calls = "20 /s", concurrency = 100 }',
    )
    decision = decide(make_workload(tokens))
    assert decision.chosen is not None
    assert decision.chosen.addition is not None
    assert decision.chosen.addition.limits == (
        "a limit of 30 1/s calls instead of 20 1/s",
        "a limit of 180 model slots instead of 100",
    )
    assert decision.chosen.best.usd_per_thousand == pytest.approx(1000 * (3 * 355 * 1e-5) + 0.1272, rel=1e-3)


def test_a_reserved_service_costs_by_the_hour_whatever_is_done(make_workload: Make) -> None:
    decision = decide(make_workload(('billing = "used"', 'billing = "reserved"')))
    per_task = 12 * 4 * 6.79 / 3600 / 10
    assert decision.combinations[0].usd_per_thousand == pytest.approx(1000 * per_task + 0.1272)


def test_a_subscription_costs_by_the_seat(make_workload: Make) -> None:
    changes = (
        ('billing = "used"\nreplicas = 12', 'billing = "subscription"\nseats = "1..50"'),
        ('gpus = "4 GPU"\nprice = "6.79 USD/GPU/h"', 'price = "200 USD/day"'),
    )
    best = decide(make_workload(*changes)).combinations[0]
    chosen = decide(make_workload(*changes)).chosen
    assert chosen is not None
    assert chosen.best.units == 12
    assert chosen.best.usd_per_thousand == pytest.approx(1000 * 12 * 200 / 86400 / 10 + 0.1272)
    assert best.units == 1


def test_nothing_possible_is_said(make_workload: Make) -> None:
    decision = decide(make_workload(('deadline = "24 s"', 'deadline = "20 s"')))
    assert decision.chosen is None
    assert decision.reasons == ("no combination reaches the goal, whatever is added",)
    assert decision.levers == ()


def test_reserved_and_used_replicas_cost_the_same_at_a_load_that_is_said(make_workload: Make) -> None:
    """Section 11.4.4: 4 accelerators for a month against 0.0081 USD a task; equal at 2.41 million tasks a month."""
    used = """[service.used]
billing = "used"
replicas = 1
sessions = 32
gpus = "4 GPU"
price = "8.64 USD/GPU/h"
[service.reserved]"""
    decision = decide(
        make_workload(
            ("[service.fast]", used),
            ('billing = "used"\nreplicas = 12\nsessions = 16', 'billing = "reserved"\nreplicas = 1\nsessions = 32'),
            ('model = "6 s"', 'model = "9 s"'),
            ('deadline = "24 s"', 'deadline = "60 s"'),
            ('rate = "10 /s"', 'rate = "1 /s"'),
        )
    )
    line = next(line for line in decision.break_evens if "cost the same at" in line and "tasks/s" in line)
    rate = float(line.split("cost the same at ")[1].split()[0])
    assert rate * 720 * 3600 == pytest.approx(2.414e6, rel=1e-3)
    assert "used.rebuilt is cheaper below, reserved.rebuilt above" in line


def test_a_load_that_one_of_two_ways_could_not_work_off_is_no_break_even(make_workload: Make) -> None:
    """12 replicas of 16 calls work off 10.67 tasks/s; dear tokens cost as much at 4.25 tasks/s, cheap ones at 17."""

    def lines(price: str) -> list[str]:
        tokens = f'[service.api]\nbilling = "tokens"\nprices = {{ output = "{price}" }}\n[service.fast]'
        reserved = ('billing = "used"', 'billing = "reserved"')
        found = decide(make_workload(("[service.fast]", tokens), reserved, ("count = 1", "count = 40"))).break_evens
        return [line for line in found if "tasks/s" in line]

    assert lines("5 USD/Mtoken") == []
    assert [line.partition(" with")[0] for line in lines("20 USD/Mtoken")] == [
        "fast.rebuilt and api.rebuilt cost the same at 4.25 tasks/s"
    ]


def test_the_front_leaves_out_what_is_faster_by_nothing(make_workload: Make) -> None:
    changes = (('pattern = "uniform"', 'pattern = "poisson"'), ("replicas = 12", 'replicas = "12..40"'))
    reserved = ('billing = "used"', 'billing = "reserved"')
    found = decide(make_workload(*changes, reserved, ('share_in_time = "95 %"', 'share_in_time = "50 %"'))).front
    times = [item.completion_s for item in found]
    assert all(later < earlier * (1 - 1e-5) for earlier, later in itertools.pairwise(times))
