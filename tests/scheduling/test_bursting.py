"""When work goes to the cloud."""

from __future__ import annotations

import pytest

from dsec.base.errors import InvalidRequestError
from dsec.scheduling.bursting import BurstRules, plan_burst

CAPACITY = {"cpu": 100, "memory": 100}
RULES = BurstRules()


def plan(jobs, used: int, cloud: int = 100, *, bursting: bool = False):
    return plan_burst(
        jobs, used={"cpu": used}, capacity=CAPACITY, cloud_free={"cpu": cloud}, rules=RULES, bursting=bursting
    )


def test_nothing_goes_at_the_threshold_and_something_above_it(job):
    jobs = [job("a", bursts=True)]
    assert plan(jobs, 80).jobs == ()
    assert plan(jobs, 81).jobs == ("a",)


def test_only_what_the_cloud_can_run_goes_as_long_as_it_has_room(job):
    jobs = [job("a", 6, bursts=True), job("b", 1), job("c", 5, bursts=True), job("d", 4, bursts=True)]
    made = plan(jobs, 90, cloud=10)
    assert made.jobs == ("a", "d")
    assert made.stays == {"b": "the cloud does not have its image", "c": "the cloud lacks 1 cpu"}


def test_it_does_not_flutter_between_the_thresholds(job):
    assert not plan([], 75).bursting
    assert plan([], 75, bursting=True).bursting
    assert not plan([], 69, bursting=True).bursting


def test_thresholds_in_the_wrong_order_are_refused():
    with pytest.raises(InvalidRequestError, match="until"):
        BurstRules(above=0.5, until=0.6)
