"""Framed JSON lines: a log that is plain JSON for everyone and shows a torn end to us.

A line is one JSON object whose last member is ``"crc32"``: eight hexadecimal digits over the bytes of the object
without that member. A process killed while it writes leaves at most one bad line, and it is the last one: a *torn
tail*, which was never acknowledged and is cut off. A bad line that good lines follow is damage, and an error.
See docs/formats/results.md.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from dsec.base.errors import StateCorruptedError
from dsec.base.units import MIB

MAXIMUM_LINE_BYTES = 256 * MIB
_TRAILER = re.compile(rb',"crc32":"([0-9a-f]{8})"\}\Z')


def encode_frame(document: bytes) -> bytes:
    """Return the line for a JSON object with at least one member."""
    return b'%s,"crc32":"%08x"}\n' % (document[:-1], zlib.crc32(document))


def decode_frame(line: bytes) -> bytes | None:
    """Return the JSON object of a line without its newline, or None when the line does not verify."""
    match = _TRAILER.search(line[-22:])
    if match is None or len(line) > MAXIMUM_LINE_BYTES:
        return None
    document = line[: len(line) - len(match.group(0))] + b"}"
    return document if zlib.crc32(document) == int(match.group(1), 16) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameScan:
    """What a log holds.

    Attributes:
        documents: the JSON objects, in order.
        good_bytes: length of the verified beginning.
        torn_bytes: bytes after it, to be cut off.
    """

    documents: tuple[bytes, ...]
    good_bytes: int
    torn_bytes: int


def _lines(data: bytes) -> Iterator[tuple[int, bytes, bool]]:
    """Yield every line's end offset, its bytes without the newline, and whether it had one."""
    start = 0
    while start < len(data):
        newline = data.find(b"\n", start)
        end = len(data) if newline < 0 else newline + 1
        yield end, data[start : end - (newline >= 0)], newline >= 0
        start = end


def scan_frames(data: bytes, *, name: str) -> FrameScan:
    """Read a whole log.

    Args:
        data: its bytes.
        name: what to call it in an error.

    Raises:
        StateCorruptedError: a line that does not verify is followed by one that does.
    """
    documents: list[bytes] = []
    good = 0
    bad_line = 0
    for number, (end, line, complete) in enumerate(_lines(data), start=1):
        document = decode_frame(line) if complete else None
        if document is None:
            bad_line = bad_line or number
        elif bad_line:
            raise StateCorruptedError(
                f"{name}: line {bad_line} does not verify, and good lines follow it",
                resolution="restore the file from a copy, or delete the line to give up what it recorded",
            )
        else:
            documents.append(document)
            good = end
    return FrameScan(documents=tuple(documents), good_bytes=good, torn_bytes=len(data) - good)
