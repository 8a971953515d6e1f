"""What commands say while they work: to people at a terminal, and to nobody else."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

import pytest

from dsec.cli.output import resumable, working


def test_work_is_shown_on_a_terminal_and_gone_when_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    ours, theirs = os.openpty()
    with open(theirs, "w", encoding="utf8") as terminal, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", terminal)
        with working("saving sbx-a\x1b[2J"):
            pass
    shown = b""
    with suppress(OSError):  # EIO: nobody writes any more.
        while piece := os.read(ours, 65_536):
            shown += piece
    os.close(ours)
    assert rb"saving sbx-a\x1b[2J" in shown
    assert b"\x1b[2J" not in shown
    assert shown.endswith(b"\x1b[2K"), "the line is erased"


def test_who_reads_a_pipe_sees_nothing_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    with working("saving sbx-a"):
        pass
    assert capsys.readouterr() == ("", "")


def test_who_interrupts_what_can_go_on_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt), resumable():
        raise KeyboardInterrupt
    assert capsys.readouterr() == (
        "",
        "interrupted: what is done so far stays, and the same command goes on from there\n",
    )
