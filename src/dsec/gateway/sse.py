"""Server-sent events as bytes: where one ends and the next begins, without making texts of them.

An event is some lines and an empty line after them; a line ends in CR, LF or CRLF (HTML Living Standard, 9.2). Events
are passed on as the bytes that came, the empty line among them, so nothing is lost that is not understood here.
"""

from __future__ import annotations

import re

from dsec.gateway.failing import broken

_BLANK = re.compile(rb"\r\n\r\n|\n\n|\r\r|\n\r\n|\r\n\n")
_LINE = re.compile(rb"\r\n|\n|\r")
_SIMPLE = b"data: "


class EventSplitter:
    """Cut a stream of bytes into events.

    Args:
        maximum_bytes: a longer event is refused, so that an endless one does not fill the memory.
    """

    __slots__ = ("_maximum", "_rest", "_searched")

    def __init__(self, maximum_bytes: int) -> None:
        self._maximum = maximum_bytes
        self._rest = b""
        self._searched = 0

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the events that are complete now, each with its empty line.

        Raises:
            AttemptFailedError: an event is too long.
        """
        data = self._rest + chunk if self._rest else chunk
        events = []
        start = 0
        at = self._searched
        while (match := _BLANK.search(data, at)) is not None:
            # A CR at the very end may be the first half of a line's end, which the next chunk completes.
            events.append(data[start : match.end()])
            start = at = match.end()
        self._rest = data[start:] if start else data
        self._searched = max(0, len(self._rest) - 3)
        if len(self._rest) > self._maximum:
            raise broken(f"an event is longer than {self._maximum} bytes")
        return events

    def rest(self) -> bytes:
        """Return what came after the last complete event."""
        return self._rest


def read_event(event: bytes) -> tuple[bytes, bytes]:
    """Return the name and the data of an event; empty where it has none.

    Raises:
        AttemptFailedError: it is not UTF-8.
    """
    try:
        event.decode()
    except UnicodeDecodeError as error:
        raise broken(f"an event is not UTF-8: {error.reason} at byte {error.start}") from error
    if event.startswith(_SIMPLE) and event.find(b"\n") >= len(event) - 2 and b"\r" not in event:
        return b"", event[len(_SIMPLE) : -2]
    name, data = b"", []
    for line in _LINE.split(event):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
    return name, b"\n".join(data)


def write_event(data: bytes, name: bytes = b"") -> bytes:
    """Return the bytes of an event."""
    head = b"event: " + name + b"\n" if name else b""
    return head + b"data: " + data + b"\n\n"
