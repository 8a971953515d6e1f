"""Where a rollout's files lie (docs/formats/results.md)."""

from __future__ import annotations

import hashlib
from pathlib import Path
from urllib.parse import quote

MANIFEST_NAME = "rollout.json"
RESULTS_NAME = "results.jsonl"
SUMMARY_NAME = "summary.json"
REPORT_NAME = "report.html"
LOCK_NAME = "lock"
TRAJECTORY_NAME = "trajectory.jsonl"
TESTS_OUTPUT_NAME = "tests.txt"
WORKER_NAME = "worker"
_LONGEST_NAME = 150


def task_folder_name(task: str) -> str:
    """Return a file name that is safe anywhere and different for different tasks."""
    name = quote(task, safe="")
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}~{hashlib.sha256(task.encode()).hexdigest()[:16]}"
    return name


def attempt_folder(out: Path, task: str, attempt: int) -> Path:
    """Return the folder of one attempt."""
    return out / "attempts" / task_folder_name(task) / str(attempt)
