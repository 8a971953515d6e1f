"""Owners in a fingerprint are the same in every instance, and so is the number of processes."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from typing import cast

import pytest

from dsec.runtimes.container import fingerprint
from dsec.runtimes.container.fingerprint import _inside, count_processes
from dsec.runtimes.container.groups import Groups


def test_an_id_of_the_host_is_told_alike_in_instances_of_different_ranges() -> None:
    assert _inside(0, 1_048_576) == _inside(0, 1_114_112)
    assert _inside(1_048_576 + 1000, 1_048_576) == _inside(1_114_112 + 1000, 1_114_112) == "1000"


class Counted:
    """Groups that count so many, of whom so many live."""

    def __init__(self, counted: int | None, living: int) -> None:
        self._counted, self._living = counted, living

    def processes(self, group: str) -> int | None:
        return self._counted

    def process_ids(self, group: str, maximum: int) -> tuple[int, ...]:
        return (os.getpid(),) * self._living


@pytest.mark.parametrize(("counted", "living", "told"), [(1, 1, 1), (2, 1, 1), (5, 3, 3), (None, 0, None)])
def test_processes_that_have_ended_and_that_nobody_waited_for_are_not_told(
    counted: int | None, living: int, told: int | None
) -> None:
    assert count_processes(cast(Groups, Counted(counted, living)), "i") == told


class Dying(Counted):
    """Groups that name a process which has ended, a few times."""

    def __init__(self, times: int) -> None:
        super().__init__(2, 1)
        self._times = times
        self._ended = subprocess.Popen([sys.executable, "-c", ""])
        os.waitid(os.P_PID, self._ended.pid, os.WEXITED | os.WNOWAIT)

    def process_ids(self, group: str, maximum: int) -> tuple[int, ...]:
        self._times -= 1
        return (os.getpid(), self._ended.pid) if self._times >= 0 else (os.getpid(),)

    def wait(self) -> None:
        self._ended.wait()


@pytest.mark.parametrize(("times", "told"), [(3, 1), (1_000_000, 2)])
def test_a_process_that_is_about_to_end_is_given_a_moment_and_counts_if_it_stays(
    times: int, told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fingerprint, "_DYING_S", 0.02 if told == 2 else 60.0)
    groups = Dying(times)
    assert fingerprint.count_processes(cast(Groups, groups), "i") == told
    groups.wait()


def test_an_init_that_is_about_to_begin_is_read_once_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    contents = [b"", b"", b"A=b\0"]
    monkeypatch.setattr("builtins.open", lambda *_: io.BytesIO(contents.pop(0)))
    assert fingerprint._environment(1) == b"A=b\0"
    monkeypatch.setattr("builtins.open", lambda *_: io.BytesIO())
    monkeypatch.setattr(fingerprint, "_EXECUTING_S", 0.01)
    assert fingerprint._environment(1) == b""
