"""The policy that lets a chat model call tools.

What the model is shown is made from the committed rounds alone, so that it is the same after a death. Rounds are shown
the newest first into a budget. Of those that find no room only the results are left out, with a word, because a model
that does not see that it tried something tries it again; of a very long episode the first rounds are not shown at all.
What the episode was told meanwhile stands behind the round after which it came.

An answer that is of no use becomes a round too, whose operation says what was wrong: it was paid for, it is in the
ledger, and the model reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, overload

import msgspec

from dsec.base.units import KIB
from dsec.episode.agent_calls import AgentCall, UnusableCall
from dsec.episode.content import Content
from dsec.episode.operations import RoundRecord
from dsec.episode.tools import CommandOutput, FileContent, FileWritten, OutsideAnswer, ToolFailed, ToolResult
from dsec.episode.totals import Steering
from dsec.worker.chat.port import ChatAnswer, ChatModel, ChatRequest, WrittenCall
from dsec.worker.episodes.policies.tools import ToolSet
from dsec.worker.episodes.ports import Finished, Proposal, Turn

DEFAULT_HISTORY_BYTES = 400 * KIB
"""Of results that are shown; some 100,000 tokens."""
SYSTEM = (
    "You work on a task in a sandbox, by calling tools. Look before you change anything, check what you have done, "
    "and call submit when the task is done."
)
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_LEFT_OUT = "[left out: it is long ago]"
_NO_CALL = "it called no tool; call one, or submit"


class _Written(msgspec.Struct):
    """A call in the record of an answer."""

    name: str
    arguments: str


_ENCODER, _DECODER = msgspec.json.Encoder(), msgspec.json.Decoder(list[_Written])


class ToolCallingPolicy:
    """Implements `dsec.worker.episodes.ports.EpisodePolicy`.

    Args:
        model: who decides.
        tools: on offer.
        task: what is to be done.
        system: what comes before it.
        history_bytes: of results, shown at once; a quarter as much of what the model said. Characters, in truth.
    """

    def __init__(
        self,
        model: ChatModel,
        tools: ToolSet,
        task: str,
        *,
        system: str = SYSTEM,
        history_bytes: int = DEFAULT_HISTORY_BYTES,
    ) -> None:
        self._model = model
        self._tools = tools
        self._beginning = [{"role": "system", "content": system}, {"role": "user", "content": task}]
        self._history_bytes = history_bytes

    async def decide(self, turn: Turn) -> Proposal | Finished:
        """Ask the model.

        Raises:
            BackendFailedError: its service failed, also when asked again.
        """
        request = ChatRequest(
            messages=_Messages(lambda: [*self._beginning, *_history(turn.rounds, turn.steered, self._history_bytes)]),
            tools=[
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema},
                }
                for tool in self._tools.tools
            ],
            seed=turn.seed,
            hear=turn.hear,
        )
        return self._proposal(await self._model.answer(request))

    def _proposal(self, answer: ChatAnswer) -> Proposal:
        calls = [self._call(written, answer.cut) for written in answer.calls]
        if not calls:
            calls = [UnusableCall(problem=f"{answer.cut}, and called no tool" if answer.cut else _NO_CALL)]
        written = [_Written(name=call.name, arguments=call.arguments) for call in answer.calls]
        return Proposal(
            calls=tuple(calls),
            message=answer.text,
            answer=Content.of(_ENCODER.encode(written)),
            model=answer.model,
            usage=answer.usage,
        )

    def _call(self, written: WrittenCall, cut: str) -> AgentCall:
        call = self._tools.call(written.name, written.arguments)
        if isinstance(call, UnusableCall) and cut:
            return UnusableCall(name=call.name, problem=f"{call.problem}; the answer is not whole: {cut}")
        return call


class _Messages(Sequence[Mapping[str, Any]]):
    """What a model is shown, made whenever it is read: for the minutes in which it thinks, nobody needs it."""

    def __init__(self, make: Callable[[], list[Mapping[str, Any]]]) -> None:
        self._make = make

    def __len__(self) -> int:
        return len(self._make())

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return iter(self._make())

    @overload
    def __getitem__(self, place: int) -> Mapping[str, Any]: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Mapping[str, Any]]: ...

    def __getitem__(self, place: int | slice) -> Mapping[str, Any] | Sequence[Mapping[str, Any]]:
        return self._make()[place]


def _history(rounds: Sequence[RoundRecord], steered: Sequence[Steering], budget: int) -> list[Mapping[str, Any]]:
    groups: list[list[Mapping[str, Any]]] = []
    words = budget // 4
    left, first = list(steered), 1
    for place, record in enumerate(reversed(rounds)):
        words -= len(record.decision.message) + len(record.decision.answer.data)
        if place and words < 0:
            break
        first = record.number
        results = [shown_result(result) for result in record.results]
        if not place:
            # What has just come is shown in any case, or the model would ask for it again and again.
            results = [_shortened(result, budget // len(results)) for result in results]
        budget -= sum(len(result) for result in results)
        told = [_told(each) for each in left if each.after_round >= record.number]
        left = [each for each in left if each.after_round < record.number]
        shown = [_LEFT_OUT] * len(results) if place and budget < 0 else results
        groups.append([*_round(record, shown), *told])
    # What it was told long ago counts still, also where the rounds around it are not shown any more.
    groups.append([_told(each) for each in left])
    if first > 1:
        groups.append([{"role": "user", "content": f"[{first - 1} earlier rounds are not shown]"}])
    return [message for group in reversed(groups) for message in group]


def _told(steering: Steering) -> Mapping[str, Any]:
    return {"role": "user", "content": steering.message}


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n{_cut_word(len(text) - 2 * half, 'characters')}\n{text[len(text) - half :]}"


def _cut_word(amount: int, unit: str) -> str:
    return f"[... {amount} {unit} left out ...]"


def _round(record: RoundRecord, results: Sequence[str]) -> list[Mapping[str, Any]]:
    operations = record.decision.operations
    written = _written(record)
    said: dict[str, Any] = {"role": "assistant", "content": record.decision.message}
    asked = [
        {
            "id": operation.operation_id,
            "type": "function",
            "function": {"name": _shown_name(call.name), "arguments": _shown_arguments(call.arguments)},
        }
        for operation, call in zip(operations, written, strict=False)
    ]
    if asked:
        said["tool_calls"] = asked
    heard: list[Mapping[str, Any]] = [
        {"role": "tool", "tool_call_id": operation.operation_id, "content": result}
        for operation, result, _ in zip(operations, results, written, strict=False)
    ]
    told = [{"role": "user", "content": result} for result in results[len(written) :]]
    return [said, *heard, *told]


def _written(record: RoundRecord) -> list[_Written]:
    """Return the calls as they were written; a round of another policy has none, and its results are told."""
    try:
        return _DECODER.decode(record.decision.answer.data)[: len(record.decision.operations)]
    except msgspec.DecodeError:
        return []


def _shown_name(name: str) -> str:
    """Services refuse names that no tool can have, also of a call that was refused."""
    return name if _NAME.fullmatch(name) else "unknown"


def _shown_arguments(arguments: str) -> str:
    """The templates of models read arguments, and break on what is no JSON object."""
    try:
        msgspec.json.decode(arguments.encode(), type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        return "{}"
    return arguments


def shown_result(result: ToolResult) -> str:
    """Return a result as a model reads it."""
    match result:
        case CommandOutput():
            return _output(result)
        case FileContent():
            return result.content.shown()
        case OutsideAnswer():
            return "\n".join(part for part in (f"[{result.status}]", result.content.shown()) if part)
        case FileWritten():
            return f"wrote {result.size_bytes} bytes"
        case ToolFailed():
            return " ".join(part for part in (f"failed: {result.brief}", result.detail, result.resolution) if part)
        case _:
            return "done"


def _output(result: CommandOutput) -> str:
    parts = [
        _with_cut(result.stdout.shown(), result.stdout_dropped_bytes),
        _with_cut(result.stderr.shown(), result.stderr_dropped_bytes),
    ]
    if result.timed_out:
        parts.append("[it was killed: its time was over]")
    elif result.oom_killed:
        parts.append("[it was killed: the sandbox's memory is full]")
    elif result.exit_code:
        parts.append(f"[exit code {result.exit_code}]")
    return "\n".join(part for part in parts if part) or "[no output]"


def _with_cut(text: str, dropped_bytes: int) -> str:
    """Say in the middle, where it was cut, how much is not there."""
    if not dropped_bytes:
        return text
    half = len(text) // 2
    return f"{text[:half]}\n{_cut_word(dropped_bytes, 'bytes')}\n{text[half:]}"
