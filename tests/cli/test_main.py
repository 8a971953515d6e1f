"""The command as a whole: help everywhere, lazy imports, errors and exit codes."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from dsec.base.errors import DsecError, HookFailedError, ImageNotFoundError, error_types
from dsec.cli.failures import sole_error
from dsec.cli.lazy import Lazy, LazyGroup
from dsec.cli.main import cli


def _all_commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            with contextlib.suppress(click.ClickException):  # A part that is not in this installation.
                below = command.get_command(context, name)
                assert below is not None
                yield from _all_commands(below, (*path, name))


@pytest.mark.parametrize("flag", ["-h", "--help"])
@pytest.mark.parametrize("path", list(_all_commands(cli)), ids=" ".join)
def test_help_is_everywhere(path: tuple[str, ...], flag: str) -> None:
    result = CliRunner().invoke(cli, [*path, flag])
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage: ")
    assert "-h, --help" in result.stdout


def test_help_imports_no_command_and_no_heavy_library() -> None:
    code = (
        "import sys; from dsec.cli.main import cli; cli.main(['-h'], standalone_mode=False);"
        "heavy = ('rich', 'anyio', 'msgspec', 'asyncio', 'dsec.node', 'dsec.cli.sandbox');"
        "print([name for name in heavy if name in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.splitlines()[-1] == "[]"


def test_module_and_version() -> None:
    output = subprocess.run([sys.executable, "-m", "dsec", "--version"], capture_output=True, text=True, check=True)
    assert output.stdout.startswith("dsec, version ")


def test_a_misspelt_command_is_answered_with_the_closest() -> None:
    result = CliRunner().invoke(cli, ["sandbx"])
    assert result.exit_code == 2
    assert "Did you mean 'sandbox'?" in result.stderr


def test_a_part_that_is_not_installed_is_named_and_the_rest_works() -> None:
    group = LazyGroup(
        "g", lazy={"absent": Lazy("dsec.cli.no_such_part:x", "Not there."), "up": Lazy("dsec.cli.up:up", "")}
    )
    assert CliRunner().invoke(group, ["-h"]).exit_code == 0
    result = CliRunner().invoke(group, ["absent"])
    assert result.exit_code == 1
    assert "'absent' is not part of this installation" in result.stderr
    assert CliRunner().invoke(group, ["up", "-h"]).exit_code == 0


def _failing(error: BaseException) -> LazyGroup:
    @click.command()
    def fail() -> None:
        raise error

    return LazyGroup("g", commands={"fail": fail})


@pytest.mark.parametrize("kind", error_types().values(), ids=lambda kind: kind.code)
def test_every_error_exits_with_the_code_of_its_class(kind: type[DsecError]) -> None:
    result = CliRunner().invoke(_failing(kind("what was wrong", detail="a\nb", resolution="do this")), ["fail"])
    assert result.exit_code == kind.exit_code
    assert result.stdout == ""
    assert result.stderr == f"error [{kind.code}]: what was wrong\n  a\n  b\nto resolve: do this\n"


def test_words_of_a_guest_in_an_error_do_not_steer_the_terminal() -> None:
    error = HookFailedError("a\x1b[2Jb", detail="c\x9b31m\rd\n\u202ee", resolution="f\ng\a")
    result = CliRunner().invoke(_failing(error), ["fail"])
    assert not set(result.stderr) & set("\x1b\x9b\r\a\u202e")
    assert result.stderr.count("\n") == 6


def test_errors_can_be_json() -> None:
    result = CliRunner().invoke(cli, ["--error-format", "json", "--config", "/no/such", "config", "show"])
    error = json.loads(result.stderr)["error"]
    assert result.exit_code == error["exit_code"] == 64
    assert error["code"] == "invalid_request"
    assert error["brief"] == "/no/such does not exist"
    assert error["fault"] == "caller"
    assert error["retryable"] is False


def test_an_interrupt_exits_with_130_and_without_a_trace() -> None:
    result = CliRunner().invoke(_failing(KeyboardInterrupt()), ["fail"])
    assert result.exit_code == 130
    assert result.stderr == ""


def test_a_reader_that_went_away_is_no_failure_to_tell_of() -> None:
    script = f"{sys.executable} -m dsec completion bash | head -c 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_an_error_that_task_groups_wrapped_comes_out() -> None:
    error = ImageNotFoundError("x")
    assert sole_error(BaseExceptionGroup("a", [BaseExceptionGroup("b", [error])])) is error
    two = BaseExceptionGroup("a", [error, ValueError()])
    assert sole_error(two) is two


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    result = CliRunner().invoke(cli, ["completion", shell])
    assert result.exit_code == 0
    assert "_DSEC_COMPLETE" in result.stdout


def test_completion_knows_commands_and_options() -> None:
    env = {"_DSEC_COMPLETE": "bash_complete", "COMP_WORDS": "dsec sandbox ins", "COMP_CWORD": "2"}
    result = CliRunner().invoke(cli, [], env=env, prog_name="dsec", complete_var="_DSEC_COMPLETE")
    assert "plain,inspect" in result.stdout


def test_config_show_tells_value_and_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSEC_DEFAULT_PIDS", "77")
    rows = json.loads(CliRunner().invoke(cli, ["--set", "runtime=runc", "config", "show", "--json"]).stdout)
    by_name = {row["name"]: row for row in rows}
    assert (by_name["default_pids"]["value"], by_name["default_pids"]["origin"]) == (77, "DSEC_DEFAULT_PIDS")
    assert (by_name["runtime"]["value"], by_name["runtime"]["origin"]) == ("runc", "--set")
    assert by_name["state_dir"]["value"].startswith("/")
    table = CliRunner().invoke(cli, ["config", "show"]).stdout
    assert "DSEC_DEFAULT_PIDS" in table


def test_a_command_that_used_obstore_ends_as_others_do() -> None:
    program = (
        "import atexit, threading, time, obstore; from dsec.cli.main import main\n"
        "atexit.register(print, 'registered')\n"
        "threading.Thread(target=lambda: (time.sleep(0.05), print('worked'))).start()\n"
        "main()"
    )
    for arguments, code in ((["--version"], 0), (["no-such-command"], 2)):
        command = [sys.executable, "-c", program, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == code, done.stderr
        assert done.stdout.splitlines()[-2:] == ["worked", "registered"]
