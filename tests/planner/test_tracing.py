"""Figures of combinations can be computed again from what they name as their inputs."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from dsec.planner.expression import evaluate
from dsec.planner.figure import Figure, explain
from dsec.planner.making import make_plan

_POLICIES = (
    "[policy.rebuilt]",
    (
        '[policy.kept]\nkind = "kept"\nprepare = "1 s"\n[policy.on_demand]\nkind = "on_demand"\nprepare = "2 s"\n'
        '[policy.paused]\nkind = "paused"\nprepare = "2 s"\nsave = "1 s/GiB"\nrestore = "1 s"\n'
        '[policy.predicted]\nkind = "predicted"\nprepare = "2 s"\nhit = "75 %"\nlead = "1 s"\n[policy.rebuilt]'
    ),
)
_WORDS = re.compile(r"\b([a-z_]\w*)\b(?!\()")
_TOLD = {"share_in_time", "wait", "memory_time_waiting", "cores_peak", "memory_peak", "slots_peak"}
"""Figures whose formula is told in words, since it is a procedure."""
_COUNTED = {
    "calls_rate",
    "creations_rate",
    "sustained_rate",
    "units_needed",
    "hosts_needed",
    "more_units",
    "more_hosts",
}


def _again(figure: Figure) -> float:
    text = _WORDS.sub(
        lambda match: match.group(1) if match.group(1) in ("max", "min") else f"${match.group(1)}", figure.formula
    )
    return evaluate(text, figure.inputs.__getitem__).value


@pytest.mark.parametrize("policy", ["rebuilt", "kept", "on_demand", "paused", "predicted"])
def test_a_figure_is_what_its_formula_makes_of_its_inputs(workload_text: Callable[..., str], policy: str) -> None:
    figures = make_plan(workload_text(_POLICIES), name="w.toml").figures
    checked = 0
    for name, figure in figures.items():
        if not name.startswith(f"fast.{policy}.") or name.rpartition(".")[2] in _TOLD | _COUNTED:
            continue
        assert _again(figure) == pytest.approx(figure.value), f"{name}: {figure.formula}"
        checked += 1
    assert checked >= 16


def test_an_explanation_ends_at_the_lines_of_the_file(workload_text: Callable[..., str]) -> None:
    plan = make_plan(workload_text(), name="w.toml")
    text = "\n".join(explain(plan.figure("fast.rebuilt.cost_per_thousand_in_time")))
    for place in ("w.toml:5", "w.toml:13", "w.toml:25", "w.toml:31"):
        assert place in text


def test_a_figure_of_any_combination_is_made_when_it_is_asked_for(workload_text: Callable[..., str]) -> None:
    plan = make_plan(workload_text(("replicas = 12", 'replicas = "10..400"')), name="w.toml")
    assert plan.figure("fast.rebuilt.units399.slots_load").value == pytest.approx(180 / (399 * 16))


def test_the_load_of_a_service_paid_by_tokens_is_that_of_its_limit(workload_text: Callable[..., str]) -> None:
    tokens = 'billing = "tokens"\nprices = { output = "1 USD/Mtoken" }\nlimits = { concurrency = 400 }'
    text = workload_text(('billing = "used"', tokens), ("replicas = 12\n", ""), ("sessions = 16\n", ""))
    load = make_plan(text, name="w.toml").figure("fast.rebuilt.slots_load")
    assert load.value == pytest.approx(180 / 400) == _again(load)
    free = make_plan(text.replace("limits = { concurrency = 400 }", ""), name="w.toml")
    assert "fast.rebuilt.slots_load" not in free.figures
