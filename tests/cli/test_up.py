"""`dsec up` and `dsec down` with a real process."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.system.conftest import leave

from dsec.cli.leave import may_have_sandboxes
from dsec.linux.mounts import mounts_under

pytestmark = [pytest.mark.slow, pytest.mark.root]


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "state"
    yield place
    for directory in tmp_path.iterdir():
        leave(directory)
    assert not list(mounts_under(tmp_path))


def _argv(state_dir: Path, *argv: str) -> list[str]:
    return [sys.executable, "-m", "dsec", "--state-dir", str(state_dir), *argv]


def _dsec(state_dir: Path, *argv: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(_argv(state_dir, *argv), capture_output=True, text=True, check=False, timeout=60, **options)


@contextmanager
def _up(state_dir: Path, *argv: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """A node in the foreground and what it announced."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(_argv(state_dir, "up", "--json", *argv), **options) as process:  # type: ignore[call-overload]
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.terminate()
            process.communicate(timeout=60)


def test_up_announces_url_and_token_file_and_never_the_token(state_dir: Path) -> None:
    with _up(state_dir, "--port", "0") as (process, where):
        token = Path(where["token_file"]).read_text().strip()
        assert where["url"].startswith("http://127.0.0.1:")
        assert where["pid"] == str(process.pid)
        assert stat.S_IMODE(Path(where["token_file"]).stat().st_mode) == 0o600
        assert stat.S_IMODE(Path(where["socket"]).stat().st_mode) == 0o600
        assert _dsec(state_dir, "--url", where["url"], "--token", token, "sandbox", "ls", "--json").stdout == "[]\n"
        refused = _dsec(state_dir, "--url", where["url"], "--token", "wrong-" + token, "sandbox", "ls")
        assert refused.returncode == 77
        assert "error [unauthorized]" in refused.stderr
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=60)
        assert process.returncode == 0
        assert token not in rest + errors + json.dumps(where)
        assert "SIGINT: shutting down" in errors


def test_a_second_up_says_who_holds_the_state_directory(state_dir: Path) -> None:
    with _up(state_dir, "--socket-only") as (process, _):
        second = _dsec(state_dir, "up", "--socket-only")
        assert second.returncode == 70
        assert "error [state_locked]" in second.stderr
        assert str(process.pid) in second.stderr


def test_the_first_command_starts_a_node_that_the_next_ones_use(state_dir: Path) -> None:
    _import_image(state_dir)
    created = _dsec(state_dir, "sandbox", "create", "tiny", "--id", "sbx-1")
    assert (created.returncode, created.stdout) == (0, "sbx-1\n")
    assert "starting a node" in created.stderr
    listed = _dsec(state_dir, "sandbox", "ls", "-q")
    assert (listed.stdout, listed.stderr) == ("sbx-1\n", "")
    pid = int((state_dir / "node.lock").read_text())
    assert os.getsid(pid) == pid != os.getsid(0)
    down = _dsec(state_dir, "down", "--destroy")
    assert down.returncode == 0
    assert "1 sandboxes destroyed" in down.stderr
    assert not Path(f"/proc/{pid}").exists() or _is_zombie(pid)
    assert not list(mounts_under(state_dir))
    node = (state_dir / "node.id").read_text().strip()
    assert not list(Path("/sys/fs/cgroup").glob(f"**/dsec/{node}"))
    assert "no node runs" in _dsec(state_dir, "down").stderr
    # There is nothing left, and no node is started to say so.
    again = _dsec(state_dir, "down", "--destroy")
    assert again.returncode == 0
    assert "there are no sandboxes" in again.stderr
    assert "starting a node" not in again.stderr


def test_sandboxes_outlive_the_node_and_the_next_one_finds_them(state_dir: Path) -> None:
    _import_image(state_dir)
    assert _dsec(state_dir, "sandbox", "create", "tiny", "--id", "sbx-1").returncode == 0
    assert _dsec(state_dir, "down").returncode == 0
    assert may_have_sandboxes(state_dir)
    assert _dsec(state_dir, "sandbox", "ls", "-q").stdout == "sbx-1\n"


def _import_image(state_dir: Path) -> None:
    """Make an image of an empty tree: no program of it runs before the first command."""
    tree = state_dir.with_name("tree")
    tree.mkdir()
    assert _dsec(state_dir, "image", "import", str(tree), "--name", "tiny").returncode == 0


def _is_zombie(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


def test_commands_side_by_side_start_one_node(state_dir: Path) -> None:
    _import_image(state_dir)
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(lambda n: _dsec(state_dir, "sandbox", "create", "tiny", "--id", f"sbx-{n}"), range(4)))
    assert [result.returncode for result in results] == [0] * 4
    assert sorted(_dsec(state_dir, "sandbox", "ls", "-q").stdout.split()) == [f"sbx-{n}" for n in range(4)]


def test_a_node_that_nobody_needs_leaves(state_dir: Path) -> None:
    with _up(state_dir, "--socket-only", "--exit-when-idle", "200ms") as (process, _):
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 0
        assert "idle for 200 ms" in errors


def test_a_port_that_is_taken_is_told(state_dir: Path, tmp_path: Path) -> None:
    with _up(state_dir, "--port", "0") as (_, where):
        other = _dsec(tmp_path / "other", "up", "--port", where["url"].rpartition(":")[2])
        assert other.returncode == 64
        assert "cannot listen on 127.0.0.1" in other.stderr
