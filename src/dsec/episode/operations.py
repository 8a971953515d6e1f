"""Operations: a decision's calls, by what it would mean to run one twice.

Whether a call may be run again cannot be seen from its result being lost: the test may not have run, or only its
answer got lost. It depends on what the call does to the world, which each tool declares (`Effect`). Only those that
must not run twice cost an announcement on the disk before they begin. Source: the chapter, section 11.5.1.
"""

from __future__ import annotations

import enum

from dsec.episode.agent_calls import AgentCall
from dsec.episode.content import Content
from dsec.episode.identity import ModelIdentity, check_operation_id
from dsec.episode.tools import ToolResult
from dsec.model.value import Value


class Effect(enum.Enum):
    """What an operation changes, and so what to do about one that began and has no recorded result.

    NONE: nothing; it is run again.
    WORKSPACE: only the workspace; it is run again once the workspace stands as before.
    ASKED: a system outside that can say by the operation's id what became of it.
    DEDUPLICATED: a system outside that does an operation once, however often it is sent with the same id.
    COMPENSATED: a system outside, where it can be undone; then it is run again.
    ONCE: anything else outside; nobody can know, and somebody has to decide.
    """

    NONE = "none"
    WORKSPACE = "workspace"
    ASKED = "asked"
    DEDUPLICATED = "deduplicated"
    COMPENSATED = "compensated"
    ONCE = "once"

    @property
    def is_announced(self) -> bool:
        """Whether the disk has to know of it before it begins."""
        return self not in (Effect.NONE, Effect.WORKSPACE)


class Operation(Value, frozen=True, omit_defaults=True):
    """One call of a decision.

    Attributes:
        operation_id: see `dsec.episode.identity.operation_id`; systems outside are given it as idempotency key.
        call: what to do.
        effect: a tool that declares nothing could do anything.
        parallel: may run at the same time as neighbours that may too.
    """

    operation_id: str
    call: AgentCall
    effect: Effect = Effect.ONCE
    parallel: bool = False

    def __post_init__(self) -> None:
        check_operation_id(self.operation_id)


class TokenUsage(Value, frozen=True, omit_defaults=True):
    """What a decision used.

    Attributes:
        input_tokens: all input, cached or not.
        cached_tokens: of it, read from a cache.
        output_tokens: all output, thinking included.
        thinking_tokens: of it, thinking.
        cost_usd: what it cost, if anybody knows.
        calls: calls of the model, failed ones included.
    """

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    thinking_tokens: int = 0
    cost_usd: float | None = None
    calls: int = 1


class ModelDecision(Value, frozen=True, omit_defaults=True):
    """What a model (or a script) decided in one round.

    Attributes:
        operations: its calls, in order; none is a round of words only.
        message: what it said.
        answer: its answer as it came, where the policy wants it kept.
        model: which model and version answered.
        usage: what was used, including answers that were of no use.
    """

    operations: tuple[Operation, ...] = ()
    message: str = ""
    answer: Content = Content()
    model: ModelIdentity = ModelIdentity()
    usage: TokenUsage = TokenUsage()


class RoundRecord(Value, frozen=True, omit_defaults=True):
    """A committed round, whole: nothing else is needed to know what happened in it.

    Attributes:
        number: from 1.
        decision: what was asked.
        results: one for each operation, in order.
        attempts: how often each operation was executed, in order; 0: its result was asked for, not made.
        workspace_before, workspace_after: versions of the workspace; empty: not known.
        decide_s, tools_s: seconds.
        committed_at_s: wall-clock seconds since the epoch.
    """

    number: int
    decision: ModelDecision
    results: tuple[ToolResult, ...] = ()
    attempts: tuple[int, ...] = ()
    workspace_before: str = ""
    workspace_after: str = ""
    decide_s: float = 0.0
    tools_s: float = 0.0
    committed_at_s: float = 0.0
