"""What a workload file may say, and every way in which it may be wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dsec.base.errors import InvalidRequestError
from dsec.planner.workload import Workload

_TWO = '[class.other]\nshare = "40 %"\nrounds = 1\nmodel = "1 s"\ntool = "1 s"\nmemory = "1 GiB"\n[service.fast]'


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('rate = "10 /s"', "rate = 10", "'10' has no unit, expected 1/s"),
        ('rate = "10 /s"', 'rate = "10 s"', "'10 s' is in s, expected 1/s"),
        ('rate = "10 /s"', 'rate = "10 /fortnight"', "is not a unit"),
        ('rate = "10 /s"', 'rate = "0 /s"', "is not above zero"),
        ('rate = "10 /s"', 'rate = "-1 /s"', "is not above zero"),
        ('memory = "2 GiB"', 'memory = "2 GiB*s"', "expected B"),
        ('tool = "1 s"', 'tool = "-1 s"', "is negative"),
        ('quality = "95 %"', 'quality = "195 %"', "is not between 0 and 1"),
        ('quality = "95 %"', "quality = { slow = 0.5 }", "names the service 'slow', which is not offered"),
        ('share_in_time = "95 %"', "share_in_time = 1.5", "is not between 0 and 1"),
        ('deadline = "24 s"', 'deadline = "6 s"', "shorter than one round, which takes at least 7 s"),
        ('price = "6.79 USD/GPU/h"\n', "", "the service has no price"),
        ('price = "6.79 USD/GPU/h"', 'price = "6.79 USD/h"', "is in USD/s, expected USD/s/GPU"),
        ('gpus = "4 GPU"\n', "", "has no accelerators"),
        ('billing = "used"', 'billing = "tokens"', "the service has no price"),
        ('billing = "used"', 'billing = "barter"', "write one of"),
        ('cpu_price = "0.000014 USD/CPU/s"\nmemory_price = "0.0000045 USD/GiB/s"\n', "", "the host has no price"),
        ("rounds = 3", "rounds = 0", "is not between 1 and"),
        ("rounds = 3", "rounds = 2.5", "is not a whole number"),
        ("sessions = 16", "sessions = 0", "holds no number from 1"),
        ("replicas = 12", 'replicas = "12..4"', "holds no number from 1"),
        ("replicas = 12", 'replicas = "a lot"', "is not a count"),
        ('kind = "rebuilt"', 'kind = "recycled"', "is not known here"),
        ('model = "6 s"\n', "", "how long a call of 'repair' takes at 'fast' is not said"),
        ('pattern = "uniform"', 'pattern = "burst"', "a burst and its size belong together"),
        ('pattern = "uniform"', "burst = 15", "a burst and its size belong together"),
        ("[policy.rebuilt]", "[policy.Rebuilt]", "is not a name"),
        ('tool = "1 s"', 'tool = "1 s"\nmodel_variation = nan', "is not a number to reckon with"),
        ('tool = "1 s"', 'tool = "1 s"\nmodel_variation = inf', "is not a number to reckon with"),
        ('tool = "1 s"', 'tool = "1 s"\ntool_variation = 1e-300', "neither 0 nor between 1e-06 and 100"),
        ('tool = "1 s"', 'tool = "1 s"\ntool_variation = 1e9', "neither 0 nor between 1e-06 and 100"),
        ('memory = "2 GiB"', 'memory = "500 GiB"', "cannot carry one environment of 'repair', which needs 500 GiB"),
        ('tool = "1 s"', 'tool = "1 s"\ntool_cores = "49 CPU"', "cannot carry one environment of 'repair'"),
        ('billing = "used"', 'billing = "tokens"', "no price of tokens"),
        ("sessions = 16", 'sessions = 64\npace = [[16, "16 ms/token"], [32, "25 ms/token"]]', "that pace ends with"),
        ("sessions = 16", 'sessions = 16\npace = [[16, "26 ms/token"], [32, "15 ms/token"]]', "faster than 16"),
        ('tool = "1 s"', 'tool = "1 s"\ntoolcores = 2', "did you mean 'tool_cores'"),
    ],
)
def test_what_is_wrong_is_said_with_its_line_and_the_unit_expected(
    make_workload: Callable[..., Workload], old: str, new: str, says: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        make_workload((old, new))
    assert says in f"{caught.value.brief} {caught.value.detail} {caught.value.resolution}"
    assert caught.value.brief.startswith("w.toml:")
    assert caught.value.brief.split(":")[1].isdigit()


def test_shares_that_do_not_sum_to_one_are_refused(make_workload: Callable[..., Workload]) -> None:
    with pytest.raises(InvalidRequestError, match=r"sum to 1\.4, not to 1"):
        make_workload(("[service.fast]", _TWO))


def test_a_price_that_tokens_need_has_to_be_there(make_workload: Callable[..., Workload]) -> None:
    tokens = ('billing = "used"', 'billing = "tokens"\nprices = { output = "1 USD/Mtoken" }')
    make_workload(tokens)
    with pytest.raises(InvalidRequestError, match="no price for cached tokens"):
        make_workload(tokens, ('tool = "1 s"', 'tool = "1 s"\ncached = "10 token"'))


def test_ranges_are_kept_as_ranges(make_workload: Callable[..., Workload]) -> None:
    workload = make_workload(
        ("replicas = 12", 'replicas = "1..1000000"'), ("sessions = 16", 'sessions = "8..64 step 8"')
    )
    service = workload.services["fast"]
    assert len(service.replicas.values) == 1_000_000
    assert list(service.sessions.values) == [8, 16, 24, 32, 40, 48, 56, 64]


def test_every_number_knows_its_line(make_workload: Callable[..., Workload]) -> None:
    workload = make_workload()
    assert workload.arrivals.rate.note == "written at w.toml:5"
    assert workload.services["fast"].price.note == "written at w.toml:25"
    assert workload.classes["repair"].commit.source.startswith("the default")


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ('deadline = "24 s"', 'deadline = "6 s"', 'deadline = "6 s"'),
        ('cpus = "48 CPU"', 'cpus = "0.5 CPU"', 'cpus = "0.5 CPU"'),
        ('memory = "384 GB"', 'memory = "1 GiB"', 'memory = "1 GiB"'),
        ('model = "6 s"\n', "", "[class.repair]"),
    ],
)
def test_what_contradicts_something_else_is_named_with_its_own_line(
    make_workload: Callable[..., Workload], workload_text: Callable[..., str], old: str, new: str, line: str
) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        make_workload((old, new))
    written = workload_text((old, new)).splitlines()
    assert written[int(caught.value.brief.split(":")[1]) - 1] == line
