"""Rounds and events of episodes for tests, small and told apart by their numbers."""

from __future__ import annotations

from collections.abc import Sequence

from dsec.episode.content import Content
from dsec.episode.identity import EpisodeIdentity, ModelIdentity, operation_id
from dsec.episode.log_events import EpisodeBegan, EpisodeEnded, LogEvent, RoundCommitted
from dsec.episode.operations import Effect, ModelDecision, Operation, RoundRecord, TokenUsage
from dsec.episode.tools import CommandOutput, Run, ToolResult

EPISODE = "ep-test"


def identity(episode_id: str = EPISODE, *, workspace: str = "w0") -> EpisodeIdentity:
    """Return the identity of an episode."""
    return EpisodeIdentity(
        episode_id=episode_id,
        task="fix-42",
        seed=7,
        policy="script",
        model=ModelIdentity(name="m"),
        workspace=workspace,
    )


def decision(
    number: int, effects: Sequence[Effect] = (Effect.WORKSPACE,), *, episode_id: str = EPISODE, attempt: int = 1
) -> ModelDecision:
    """Return a decision with one operation for each effect."""
    return ModelDecision(
        message=f"round {number}",
        operations=tuple(
            Operation(
                operation_id=operation_id(episode_id, number=number, decision=attempt, call=place),
                call=Run(script=f"echo {number}.{place}"),
                effect=effect,
            )
            for place, effect in enumerate(effects)
        ),
        model=ModelIdentity(name="m", version="m-1"),
        usage=TokenUsage(input_tokens=100 * number, output_tokens=10),
    )


def result(text: str) -> ToolResult:
    """Return what a command printed."""
    return CommandOutput(exit_code=0, stdout=Content(text=text))


def round_record(
    number: int, *, effects: Sequence[Effect] = (Effect.WORKSPACE,), episode_id: str = EPISODE, size: int = 0
) -> RoundRecord:
    """Return a round that changes the workspace from ``w<number - 1>`` to ``w<number>``; `size` pads its results."""
    decided = decision(number, effects, episode_id=episode_id)
    return RoundRecord(
        number=number,
        decision=decided,
        results=tuple(result(f"{number}.{place}" + "x" * size) for place in range(len(effects))),
        attempts=(1,) * len(effects),
        workspace_before=f"w{number - 1}",
        workspace_after=f"w{number}",
    )


def history(rounds: int, *, episode_id: str = EPISODE) -> list[LogEvent]:
    """Return the events of an episode of so many rounds."""
    began: list[LogEvent] = [EpisodeBegan(identity(episode_id))]
    return began + [RoundCommitted(round_record(number, episode_id=episode_id)) for number in range(1, rounds + 1)]


def ended_as(outcome: object) -> str:
    """Return why an episode ended, without an error, whenever that was."""
    assert isinstance(outcome, EpisodeEnded), outcome
    assert not outcome.error_code, outcome
    return outcome.reason
