"""`dsec sandbox exec`, `shell`, `ps`, `logs` and `kill`."""

from __future__ import annotations

import base64
import json
import signal

import pytest

from dsec.base.errors import InvalidRequestError
from dsec.cli.sandbox.processes import signal_number
from dsec.testing.command_line import Dsec


@pytest.fixture
def box(dsec: Dsec) -> str:
    return dsec.create("--id", "sbx-12345")


def test_streams_and_exit_code_are_the_commands(dsec: Dsec, box: str) -> None:
    result = dsec("sandbox", "exec", box, "sh", "-c", "echo out; echo err >&2; exit 7")
    assert (result.exit_code, result.stdout, result.stderr) == (7, "out\n", "err\n")


def test_the_id_may_be_an_option_and_a_dash_dash_may_stand_before_the_command(dsec: Dsec, box: str) -> None:
    assert dsec.ok("sandbox", "exec", "--id", box, "printf", "%s %s", "-h", "--json") == "-h --json"
    assert dsec.ok("sandbox", "exec", "--id", box, "--", "echo", "x") == "x\n"
    assert dsec.ok("sandbox", "exec", box, "--", "echo", "x") == "x\n"


def test_an_option_after_the_id_is_not_taken_for_the_command(dsec: Dsec, box: str) -> None:
    result = dsec("sandbox", "exec", box, "--timeout", "1", "--", "true")
    assert result.exit_code == 2
    assert "--timeout come before the sandbox's ID" in result.stderr


def test_bytes_go_through_unchanged(dsec: Dsec, box: str) -> None:
    data = bytes(range(256)) * 1000
    assert dsec("sandbox", "exec", box, "cat", input=data).stdout_bytes == data


def test_environment_user_and_directory(dsec: Dsec, box: str) -> None:
    text = dsec.ok("sandbox", "exec", "-e", "A=1", "-u", "root", "-w", "/", box, "sh", "-c", "echo $A; id; pwd")
    assert text.splitlines()[0] == "1"
    assert "uid=0" in text
    assert text.splitlines()[-1] == "/"


def test_a_timeout_exits_with_124_and_says_so(dsec: Dsec, box: str) -> None:
    result = dsec("sandbox", "exec", "--timeout", "50ms", box, "sleep", "1000")
    assert result.exit_code == 124
    assert "timed out" in result.stderr


def test_json_collects_output_and_keeps_the_exit_code(dsec: Dsec, box: str) -> None:
    result = dsec("sandbox", "exec", "--json", box, "sh", "-c", "cat; echo err >&2; exit 3", input=b"in")
    answer = json.loads(result.stdout)
    assert result.exit_code == 3
    assert (answer["stdout"], answer["stderr"], answer["status"]["exit_code"]) == ("in", "err\n", 3)
    assert answer["stdout_dropped_bytes"] == 0


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        ((), 2, "Missing the sandbox's ID and the command"),
        (("sbx-12345",), 2, "Missing the command"),
        (("sbx-12345", "no-such-program"), 127, "command_not_found"),
        (("-w", "/no/such", "sbx-12345", "true"), 66, "path_not_found"),
        (("-u", "nobody-of-this-name", "sbx-12345", "true"), 66, "user_not_found"),
        (("-t", "sbx-12345", "true"), 64, "needs a terminal"),
        (("sbx-absent", "true"), 66, "sandbox_not_found"),
    ],
)
def test_what_cannot_run_is_told_with_its_code(
    argv: tuple[str, ...], code: int, words: str, dsec: Dsec, box: str
) -> None:
    result = dsec("sandbox", "exec", *argv)
    assert result.exit_code == code
    assert words in result.stderr
    assert result.stdout == ""


def test_shell_runs_piped_input(dsec: Dsec, box: str) -> None:
    result = dsec("sandbox", "shell", box, input="X=5\necho $X\nexit 4\n")
    assert result.stdout == "5\n"
    assert result.exit_code == 4


def test_a_background_process_is_listed_and_its_output_found_again(dsec: Dsec, box: str) -> None:
    process_id = dsec.ok("sandbox", "exec", "-d", box, "sh", "-c", "echo out; echo err >&2; sleep 1000").strip()
    assert process_id.startswith("prc-")
    rows = dsec.json("sandbox", "ps", box, "--json")
    assert [(row["process_id"], row["state"]) for row in rows] == [(process_id, "running")]
    while not _wrote_both(dsec.json("sandbox", "ps", box, "--json")[0]):
        continue
    result = dsec("sandbox", "logs", box)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "out\n", "err\n")
    lines = [json.loads(line) for line in dsec.ok("sandbox", "logs", "--id", box, process_id, "--json").splitlines()]
    assert {(line["stream"], line["offset"], base64.b64decode(line["data"])) for line in lines} == {
        ("stdout", 0, b"out\n"),
        ("stderr", 0, b"err\n"),
    }
    assert "running" in dsec.ok("sandbox", "ps", box)


def _wrote_both(row: dict[str, int]) -> bool:
    return row["stdout_bytes"] > 0 and row["stderr_bytes"] > 0


def test_following_ends_with_the_process(dsec: Dsec, box: str) -> None:
    process_id = dsec.json("sandbox", "exec", "-d", "--json", box, "sh", "-c", "echo a; sleep 0.05; echo b")[
        "process_id"
    ]
    assert dsec.ok("sandbox", "logs", "-f", box, process_id) == "a\nb\n"
    assert dsec.ok("sandbox", "logs", box, process_id) == "a\nb\n"


def test_kill_ends_a_process(dsec: Dsec, box: str) -> None:
    process_id = dsec.ok("sandbox", "exec", "-d", box, "sleep", "1000").strip()
    dsec.ok("sandbox", "kill", box, process_id)
    dsec.ok("sandbox", "logs", "-f", box, process_id)
    row = dsec.json("sandbox", "ps", box, "--json")[0]
    assert (row["state"], row["status"]["exit_code"]) == ("exited", 137)


def test_logs_asks_which_one_when_there_are_several(dsec: Dsec, box: str) -> None:
    assert dsec("sandbox", "logs", box).exit_code == 66
    for _ in range(2):
        dsec.ok("sandbox", "exec", "-d", box, "sleep", "1000")
    result = dsec("sandbox", "logs", box)
    assert result.exit_code == 64
    assert "name one of prc-" in result.stderr
    assert dsec("sandbox", "logs", box, "prc-absent").exit_code == 66


@pytest.mark.parametrize("text", ["TERM", "term", "SIGTERM", "15"])
def test_signals_have_names_and_numbers(text: str) -> None:
    assert signal_number(text) == signal.SIGTERM


@pytest.mark.parametrize("text", ["NOPE", "999", "-1", ""])
def test_what_is_no_signal_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        signal_number(text)
