"""`dsec image layers` and `merge` as people and programs call them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dsec.testing.oci_layouts import tar_of, write_layout

pytestmark = [pytest.mark.root, pytest.mark.slow]


def dsec(state_dir: Path, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dsec", "--state-dir", str(state_dir), "image", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stderr
    return done


def test_layers_are_drawn_warned_of_and_merged(tmp_path: Path) -> None:
    state = tmp_path / "state"
    layout = write_layout(tmp_path / "layout", [tar_of(**{name: name * 5000}) for name in "abcdefg"])
    dsec(state, "import", str(layout), "--name", "many:v1", "--keep-layers", "9")
    (tmp_path / "tool").mkdir()
    dsec(state, "import", str(tmp_path / "tool"), "--name", "tool", "--as-layer", "--at", "/opt/tool")
    shown = dsec(state, "layers", "many:v1", "--toolkit", "tool")
    assert shown.stdout.startswith("many:v1 + tool: 8 layers, ")
    assert shown.stdout.count("█") >= 8
    assert "8 layers; more than 5" in shown.stderr
    merged = json.loads(dsec(state, "merge", "many:v1", "--json").stdout)
    assert (merged["before"], len(merged["image"]["layers"])) == (7, 2)
    found = json.loads(dsec(state, "layers", "many:v1", "--json").stdout)
    assert [(layer["kind"], layer["changed"], layer["versions"]) for layer in found["layers"]] == [
        ("base", 0, 1),
        ("tools", 1, 1),
    ]
    assert dsec(state, "merge", "many:v1", "--all", "--name", "one").stdout.startswith("one  ")
    dsec(state, "layers", "none", code=66)
    dsec(state, "import", str(tmp_path / "tool"), "--name", "x", "--at", "/opt", code=2)
