"""The spool gives a later node what an earlier one heard."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.model.process import ExitStatus, Stream
from dsec.node.output import OutputLog
from dsec.node.spool import Spool


def write(spool: Spool, pieces: list[tuple[Stream, bytes]]) -> None:
    totals = dict.fromkeys(Stream, 0)
    for stream, data in pieces:
        spool.append(stream, totals[stream], data)
        totals[stream] += len(data)


def test_both_streams_come_back_in_order(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "p", 1000)
    spool.open()
    write(spool, [(Stream.STDOUT, b"one"), (Stream.STDERR, b"two"), (Stream.STDOUT, b"three")])
    spool.close()
    log = OutputLog(1000)
    Spool(tmp_path / "p", 1000).replay(log)
    result = log.result(ExitStatus(exit_code=0))
    assert (result.stdout, result.stderr) == (b"onethree", b"two")


def test_its_size_is_bounded_and_head_and_tail_survive(tmp_path: Path) -> None:
    limit = 4096
    spool = Spool(tmp_path / "p", limit)
    spool.open()
    lines = [b"%07d\n" % number for number in range(5000)]
    write(spool, [(Stream.STDOUT, line) for line in lines])
    spool.close()
    assert sum(path.stat().st_size for path in (tmp_path / "p").iterdir()) <= 3 * limit
    log = OutputLog(1000)
    Spool(tmp_path / "p", limit).replay(log)
    result = log.result(ExitStatus(exit_code=0))
    assert result.stdout.startswith(lines[0])
    assert result.stdout.endswith(lines[-1])
    assert len(result.stdout) + result.stdout_dropped_bytes == 8 * 5000


@pytest.mark.parametrize("cut", range(1, 16))
def test_a_frame_that_a_crash_cut_short_is_left_out_and_written_over(tmp_path: Path, cut: int) -> None:
    spool = Spool(tmp_path / "p", 1000)
    spool.open()
    write(spool, [(Stream.STDOUT, b"whole"), (Stream.STDOUT, b"cut")])
    spool.close()
    path = tmp_path / "p" / "head"
    path.write_bytes(path.read_bytes()[:-cut])
    again = Spool(tmp_path / "p", 1000)
    again.open()
    again.append(Stream.STDOUT, 5, b"new")
    again.close()
    log = OutputLog(1000)
    again.replay(log)
    assert log.result(ExitStatus(exit_code=0)).stdout == b"wholenew"
