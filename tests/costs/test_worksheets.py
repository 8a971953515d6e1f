"""The chapter's numbers, as they come out of the shipped worksheets."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dsec.planner.plan import Plan

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
    "example-11-4": 9,
    "example-11-5": 15,
    "example-11-6": 15,
    "example-11-7": 13,
    "example-11-8": 64,
    "exercise-11-6": 27,
    "exercise-11-7": 8,
    "exercise-11-8": 18,
    "exercise-11-9": 39,
    "figure-11-31": 12,
    "figure-11-33": 8,
    "figure-11-35": 17,
    "figure-11-37": 17,
    "figure-11-39": 2,
    "figure-11-42": 25,
    "figure-11-43": 10,
    "figure-11-44": 16,
    "figure-11-48": 14,
    "figure-11-49": 33,
    "section-11-3-2-preemption": 3,
    "section-11-3-3-instances": 14,
    "section-11-4-1-model-choice": 14,
    "section-11-4-3-queue": 24,
    "section-11-5-1-commits": 10,
    "section-11-5-2-recovery": 3,
    "section-11-5-2-success-cost": 4,
    "section-11-5-3-amdahl": 8,
}
"""Each worksheet with the number of its expected figures: one that is dropped by mistake is missed."""
PLAIN = {"section-11-1-3", "figure-11-28", "section-11-3-2-fairness"}
"""Worksheets of a few numbers that no picture would make plainer."""


@pytest.mark.parametrize(("name", "expected"), FILES.items(), ids=FILES)
def test_every_expected_number_comes_out(example: Callable[[str], Plan], name: str, expected: int) -> None:
    plan = example(name)
    wrong = [f"{check.name}: {check.computed}, not {check.expected}" for check in plan.checks if not check.holds]
    assert not wrong
    assert len(plan.checks) >= expected


@pytest.mark.parametrize("name", FILES)
def test_a_reader_finds_every_number_given_values_among_them(example: Callable[[str], Plan], name: str) -> None:
    plan = example(name)
    seen = {figure.name for figure in plan.printed()} | {check.name for check in plan.checks}
    assert set(plan.figures) <= seen


@pytest.mark.parametrize("name", FILES)
def test_there_is_a_picture_where_one_helps(example: Callable[[str], Plan], name: str) -> None:
    assert bool(example(name).pictures) is (name not in PLAIN)


@pytest.mark.parametrize(
    ("name", "old", "new", "wrong"),
    [
        ("example-11-1", 'expect = "168 %"', 'expect = "167 %"', {"memory_share"}),
        (
            "example-11-7",
            'b_read = "0.2 USD',
            'b_read = "0.3 USD',
            {"b_hit.total", "b_at_half.success_cost", "cheaper_from"},
        ),
    ],
)
def test_a_worksheet_with_another_number_does_not_hold(
    example: Callable[[str, str, str], Plan], name: str, old: str, new: str, wrong: set[str]
) -> None:
    assert {check.name for check in example(name, old, new).checks if not check.holds} == wrong


@pytest.mark.parametrize("start_up_s", [8, 4])
@pytest.mark.parametrize(("name", "held_s"), [("short", 10), ("middle", 20), ("long", 40)])
def test_exercise_11_5_by_walking_through_the_time_held(
    example: Callable[[str], Plan], name: str, held_s: int, start_up_s: int
) -> None:
    plan = example("exercise-11-5")
    tokens = sum(1 for hundredth in range(held_s * 100) if hundredth >= start_up_s * 100)
    assert plan.figures[f"{name}_{'yield' if start_up_s == 8 else 'quick'}.yielded"].value == tokens


def test_counting_the_tasks_under_way_gives_what_littles_law_gives(example: Callable[[str], Plan]) -> None:
    figures = example("figure-11-49").figures
    spans = {
        "calls": [(0, 6), (7, 13), (14, 20)],
        "environments": [(4, 7), (11, 14), (18, 21)],
        "tools": [(6, 7), (13, 14), (20, 21)],
    }

    def under_way(what: str, now_tenths: int) -> int:
        arrivals = range(now_tenths - 300, now_tenths + 1)
        return sum(10 * a <= now_tenths - t < 10 * b for t in arrivals for a, b in spans[what])

    for now_tenths in (500, 503, 507):
        assert under_way("calls", now_tenths) == figures["service.concurrency"].value
        assert under_way("environments", now_tenths) == figures["environments"].value
        assert under_way("tools", now_tenths) + 3 * figures["preparation_of_a_round"].value == figures["cores"].value
