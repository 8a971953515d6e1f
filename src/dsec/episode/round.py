"""Rounds: decision, tool calls, results. A round is committed as a whole before the next one begins."""

from __future__ import annotations

from dsec.episode.tools import ToolCall, ToolResult
from dsec.model.value import Value


class Decision(Value, frozen=True, omit_defaults=True):
    """What a policy wants done next.

    Attributes:
        calls: tool calls, carried out one after another; none is a round of words only.
        message: what the policy says, for the record.
    """

    calls: tuple[ToolCall, ...] = ()
    message: str = ""


class Done(Value, frozen=True, omit_defaults=True):
    """The policy has finished. `reason` is for the record."""

    reason: str = ""


class Round(Value, frozen=True, omit_defaults=True):
    """One committed round.

    Attributes:
        index: counts from 0 within the try.
        decision: what was asked.
        results: one for each call, in order.
        decide_s: seconds the policy took to decide.
        tools_s: seconds the calls took.
    """

    index: int
    decision: Decision
    results: tuple[ToolResult, ...] = ()
    decide_s: float = 0.0
    tools_s: float = 0.0


class History(Value, frozen=True):
    """What a policy knows when it decides.

    Attributes:
        instruction: the task's instruction, Markdown.
        rounds: all rounds of this try so far.
        remaining_s: seconds left of the policy's time.
    """

    instruction: str
    rounds: tuple[Round, ...]
    remaining_s: float
