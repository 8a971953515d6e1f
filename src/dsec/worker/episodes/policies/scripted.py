"""Policies that ask no model: a script, and a recorded episode done again."""

from __future__ import annotations

from collections.abc import Sequence

from dsec.base.errors import InvalidStateError
from dsec.episode.operations import RoundRecord
from dsec.worker.episodes.ports import Finished, Proposal, Turn


class ScriptedPolicy:
    """Does one proposal after another; where it is follows from the number of the round.

    Args:
        proposals: the rounds.
        reason: why it ends.
    """

    def __init__(self, proposals: Sequence[Proposal], *, reason: str = "the script is over") -> None:
        self._proposals = proposals
        self._reason = reason

    async def decide(self, turn: Turn) -> Proposal | Finished:
        """Return the proposal for the round."""
        if turn.number > len(self._proposals):
            return Finished(reason=self._reason)
        return self._proposals[turn.number - 1]


def replayed(rounds: Sequence[RoundRecord]) -> ScriptedPolicy:
    """Return the policy that decides what a recorded episode decided: the calls, message and model, and no usage.

    Raises:
        InvalidStateError: the recording does not begin with round 1, because a state stands in for its beginning.
    """
    if rounds and rounds[0].number != 1:
        raise InvalidStateError(
            f"the recording begins with round {rounds[0].number}", resolution="replay an episode whose log is whole"
        )
    proposals = [
        Proposal(
            calls=tuple(operation.call for operation in record.decision.operations),
            message=record.decision.message,
            answer=record.decision.answer,
            model=record.decision.model,
        )
        for record in rounds
    ]
    return ScriptedPolicy(proposals, reason="the recording is over")
