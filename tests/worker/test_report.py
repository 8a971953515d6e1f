"""The report: complete, self-contained, and safe whatever a guest wrote."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.verification.attempt_result import AttemptResult, TestsRecord, excerpt
from dsec.verification.outcome import Outcome, Verdict
from dsec.verification.stages import Segment, Stage
from dsec.worker.report.lanes import coalesce, tick_step_s, timeline
from dsec.worker.report.page import render_report
from dsec.worker.summary import Summary, summarise

HOSTILE = "</pre></script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>\x00\x1b[31m]]>"


def result(task: str = "t", attempt: int = 1, outcome: Outcome = Outcome.PASSED, **fields: object) -> AttemptResult:
    values = {
        "started_at_s": 1_700_000_000.0,
        "duration_s": 2.0,
        "segments": (
            Segment(stage=Stage.CREATE, start_s=0.0, end_s=0.5),
            Segment(stage=Stage.VERIFY, start_s=0.5, end_s=2.0),
        ),
        "totals_s": {"create": 0.5, "verify": 1.5},
        "verdict": Verdict(outcome=outcome, reason="why", reward=1.0 if outcome is Outcome.PASSED else None),
    }
    return AttemptResult(task=task, attempt=attempt, **{**values, **fields})  # type: ignore[arg-type]


def summary(*results: AttemptResult) -> Summary:
    return summarise(results, rollout_id="rol-1", policy="oracle", planned=len(results), skipped={})


class Page(HTMLParser):
    """Collects tags and attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


def hostile_result(text: str) -> AttemptResult:
    return result(
        task=text or "t",
        verdict=Verdict(outcome=Outcome.FAILED, reason=text or "r"),
        last_output=text,
        tests=TestsRecord(exit_code=1, stdout=text, stderr=text),
        broken_tries=(text,),
        sandbox_id=text,
    )


def test_nothing_that_a_guest_wrote_becomes_markup() -> None:
    one = hostile_result(HOSTILE)
    page = Page(render_report(summary(one), [one]))
    assert page.tags.count("script") == 1
    assert "img" not in page.tags
    assert not [name for name, _ in page.attributes if name.startswith("on")]


@pytest.mark.slow
@given(st.text(alphabet=st.sampled_from("<>&\"'/=a \n\x00"), max_size=40))
def test_no_text_of_a_guest_adds_a_tag_or_attribute(text: str) -> None:
    plain, hostile = hostile_result("x"), hostile_result(f"x{text}y")
    expected = Page(render_report(summary(plain), [plain]))
    seen = Page(render_report(summary(hostile), [hostile]))
    assert seen.tags == expected.tags
    assert [name for name, _ in seen.attributes] == [name for name, _ in expected.attributes]


def test_the_page_needs_nothing_else_and_forbids_it() -> None:
    page = render_report(summary(result()), [result()])
    assert "default-src 'none'" in page
    assert not re.findall(r"https?://", page)
    assert not [value for name, value in Page(page).attributes if name == "src"]


def test_long_output_is_cut_at_its_beginning() -> None:
    assert excerpt("a" * 10_000 + "end").endswith("end")
    one = result(last_output="x" * 1_000_000)
    assert len(render_report(summary(one), [one])) < 100_000


@pytest.mark.slow
def test_a_report_of_many_attempts_stays_small_and_shows_the_failures() -> None:
    results = [
        result(
            task=f"task-{number // 8:04d}",
            attempt=number % 8 + 1,
            outcome=Outcome.FAILED if number == 15_999 else Outcome.PASSED,
            last_output=f"output-{number} " + "x" * 1_900,
            started_at_s=1_700_000_000.0 + number,
            lane=number % 64,
        )
        for number in range(16_000)
    ]
    page = render_report(summary(*results), results)
    assert "output-15999" in page
    assert len(page) < 16_000_000


def test_a_report_of_nothing_is_a_page() -> None:
    assert "<h1>" in render_report(summary(), [])


def test_outcomes_are_kept_apart() -> None:
    results = [result(attempt=number, outcome=outcome) for number, outcome in enumerate(Outcome, start=1)]
    sums = summary(*results)
    assert sums.outcomes == {outcome.value: 1 for outcome in Outcome}
    assert sums.pass_rate == 1 / 3
    assert sums.mean_reward is not None
    assert abs(sums.mean_reward - 1 / 3) < 1e-5
    assert json.loads(json.dumps(sums.outcomes))["infrastructure_error"] == 1


def test_a_chance_to_pass_in_k_attempts_counts_verdicts_only() -> None:
    group = [result(attempt=1), result(attempt=2, outcome=Outcome.FAILED), result(attempt=3, outcome=Outcome.UNKNOWN)]
    assert summary(*group).pass_at == {"1": 0.5}


def test_time_in_which_nothing_ran_is_not_counted_and_cut_out_of_the_picture() -> None:
    morning = [result(attempt=1, lane=0), result(attempt=2, lane=1)]
    evening = result(attempt=3, started_at_s=1_700_040_000.0)
    picture = timeline([*morning, evening])
    assert picture is not None
    assert len(picture.rows) == 2
    assert len(picture.cuts_s) == 1
    assert picture.length_s < 60
    assert summary(*morning, evening).wall_s == 4.0


def test_segments_too_short_to_see_are_drawn_as_one() -> None:
    segments = [
        Segment(stage=Stage.DECIDE, start_s=0.0, end_s=0.1),
        Segment(stage=Stage.TOOLS, start_s=0.1, end_s=0.5),
        Segment(stage=Stage.VERIFY, start_s=0.5, end_s=5.0),
    ]
    assert coalesce(segments, 1.0) == (
        Segment(stage=Stage.TOOLS, start_s=0.0, end_s=0.5),
        Segment(stage=Stage.VERIFY, start_s=0.5, end_s=5.0),
    )


@given(st.floats(min_value=1e-6, max_value=1e7))
def test_there_are_never_many_ticks(length_s: float) -> None:
    assert length_s / tick_step_s(length_s) <= 10.000001
