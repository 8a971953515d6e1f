"""Events as bytes, wherever the stream is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.gateway.failing import AttemptFailedError
from dsec.gateway.sse import EventSplitter, read_event, write_event

ENDS = st.sampled_from([b"\n\n", b"\r\n\r\n", b"\r\r"])
TEXTS = st.text(st.characters(exclude_characters="\r\n", exclude_categories=("Cs",)), max_size=12)


@given(st.lists(st.tuples(TEXTS, ENDS), max_size=8), st.lists(st.integers(1, 9), max_size=60))
def test_events_are_the_same_wherever_the_stream_is_cut(parts: list[tuple[str, bytes]], sizes: list[int]) -> None:
    events = [b"data: " + text.encode() + end for text, end in parts]
    stream = b"".join(events)
    splitter = EventSplitter(1 << 20)
    found: list[bytes] = []
    for size in [*sizes, len(stream)]:
        found += splitter.feed(stream[:size])
        stream = stream[size:]
    assert b"".join(found) + splitter.rest() == b"".join(events)
    assert [read_event(event)[1].decode() for event in found] == [text for text, _ in parts]


def test_names_comments_and_data_over_several_lines_are_read() -> None:
    assert read_event(b": ping\n\n") == (b"", b"")
    assert read_event(b"event: a\ndata: 1\ndata:2\nid: 7\n\n") == (b"a", b"1\n2")
    assert read_event(write_event(b"{}", b"error")) == (b"error", b"{}")


def test_an_endless_event_is_refused() -> None:
    splitter = EventSplitter(100)
    with pytest.raises(AttemptFailedError, match="longer than 100"):
        splitter.feed(b"data: " + b"x" * 100)


def test_an_event_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(AttemptFailedError, match="UTF-8"):
        read_event(b"data: \xff\n\n")
