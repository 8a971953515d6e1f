"""A sealed copy of a program runs as the program does, and nobody can change it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from dsec.linux.sealed import sealed_program

PROGRAM = "/bin/echo"


@pytest.fixture
def sealed() -> Iterator[str]:
    descriptor = sealed_program(PROGRAM)
    if descriptor is None:
        pytest.skip("this host executes no files in memory")
    yield f"/proc/{os.getpid()}/fd/{descriptor}"
    os.close(descriptor)


def test_a_sealed_copy_runs_as_its_original_does(sealed: str) -> None:
    done = subprocess.run([sealed, "said"], executable=sealed, capture_output=True, check=True)
    assert done.stdout == b"said\n"


def test_a_sealed_copy_cannot_be_written_or_cut(sealed: str) -> None:
    descriptor = os.open(sealed, os.O_RDWR)
    try:
        for change in (lambda: os.write(descriptor, b"#!/bin/false\n"), lambda: os.ftruncate(descriptor, 0)):
            with pytest.raises(PermissionError):
                change()
    finally:
        os.close(descriptor)


def test_a_sealed_copy_can_be_opened_by_its_owner_alone(sealed: str) -> None:
    assert os.stat(sealed).st_mode & 0o777 == 0o500


def test_a_program_that_is_not_there_is_an_error() -> None:
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        sealed_program("/bin/no-such-program")
    assert len(os.listdir("/proc/self/fd")) == len(before)
