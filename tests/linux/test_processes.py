"""Processes that are dying: what of them still holds what they held."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from dsec.linux.processes import describe, exit_status, has_ended, is_dying

PATIENCE_S = 60.0
_LEADER_ENDS = """
import ctypes, threading, sys
threading.Thread(target=sys.stdin.read).start()
print(flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_that_lives_is_neither_dying_nor_ended() -> None:
    assert not is_dying(os.getpid())
    assert not has_ended(os.getpid())


def test_a_killed_process_that_nobody_asked_for_has_ended_and_says_how() -> None:
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    os.kill(child, signal.SIGKILL)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert is_dying(child)
    assert has_ended(child)
    assert exit_status(child) == signal.SIGKILL
    assert os.waitpid(child, 0) == (child, signal.SIGKILL)
    assert has_ended(child)


def test_a_process_of_which_a_thread_goes_on_has_not_ended() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", _LEADER_ENDS], stdin=-1, stdout=-1) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        while not is_dying(process.pid):
            pass
        assert not has_ended(process.pid)
        process.stdin.close()


@pytest.mark.root
def test_a_process_is_described_by_what_it_is_and_where_it_waits() -> None:
    with subprocess.Popen(["sleep", "1000"]) as process:
        expected = re.compile(rf"{process.pid} 'sleep' in state S, in \w*nanosleep( < \w+)+")
        ends_at = time.monotonic() + PATIENCE_S
        while not expected.fullmatch(said := describe(process.pid)):
            assert time.monotonic() < ends_at, said
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert describe(process.pid) == f"{process.pid} 'sleep' in state Z"
    assert describe(process.pid) == f"{process.pid} has ended"
