"""Where a body lies in the bytes of a connection: HTTP/1.1 framing (RFC 9112, sections 6 and 7), used by both ends.

A body is either as long as its head says, or chunked. Both are told apart from the bytes around them without copying:
what is fed in comes back as views of its own memory. httptools copies each piece of a body once and says where a chunk
begins but not how long it is; for a gigabyte that is a tenth of a second, and one more hand that every byte passes.

The decoder is strict, because a proxy that reads a body's end elsewhere lets requests be smuggled: lines end with CRLF,
a size is hexadecimal digits alone, and lines and trailers are bounded.
"""

from __future__ import annotations

import enum

MAXIMUM_LINE_BYTES = 4096
"""Longest line between chunks: a size with its extensions, or a trailer."""
MAXIMUM_TRAILERS = 64
_SIZE_DIGITS = frozenset(b"0123456789abcdefABCDEF")
_MAXIMUM_SIZE_DIGITS = 15


class FramingError(Exception):
    """The bytes are no body. The connection cannot be used any more."""


class _Line(enum.Enum):
    """What the next line is."""

    SIZE = "size"
    END_OF_CHUNK = "end of chunk"
    TRAILER = "trailer"


class BodyDecoder:
    """Find a body in what a connection delivers.

    Args:
        length_bytes: how long the body is, or None: it is chunked.

    Attributes:
        complete: the body has ended.
    """

    __slots__ = ("_chunked", "_left", "_line", "_next", "_trailers", "complete")

    def __init__(self, length_bytes: int | None) -> None:
        self._chunked = length_bytes is None
        self._left = length_bytes or 0
        self._line = b""
        self._next = _Line.SIZE
        self._trailers = 0
        self.complete = length_bytes == 0

    @property
    def content_left_bytes(self) -> int:
        """How many of the next bytes are content for certain: none between chunks."""
        return self._left

    def skip_content(self, count: int) -> None:
        """Account for content that went past the decoder: at most `content_left_bytes`."""
        self._left -= count
        self.complete = not self._left and not self._chunked

    def feed(self, data: memoryview) -> tuple[list[memoryview], int]:
        """Take in what came next.

        Args:
            data: bytes, in the order in which they came.

        Returns:
            The pieces of the body, as views of `data`, and how many bytes were used: all, unless the body has ended.

        Raises:
            FramingError: the bytes are not HTTP.
        """
        pieces: list[memoryview] = []
        at = 0
        while at < len(data) and not self.complete:
            if not self._left:
                at += self._take_line(data[at : at + MAXIMUM_LINE_BYTES])
                continue
            piece = data[at : at + self._left]
            pieces.append(piece)
            at += len(piece)
            self._left -= len(piece)
            self.complete = not self._left and not self._chunked
        return pieces, at

    def _take_line(self, window: memoryview) -> int:
        """Take what belongs to the line in hand; return how many bytes that is."""
        seen = bytes(window)
        end = seen.find(b"\n") + 1
        self._line += seen[:end] if end else seen
        if len(self._line) > MAXIMUM_LINE_BYTES:
            raise FramingError("a line between chunks is too long")
        if not end:
            return len(seen)
        line, self._line = self._line, b""
        if not line.endswith(b"\r\n"):
            raise FramingError("a line between chunks does not end with CRLF")
        self._end_line(line[:-2])
        return end

    def _end_line(self, line: bytes) -> None:
        if self._next is _Line.SIZE:
            self._left = _chunk_size(line)
            self._next = _Line.END_OF_CHUNK if self._left else _Line.TRAILER
        elif self._next is _Line.END_OF_CHUNK:
            if line:
                raise FramingError("a chunk is longer than its size")
            self._next = _Line.SIZE
        else:
            self._trailers += 1
            if self._trailers > MAXIMUM_TRAILERS:
                raise FramingError("too many trailers")
            self.complete = not line


def _chunk_size(line: bytes) -> int:
    digits, extended, _ = line.partition(b";")
    if extended:
        digits = digits.rstrip(b" \t")
    if not digits or len(digits) > _MAXIMUM_SIZE_DIGITS or not _SIZE_DIGITS.issuperset(digits):
        raise FramingError("a chunk has no size")
    return int(digits, 16)


def chunk(data: bytes | memoryview) -> tuple[bytes, bytes | memoryview, bytes]:
    """Return the parts of one chunk, to be sent one after the other. `data` is not empty: that would end the body."""
    return chunk_head(len(data)), data, CHUNK_END


def chunk_head(count: int) -> bytes:
    """Return what stands before a chunk of `count` bytes, at least one."""
    return b"%x\r\n" % count


CHUNK_END = b"\r\n"


LAST_CHUNK = b"0\r\n\r\n"
