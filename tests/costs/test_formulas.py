"""What holds for every formula: bad inputs are named, units are consistent, sources are said."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

import pytest

from dsec.base.errors import InvalidRequestError
from dsec.costs.first_token import Backend
from dsec.costs.retry_tree import Branch, Node
from dsec.costs.routing import Route
from dsec.costs.timeline import Residency
from dsec.costs.token_prices import TokenPrices
from dsec.planner.dimension import BASE_UNITS, Dimension
from dsec.planner.figure import Figure, given
from dsec.planner.formula import Formula, Parameter, fields_of
from dsec.planner.registry import all_formulas
from dsec.planner.result import figures_in, wrap

_TASK = {"rounds": 3, "model_s": 9.0, "tool_s": 1.0, "prepare_s": 2.0, "queue_s": 0.5, "commit_s": 0.25}
_QUEUE = {"arrivals_per_s": 30.0, "servers": 48, "service_s": 1.0}
_MEMORY_PRICE = {"memory_gib": 2.0, "memory_price_usd_per_gib_s": 4.5e-6}
_REBUILD = {**_MEMORY_PRICE, "prepare_s": 2.0, "work_cpu_s": 0.1, "cpu_price_usd_per_cpu_s": 1.4e-5}
_GAP = {"model_s": 9.0, "tool_s": 1.0, "memory_gib": 2.0}
_FREE = {"one": {"h100": 4.0, "cores": 8.0}, "two": {"cores": 32.0}}
_PRICES = TokenPrices(
    input_usd_per_mtoken=2.0,
    output_usd_per_mtoken=10.0,
    cache_write_usd_per_mtoken=2.5,
    cache_read_usd_per_mtoken=0.2,
)
_PREFIX = {"input_usd_per_mtoken": 2.0, "cache_write_usd_per_mtoken": 2.5, "cache_read_usd_per_mtoken": 0.2}
_ROUTE = Route(
    hit_cost_usd=0.0088, miss_cost_usd=0.043, hit_success=0.99, miss_success=0.9, hit_time_s=4.0, miss_time_s=12.0
)
_PURCHASE = {
    "fixed_usd": 19555.2,
    "use_usd_per_task": 0.0264,
    "added_usd_per_task": 0.001,
    "fixed_success": 0.9,
    "use_success": 0.98,
    "capacity_tasks": 1e6,
}
_REPLICA = {"gpus_per_replica": 4.0, "sessions": 32}
_TREE = {
    "first": Node(
        cost_usd=0.01,
        time_s=10.0,
        work_cpu_s=3.0,
        branches=(Branch(probability=0.8, passes=True), Branch(probability=0.2, to="upgrade")),
    ),
    "upgrade": Node(cost_usd=0.03, time_s=8.0, branches=(Branch(probability=1.0, passes=True),)),
}

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
    "amdahl.overall_speedup": {"part_share": 0.9, "part_speedup": 2.0},
    "amdahl.speedup_limit": {"part_share": 0.9},
    "amdahl.accelerate_part": {"part_s": 27.0, "rest_s": 3.0, "part_speedup": 2.0},
    "preemption.preemption_loss": {"done_s": 20.0, "since_checkpoint_s": 10.0, "restore_s": 2.0, "save_s": 1.0},
    "preemption.reclaim_wait": {"patience_s": 2.0, "save_s": 30.0},
    "rl_iteration.generation_s": {"useful_tokens": 1e6, "rate_tokens_per_s": 1e4},
    "rl_iteration.rl_iteration": {
        "generate_s": 40.0,
        "verify_s": 10.0,
        "update_s": 30.0,
        "publish_s": 5.0,
        "generate_speedup": 2.0,
        "hidden_verify_s": 5.0,
    },
    "weight_distribution.weight_distribution": {
        "weight_bytes": 16e9,
        "receivers": 6,
        "sender_bits_per_s": 200e9,
        "receiver_bits_per_s": 50e9,
        "load_s": 1.0,
    },
    "short_lived_instance.useful_yield": {"available_s": 20.0, "preparation_s": 8.0, "rate_tokens_per_s": 100.0},
    "prefix_reuse.resume_group": {"saved_tokens": (4000.0, 1000.0)},
    "prefix_reuse.resumption_balance": {
        "resumed_s": 12.8,
        "restarted_s": 11.6,
        "reused_tokens": 96.0,
        "decode_s_per_token": 0.01,
    },
    "price_performance.added_instances": {
        "base_price_usd_per_h": 84.0,
        "added_count": 6,
        "added_price_usd_per_h": 5.3,
        "throughput_ratio": 1.2,
    },
    "loop_recovery.loop_recovery": {
        "finished": 40,
        "tool_s": 1.0,
        "read_s": 0.02,
        "reconnect_s": 2.0,
        "loop_survives": False,
    },
    "verification_batch.batch_bound": {
        "arrivals_s": (0.0, 6.0),
        "runs_s": (10.0, 2.0),
        "compiles_s": (1.0, 2.0),
    },
    "verification_batch.batch_schedule": {"arrivals_s": (0.0, 6.0), "durations_s": (10.0, 2.0), "verifiers": 1},
    "remaining_time.remaining_time": {"durations_s": (1.0, 100.0), "counts": (9, 1), "elapsed_s": 10.0},
    "latest_start.latest_start": {"batch_end_s": 120.0, "duration_s": 100.0, "preparation_s": 5.0, "now_s": 1.0},
    "latest_start.double_use_s": {"handed_over_s": 0.1, "really_ended_s": 0.2},
    "blocked_accelerators.blocked_accelerators": {"saved_gpu_s": 60.0, "blocked_gpus": 64.0, "delay_s": 2.0},
    "token_prices.call_cost": {
        "prices": _PRICES,
        "input_tokens": 1000.0,
        "cache_write_tokens": 500.0,
        "cache_read_tokens": 19000.0,
        "thinking_tokens": 100.0,
        "visible_tokens": 200.0,
        "storage_usd": 0.01,
        "tool_usd": 0.02,
    },
    "thinking_budget.thinking_budget": {
        "calls": 100,
        "saved_usd_per_call": 0.009,
        "retries": 30,
        "retry_usd": 0.032,
    },
    "prefix_cache.break_even_uses": _PREFIX,
    "prefix_cache.prefix_cache": {**_PREFIX, "prefix_tokens": 8000.0, "new_tokens": 2000.0, "uses": 10},
    "prefix_cache.hit_shares": {"prefix_tokens": (1000.0, 9000.0), "hit": (1, 0)},
    "first_token.time_to_generation_s": {"backend": Backend(queue_s=0.2, prefix_s=0.05, network_s=0.05)},
    "first_token.compare_backends": {
        "first": Backend(queue_s=0.2, prefix_s=0.05, network_s=0.05),
        "second": Backend(queue_s=0.02, prefix_s=0.5, network_s=0.05),
    },
    "model_service.call_time_s": {"output_tokens": 355.0, "pace_s_per_token": 0.0253},
    "model_service.call_gpu_s": {**_REPLICA, "call_s": 9.0},
    "model_service.model_service": {**_REPLICA, "calls_per_s": 30.0, "call_s": 9.0, "replicas": 10},
    "model_service.call_usd": {"call_gpu_s": 1.125, "price_usd_per_gpu_h": 6.79},
    "model_service.output_usd_per_mtoken": {**_REPLICA, "pace_s_per_token": 0.0253, "price_usd_per_gpu_h": 6.79},
    "rate_limits.rate_limits": {
        "requests_per_s": 30.0,
        "tokens_per_request": 10_000.0,
        "request_s": 6.0,
        "request_limit_per_minutes": 4000.0,
        "token_limit_tokens_per_minutes": 1e7,
        "concurrency_limit": 500.0,
    },
    "routing.success_cost_usd": {"route": _ROUTE, "hit_rate": 0.5},
    "routing.route_at": {"route": _ROUTE, "hit_rate": 0.5, "deadline_s": 6.0},
    "routing.hit_rate_for_cost": {"route": _ROUTE, "target_usd": 0.016},
    "routing.hit_rate_for_deadline": {"route": _ROUTE, "deadline_s": 6.0, "target_share": 0.9},
    "purchase.reserved_usd": {"gpus": 4.0, "period_h": 720.0, "price_usd_per_gpu_h": 6.79},
    "purchase.task_capacity": {"period_s": 2592000.0, "sessions": 32, "hold_s_per_task": 27.0},
    "purchase.purchase": _PURCHASE,
    "purchase.purchase_at": {**_PURCHASE, "tasks": 500_000.0},
    "purchase.price_ratio_utilisation": {"reserved_usd_per_gpu_h": 6.79, "on_demand_usd_per_gpu_h": 8.64},
    "repeated_execution.repeated_execution": {"work_cpu_s": 3.0, "executions": 2, "deliveries": 2},
    "durable_progress.durable_progress": {"saved": (1, 3), "run": 3},
    "commit_frequency.commit_cost": {
        "requests": 100,
        "request_s": 0.2,
        "requests_per_commit": 10,
        "fixed_s": 0.008,
        "record_s": 0.002,
    },
    "commit_frequency.best_requests_per_commit": {"request_s": 0.2, "fixed_s": 0.008, "failures_per_s": 0.001},
    "success_cost.success_cost": {
        "spent_usd": 1.0,
        "submitted": 10.0,
        "successes": 5.0,
        "timely_successes": 4.0,
    },
    "retry_tree.evaluate_retries": {"nodes": _TREE, "start": "first", "deadline_s": 20.0, "memory_gib": 2.0},
    "preparation_shift.tool_start": {"model_s": 1.0, "preparation_s": 2.7, "lead_s": 0.5},
    "preparation_shift.preparation_choices": {
        "model_s": 1.0,
        "preparation_s": 2.7,
        "tool_s": 1.0,
        "memory_gib": 2.0,
        "lead_s": 0.5,
        "used_share": 0.75,
        "preparation_work_cpu_s": 0.1,
        "memory_price_usd_per_gib_s": 4.5e-6,
        "work_price_usd_per_cpu_s": 1.4e-5,
    },
    "parallel_recovery.parallel_recovery": {
        "environment_s": 2.7,
        "state_bytes": 2e9,
        "fetch_bytes_per_s": 3e9,
        "replayed_tokens": 4096.0,
        "replay_s_per_token": 5e-5,
        "query_s": 0.1,
    },
}
"""Plausible inputs of every formula. `timeline.task_timeline` is covered by its uniform form."""

BY_NAME = all_formulas()
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


def scaled(value: Any, parameter: Parameter, base: int, factor: float) -> Any:
    """Return an input as it is when one base unit is `factor` times as small; structures are scaled field by field."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: field for field in fields_of(type(value)).values()}
        return dataclasses.replace(
            value, **{name: scaled(getattr(value, name), field, base, factor) for name, field in fields.items()}
        )
    if isinstance(value, Mapping):
        return {name: scaled(item, parameter, base, factor) for name, item in value.items()}
    if isinstance(value, tuple):
        return tuple(scaled(item, parameter, base, factor) for item in value)
    power = parameter.unit.dimension.powers[base]
    return value * factor**power if power and value is not None else value


def test_every_formula_has_a_sample() -> None:
    assert set(BY_NAME) - set(SAMPLES) == {"timeline.task_timeline"}
    assert set(SAMPLES) <= set(BY_NAME)


@pytest.mark.parametrize("formula", BY_NAME.values(), ids=lambda formula: formula.name)
def test_every_formula_says_what_it_is_and_where_it_stands(formula: Formula) -> None:
    assert formula.summary.endswith(".")
    assert formula.text
    assert formula.source
    assert "return" in typing.get_type_hints(formula.function)


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("base", range(len(BASE_UNITS)), ids=BASE_UNITS)
def test_results_scale_with_the_units_of_the_inputs(name: str, base: int) -> None:
    formula, inputs = BY_NAME[name], SAMPLES[name]
    factor = 4.0
    by_name = {parameter.name: parameter for parameter in formula.parameters.values()}
    changed = {key: scaled(value, by_name[key], base, factor) for key, value in inputs.items()}
    before, after = figures(formula, inputs), figures(formula, changed)
    assert [figure.name for figure in after] == [figure.name for figure in before]
    for old, new in zip(before, after, strict=True):
        assert new.value == pytest.approx(old.value * factor ** old.dimension.powers[base], rel=1e-9), old.name


@pytest.mark.parametrize(("name", "key"), NUMBERS)
def test_a_negative_input_is_named(name: str, key: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        BY_NAME[name].function(**{**SAMPLES[name], key: -1})
    assert key in caught.value.brief or name == "success_cost.success_cost"


@pytest.mark.parametrize(("name", "key"), [(n, k) for n, k in NUMBERS if isinstance(SAMPLES[n][k], float)])
@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=["nan", "inf"])
def test_an_input_that_is_no_number_is_named(name: str, key: str, value: float) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        BY_NAME[name].function(**{**SAMPLES[name], key: value})
    assert key in caught.value.brief or name == "success_cost.success_cost"
