"""Fixtures of the worker's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

MakeTask = Callable[..., Path]

TOML = """\
version = "1.0"

[metadata]
difficulty = "easy"

[agent]
timeout_sec = 30.0

[verifier]
timeout_sec = 20.0

[environment]
docker_image = "python"
"""


@pytest.fixture
def make_task(tmp_path: Path) -> MakeTask:
    """Return a function that writes a task folder below ``tmp_path/tasks``."""

    def make(name: str = "one", *, toml: str = TOML, files: dict[str, str] | None = None) -> Path:
        folder = tmp_path / "tasks" / name
        contents = {
            "task.toml": toml,
            "instruction.md": "Write the answer.\n",
            "tests/test.sh": "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n",
            "solution/solve.sh": "#!/bin/sh\ntrue\n",
            **(files or {}),
        }
        for path, text in contents.items():
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        return folder

    return make
