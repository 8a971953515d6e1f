"""Files that are gone, made again: what the log says was done to them is done once more, from the newest saved ones on.

A log holds each operation and each result. Those that changed the workspace and nothing else are carried out again in
their order; results are compared with the recorded ones, but for the time they took. Equal results are evidence that
the files are what they were, and no proof: what a command wrote and did not say is not compared. So this is the last
resort, and says what it found.

What reached systems outside is never done again. A command that may have reached one and changed files as well cannot
be replayed, and so neither can what came after it. Source: training systems before the paper's, which kept a command
log for this; arXiv 2609.22978.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from dsec.base.errors import InvalidStateError
from dsec.episode.agent_calls import OutsideCall
from dsec.episode.operations import Effect, RoundRecord
from dsec.episode.tools import CommandOutput, ToolFailed, ToolResult
from dsec.worker.episodes.ports import Hands
from dsec.worker.episodes.results import bounded_result

_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What a replay came to.

    Attributes:
        rounds, operations: how many were done again.
        differing: ids of the operations whose results differed.
    """

    rounds: int
    operations: int
    differing: tuple[str, ...] = ()

    def shown(self) -> str:
        """Return it in words."""
        said = f"{self.operations} operations of {self.rounds} rounds done again"
        if not self.differing:
            return f"{said}, with the recorded results"
        more = f" and {len(self.differing) - _SHOWN} more" if len(self.differing) > _SHOWN else ""
        return f"{said}; {len(self.differing)} results differ: {', '.join(self.differing[:_SHOWN])}{more}"


def rounds_between(rounds: Sequence[RoundRecord], *, base: str, wanted: str) -> list[RoundRecord]:
    """Return the rounds that lead from one version of the workspace to another.

    Args:
        rounds: of the episode, as far back as there are any.
        base: version to begin from.
        wanted: version to come to.

    Raises:
        InvalidStateError: they do not lead there.
    """
    if base == wanted:
        return []
    found: list[RoundRecord] = []
    for record in reversed(rounds):
        if record.workspace_after == wanted or found:
            found.append(record)
        if found and record.workspace_before == base:
            # A round that changed nothing stands before the same version; it need not be done again.
            return found[::-1]
    raise InvalidStateError(
        f"the log does not say how the workspace came from {base} to {wanted}",
        resolution="keep whole logs, or save the files of each round (snapshot_rounds=1)",
    )


def check_replayable(rounds: Sequence[RoundRecord]) -> None:
    """Check before anything is done that rounds can be done again.

    Raises:
        InvalidStateError: an operation may have changed the files and something outside.
    """
    for record in rounds:
        for operation in record.decision.operations:
            if operation.effect.is_announced and not isinstance(operation.call, OutsideCall):
                raise InvalidStateError(
                    f"{operation.operation_id} may have reached systems outside, and is not done again",
                    resolution="save the files of each round (snapshot_rounds=1) where commands reach such systems",
                )


async def replay(rounds: Sequence[RoundRecord], hands: Hands) -> ReplayReport:
    """Do again what rounds did to the workspace.

    Args:
        rounds: in their order; the workspace is as before the first.
        hands: in the sandbox.

    Raises:
        InvalidStateError: they cannot be done again; nothing was.
        DsecError: the platform failed.
    """
    check_replayable(rounds)
    differing: list[str] = []
    operations = 0
    for record in rounds:
        for operation, recorded in zip(record.decision.operations, record.results, strict=True):
            if operation.effect is Effect.WORKSPACE:
                operations += 1
                if not is_same_result(bounded_result(await hands.run(operation)), recorded):
                    differing.append(operation.operation_id)
    return ReplayReport(rounds=len(rounds), operations=operations, differing=tuple(differing))


def is_same_result(first: ToolResult, second: ToolResult) -> bool:
    """Say whether two results are the same but for how long they took, and how a failure was worded."""
    match first, second:
        case CommandOutput(), CommandOutput():
            return replace(first, duration_s=0.0) == replace(second, duration_s=0.0)
        case ToolFailed(), ToolFailed():
            return first.code == second.code
        case _:
            return first == second
