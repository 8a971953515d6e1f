"""How episodes fail is seen in their rounds, and what steps came to is read from their logs."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dsec.costs.token_prices import TokenPrices
from dsec.episode.agent_calls import Submit, UnusableCall
from dsec.episode.content import Content
from dsec.episode.failure_kinds import CHECK_FAILED_CODE, FailureKind, failure_in, failure_of_end
from dsec.episode.identity import ModelIdentity
from dsec.episode.log_events import (
    EpisodeBegan,
    EpisodeEnded,
    EpisodeSteered,
    LogEvent,
    ModelChanged,
    ModelFailed,
    RoundCommitted,
)
from dsec.episode.operations import RoundRecord, TokenUsage
from dsec.episode.prices import Prices
from dsec.episode.recovery_experience import Step, StepTaken
from dsec.episode.recovery_learning import change_reason, steering_by, steps_taken
from dsec.episode.tools import CommandOutput, Run, ToolFailed, ToolResult
from dsec.testing.episodes import identity, round_record

OPUS = ModelIdentity(name="opus")
PRICES = Prices(
    models={name: TokenPrices(input_usd_per_mtoken=1.0, output_usd_per_mtoken=1.0) for name in ("m", "opus")}
)


def played(
    number: int, call: object, result: ToolResult | None = None, *, model: str = "m", took_s: float = 1.0
) -> RoundRecord:
    record = round_record(number)
    operation = replace(record.decision.operations[0], call=call)
    usage = TokenUsage(input_tokens=1_000_000)
    decided = replace(record.decision, operations=(operation,), model=ModelIdentity(name=model), usage=usage)
    return replace(record, decision=decided, results=(result or record.results[0],), decide_s=took_s)


def useless(number: int, model: str = "m") -> RoundRecord:
    return played(number, UnusableCall(problem="no call"), ToolFailed("invalid_request", "no call"), model=model)


def checked(number: int, *, model: str = "m") -> RoundRecord:
    return played(number, Submit(), ToolFailed(CHECK_FAILED_CODE, "the check failed", "1 test failed"), model=model)


def same(number: int, took_s: float) -> RoundRecord:
    output = CommandOutput(exit_code=1, stdout=Content(text="no"), duration_s=took_s)
    return played(number, Run(script="make"), output)


def test_a_failed_check_of_the_newest_round_is_seen_with_what_it_said() -> None:
    failure = failure_in(reversed([checked(1), played(2, Run(script="ls")), checked(3)]))
    assert failure is not None
    assert (failure.kind, failure.count, failure.detail) == (FailureKind.CHECK_FAILED, 1, "1 test failed")
    assert failure_in(reversed([checked(1), played(2, Run(script="ls"))])) is None


def test_useless_rounds_are_those_in_a_row_of_one_model() -> None:
    failure = failure_in(reversed([useless(1), played(2, Run(script="ls")), useless(3), useless(4)]))
    assert failure is not None
    assert (failure.kind, failure.count) == (FailureKind.USELESS, 2)
    assert failure_in(reversed([useless(1), played(2, Run(script="ls"))])) is None
    assert failure_in(reversed([useless(1), useless(2), played(3, Run(script="ls"), model="opus")])) is None
    assert failure_in(reversed([])) is None


def test_the_same_calls_with_the_same_results_are_stuck_whatever_time_they_took() -> None:
    failure = failure_in(reversed([same(number, took_s=float(number)) for number in range(1, 5)]))
    assert failure is not None
    assert (failure.kind, failure.count) == (FailureKind.STUCK, 4)
    assert failure_in(reversed([same(1, 1.0), same(2, 1.0), same(3, 1.0)])) is None
    waits = [replace(same(number, 30.0), tools_s=30.0) for number in range(1, 9)]
    assert failure_in(reversed(waits)) is None
    assert failure_in(reversed([*(same(number, 1.0) for number in range(1, 5)), played(5, Run(script="ls"))])) is None


def test_rounds_in_which_every_tool_failed_are_seen() -> None:
    failed = [played(number, Run(script=f"{number}"), ToolFailed("path_not_found", "gone")) for number in (1, 2)]
    failure = failure_in(reversed(failed))
    assert failure is not None
    assert (failure.kind, failure.count, failure.detail) == (FailureKind.TOOLS_FAILED, 2, "gone")


@pytest.mark.parametrize(
    ("code", "passed", "kind"),
    [
        ("", True, None),
        ("", None, None),
        ("", False, FailureKind.CHECK_FAILED),
        ("unusable_answers", None, FailureKind.USELESS),
        ("deadline_exceeded", False, FailureKind.LIMITED),
        ("stuck", None, FailureKind.STUCK),
        ("backend_timeout", None, FailureKind.MODEL_FAILED),
        ("sandbox_exited", None, FailureKind.LOST),
        ("cancelled", None, None),
        ("cancelled", False, None),
    ],
)
def test_an_ended_episode_failed_as_its_code_and_grade_say(
    code: str, passed: bool | None, kind: FailureKind | None
) -> None:
    assert failure_of_end(code, passed=passed) is kind


def test_the_steps_of_an_episode_are_read_from_its_log() -> None:
    events: list[LogEvent] = [
        EpisodeBegan(identity()),
        RoundCommitted(checked(1)),
        EpisodeSteered(message="mend it", by=steering_by(FailureKind.CHECK_FAILED)),
        RoundCommitted(played(2, Run(script="vi"))),
        RoundCommitted(checked(3)),
        ModelChanged(model=OPUS, reason=change_reason(FailureKind.CHECK_FAILED, "it failed again")),
        RoundCommitted(played(4, Submit(), model="opus", took_s=5.0)),
        EpisodeEnded(reason="submitted"),
    ]
    check = FailureKind.CHECK_FAILED
    assert steps_taken(events, passed=None, checked=True, prices=PRICES) == [
        StepTaken(step=Step.FIRST, model="m", failed=check, time_s=1.0, cost_usd=1.0),
        StepTaken(step=Step.REPAIR, model="m", after=check, failed=check, time_s=2.0, cost_usd=2.0),
        StepTaken(step=Step.ESCALATE, model="opus", after=check, time_s=5.0, cost_usd=1.0),
    ]
    graded = steps_taken(events, passed=False, checked=True, prices=PRICES)
    assert graded[-1].failed is check
    assert steps_taken(events, passed=None, checked=False, prices=PRICES) == []
    assert steps_taken(events, passed=None, checked=True, prices=Prices())[0].cost_usd is None
    nameless = Prices(models={"": PRICES.models["m"]})
    assert steps_taken(events, passed=None, checked=True, prices=nameless)[0].cost_usd == 1.0


def test_a_call_that_came_to_nothing_is_repaired_or_another_model_goes_on() -> None:
    failed = ModelFailed(number=1, model=ModelIdentity(name="m"), usage=TokenUsage(), duration_s=3.0)
    again: list[LogEvent] = [EpisodeBegan(identity()), failed, RoundCommitted(played(1, Submit())), EpisodeEnded()]
    taken = steps_taken(again, passed=True, prices=PRICES)
    assert [(one.step, one.after, one.failed) for one in taken] == [
        (Step.FIRST, None, FailureKind.MODEL_FAILED),
        (Step.REPAIR, FailureKind.MODEL_FAILED, None),
    ]
    changed = ModelChanged(model=OPUS, reason=change_reason(FailureKind.MODEL_FAILED, "it is down"))
    other: list[LogEvent] = [
        EpisodeBegan(identity()),
        failed,
        changed,
        RoundCommitted(played(1, Submit())),
        EpisodeEnded(),
    ]
    taken = steps_taken(other, passed=True, prices=PRICES)
    assert [(one.step, one.model) for one in taken] == [(Step.FIRST, "m"), (Step.ESCALATE, "opus")]


def test_what_a_person_did_teaches_nothing() -> None:
    events: list[LogEvent] = [
        EpisodeBegan(identity()),
        EpisodeSteered(message="look at b.c", by="a person"),
        ModelChanged(model=OPUS, reason="resumed with another model"),
        RoundCommitted(played(1, Submit(), model="opus")),
        EpisodeEnded(reason="submitted"),
    ]
    assert steps_taken(events, passed=True, prices=PRICES) == []
    cancelled = [EpisodeBegan(identity()), EpisodeEnded(reason="enough", error_code="cancelled")]
    assert steps_taken(cancelled, passed=None, checked=True, prices=PRICES) == []
    steered = [*events[:2], EpisodeEnded(reason="submitted")]
    assert steps_taken(steered, passed=True, prices=PRICES) == []
