"""The policy of a trainer's own scaffold: one round, which is a command inside the sandbox, and then the end.

The scaffold asks models and calls tools by itself; the loop knows its beginning, its end, and what it left behind. It
survives the worker (`dsec.worker.episodes.processes`). What it reads: the instruction in the file that
``DSEC_INSTRUCTION`` names, and the variables of its spec.
"""

from __future__ import annotations

from dsec.base.errors import InvalidRequestError
from dsec.base.units import KIB
from dsec.episode.agent_calls import AgentCall
from dsec.episode.content import Content
from dsec.episode.operations import Effect
from dsec.episode.spec import EpisodeSpec, ScaffoldPolicy
from dsec.episode.tools import CommandOutput, Run, ToolFailed
from dsec.worker.episodes.ports import Declared, Finished, Proposal, Turn

INSTRUCTION_VARIABLE = "DSEC_INSTRUCTION"
INSTRUCTION_PATH = "/tmp/dsec-instruction.md"
SCAFFOLD_OUTPUT_BYTES = 64 * KIB
"""Kept of each stream: the first and the last half."""
SCAFFOLD_FAILED = "scaffold_failed"
_WRAPPER = (
    f'mkdir -p "${{{INSTRUCTION_VARIABLE}%/*}}" && cat > "${INSTRUCTION_VARIABLE}" && exec /bin/sh -c "$0" </dev/null'
)


class ScaffoldCommand:
    """Implements `dsec.worker.episodes.ports.EpisodePolicy`.

    Args:
        spec: of the episode; its policy is a scaffold.

    Raises:
        InvalidRequestError: it has no command, or too little time for one.
    """

    def __init__(self, spec: EpisodeSpec) -> None:
        policy = spec.policy
        assert isinstance(policy, ScaffoldPolicy)
        check_scaffold(policy)
        self._call = Run(
            argv=("/bin/sh", "-c", _WRAPPER, policy.command),
            env={INSTRUCTION_VARIABLE: INSTRUCTION_PATH, **policy.env},
            stdin=Content(text=spec.instruction),
            timeout_s=policy.timeout_s,
            output_limit_bytes=SCAFFOLD_OUTPUT_BYTES,
        )

    async def decide(self, turn: Turn) -> Proposal | Finished:
        """Return the scaffold's run, and after it the end."""
        if turn.number == 1:
            return Proposal(calls=(self._call,))
        result = turn.rounds[-1].results[-1] if turn.rounds else None
        match result:
            case CommandOutput(exit_code=0):
                return Finished(reason="the scaffold ended")
            case CommandOutput(timed_out=True):
                return Finished(
                    reason=f"the scaffold did not end in {self._call.timeout_s:g} s", error_code=SCAFFOLD_FAILED
                )
            case CommandOutput():
                return Finished(reason=f"the scaffold exited with {result.exit_code}", error_code=SCAFFOLD_FAILED)
            case ToolFailed():
                return Finished(reason=f"the scaffold failed: {result.brief}", error_code=SCAFFOLD_FAILED)
            case _:
                return Finished(reason="the scaffold ended")


def check_scaffold(policy: ScaffoldPolicy) -> None:
    """Refuse a scaffold that cannot be run.

    Raises:
        InvalidRequestError: it has no command, holds what no program can be given, or has no time.
    """
    if not policy.command.strip() or "\0" in policy.command:
        raise InvalidRequestError("the scaffold's command is empty or holds a NUL", resolution="give a shell command")
    if not 0 < policy.timeout_s < float("inf"):
        raise InvalidRequestError(f"a scaffold cannot have {policy.timeout_s} s", resolution="give a time above 0")


def declare_scaffold(call: AgentCall) -> Declared:
    """Return what a scaffold declares: it can be asked for by its operation's id."""
    return Declared(effect=Effect.ASKED if isinstance(call, Run) else Effect.WORKSPACE)
