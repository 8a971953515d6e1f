"""What is kept of output, against a plain model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsec.model.process import ExitStatus, Stream
from dsec.node.output import Collector, Cursor, OutputLog

PIECES = st.lists(st.binary(min_size=1, max_size=40), max_size=60)
LIMITS = st.integers(0, 120)
EVENTS = st.lists(st.tuples(st.sampled_from(Stream), st.binary(min_size=1, max_size=40)), max_size=60)


def expected(data: bytes, limit: int) -> bytes:
    tail = limit // 2
    head = limit - tail
    return data if len(data) <= limit else data[:head] + (data[-tail:] if tail else b"")


@given(PIECES, LIMITS)
def test_a_collector_keeps_head_and_tail_and_counts_the_cut_exactly(pieces: list[bytes], limit: int) -> None:
    collector = Collector(limit)
    for piece in pieces:
        collector.add(piece)
    data = b"".join(pieces)
    assert collector.kept == expected(data, limit)
    assert collector.dropped == len(data) - len(collector.kept)


def test_a_collector_of_tiny_pieces_does_not_keep_an_object_for_each() -> None:
    collector = Collector(1 << 20)
    for _ in range(100_000):
        collector.add(b"x" * 6)
    assert len(collector._tail) < 2000
    assert collector.kept == b"x" * 600_000


@given(EVENTS, LIMITS)
def test_a_log_keeps_the_same_and_counts_exactly(events: list[tuple[Stream, bytes]], limit: int) -> None:
    log = OutputLog(limit)
    for stream, piece in events:
        log.add(stream, piece)
    result = log.result(ExitStatus(exit_code=0))
    for stream, kept, dropped in (
        (Stream.STDOUT, result.stdout, result.stdout_dropped_bytes),
        (Stream.STDERR, result.stderr, result.stderr_dropped_bytes),
    ):
        data = b"".join(piece for each, piece in events if each is stream)
        assert kept == expected(data, limit)
        assert dropped == len(data) - len(kept)


@given(EVENTS, st.lists(st.booleans(), min_size=60, max_size=60))
def test_a_reader_that_keeps_up_hears_everything_in_order(
    events: list[tuple[Stream, bytes]], reads: list[bool]
) -> None:
    log, cursor = OutputLog(1 << 20), Cursor()
    heard: list[tuple[Stream, bytes]] = []

    def read() -> None:
        while (event := log.read(cursor)) is not None:
            heard.append((event.stream, event.data))

    for (stream, piece), now in zip(events, reads, strict=False):
        log.add(stream, piece)
        if now:
            read()
    read()
    for stream in Stream:
        said = b"".join(piece for each, piece in events if each is stream)
        assert b"".join(piece for each, piece in heard if each is stream) == said
    order = b"".join(piece for _, piece in events)
    assert b"".join(piece for _, piece in heard) == order


@given(EVENTS, st.integers(0, 60), st.integers(0, 100))
def test_a_slow_reader_sees_gaps_in_the_offsets_and_never_wrong_bytes(
    events: list[tuple[Stream, bytes]], first: int, limit: int
) -> None:
    log, cursor = OutputLog(limit), Cursor()
    data = {stream: b"".join(piece for each, piece in events if each is stream) for stream in Stream}
    ends = dict.fromkeys(Stream, 0)
    for number, (stream, piece) in enumerate(events):
        log.add(stream, piece)
        if number < first and number != len(events) - 1:
            continue
        while (event := log.read(cursor)) is not None:
            assert event.offset >= ends[event.stream]
            ends[event.stream] = event.offset + len(event.data)
            assert data[event.stream][event.offset : ends[event.stream]] == event.data


def test_bytes_that_are_missing_before_an_offset_count_as_dropped() -> None:
    log = OutputLog(100)
    log.add(Stream.STDOUT, b"head")
    log.add(Stream.STDOUT, b"tail", offset=1000)
    result = log.result(ExitStatus(exit_code=0))
    assert result.stdout == b"headtail"
    assert result.stdout_dropped_bytes == 996
