"""Output that was taken from a pipe is still there after the death of whoever took it."""

from __future__ import annotations

import os
from pathlib import Path

from dsec.model.process import Stream
from dsec.runtimes.container.kept_output import KeptOutput


def _received(kept: KeptOutput, data: bytes, stream: Stream = Stream.STDOUT) -> bytes:
    reading, writing = os.pipe()
    try:
        os.write(writing, data)
        return kept.receive(stream, reading, 65_536)
    finally:
        os.close(reading)
        os.close(writing)


def test_what_was_received_and_not_put_away_is_found_again(tmp_path: Path) -> None:
    first = KeptOutput(tmp_path)
    assert _received(first, b"put away") == b"put away"
    assert _received(first, b"lost") == b"lost"
    assert _received(first, b"other", Stream.STDERR) == b"other"
    # A death closes nothing in good order.
    second = KeptOutput(tmp_path)
    backlog = list(second.backlog({Stream.STDOUT: len(b"put away")}))
    assert backlog == [(Stream.STDOUT, b"lost"), (Stream.STDERR, b"other")]
    assert _received(second, b"more") == b"more"
    assert b"".join(data for _, data in KeptOutput(tmp_path).backlog({Stream.STDERR: 5})) == b"put awaylostmore"


def test_one_that_let_go_in_good_order_goes_on_where_it_ended(tmp_path: Path) -> None:
    first = KeptOutput(tmp_path)
    _received(first, b"one")
    first.returned(Stream.STDOUT, 3)
    _received(first, b"two")
    first.close()
    first.close()
    assert list(KeptOutput(tmp_path).backlog(None)) == [(Stream.STDOUT, b"two")]


def test_what_was_put_away_takes_no_room(tmp_path: Path) -> None:
    kept = KeptOutput(tmp_path)
    list(kept.backlog({}))
    for _ in range(200):
        kept.returned(Stream.STDOUT, len(_received(kept, b"x" * 65_536)))
    status = (tmp_path / "stdout").stat()
    assert status.st_size == 200 * 65_536
    assert status.st_blocks * 512 < 3 << 20


def test_reader_that_has_more_than_was_kept_goes_on_behind_it(tmp_path: Path) -> None:
    kept = KeptOutput(tmp_path)
    assert list(kept.backlog({Stream.STDOUT: 1000})) == []
    assert _received(kept, b"next") == b"next"
    assert list(KeptOutput(tmp_path).backlog({Stream.STDOUT: 1000})) == [(Stream.STDOUT, b"next")]
