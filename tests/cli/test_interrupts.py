"""Interrupts, broken pipes and inputs without an end: a real process each."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from dsec.testing.command_line import Dsec

pytestmark = pytest.mark.slow


def _start(dsec: Dsec, *argv: str) -> subprocess.Popen[bytes]:
    # A test run that was itself started in the background has inherited that interrupts are ignored.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "dsec", "--url", dsec.url, *argv]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def _commands_in(dsec: Dsec, box: str) -> int:
    """How many commands of the sandbox run."""
    return sum(process.running for process in list(dsec.runtime.instance(f"{box}-g0")._processes.values()))


def test_an_interrupt_kills_the_command_and_exits_with_130(dsec: Dsec) -> None:
    box = dsec.create()
    with _start(dsec, "sandbox", "exec", box, "sh", "-c", "echo on; sleep 1000") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"on\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert errors == b""
    while _commands_in(dsec, box):
        continue


def test_a_killed_client_takes_its_command_with_it(dsec: Dsec) -> None:
    box = dsec.create()
    with _start(dsec, "sandbox", "exec", box, "sh", "-c", "echo on; sleep 1000") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"on\n"
        process.kill()
        process.communicate(timeout=30)
    while _commands_in(dsec, box):
        continue


def test_a_reader_that_leaves_ends_the_command_without_a_trace(dsec: Dsec) -> None:
    box = dsec.create()
    with _start(dsec, "sandbox", "exec", box, "yes") as process:
        assert process.stdout is not None
        assert process.stdout.read(2) == b"y\n"
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(timeout=30) == 1
    while _commands_in(dsec, box):
        continue


def test_a_command_that_ends_before_its_input_does_not_wait_for_it(dsec: Dsec) -> None:
    box = dsec.create()
    with _start(dsec, "sandbox", "exec", box, "sh", "-c", "exit 3") as process:
        assert process.wait(timeout=30) == 3


def test_input_arrives_as_it_is_written(dsec: Dsec) -> None:
    box = dsec.create()
    with _start(dsec, "sandbox", "exec", box, "cat") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for line in (b"one\n", b"two\n"):
            process.stdin.write(line)
            process.stdin.flush()
            assert process.stdout.readline() == line
        process.stdin.close()
        assert process.wait(timeout=30) == 0


def test_watching_goes_on_until_it_is_interrupted(dsec: Dsec) -> None:
    box = dsec.create()
    with _start(dsec, "sandbox", "stats", "--watch", "--json", "--interval", "100ms", box) as process:
        assert process.stdout is not None
        for _ in range(2):
            assert list(json.loads(process.stdout.readline())) == [box]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 130
        assert errors == b""
