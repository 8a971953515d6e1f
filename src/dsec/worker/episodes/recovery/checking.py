"""Check submissions: a command in the sandbox says whether the work is accepted.

A submission that is not accepted is a call that failed, with the end of what the check printed. So it ends nothing, it
is in the record of its round like any result, and the model reads it and goes on: that is the whole of a local repair.
What the check leaves behind belongs to the workspace like what any command leaves; a submission that is checked is
therefore an operation on the workspace, and can be done again.
"""

from __future__ import annotations

from dsec.episode.agent_calls import AgentCall, Submit
from dsec.episode.content import Content
from dsec.episode.failure_kinds import CHECK_FAILED_CODE
from dsec.episode.operations import Effect, Operation
from dsec.episode.spec import EpisodeCheck
from dsec.episode.tools import CommandOutput, Run, ToolFailed, ToolResult
from dsec.worker.episodes.ports import Declare, Declared, Hands

ACCEPTED = "submitted: the check accepts it"


def declared_checked(declare: Declare, check: EpisodeCheck | None) -> Declare:
    """Return what tools declare, where submissions are checked."""
    if check is None:
        return declare

    def declared(call: AgentCall) -> Declared:
        return Declared(effect=Effect.WORKSPACE) if isinstance(call, Submit) else declare(call)

    return declared


def is_checked(operation: Operation) -> bool:
    """Say whether an operation is a submission whose check runs in the sandbox."""
    return isinstance(operation.call, Submit) and operation.effect is Effect.WORKSPACE


def checked_hands(hands: Hands, check: EpisodeCheck | None) -> Hands:
    """Return hands that check submissions, if they are to be checked."""
    return hands if check is None else CheckedHands(hands, check)


class CheckedHands:
    """Implements `dsec.worker.episodes.ports.Hands`: submissions are checked, everything else is left to others.

    Args:
        hands: that carry everything out.
        check: of submissions.
    """

    def __init__(self, hands: Hands, check: EpisodeCheck) -> None:
        self._hands = hands
        self._check = check

    async def run(self, operation: Operation) -> ToolResult:
        """Carry one out.

        Raises:
            DsecError: there is no sandbox to go on in, or the platform failed: nothing is known of the submission.
        """
        if not isinstance(operation.call, Submit):
            return await self._hands.run(operation)
        command = Run(script=self._check.command, user=self._check.user or None, timeout_s=self._check.timeout_s)
        ran = await self._hands.run(
            Operation(operation_id=operation.operation_id, call=command, effect=Effect.WORKSPACE)
        )
        if isinstance(ran, CommandOutput) and ran.exit_code == 0 and not ran.timed_out:
            return CommandOutput(exit_code=0, stdout=Content(text=ACCEPTED), duration_s=ran.duration_s)
        return _refused(ran, self._check)

    async def ask(self, operation: Operation) -> ToolResult | None:
        """See the port."""
        return await self._hands.ask(operation)

    async def compensate(self, operation: Operation) -> None:
        """See the port."""
        await self._hands.compensate(operation)


def _refused(ran: ToolResult, check: EpisodeCheck) -> ToolFailed:
    if not isinstance(ran, CommandOutput):
        words = f"{ran.brief} {ran.detail}".strip() if isinstance(ran, ToolFailed) else ""
        return ToolFailed(code=CHECK_FAILED_CODE, brief="the check could not be run", detail=words)
    if ran.timed_out:
        brief = f"the check did not end within {check.timeout_s:g} s"
    elif ran.oom_killed:
        brief = "the check was killed: the sandbox's memory is full"
    else:
        brief = f"the check failed with exit code {ran.exit_code}"
    said = "\n".join(text for text in (ran.stdout.shown(), ran.stderr.shown()) if text)
    shown = said[-check.shown_bytes :] if check.shown_bytes else ""
    cut = "[...]\n" if len(shown) < len(said) and shown else ""
    return ToolFailed(code=CHECK_FAILED_CODE, brief=brief, detail=cut + shown, resolution="mend it, and submit again")
