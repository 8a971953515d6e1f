"""Rounds for the benchmarks of episodes."""

from __future__ import annotations

from dsec.episode.content import Content
from dsec.episode.identity import EpisodeIdentity, ModelIdentity, operation_id
from dsec.episode.log_events import LogEvent, OperationsRunning, RoundCommitted, RoundDecided
from dsec.episode.operations import Effect, ModelDecision, Operation, RoundRecord, TokenUsage
from dsec.episode.tools import CommandOutput, Run

_TEXT = "tests/test_fix.py::test_that_it_holds PASSED                        [ 12%]\n"


def bench_identity(episode_id: str) -> EpisodeIdentity:
    """Return the identity of an episode."""
    return EpisodeIdentity(episode_id=episode_id, task="bench", policy="bench", workspace="w0")


def bench_round(number: int, result_bytes: int) -> RoundCommitted:
    """Return a round of one shell command with a result of so many bytes."""
    return RoundCommitted(_record(number, result_bytes, Effect.WORKSPACE))


def outside_round(number: int, result_bytes: int) -> RoundCommitted:
    """Return a round whose operation must not run twice."""
    return RoundCommitted(_record(number, result_bytes, Effect.ONCE))


def announcements(number: int) -> tuple[LogEvent, ...]:
    """Return what has to be saved before the operation of an `outside_round` begins."""
    decision = _record(number, 0, Effect.ONCE).decision
    return (
        RoundDecided(number=number, decision=decision, workspace=f"w{number - 1}"),
        OperationsRunning(number=number, operations=(decision.operations[0].operation_id,)),
    )


def _record(number: int, result_bytes: int, effect: Effect) -> RoundRecord:
    text = (_TEXT * (result_bytes // len(_TEXT) + 1))[:result_bytes]
    operation = Operation(
        operation_id=operation_id("ep-bench", number=number, decision=1, call=0),
        call=Run(script="python -m pytest -q tests"),
        effect=effect,
    )
    return RoundRecord(
        number=number,
        decision=ModelDecision(
            message="I run the tests again to see whether the change holds.",
            operations=(operation,),
            model=ModelIdentity(name="bench", version="1"),
            usage=TokenUsage(input_tokens=19_000, cached_tokens=18_000, output_tokens=355),
        ),
        results=(CommandOutput(exit_code=0, stdout=Content(text=text), duration_s=1.0),),
        attempts=(1,),
        workspace_before=f"w{number - 1}",
        workspace_after=f"w{number}",
        decide_s=9.0,
        tools_s=1.0,
    )
