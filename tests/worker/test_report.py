"""The report: complete, self-contained, and safe whatever a guest wrote."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.episode.agent_calls import AgentCall, EditFile, OutsideCall, ReadLines, Search, Submit, UnusableCall
from dsec.episode.content import Content
from dsec.episode.operations import ModelDecision, Operation, RoundRecord, TokenUsage
from dsec.episode.tools import Run, ToolFailed, WriteFile
from dsec.verification.attempt_result import AttemptResult, EpisodeRecord, TestsRecord, excerpt
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


def episode_result(text: str, **fields: Any) -> AttemptResult:
    episode = EpisodeRecord(
        episode_id="ep-a", models=(text,), lives=2, calls=3, input_tokens=1000, output_tokens=234, cost_usd=0.00123
    )
    return result(episode=episode, **fields)


def played(text: str, rounds: int) -> list[RoundRecord]:
    calls: list[AgentCall] = [
        Run(script=text or "ls"),
        Run(argv=("ls", text)),
        ReadLines(path=text),
        Search(pattern=text),
        EditFile(path=text, old="a", new=text),
        EditFile(path=text, new=text),
        OutsideCall(name=text, arguments={"a": text}),
        UnusableCall(problem=text, name=text),
        WriteFile(path=text, content=Content(text=text)),
        Submit(summary=text),
    ]
    operations = tuple(Operation(operation_id=f"ep-a.r1.d1.c{place}", call=call) for place, call in enumerate(calls))
    decision = ModelDecision(operations=operations, message=text, usage=TokenUsage(input_tokens=10, output_tokens=2))
    came = tuple(ToolFailed(code="x", brief=text) for _ in calls)
    return [RoundRecord(number=number, decision=decision, results=came) for number in range(1, rounds + 1)]


def test_the_rounds_of_an_episode_are_on_the_page_and_what_it_used() -> None:
    one = episode_result("m")
    page = render_report(summary(one), [one], rounds=lambda _: played("echo hello", 3))
    for text in ("Round 3", "$ echo hello", "edit echo hello", "1,000 tokens in, 234 out", "$0.0012", "2 lives"):
        assert text in page
    assert page.count('<p class="cap">Round') == 3
    assert "worker/episodes/ep-a" in page
    long = render_report(summary(one), [one], rounds=lambda _: played("x" * 100_000, 500))
    assert "460 rounds are not shown" in long
    assert len(long) < 1_000_000


def test_what_models_used_is_summed_and_a_price_that_is_missing_is_said() -> None:
    known, unknown = episode_result("m"), episode_result("m", attempt=2, outcome=Outcome.FAILED)
    assert unknown.episode is not None
    sums = summary(known, unknown).models
    assert sums is not None
    assert (sums.calls, sums.input_tokens, sums.is_whole) == (6, 2000, True)
    assert sums.cost_usd == pytest.approx(0.00246)
    assert sums.passed_usd == pytest.approx(0.00246)
    free = msgspec.structs.replace(unknown, episode=msgspec.structs.replace(unknown.episode, cost_usd=None))
    sums = summary(known, free).models
    assert sums is not None
    assert (sums.is_whole, sums.passed_usd) == (False, None)
    assert summary(result()).models is None


@pytest.mark.slow
@given(st.text(alphabet=st.sampled_from("<>&\"'/=a \n\x00"), max_size=40))
def test_no_text_of_a_guest_adds_a_tag_or_attribute(text: str) -> None:
    plain, hostile = hostile_result("x"), hostile_result(f"x{text}y")
    episode = EpisodeRecord(episode_id="ep-a", calls=1)
    plain, hostile = (msgspec.structs.replace(each, episode=episode) for each in (plain, hostile))
    expected = Page(render_report(summary(plain), [plain], rounds=lambda _: played("plain", 2)))
    seen = Page(render_report(summary(hostile), [hostile], rounds=lambda _: played(text, 2)))
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
