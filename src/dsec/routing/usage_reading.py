"""Usage from whatever shape a backend reports it in.

Every service counts the same things under other names, and two differ in what they include:

==================  =========================================  ======================================================
                    input                                      output
==================  =========================================  ======================================================
chat completions    `prompt_tokens`: all of it                 `completion_tokens`: all of it
responses           `input_tokens`: all of it                  `output_tokens`: all of it
messages            `input_tokens`: without cache reads and    `output_tokens`: all of it
                    writes
of it, read         `prompt_tokens_details.cached_tokens`, `input_tokens_details.cached_tokens`,
                    `prompt_cache_hit_tokens`, `cached_tokens`, `cache_read_input_tokens`
of it, written      `...details.cache_write_tokens`, `cache_creation_input_tokens`, or the sum of `cache_creation`
of it, thinking     `completion_tokens_details.reasoning_tokens`, `output_tokens_details.reasoning_tokens` or
                    `.thinking_tokens`, `reasoning_tokens`
==================  =========================================  ======================================================

What is not reported is estimated from what passed through the gateway, and marked so. A report that cannot be true
(negative, not a number, more cached than there was, less output than was seen) is not believed in that part: the part
is estimated, and the doubt is recorded. Where a report says nothing of a cache, nothing was read from or written to it
as far as the bill goes; that zero is marked as an estimate, since it teaches nothing about the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dsec.model.value import Value
from dsec.routing.usage import Count, Source, Usage

_MOST_TOKENS = 1 << 40
"""More is no number of tokens."""

_FRAME_TOKENS = 4096
"""How many input tokens a backend may add to what it was sent: its template, and its own instructions for tools."""

_OVERRUN_TOKENS = 64
"""By how much an answer may pass its limit: the last steps of a batch, marks around thinking and tools."""


class Seen(Value, frozen=True):
    """What passed through the gateway, estimated in tokens.

    Attributes:
        input_tokens: of the prompt.
        thinking_tokens: of thinking that was shown.
        visible_tokens: of the answer.
        input_bytes: of the prompt; an upper bound of its tokens. 0: not known, and not held against a report.
        output_pieces: events that brought output, each at least one token; a lower bound of the output.
        output_limit_tokens: what the call was allowed to use, thinking among it; an upper bound. 0: not known.
    """

    input_tokens: int = 0
    thinking_tokens: int = 0
    visible_tokens: int = 0
    input_bytes: int = 0
    output_pieces: int = 0
    output_limit_tokens: int = 0


@dataclass(slots=True)
class _Report:
    """A report, and what of it was not believed."""

    fields: Mapping[str, object]
    doubts: list[str] = field(default_factory=list)

    def count(self, *path: str) -> int | None:
        """Return a number of tokens; None where there is none, or none that can be."""
        value: object = self.fields
        for name in path:
            value = value.get(name) if isinstance(value, Mapping) else None
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer() and abs(value) <= _MOST_TOKENS:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_TOKENS:
            self.doubts.append(f"{'.'.join(path)} is {_shown(value)}, which is no number of tokens")
            return None
        return value

    def first(self, *paths: tuple[str, ...]) -> int | None:
        """Return the first of these that is a number of tokens."""
        return next((found for path in paths if (found := self.count(*path)) is not None), None)


def read_usage(report: Mapping[str, object] | None, seen: Seen) -> Usage:
    """Return what an attempt used.

    Args:
        report: what the backend called `usage`; of a stream, later values over earlier ones. None: there was none.
        seen: what passed through.
    """
    reader = _Report(report or {})
    inputs = _inputs(reader, seen)
    thinking, visible = _outputs(reader, seen)
    return Usage(**inputs, thinking=thinking, visible=visible, doubts=tuple(reader.doubts))


def merge_reports(earlier: Mapping[str, object], later: Mapping[str, object]) -> dict[str, object]:
    """Return two reports of one stream as one: later values count, and what they leave out stays as it was."""
    return {**earlier, **{name: value for name, value in later.items() if value is not None}}


def _inputs(report: _Report, seen: Seen) -> dict[str, Count]:
    read = report.first(
        ("prompt_tokens_details", "cached_tokens"),
        ("input_tokens_details", "cached_tokens"),
        ("cache_read_input_tokens",),
        ("prompt_cache_hit_tokens",),
        ("cached_tokens",),
    )
    written = report.first(
        ("prompt_tokens_details", "cache_write_tokens"),
        ("input_tokens_details", "cache_write_tokens"),
        ("cache_creation_input_tokens",),
    )
    if written is None:
        lives = report.fields.get("cache_creation")
        parts = [report.count("cache_creation", name) or 0 for name in lives] if isinstance(lives, Mapping) else []
        written = sum(parts) if parts else None
    total = _total_input(report, read or 0, written or 0, seen)
    if total is None:
        return _estimated_input(read, written, seen)
    if (read or 0) + (written or 0) > total:
        report.doubts.append(
            f"{read or 0} tokens read from a cache and {written or 0} written are more than all {total}"
        )
        return _estimated_input(None, None, seen, total)
    return {
        "plain_input": Count(tokens=total - (read or 0) - (written or 0)),
        "cache_read": _or_nothing(read),
        "cache_write": _or_nothing(written),
    }


def _total_input(report: _Report, read: int, written: int, seen: Seen) -> int | None:
    """Return all input, however it was counted."""
    total = report.count("prompt_tokens")
    if total is None and (plain := report.count("input_tokens")) is not None:
        # Messages count what was neither read nor written; responses count everything.
        is_plain = not isinstance(report.fields.get("input_tokens_details"), Mapping)
        total = plain + read + written if is_plain else plain
    if total is not None and seen.input_bytes and total > seen.input_bytes + _FRAME_TOKENS:
        report.doubts.append(f"{total} input tokens are more than the {seen.input_bytes} bytes that were sent")
        return None
    return total


def _estimated_input(read: int | None, written: int | None, seen: Seen, total: int | None = None) -> dict[str, Count]:
    """Return input of which the whole, or its parts, are not known."""
    whole = seen.input_tokens if total is None else total
    known = (read or 0) + (written or 0)
    return {
        "plain_input": Count(tokens=max(whole - known, 0), source=Source.ESTIMATED),
        "cache_read": _or_nothing(read),
        "cache_write": _or_nothing(written),
    }


def _outputs(report: _Report, seen: Seen) -> tuple[Count, Count]:
    """Return thinking and visible output."""
    total = report.first(("completion_tokens",), ("output_tokens",))
    if total is not None and total < seen.output_pieces:
        report.doubts.append(f"{total} output tokens are fewer than the {seen.output_pieces} pieces that came")
        total = None
    if total is not None and seen.output_limit_tokens and total > seen.output_limit_tokens + _OVERRUN_TOKENS:
        report.doubts.append(f"{total} output tokens are more than the {seen.output_limit_tokens} that were allowed")
        total = None
    thinking = report.first(
        ("completion_tokens_details", "reasoning_tokens"),
        ("output_tokens_details", "reasoning_tokens"),
        ("output_tokens_details", "thinking_tokens"),
        ("reasoning_tokens",),
    )
    if total is None:
        shown = Count(tokens=seen.visible_tokens, source=Source.ESTIMATED)
        return (_estimate(seen.thinking_tokens) if thinking is None else Count(tokens=thinking)), shown
    if thinking is not None and thinking > total:
        report.doubts.append(f"{thinking} thinking tokens are more than all {total} output tokens")
        thinking = None
    if thinking is not None:
        return Count(tokens=thinking), Count(tokens=total - thinking)
    if not seen.thinking_tokens:
        return Count(tokens=0), Count(tokens=total)
    # The whole is known; how it divides is told by what was seen of each part.
    share = seen.thinking_tokens / (seen.thinking_tokens + seen.visible_tokens)
    thought = round(total * share)
    return _estimate(thought), _estimate(total - thought)


def _or_nothing(tokens: int | None) -> Count:
    return _estimate(0) if tokens is None else Count(tokens=tokens)


def _estimate(tokens: int) -> Count:
    return Count(tokens=tokens, source=Source.ESTIMATED)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
