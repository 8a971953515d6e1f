"""`dsec worker` with real processes, over a node of fakes that this process serves."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dsec.base.errors import (
    InvalidRequestError,
    InvalidStateError,
    NodeUnavailableError,
    StateLockedError,
    UnauthorizedError,
)
from dsec.cli import worker_connection
from dsec.cli.context import Options
from dsec.cli.main import cli
from dsec.cli.worker_connection import background_argv
from dsec.cli.worker_up import _address
from dsec.testing.command_line import Dsec, serving_in_memory
from dsec.testing.worker_process import WorkerProcess
from dsec.worker.episodes.shelf import Shelf

SPEC = {
    "task": "t",
    "job": "rl",
    "policy": {"policy": "script", "rounds": [{"calls": [{"tool": "run", "script": "echo hello"}]}]},
}


@pytest.fixture(scope="module")
def node() -> Iterator[Dsec]:
    with tempfile.TemporaryDirectory(prefix="dsec") as directory, serving_in_memory(Path(directory)) as node:
        yield node


@pytest.fixture
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dsec") as path:
        yield Path(path)


@pytest.fixture
def worker(node: Dsec, directory: Path) -> Iterator[WorkerProcess]:
    worker = WorkerProcess(directory, node.url, "--listen", "127.0.0.1:0", "--loops", "3")
    yield worker
    worker.kill()


def run(*argv: str, input: str | None = None) -> Any:
    return CliRunner().invoke(cli, argv, input=input)


@pytest.mark.slow
def test_a_worker_says_where_it_is_serves_by_token_and_ends_cleanly(worker: WorkerProcess) -> None:
    worker.start()
    where, directory = worker.announced, str(worker.directory)
    token = Path(where["token_file"]).read_text().strip()
    assert stat.S_IMODE(Path(where["token_file"]).stat().st_mode) == 0o600
    assert stat.S_IMODE(Path(where["socket"]).stat().st_mode) == 0o600
    there = ("episode", "--worker", where["url"], "--worker-token")
    assert run(*there, token, "start", "-", "--id", "ep-one", input=json.dumps(SPEC)).exit_code == 0
    shown = run(*there, token, "watch", "ep-one")
    assert "    | hello\n" in shown.stdout
    assert run(*there, "wrong-" + token, "ls").exit_code == UnauthorizedError.exit_code
    status = json.loads(run("worker", "status", "--state-dir", directory, "--json").stdout)
    assert (status["running"], status["pid"], status["episodes"]) == (True, int(where["pid"]), {"ended": 1})
    second = subprocess.run(worker._argv, capture_output=True, text=True, check=False)
    assert second.returncode == StateLockedError.exit_code
    assert where["pid"] in second.stderr
    worker.stop()
    assert "SIGTERM: shutting down" in worker.log_tail()
    assert token not in worker.log_tail() + json.dumps(where)
    assert not Path(where["socket"]).exists()
    assert json.loads(run("worker", "status", "--state-dir", directory, "--json").stdout)["running"] is False
    assert "no worker runs" in run("worker", "down", "--state-dir", directory).stderr


@pytest.mark.slow
def test_down_ends_it_and_the_next_one_goes_on_with_its_episodes(worker: WorkerProcess) -> None:
    worker.start()
    there = ("episode", "--worker", worker.url)
    rounds = [{"calls": [{"tool": "run", "script": f"sleep {seconds}; echo {seconds}"}]} for seconds in (0, 300)]
    spec = {**SPEC, "policy": {"policy": "script", "rounds": rounds}}
    run(*there, "start", "-", "--id", "ep-one", input=json.dumps(spec))
    until(there, "rounds", 1)
    result = run("worker", "down", "--state-dir", str(worker.directory))
    assert result.exit_code == 0
    assert f"process {worker.announced['pid']}) has ended" in result.stderr
    assert worker.wait() == 0
    worker.start()
    until(there, "lives", 2)
    cancelled = run(*there, "cancel", "ep-one")
    assert cancelled.exit_code == 0, cancelled.stderr + worker.log_tail()
    assert run(*there, "watch", "ep-one", "--json").stdout.count('"event":"life"') == 2


def until(there: tuple[str, ...], name: str, value: int) -> None:
    """Wait until an episode has come so far."""
    ends_at = time.monotonic() + 60
    while json.loads(run(*there, "ls", "--json").stdout)[0].get(name) != value:
        assert time.monotonic() < ends_at, f"{name} never was {value}"
        time.sleep(0.01)


@pytest.mark.slow
def test_a_worker_that_nobody_needs_leaves(node: Dsec, directory: Path) -> None:
    worker = WorkerProcess(directory, node.url, "--exit-when-idle", "100ms")
    worker.start()
    assert worker.wait() == 0
    assert "idle for" in worker.log_tail()


@pytest.mark.slow
def test_a_worker_that_cannot_start_says_why(directory: Path) -> None:
    argv = [sys.executable, "-m", "dsec", "--url", f"unix:{directory}/none.sock", "worker", "up"]
    argv += ["--state-dir", str(directory), "--store", "ftp://x"]
    refused = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert refused.returncode == InvalidRequestError.exit_code
    assert "ftp" in refused.stderr


def test_a_worker_that_starts_just_now_says_nothing_yet(directory: Path) -> None:
    with Shelf(directory).hold():
        status = json.loads(run("worker", "status", "--state-dir", str(directory), "--json").stdout)
        assert (status["running"], status["answers"], status["pid"]) == (True, False, os.getpid())
        refused = run("worker", "down", "--state-dir", str(directory))
    assert refused.exit_code == InvalidStateError.exit_code
    assert "end that program instead" in refused.stderr


@pytest.mark.parametrize("text", ["8621", ":8621", "host:", "host:x", "host:99999"])
def test_an_address_is_host_and_port(text: str) -> None:
    with pytest.raises(InvalidRequestError, match="HOST:PORT"):
        _address(text)


def test_addresses_of_both_families_are_read() -> None:
    assert _address("127.0.0.1:0") == ("127.0.0.1", 0)
    assert _address("[::1]:8621") == ("::1", 8621)


def test_a_background_worker_drives_the_same_node_and_its_command_line_holds_no_token(tmp_path: Path) -> None:
    options = Options(url="http://n:1", token="secret", state_dir_option=tmp_path, overrides=("runtime=runc",))
    argv = background_argv(options, tmp_path / "worker")
    assert argv[argv.index("--url") + 1] == "http://n:1"
    assert argv[argv.index("--set") + 1] == "runtime=runc"
    assert argv[-6:] == ["worker", "up", "--state-dir", str(tmp_path / "worker"), "--exit-when-idle", "600"]
    assert "secret" not in argv


def test_a_background_worker_is_given_the_token_of_its_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, str]] = []

    async def start(argv: list[str], worker_dir: Path, server: object, variables: dict[str, str]) -> None:
        started.append(variables)
        raise NodeUnavailableError("not here")

    monkeypatch.setattr(worker_connection, "start_background", start)
    monkeypatch.delenv("DSEC_WORKER_URL", raising=False)
    result = run("--url", "http://n:1", "--token", "secret", "--state-dir", str(tmp_path), "episode", "ls")
    assert result.exit_code == NodeUnavailableError.exit_code
    assert started == [{"DSEC_TOKEN": "secret"}]
