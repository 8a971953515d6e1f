"""Another namespace's host name is set from outside, and ours stays what it was."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.linux.uts import host_name, set_host_name

PATIENCE_S = 60.0


@pytest.fixture
def stranger() -> Iterator[int]:
    """The pid of a process in a UTS namespace of its own."""
    process = subprocess.Popen(["unshare", "--uts", "sleep", "600"])
    try:
        ours, ends_at = os.readlink("/proc/self/ns/uts"), time.monotonic() + PATIENCE_S
        while os.readlink(f"/proc/{process.pid}/ns/uts") == ours:
            assert time.monotonic() < ends_at
        yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.mark.root
def test_the_name_changes_there_and_not_here(stranger: int) -> None:
    before, namespace = os.uname().nodename, os.readlink("/proc/thread-self/ns/uts")
    set_host_name(stranger, "sbx-tenant-1")
    assert host_name(stranger) == "sbx-tenant-1"
    assert os.uname().nodename == before
    assert os.readlink("/proc/thread-self/ns/uts") == namespace


def test_our_own_name_is_not_ours_to_change() -> None:
    with pytest.raises(OSError, match="our own"):
        set_host_name(os.getpid(), "x")


@pytest.mark.root
def test_a_name_that_is_too_long_and_a_process_that_is_gone_are_errors(stranger: int) -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        set_host_name(stranger, "x" * 65)
    with pytest.raises(FileNotFoundError):
        set_host_name(1 << 22, "x")
    assert Path(f"/proc/{stranger}").exists()
