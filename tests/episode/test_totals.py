"""What stands beside the rounds of a log, and the sums that a whole state carries over what was dropped."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from dsec.base.errors import InvalidStateError
from dsec.episode.endpoint import ModelEndpoint
from dsec.episode.episode_progress import fold
from dsec.episode.identity import ModelIdentity
from dsec.episode.log_events import (
    EnvironmentUsed,
    EpisodeEnded,
    EpisodeHeld,
    EpisodeReleased,
    EpisodeSteered,
    LifeBegan,
    LogEvent,
    ModelChanged,
    ModelFailed,
    RoundAbandoned,
    RoundCommitted,
    RoundDecided,
    StateSaved,
    decode_log_events,
    encode_log_event,
)
from dsec.episode.operations import TokenUsage
from dsec.episode.totals import MAXIMUM_STEERINGS, MAXIMUM_VERSIONS, EnvironmentKind, Steering
from dsec.testing.episodes import decision, history, identity, round_record

BESIDE: list[LogEvent] = [
    LifeBegan(worker="w", at_s=10.0),
    EpisodeSteered(message="look at the test", by="a person"),
    ModelFailed(number=3, model=ModelIdentity(name="m"), usage=TokenUsage(input_tokens=5), error_code="backend_failed"),
    ModelChanged(model=ModelIdentity(name="n"), reason="it failed", endpoint=ModelEndpoint(url="http://h/v1")),
    EpisodeHeld(at_s=20.0),
    EpisodeReleased(at_s=25.0),
    EnvironmentUsed(sandbox_id="s", kind=EnvironmentKind.PAUSED, began_s=1.0, ended_s=3.0, memory_byte_s=8.0),
]


@pytest.mark.parametrize("event", BESIDE)
def test_what_stands_beside_the_rounds_may_come_at_any_time_and_changes_nothing_of_recovery(event: LogEvent) -> None:
    decided = RoundDecided(number=3, decision=decision(3), workspace="w2")
    plain, mixed = fold([*history(2), decided]), fold([*history(2), event, decided, event])
    assert (mixed.open, mixed.last_round, mixed.workspace) == (plain.open, plain.last_round, plain.workspace)
    assert decode_log_events([encode_log_event(event)], name="log") == [event]
    with pytest.raises(InvalidStateError, match="has ended"):
        fold([*history(2), EpisodeEnded()]).check(event)


def test_usage_is_counted_once_for_each_decision_and_given_up_ones_and_failures_count_too() -> None:
    given_up = RoundDecided(number=2, decision=decision(2), workspace="w1")
    decided = RoundDecided(number=2, decision=decision(2, attempt=2), workspace="w1")
    record = RoundCommitted(replace(round_record(2), decision=decided.decision))
    totals = fold([*history(1), given_up, RoundAbandoned(number=2), decided, record, BESIDE[2]]).totals
    assert totals.usage.input_tokens == 100 + 200 + 200 + 5
    assert [(one.model.version, one.decisions, one.failed) for one in totals.models] == [("m-1", 3, 0), ("", 0, 1)]
    assert totals.operations == 2


def test_a_service_that_calls_itself_something_else_with_each_answer_counts_as_few_models() -> None:
    failures = [ModelFailed(number=1, model=ModelIdentity(name="m", version=str(one)), usage=TokenUsage(input_tokens=1))
                for one in range(500)]  # fmt: skip
    totals = fold([*history(1), *failures]).totals
    assert len(totals.models) <= MAXIMUM_VERSIONS + 1
    assert sum(one.failed for one in totals.models) == 500


def test_a_log_that_begins_with_a_state_adds_up_to_the_same() -> None:
    before = [*history(2), *BESIDE, *BESIDE]
    progress = fold(before)
    state = StateSaved(number=2, identity=identity(), workspace="w2", totals=progress.totals)
    assert fold([state]).totals == progress.totals
    assert progress.totals.lives == 2
    assert progress.totals.environment[0].seconds == 4.0
    assert progress.totals.endpoint == ModelEndpoint(url="http://h/v1")


def test_the_time_of_an_episode_stands_still_while_it_is_held() -> None:
    held = fold([*history(2), LifeBegan(at_s=10.0), EpisodeHeld(at_s=20.0), EpisodeHeld(at_s=22.0)]).totals
    assert held.elapsed_s(1000.0) == 10.0
    went_on = fold([*history(2), LifeBegan(at_s=10.0), EpisodeHeld(at_s=20.0), EpisodeReleased(at_s=50.0)]).totals
    assert went_on.elapsed_s(51.0) == 11.0
    assert went_on.elapsed_s(0.0) == 0.0, "a wall clock that was put back takes nothing away"


def test_steering_is_bounded_and_says_after_which_round_it_came() -> None:
    told: list[LogEvent] = [EpisodeSteered(message=str(number)) for number in range(MAXIMUM_STEERINGS + 3)]
    steered = fold([*history(2), *told]).totals.steered
    assert len(steered) == MAXIMUM_STEERINGS
    assert steered[-1] == Steering(message=str(MAXIMUM_STEERINGS + 2), after_round=2)
