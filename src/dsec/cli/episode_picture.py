"""How the events of an episode look: some lines each, for people.

Words of models and guests are in them, which must neither steer the terminal nor fill it: they are made harmless, and
cut unless all was asked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import msgspec

from dsec.base.units import format_duration, format_size
from dsec.cli.output import printable
from dsec.episode.agent_calls import AgentCall, EditFile, OutsideCall, ReadLines, Search, Submit, UnusableCall
from dsec.episode.identity import ModelIdentity
from dsec.episode.log_events import (
    EnvironmentUsed,
    EpisodeBegan,
    EpisodeEnded,
    EpisodeHeld,
    EpisodeReleased,
    EpisodeSteered,
    LifeBegan,
    LogEvent,
    ModelChanged,
    ModelFailed,
    OperationFinished,
    OperationSettled,
    OperationsRunning,
    RoundAbandoned,
    RoundCommitted,
    RoundDecided,
    StateSaved,
)
from dsec.episode.operations import RoundRecord, TokenUsage
from dsec.episode.tools import (
    CommandOutput,
    FileContent,
    FileWritten,
    OutsideAnswer,
    ReadFile,
    Run,
    ToolFailed,
    ToolResult,
    UploadArchive,
    Uploaded,
    WriteFile,
)

_CUT_CHARACTERS = 160
_CUT_LINES = 6


def lines_of(event: LogEvent, *, whole: bool = False) -> Iterator[str]:
    """Yield the lines that show an event.

    Args:
        event: it.
        whole: show all that was said and printed.
    """
    match event:
        case RoundCommitted():
            yield from round_lines(event.record, whole=whole)
        case EpisodeSteered():
            yield from _spoken(f"{event.by or 'somebody'} says", event.message, whole=whole)
        case OperationFinished():
            yield f"round {event.number}: {event.operation}: {result_line(event.result)}"
        case _:
            yield _line(event)


def _line(event: LogEvent) -> str:
    match event:
        case EpisodeBegan(identity=identity):
            return f"began: {printable(identity.task)}, attempt {identity.attempt}{_model(identity.model)}"
        case LifeBegan():
            return f"{_clock(event.at_s)}a loop takes it up{_on(event.worker)}{_model(event.model)}"
        case EpisodeHeld():
            return f"{_clock(event.at_s)}stands still"
        case EpisodeReleased():
            return f"{_clock(event.at_s)}goes on"
        case RoundDecided():
            return f"round {event.number}: decided, {len(event.decision.operations)} calls to carry out"
        case OperationsRunning():
            again = f", attempt {event.attempt}" if event.attempt > 1 else ""
            return f"round {event.number}: carries out {', '.join(event.operations)}{again}"
        case OperationSettled():
            verdict = event.verdict.value.replace("_", " ")
            return f"{printable(event.by) or 'somebody'} says: {event.operation} {verdict}"
        case RoundAbandoned():
            return f"round {event.number}: given up: {printable(event.reason)}"
        case ModelFailed():
            took = format_duration(event.duration_s)
            said = f": {printable(event.brief)}" if event.brief else ""
            return f"round {event.number}: the model failed after {took}: {event.error_code}{_model(event.model)}{said}"
        case ModelChanged():
            return f"another model decides{_model(event.model)}: {printable(event.reason)}"
        case StateSaved():
            return f"state after round {event.number}"
        case EnvironmentUsed():
            took = format_duration(max(0.0, event.ended_s - event.began_s))
            return f"sandbox {event.sandbox_id} {event.kind.value} for {took}"
        case EpisodeEnded():
            error = f" [{event.error_code}]" if event.error_code else ""
            return f"{_clock(event.at_s)}ended{error}: {printable(event.reason) or 'no reason given'}"
    return type(event).__name__


def round_lines(record: RoundRecord, *, whole: bool = False) -> Iterator[str]:
    """Yield the lines that show a committed round."""
    decision = record.decision
    times = f"{format_duration(record.decide_s)} deciding, {format_duration(record.tools_s)} acting"
    by = f"{_model(decision.model)}{usage(decision.usage)}"
    yield f"{_clock(record.committed_at_s)}round {record.number}  {times}{by}"
    if decision.message:
        yield from (f"  {line}" for line in _spoken("says", decision.message, whole=whole))
    for operation, result in zip(decision.operations, record.results, strict=False):
        yield f"  {call_line(operation.call)}  -> {result_line(result)}"
        yield from (f"    | {line}" for line in _said(result, whole=whole))


def call_line(call: AgentCall) -> str:
    """Return a call in a line: the tool, and what it is to do."""
    match call:
        case Run():
            return f"shell  {_cut(call.script or ' '.join(call.argv))}"
        case WriteFile():
            return f"write  {_cut(call.path)} ({format_size(len(call.content.data))})"
        case ReadFile() | ReadLines():
            return f"read   {_cut(call.path)}"
        case UploadArchive():
            return f"upload {_cut(call.path)} ({format_size(len(call.archive))})"
        case EditFile():
            return f"edit   {_cut(call.path)}"
        case Search():
            return f"search {_cut(call.pattern)} in {_cut(call.path)}"
        case Submit():
            return f"submit {_cut(call.summary)}"
        case OutsideCall():
            return f"outside {_cut(call.name)} {_cut(msgspec.json.encode(call.arguments).decode())}"
        case UnusableCall():
            return f"no call: {_cut(call.name)}"
    return f"{type(call).__name__} {_cut(str(call))}"


def result_line(result: ToolResult) -> str:
    """Return a result in a few words."""
    match result:
        case CommandOutput():
            how = "timed out" if result.timed_out else f"exit {result.exit_code}"
            killed = ", out of memory" if result.oom_killed else ""
            return f"{how}{killed}, {format_duration(result.duration_s)}"
        case FileWritten():
            return f"{format_size(result.size_bytes)} written"
        case FileContent():
            return f"{format_size(len(result.content.data))} read{', cut' if result.truncated else ''}"
        case Uploaded():
            return "unpacked"
        case OutsideAnswer():
            return f"answered {_cut(result.status)}{', cut' if result.truncated else ''}"
        case ToolFailed():
            return f"failed: {_cut(result.brief)}"
    return _cut(str(result))


def _said(result: ToolResult, *, whole: bool) -> Iterator[str]:
    """Yield what a command printed or a system outside answered; the end of it, unless all is wanted."""
    match result:
        case CommandOutput():
            lines = (result.stdout.shown() + result.stderr.shown()).splitlines()
        case OutsideAnswer():
            lines = result.content.shown().splitlines()
        case _:
            return
    if not whole and len(lines) > _CUT_LINES:
        yield f"... {len(lines) - _CUT_LINES} lines before"
        lines = lines[-_CUT_LINES:]
    for line in lines:
        yield printable(line) if whole else _cut(line)


def _spoken(who: str, text: str, *, whole: bool) -> Iterator[str]:
    lines = text.strip().splitlines() or [""]
    shown = lines if whole else lines[:_CUT_LINES]
    for index, line in enumerate(shown):
        words = printable(line) if whole else _cut(line)
        yield f"{printable(who)}: {words}" if index == 0 else f"{'':{len(who)}}  {words}"
    if len(shown) < len(lines):
        yield f"... {len(lines) - len(shown)} lines more"


def usage(used: TokenUsage) -> str:
    """Return what a decision used, for the end of a line; empty: nothing."""
    if not (used.input_tokens or used.output_tokens):
        return ""
    cost = "" if used.cost_usd is None else f", ${used.cost_usd:.4f}"
    cached = f" ({used.cached_tokens:,} cached)" if used.cached_tokens else ""
    return f", {used.input_tokens:,} tokens in{cached}, {used.output_tokens:,} out{cost}"


def _cut(text: str) -> str:
    first, *rest = text.splitlines() or [""]
    cut = printable(first[:_CUT_CHARACTERS])
    return cut + ("..." if rest or len(first) > _CUT_CHARACTERS else "")


def _model(model: ModelIdentity) -> str:
    if not model.name:
        return ""
    version = f" ({printable(model.version)})" if model.version and model.version != model.name else ""
    return f", {printable(model.name)}{version}"


def _on(worker: str) -> str:
    return f" on {printable(worker)}" if worker else ""


def _clock(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s):%H:%M:%S} " if at_s else ""
