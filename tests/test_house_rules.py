"""The house rules that a machine can check."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"


@pytest.mark.slow
def test_code_is_linted() -> None:
    run(sys.executable, "-m", "ruff", "check", "src", "tests", "scripts")


@pytest.mark.slow
def test_code_is_formatted() -> None:
    run(sys.executable, "-m", "ruff", "format", "--check", "src", "tests", "scripts")


@pytest.mark.slow
def test_types_are_strict() -> None:
    run(sys.executable, "-m", "mypy")


@pytest.mark.slow
def test_packages_import_only_packages_below_them() -> None:
    run(str(Path(sys.executable).parent / "lint-imports"))


@pytest.mark.slow
def test_importing_the_package_is_cheap() -> None:
    code = "import sys, dsec; print(len([m for m in sys.modules if m.startswith('dsec')]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 5, "`import dsec` must not import the rest of the package"


def test_shell_scripts_parse() -> None:
    for script in [*(ROOT / "scripts").iterdir(), ROOT / ".ci" / "run"]:
        if script.is_file() and script.read_bytes().startswith(b"#!/bin/bash"):
            run("bash", "-n", str(script))
