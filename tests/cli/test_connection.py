"""Finding and starting the node of this host."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from dsec.base.errors import InvalidRequestError, InvalidStateError, NodeUnavailableError
from dsec.cli import connection
from dsec.cli.connection import node_argv, open_service, start_node
from dsec.cli.context import Options
from dsec.cli.serving import holder
from dsec.node.lock import hold_state
from dsec.node.running_settings import keep_settings
from dsec.node.settings import NodeSettings
from dsec.sdk import background
from dsec.sdk.background import is_held

pytestmark = pytest.mark.anyio


def _node_is(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Let a background node be a shell script."""
    monkeypatch.setattr(connection, "node_argv", lambda options, state_dir: ["sh", "-c", script])


async def test_a_node_that_dies_is_told_with_the_end_of_its_log(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _node_is(monkeypatch, "echo first; echo the reason >&2; exit 3")
    with pytest.raises(NodeUnavailableError, match="ended with status 3") as caught:
        async with open_service(Options(state_dir_option=tmp_path / "state")):
            pass
    assert caught.value.detail.endswith("first\nthe reason")
    assert caught.value.exit_code == 69
    assert capsys.readouterr().out == ""


async def test_why_an_earlier_node_ended_is_not_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for script, said in (("echo one; exit 3", "one"), ("echo two; exit 3", "two"), ("exit 3", "it wrote no log")):
        _node_is(monkeypatch, script)
        with pytest.raises(NodeUnavailableError) as caught:
            await start_node(Options(), tmp_path)
        assert caught.value.detail == said


async def test_a_node_that_never_answers_is_told_in_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _node_is(monkeypatch, "exit 0")
    monkeypatch.setattr(background, "START_TIMEOUT_S", 0.1)
    monkeypatch.setattr(background, "is_held", lambda state_dir, server: True)
    with pytest.raises(NodeUnavailableError, match=r"does not answer after 0\.1 s"):
        await start_node(Options(), tmp_path)


async def test_a_background_node_has_a_session_of_its_own_and_our_settings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    listen = (
        "import os, socket, sys\n"
        "s = socket.socket(socket.AF_UNIX); s.bind('new'); s.listen(); os.rename('new', 'node.sock')\n"
        "print(os.getsid(0) == os.getpid(), os.path.realpath('/proc/self/fd/0'), flush=True)\n"
        "s.accept()\n"
    )
    monkeypatch.setattr(
        connection, "node_argv", lambda options, state_dir: ["env", "-C", str(tmp_path), sys.executable, "-c", listen]
    )
    await start_node(Options(), tmp_path)
    log = tmp_path / "node.log"
    while not log.read_text():
        continue
    assert log.read_text() == "True /dev/null\n"
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_background_node_is_started_with_the_same_settings(tmp_path: Path) -> None:
    argv = node_argv(Options(config_file=Path("c.toml"), overrides=("runtime=runc",)), tmp_path)
    assert argv[:3] == [sys.executable, "-m", "dsec"]
    assert argv[argv.index("--state-dir") + 1] == str(tmp_path)
    assert argv[argv.index("--config") + 1] == str(Path("c.toml").absolute())
    assert argv[argv.index("--set") + 1] == "runtime=runc"
    assert argv[-4:] == ["up", "--socket-only", "--exit-when-idle", "600"]


async def test_a_state_directory_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidRequestError, match="cannot be made"):
        await start_node(Options(), tmp_path / "file" / "state")


async def test_a_socket_that_a_killed_node_left_behind_starts_a_new_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(tmp_path / "node.sock"))
    _node_is(monkeypatch, "exit 5")
    with pytest.raises(NodeUnavailableError, match="status 5"):
        async with open_service(Options(state_dir_option=tmp_path)):
            pass


async def test_a_url_is_used_as_it_is(tmp_path: Path) -> None:
    async with open_service(Options(url="http://127.0.0.1:1", state_dir_option=tmp_path / "state")):
        assert not (tmp_path / "state").exists()


def test_a_state_directory_is_held_while_its_lock_is(tmp_path: Path) -> None:
    assert not is_held(tmp_path)
    with hold_state(tmp_path):
        assert is_held(tmp_path)
    assert not is_held(tmp_path)


def test_a_program_that_embeds_its_node_is_not_ended_by_down(tmp_path: Path) -> None:
    with hold_state(tmp_path), pytest.raises(InvalidStateError, match=f"process {os.getpid()} has the node"):
        holder(tmp_path)


async def test_settings_that_a_running_node_does_not_go_by_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep_settings(NodeSettings(default_pids=7), tmp_path)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "node.sock"))
        server.listen()
        async with open_service(Options(state_dir_option=tmp_path, overrides=("default_pids=8", "runtime=crun"))):
            said = capsys.readouterr().err
    assert "default_pids is 7 there, not 8" in said
    assert said.count("warning") == 1
