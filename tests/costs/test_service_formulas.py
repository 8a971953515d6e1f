"""What holds for every formula about services and recovery: consistent units, named bad inputs, said sources."""

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
from dsec.costs.token_prices import TokenPrices
from dsec.planner.dimension import BASE_UNITS, Dimension
from dsec.planner.figure import Figure, given
from dsec.planner.formula import Formula, Parameter, fields_of
from dsec.planner.result import figures_in, wrap
from dsec.planner.service_formulas import FORMULAS

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
"""Plausible inputs of every formula."""

BY_NAME = {formula.name: formula for formula in FORMULAS}
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
    assert set(SAMPLES) == set(BY_NAME)


@pytest.mark.parametrize("formula", FORMULAS, ids=lambda formula: formula.name)
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
def test_an_input_that_is_no_number_is_refused(name: str, key: str, value: float) -> None:
    with pytest.raises(InvalidRequestError):
        BY_NAME[name].function(**{**SAMPLES[name], key: value})
