"""The rounds of an episode for the page: what was said, what was called, what came of it.

All of it was written by a model or a guest, so that all of it is escaped and bounded; the log has the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from dsec.base.units import format_duration
from dsec.episode.agent_calls import AgentCall, EditFile, OutsideCall, ReadLines, Search, Submit, UnusableCall
from dsec.episode.operations import RoundRecord
from dsec.episode.tools import ReadFile, Run, UploadArchive, WriteFile
from dsec.worker.episodes.policies.tool_calling import shown_result

MOST_ROUNDS = 40
"""Shown of an episode: the first and the last half."""
_MESSAGE, _CALL, _RESULT = 600, 400, 600


def shown_call(call: AgentCall) -> str:
    """Return a call as one reads it."""
    match call:
        case Run():
            return f"$ {call.script or ' '.join(call.argv)}"
        case ReadLines():
            return f"read {call.path} from line {call.first}"
        case Search():
            return f"search {call.pattern} in {call.path}"
        case EditFile():
            return f"edit {call.path}\n- {call.old}\n+ {call.new}" if call.old else f"make {call.path}\n+ {call.new}"
        case Submit():
            return f"submit {call.summary}"
        case OutsideCall():
            return f"{call.name} {call.arguments}"
        case UnusableCall():
            return f"{call.name or 'an answer'} that cannot be carried out"
        case ReadFile() | WriteFile() | UploadArchive():
            return f"{type(call).__name__} {call.path}"


def render_rounds(rounds: Sequence[RoundRecord]) -> str:
    """Return rounds as a part of the page; nothing where there are none."""
    if not rounds:
        return ""
    half = MOST_ROUNDS // 2
    if len(rounds) <= MOST_ROUNDS:
        return "".join(map(_round, rounds))
    left_out = f'<p class="note">{len(rounds) - 2 * half} rounds are not shown; the log has them</p>'
    return "".join(map(_round, rounds[:half])) + left_out + "".join(map(_round, rounds[-half:]))


def _round(record: RoundRecord) -> str:
    decision = record.decision
    parts = [_cut(decision.message, _MESSAGE)] if decision.message.strip() else []
    for operation, result in zip(decision.operations, record.results, strict=False):
        parts.append(_cut(shown_call(operation.call), _CALL))
        parts.append(_indented(_cut(shown_result(result), _RESULT)))
    usage = decision.usage
    tokens = f" · {usage.input_tokens:,} tokens in, {usage.output_tokens:,} out" if usage.calls else ""
    times = f"{format_duration(record.decide_s)} deciding, {format_duration(record.tools_s)} acting"
    return f'<p class="cap">Round {record.number} · {times}{tokens}</p><pre>{escape(_joined(parts))}</pre>'


def _joined(parts: Iterable[str]) -> str:
    return "\n".join(part for part in parts if part)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} … {text[-half:]}"
