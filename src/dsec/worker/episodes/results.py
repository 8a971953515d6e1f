"""Results, as long as a record and a model can bear them.

A command can print 50 MB, a service outside can answer with as much. What is kept is the beginning and the end, with a
word in between that says how much is not there: a cut that cannot be seen is read as the whole.
"""

from __future__ import annotations

import msgspec

from dsec.base.units import KIB
from dsec.episode.content import Content
from dsec.episode.tools import CommandOutput, FileContent, OutsideAnswer, ToolFailed, ToolResult

MAXIMUM_RESULT_BYTES = 64 * KIB
"""Kept of each text of a result."""


def _cut(content: Content, limit_bytes: int) -> Content:
    data = content.data
    if len(data) <= limit_bytes:
        return content
    half = limit_bytes // 2
    word = f"\n[... {len(data) - 2 * half} bytes left out ...]\n".encode()
    kept = data[:half] + word + data[len(data) - half :]
    # A cut through a character must not make bytes of what was text.
    return Content(text=kept.decode(errors="replace")) if content.text else Content(raw=kept)


def shortened(text: str, limit_bytes: int) -> str:
    """Return a text with at most `limit_bytes` bytes, and a word about the rest."""
    return _cut(Content(text=text), limit_bytes).text


def bounded_result(result: ToolResult, limit_bytes: int = MAXIMUM_RESULT_BYTES) -> ToolResult:
    """Return `result` with at most `limit_bytes` bytes, and a word about the rest, in each of its texts."""
    match result:
        case CommandOutput():
            stdout, stderr = _cut(result.stdout, limit_bytes), _cut(result.stderr, limit_bytes)
            if stdout is result.stdout and stderr is result.stderr:
                return result
            return msgspec.structs.replace(result, stdout=stdout, stderr=stderr)
        case FileContent():
            content = _cut(result.content, limit_bytes)
            return result if content is result.content else FileContent(content=content, truncated=True)
        case OutsideAnswer():
            content = _cut(result.content, limit_bytes)
            if content is result.content:
                return result
            return msgspec.structs.replace(result, content=content, truncated=True)
        case ToolFailed():
            texts = (shortened(text, limit_bytes) for text in (result.brief, result.detail, result.resolution))
            return ToolFailed(result.code, *texts)
        case _:
            return result
