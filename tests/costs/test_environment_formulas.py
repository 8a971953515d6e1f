"""What holds for every formula about environments: bad inputs are named, units are consistent, sources are said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from dsec.base.errors import InvalidRequestError
from dsec.costs.timeline import Residency
from dsec.planner.dimension import BASE_UNITS, Dimension
from dsec.planner.environment_formulas import FORMULAS
from dsec.planner.figure import Figure, given
from dsec.planner.formula import Formula
from dsec.planner.result import figures_in, wrap

_TASK = {"rounds": 3, "model_s": 9.0, "tool_s": 1.0, "prepare_s": 2.0, "queue_s": 0.5, "commit_s": 0.25}
_QUEUE = {"arrivals_per_s": 30.0, "servers": 48, "service_s": 1.0}
_MEMORY_PRICE = {"memory_gib": 2.0, "memory_price_usd_per_gib_s": 4.5e-6}
_REBUILD = {**_MEMORY_PRICE, "prepare_s": 2.0, "work_cpu_s": 0.1, "cpu_price_usd_per_cpu_s": 1.4e-5}
_GAP = {"model_s": 9.0, "tool_s": 1.0, "memory_gib": 2.0}
_FREE = {"one": {"h100": 4.0, "cores": 8.0}, "two": {"cores": 32.0}}

SAMPLES: Mapping[str, Mapping[str, Any]] = {
    "critical_path.serial_time_s": _TASK,
    "critical_path.overlapped_once_time_s": _TASK,
    "critical_path.overlapped_each_round_time_s": _TASK,
    "critical_path.on_demand_time_s": _TASK,
    "critical_path.model_floor_s": {"rounds": 3, "model_s": 9.0},
    "critical_path.elapsed_after_rounds_s": {"rounds": 2, "model_s": 9.0, "tool_s": 1.0},
    "critical_path.overlap_wait_s": {"model_s": 1.0, "prepare_s": 2.7},
    "timeline.uniform_task_timeline": {**_TASK, "residency": Residency.REBUILT},
    "littles_law.mean_in_system": {"arrivals_per_s": 10.0, "stay_s": 30.0},
    "littles_law.mean_memory_gib": {"arrivals_per_s": 10.0, "task_gib_s": 60.0},
    "littles_law.mean_busy_cores": {"arrivals_per_s": 10.0, "task_cpu_s": 3.0},
    "littles_law.event_rate_per_s": {"arrivals_per_s": 10.0, "events_per_task": 3.0},
    "littles_law.arrival_rate_per_s": {"interval_s": 0.1},
    "littles_law.sustained_arrivals_per_s": {"places": 178, "stay_s": 30.0},
    "littles_law.platform_demand": {
        "arrivals_per_s": 10.0,
        "rounds": 3.0,
        "model_s": 9.0,
        "tool_s": 1.0,
        "task_s": 30.0,
        "resident_s": 9.0,
        "memory_gib": 2.0,
        "creations_per_task": 3.0,
        "tool_width_cores": 1.0,
        "prepare_cpu_s": 0.1,
    },
    "capacity.capacity_share": {"demand": 600.0, "capacity": 358.0},
    "capacity.places": {"capacity_gib": 357.6, "size_gib": 2.0},
    "capacity.units_for": {"demand": 180.0, "unit_capacity": 16.0},
    "capacity.units_to_add": {"demand": 180.0, "units": 10, "unit_capacity": 16.0},
    "image_loading.full_copy_gib": {"template_gib": 2.0, "overhead_gib": 0.1},
    "image_loading.touched_only_gib": {"touched_gib": 0.5, "overhead_gib": 0.1},
    "image_loading.shared_read_only_gib": {"dirty_gib": 0.125, "hot_gib": 0.25, "overhead_gib": 0.1},
    "image_loading.fleet_gib": {"environments": 100, "each_gib": 2.0, "shared_gib": 2.0},
    "image_loading.read_share": {"touched_gib": 0.5, "template_gib": 2.0},
    "image_loading.load_bound_s": {"fetch_gib": 2.0, "install_gib": 0.5, "link_gib_per_s": 2.9, "environments": 3},
    "image_loading.first_tool_end_s": {"start_s": 0.2, "missing_gib": 1.0, "link_gib_per_s": 2.9, "tool_s": 1.0},
    "page_cache.descriptors_gib": {"device_gib": 2.0},
    "page_cache.cached_in_each_gib": {"machines": 100, "read_gib": 0.5},
    "page_cache.cached_once_gib": {"machines": 100, "read_gib": 0.5, "device_gib": 2.0},
    "pause.pause": {"memory_gib": 0.5, "gap_s": 9.0, "save_s_per_gib": 4.0, "resume_s": 1.0},
    "pause.pause_saves_usd": {**_MEMORY_PRICE, "released_s": 6.0, "transition_usd": 1e-5},
    "pause.break_even_released_s": {**_MEMORY_PRICE, "transition_usd": 1e-5},
    "rebuild.keep_usd": {**_MEMORY_PRICE, "gap_s": 6.0},
    "rebuild.rebuild_usd": _REBUILD,
    "rebuild.break_even_gap_s": _REBUILD,
    "rebuild.by_rebuilding": {**_GAP, "prepare_s": 2.7},
    "rebuild.by_snapshot": {**_GAP, "save_s": 8.0, "restore_s": 1.0},
    "prediction.expected_wait_s": {"prepare_s": 2.0, "lead_s": 1.0, "hit_probability": 0.75},
    "prediction.prediction": {"prepare_s": 2.0, "lead_s": 3.0, "hit_probability": 0.75, "memory_gib": 2.0},
    "prediction.course": {"call_s": 4.0, "prepare_s": 2.0, "lead_s": 3.0, "right": True},
    "fragmentation.fit": {"free": _FREE, "asked": {"h100": 4.0, "cores": 16.0}},
    "fragmentation.free_after_move": {"free": _FREE, "task": {"cores": 8.0}, "source": "one", "target": "two"},
    "relocation.start_options": {
        "wait_s": 12.0,
        "move_s": 4.0,
        "run_local_s": 20.0,
        "spread_ready_s": 1.0,
        "spread_run_s": 32.0,
    },
    "relocation.delay_by_moving_s": {"move_s": 4.0, "extra_s": 2.0},
    "relocation.longest_move_for_both_s": {"wait_s": 12.0, "extra_s": 2.0},
    "burst.burst": {"pieces": 80, "servers": 48, "service_s": 1.0},
    "burst.servers_for_burst": {"pieces": 80, "service_s": 1.0, "within_s": 2.0},
    "burst.queue_run": {"arrivals_s": (0.0, 0.5, 2.0), "services_s": (1.0, 1.0, 1.0), "servers": 1},
    "waiting.utilisation": _QUEUE,
    "waiting.queue_growth_per_s": {**_QUEUE, "servers": 20},
    "waiting.probability_of_waiting": _QUEUE,
    "waiting.waiting": {**_QUEUE, "arrival_variation": 1.0, "service_variation": 0.5},
    "waiting.probability_of_waiting_longer": {**_QUEUE, "than_s": 0.1},
    "waiting.servers_for_wait": {"arrivals_per_s": 30.0, "service_s": 1.0, "wait_s": 0.1},
    "tool_starts.tool_starts": {"tools": 4, "tool_s": 0.1, "memory_gib": 0.08, "gap_s": 0.03},
    "tool_starts.gap_of_makespan_s": {"tools": 4, "tool_s": 0.1, "makespan_s": 0.54},
    "tool_starts.gap_for_peak_s": {"tools": 4, "tool_s": 0.1, "memory_gib": 0.08, "limit_gib": 0.16},
    "density.density": {
        "node_cores": 48.0,
        "node_memory_gib": 357.6,
        "asked_cores": 1.0,
        "asked_memory_gib": 2.0,
        "busy_share": 0.05,
    },
    "density.creations_on_each_per_s": {"creations_per_s": 5000.0, "nodes": 160},
    "density.creation_share": {"creations_per_s": 30.0, "limit_per_s": 150.0},
    "interference.slowed_step_s": {"step_s": 1.0, "slowdown": 0.45},
    "interference.longest_step_s": {"deadline_s": 1.0, "slowdown": 0.45},
    "interference.removed_share": {"slowdown": 0.45, "isolated_slowdown": 0.17},
    "interference.logical_cores": {"physical_cores": 48.0, "threads": 2},
}
"""Plausible inputs of every formula. `timeline.task_timeline` is covered by its uniform form."""

BY_NAME = {formula.name: formula for formula in FORMULAS if formula.name in SAMPLES}
NUMBERS = [
    (name, key)
    for name, inputs in SAMPLES.items()
    for key, value in inputs.items()
    if isinstance(value, int | float) and not isinstance(value, bool)
]


def figures(formula: Formula, inputs: Mapping[str, Any]) -> list[Figure]:
    """Call a formula and return its numbers in base units, with their dimensions."""

    def make(name: str, value: float, dimension: Dimension) -> Figure:
        return given(name, value, dimension, source="")

    return list(figures_in(wrap("result", formula.function(**inputs), formula.unit, make)))


def scaled(formula: Formula, inputs: Mapping[str, Any], base: int, factor: float) -> dict[str, Any]:
    """Return the inputs as they are when one base unit is `factor` times as small."""

    def change(name: str, value: Any) -> Any:
        parameter = next(one for one in formula.parameters.values() if one.name == name)
        power = parameter.unit.dimension.powers[base]
        if power == 0:
            return value
        return tuple(x * factor**power for x in value) if isinstance(value, tuple) else value * factor**power

    return {name: change(name, value) for name, value in inputs.items()}


def test_every_formula_has_a_sample() -> None:
    assert {formula.name for formula in FORMULAS} - set(SAMPLES) == {"timeline.task_timeline"}


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda formula: formula.name)
def test_every_formula_says_what_it_is_and_where_it_stands(formula: Formula) -> None:
    assert formula.summary.endswith(".")
    assert formula.text
    assert formula.source


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("base", range(len(BASE_UNITS)), ids=BASE_UNITS)
def test_results_scale_with_the_units_of_the_inputs(name: str, base: int) -> None:
    formula, inputs = BY_NAME[name], SAMPLES[name]
    factor = 4.0
    before = figures(formula, inputs)
    after = figures(formula, scaled(formula, inputs, base, factor))
    assert [figure.name for figure in after] == [figure.name for figure in before]
    for old, new in zip(before, after, strict=True):
        assert new.value == pytest.approx(old.value * factor ** old.dimension.powers[base], abs=1e-12), old.name


@pytest.mark.parametrize(("name", "key"), NUMBERS)
def test_a_negative_input_is_named(name: str, key: str) -> None:
    with pytest.raises(InvalidRequestError, match=key):
        BY_NAME[name].function(**{**SAMPLES[name], key: -1})


@pytest.mark.parametrize(("name", "key"), [(n, k) for n, k in NUMBERS if isinstance(SAMPLES[n][k], float)])
@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=["nan", "inf"])
def test_an_input_that_is_no_number_is_named(name: str, key: str, value: float) -> None:
    with pytest.raises(InvalidRequestError, match=key):
        BY_NAME[name].function(**{**SAMPLES[name], key: value})
