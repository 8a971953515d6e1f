"""Writes that another thread can end."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from dsec.linux.kernel_write import KernelWrites


def test_what_is_written_arrives_as_it_is(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.touch()
    writes = KernelWrites()
    assert writes.write(target, 4096)
    assert target.read_text() == "4096"
    assert writes.write(target, "1 a\n")
    assert target.read_text() == "1 a\n"


def test_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        KernelWrites().write(tmp_path / "none", 1)


def test_write_that_the_kernel_refuses_is_not_done() -> None:
    assert not KernelWrites().write("/dev/full", 1)


def test_none_begins_after_the_end(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.touch()
    writes = KernelWrites()
    for _ in range(2):
        writes.end()
    assert not writes.write(target, 1)
    assert target.read_text() == ""


def test_write_under_way_is_ended(tmp_path: Path) -> None:
    """A pipe that is full stands for a group that is never empty."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
    try:
        with suppress(BlockingIOError):
            while True:
                os.write(reader, bytes(65536))
        os.set_blocking(reader, True)
        writes = KernelWrites()
        results: list[bool] = []
        thread = threading.Thread(target=lambda: results.append(writes.write(pipe, 1)))
        thread.start()
        while writes._process is None:
            pass
        writes.end()
        thread.join(10)
        assert results == [False]
    finally:
        os.close(reader)
