"""Properties of the table: more load never needs less, more capacity never lengthens, units change nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.planner.combination import one, shortfalls
from dsec.planner.outer import make_outer, outer_keys
from dsec.planner.space import everything
from dsec.planner.table import Table, evaluate
from dsec.planner.workload import Workload

Make = Callable[..., Workload]
patterns = st.sampled_from(
    ['pattern = "uniform"', 'pattern = "poisson"', 'pattern = "burst"\nburst = 4', 'pattern = "burst"\nburst = 40']
)
variations = st.sampled_from([(0, 0), (1, 0), (0.5, 2)])
policies = st.sampled_from(
    [
        'kind = "kept"',
        'kind = "rebuilt"\nprepare = "2 s"\nprepare_cpu = "0.1 CPU*s"',
        'kind = "on_demand"\nprepare = "2 s"',
        'kind = "paused"\nprepare = "2 s"\nsave = "1 s/GiB"\nrestore = "1 s"',
        'kind = "predicted"\nprepare = "2 s"\nhit = "75 %"\nlead = "1 s"',
    ]
)


def _at(make: Make, *changes: tuple[str, str], units: int = 12, hosts: int = 1) -> Table:
    workload = make(*changes)
    return evaluate(workload, make_outer(workload, outer_keys(workload)), one(0, 0, units, hosts))


def _changes(pattern: str, policy: str, rate: float, variation: tuple[float, float]) -> list[tuple[str, str]]:
    return [
        ('pattern = "uniform"', pattern),
        ('kind = "rebuilt"\nprepare = "2 s"\nprepare_cpu = "0.1 CPU*s"', policy),
        ('rate = "10 /s"', f'rate = "{rate!r} /s"'),
        ('tool = "1 s"', f'tool = "1 s"\nmodel_variation = {variation[0]}\ntool_variation = {variation[1]}'),
    ]


@given(pattern=patterns, policy=policies, variation=variations, rate=st.floats(0.5, 12), more=st.floats(1, 3))
def test_more_load_never_needs_less(
    make_workload: Make, pattern: str, policy: str, variation: tuple[float, float], rate: float, more: float
) -> None:
    less = _at(make_workload, *_changes(pattern, policy, rate, variation))
    heavier = _at(make_workload, *_changes(pattern, policy, rate * more, variation))
    grows = heavier.sustained_per_s[0] < rate * more  # Waits are then none, and memory is not held in them.
    for name, demand in less.demands.items():
        if name == "memory" and grows:
            continue
        # The exact peak of evenly spaced tasks also depends on how their rounds fall together; its mean does not.
        aligned = name == "memory" and "poisson" not in pattern and variation == (0, 0)
        if aligned and less.wait_s[0] + heavier.wait_s[0] > 0:
            continue  # Nor do the waits of bursts, in which memory is held.
        least = rate * more * float(less.memory_byte_s[0]) if aligned else float(demand[0])
        assert heavier.demands[name][0] >= least * (1 - 1e-6)
    if heavier.feasible[0] and "burst" not in pattern:
        assert heavier.wait_s[0] >= less.wait_s[0] - 1e-9


@given(
    pattern=patterns,
    policy=policies,
    variation=variations,
    units=st.integers(1, 40),
    hosts=st.integers(1, 5),
    more=st.tuples(st.integers(0, 20), st.integers(0, 5)),
)
def test_more_capacity_never_lengthens(
    make_workload: Make,
    pattern: str,
    policy: str,
    variation: tuple[float, float],
    units: int,
    hosts: int,
    more: tuple[int, int],
) -> None:
    changes = _changes(pattern, policy, 10.0, variation)
    little = _at(make_workload, *changes, units=units, hosts=hosts)
    much = _at(make_workload, *changes, units=units + more[0], hosts=hosts + more[1])
    if little.feasible[0]:
        assert much.feasible[0]
        assert much.completion_s[0] <= little.completion_s[0] * (1 + 1e-9)
        assert much.share_in_time[0] >= little.share_in_time[0] * (1 - 1e-9)
    assert much.sustained_per_s[0] >= little.sustained_per_s[0] * (1 - 1e-9)


@given(scale=st.sampled_from([("s", 1.0), ("ms", 1e3), ("min", 1 / 60), ("h", 1 / 3600)]))
def test_the_units_in_which_inputs_are_written_change_nothing(make_workload: Make, scale: tuple[str, float]) -> None:
    unit, by = scale
    plain = _at(make_workload)
    other = _at(
        make_workload,
        ('model = "6 s"', f'model = "{6 * by!r} {unit}"'),
        ('tool = "1 s"', f'tool = "{by!r} {unit}"'),
        ('rate = "10 /s"', f'rate = "{10 / by!r} /{unit}"'),
        ('memory = "2 GiB"', 'memory = "2048 MiB"'),
        ('prepare = "2 s"', f'prepare = "{2 * by!r} {unit}"'),
        ('price = "6.79 USD/GPU/h"', f'price = "{6.79 / 3600 / by!r} USD/GPU/{unit}"'),
    )
    assert _numbers(other) == pytest.approx(_numbers(plain))


def _numbers(table: Table) -> list[float]:
    arrays: list[Any] = [table.completion_s, table.usd, table.share_in_time, table.sustained_per_s]
    return [float(array[0]) for array in [*arrays, *table.demands.values()]]


@given(by=st.floats(0.1, 10))
def test_time_that_runs_slower_by_a_factor_scales_times_and_leaves_shares(make_workload: Make, by: float) -> None:
    """Dimensional consistency: if every time is `by` as long, so is the result, and what is held stays the same."""
    plain = _at(make_workload)
    slower = _at(
        make_workload,
        ('model = "6 s"', f'model = "{6 * by!r} s"'),
        ('tool = "1 s"', f'tool = "{by!r} s"'),
        ('deadline = "24 s"', f'deadline = "{24 * by!r} s"'),
        ('rate = "10 /s"', f'rate = "{10 / by!r} /s"'),
        ('prepare = "2 s"', f'prepare = "{2 * by!r} s"'),
        ('prepare_cpu = "0.1 CPU*s"', f'prepare_cpu = "{0.1 * by!r} CPU*s"'),
    )
    assert slower.completion_s[0] == pytest.approx(by * plain.completion_s[0])
    assert slower.usd[0] == pytest.approx(by * plain.usd[0])
    assert slower.share_in_time[0] == pytest.approx(plain.share_in_time[0])
    for name in ("cores", "memory", "model slots"):
        assert slower.demands[name][0] == pytest.approx(plain.demands[name][0], rel=1e-6)


def test_a_combination_without_capacity_says_how_fast_work_piles_up(make_workload: Make) -> None:
    table = _at(make_workload, units=10)
    assert not table.feasible[0]
    assert table.sustained_per_s[0] == pytest.approx(160 / 18)
    assert numpy.all(table.wait_s >= 0)


def test_tools_that_do_not_fill_the_cores_are_not_called_feasible_while_they_pile_up(
    make_workload: Callable[..., Workload],
) -> None:
    """7 hosts of 44 cores hold 30 tools of 10 cores, and 30 are wanted at any moment: their queue never empties."""
    changes = (
        ('pattern = "uniform"', 'pattern = "poisson"'),
        ("count = 1", "count = [6, 7, 8]"),
        ('cpus = "48 CPU"', 'cpus = "44 CPU"'),
        ('tool = "1 s"', 'tool = "1 s"\ntool_cores = "10 CPU"'),
        ('share_in_time = "95 %"', 'share_in_time = "1 %"'),
        ("replicas = 12", "replicas = 40"),
        ('prepare_cpu = "0.1 CPU*s"', ""),
    )
    workload = make_workload(*changes)
    keys = outer_keys(workload)
    table = evaluate(workload, make_outer(workload, keys), everything(workload, keys))
    assert table.feasible.tolist() == [False, False, True]
    assert table.sustained_per_s[1] == pytest.approx(10.0)


def test_a_mixture_of_small_and_large_tools_is_not_feasible_while_its_queue_grows(
    make_workload: Callable[..., Workload],
) -> None:
    """Servers are counted by the largest tool; what they cannot work off is said, and never counted as no wait."""
    large = '[class.large]\nshare = "10 %"\nmodel = "6 s"\noutput = "1 token"\ntool = "1 s"\ntool_cores = "24 CPU"\n'
    workload = make_workload(
        ('pattern = "uniform"', 'pattern = "poisson"'),
        ("[class.repair]", f'{large}memory = "1 GiB"\n\n[class.repair]\nshare = "90 %"'),
        ("count = 1", "count = 12"),
        ('share_in_time = "95 %"', 'share_in_time = "1 %"'),
    )
    keys = outer_keys(workload)
    outer = make_outer(workload, keys)
    table = evaluate(workload, outer, everything(workload, keys))
    assert not table.feasible[0]
    assert [item.resource for item in shortfalls(workload, outer, table, 0)] == ["cores"]
    assert table.sustained_per_s[0] < 10.0
