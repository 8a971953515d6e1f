"""Writing past the page cache."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from dsec.linux.direct_io import ALIGNMENT, write_direct


@pytest.mark.parametrize("size", [0, 1, ALIGNMENT, ALIGNMENT + 1, (2 << 20) + 5, 5 << 20])
def test_what_is_written_and_what_is_left_are_the_whole(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        done = write_direct(fd, data)
        assert done in (0, size - size % ALIGNMENT)
        assert not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT
        os.write(fd, data[done:])
    finally:
        os.close(fd)
    assert (tmp_path / "file").read_bytes() == data


def test_where_it_is_not_possible_nothing_is_written() -> None:
    fd = os.memfd_create("file")
    try:
        if write_direct(fd, bytes(8192)) == 0:
            assert os.fstat(fd).st_size == 0
    finally:
        os.close(fd)


def test_a_position_that_is_not_aligned_is_left_to_others(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        os.write(fd, b"x")
        done = write_direct(fd, bytes(8192))
        assert os.fstat(fd).st_size == 1 + done
    finally:
        os.close(fd)
