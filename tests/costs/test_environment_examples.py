"""The chapter's numbers up to section 11.3.2 and exercise 11-5, as they come out of the shipped worksheets."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.planner.making import make_plan

EXAMPLES = Path(__file__).parents[2] / "examples" / "planner"
FILES = {
    "figure-11-01": 26,
    "example-11-1": 17,
    "figure-11-03": 13,
    "figure-11-05": 6,
    "section-11-1-2-density": 7,
    "section-11-1-2-tool-starts": 10,
    "section-11-1-3": 2,
    "example-11-2": 10,
    "section-11-2-2-loading": 9,
    "figure-11-12": 6,
    "figure-11-14": 14,
    "figure-11-16": 7,
    "figure-11-17": 37,
    "figure-11-19": 30,
    "section-11-2-4-replay": 1,
    "example-11-3": 23,
    "figure-11-26": 30,
    "section-11-3-2-burst": 13,
    "figure-11-28": 1,
    "figure-11-29": 3,
    "section-11-3-2-fairness": 2,
    "exercise-11-1": 22,
    "exercise-11-2": 19,
    "exercise-11-3": 21,
    "exercise-11-4": 7,
    "exercise-11-5": 19,
}
"""Each worksheet with the number of its expected figures: one that is dropped by mistake is missed."""


@pytest.mark.parametrize(("name", "expected"), FILES.items(), ids=FILES)
def test_every_expected_number_comes_out(name: str, expected: int) -> None:
    plan = make_plan((EXAMPLES / f"{name}.toml").read_text(), name=f"{name}.toml")
    wrong = [f"{check.name}: {check.computed}, not {check.expected}" for check in plan.checks if not check.holds]
    assert not wrong
    assert len(plan.checks) >= expected


def test_a_worksheet_with_another_number_does_not_hold() -> None:
    text = (EXAMPLES / "example-11-1.toml").read_text().replace('expect = "168 %"', 'expect = "167 %"')
    plan = make_plan(text, name="example-11-1.toml")
    assert [check.name for check in plan.checks if not check.holds] == ["memory_share"]


@pytest.mark.parametrize("start_up_s", [8, 4])
@pytest.mark.parametrize(("name", "held_s"), [("short", 10), ("middle", 20), ("long", 40)])
def test_exercise_11_5_by_walking_through_the_time_held(name: str, held_s: int, start_up_s: int) -> None:
    plan = make_plan((EXAMPLES / "exercise-11-5.toml").read_text(), name="exercise-11-5.toml")
    tokens = sum(1 for hundredth in range(held_s * 100) if hundredth >= start_up_s * 100)
    assert plan.figures[f"{name}_{'yield' if start_up_s == 8 else 'quick'}.yielded"].value == tokens


@pytest.mark.parametrize("name", FILES)
def test_a_reader_finds_every_number_given_values_among_them(name: str) -> None:
    plan = make_plan((EXAMPLES / f"{name}.toml").read_text(), name=f"{name}.toml")
    seen = {figure.name for figure in plan.printed()} | {check.name for check in plan.checks}
    assert set(plan.figures) <= seen
