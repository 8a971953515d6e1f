"""Commands on a terminal: a real one (pty(7)) on our side, the node's on the other."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from dsec.model.process import TerminalSize
from dsec.testing.command_line import Dsec

pytestmark = pytest.mark.slow


@dataclass(slots=True)
class _Seat:
    """Somebody at a terminal in which `dsec` runs."""

    keyboard: int
    line: int
    process: subprocess.Popen[bytes]
    seen: bytes = b""

    def type(self, text: str) -> None:
        os.write(self.keyboard, text.encode())

    def wait_for(self, text: str) -> None:
        while text.encode() not in self.seen:
            piece = os.read(self.keyboard, 4096)
            assert piece, self.seen
            self.seen += piece

    def resize(self, columns: int, rows: int) -> None:
        _set_size(self.line, columns, rows)
        self.process.send_signal(signal.SIGWINCH)

    def wait_raw(self) -> None:
        while not self.is_raw():
            assert self.process.poll() is None, os.read(self.keyboard, 4096)

    def is_raw(self) -> bool:
        return not termios.tcgetattr(self.line)[3] & termios.ICANON


def _set_size(descriptor: int, columns: int, rows: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@contextmanager
def _seat(dsec: Dsec, *argv: str) -> Iterator[_Seat]:
    keyboard, line = pty.openpty()
    _set_size(line, 100, 30)
    command = [sys.executable, "-m", "dsec", "--url", dsec.url, *argv]
    env = {**os.environ, "TERM": "vt100", "COLUMNS": "80", "LINES": "24"}
    with subprocess.Popen(command, stdin=line, stdout=line, stderr=line, start_new_session=True, env=env) as process:
        try:
            yield _Seat(keyboard, line, process)
        finally:
            process.kill()
            os.close(keyboard)
            os.close(line)


def test_a_shell_on_a_terminal_is_raw_while_it_runs_and_gives_its_exit_code(dsec: Dsec) -> None:
    box = dsec.create()
    with _seat(dsec, "sandbox", "shell", box) as seat:
        seat.wait_raw()
        seat.type("echo [$TERM]\n")
        seat.wait_for("[vt100]")
        seat.type("exit 5\n")
        assert seat.process.wait(timeout=30) == 5
        assert not seat.is_raw()


def test_exec_on_a_terminal_follows_its_size(dsec: Dsec) -> None:
    box = dsec.create()
    with _seat(dsec, "sandbox", "exec", "-t", box, "sh") as seat:
        seat.wait_raw()
        seat.type("X=ready; echo is-$X\n")
        seat.wait_for("is-ready")
        assert _terminal_size(dsec, box) == TerminalSize(columns=100, rows=30)
        seat.resize(120, 40)
        while _terminal_size(dsec, box) != TerminalSize(columns=120, rows=40):
            continue
        seat.type("exit\n")
        assert seat.process.wait(timeout=30) == 0


def _terminal_size(dsec: Dsec, box: str) -> TerminalSize | None:
    (process,) = dsec.runtime.instance(f"{box}-g0")._processes.values()
    return process.size
