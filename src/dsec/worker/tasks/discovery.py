"""Find tasks below a directory."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dsec.base.errors import NotFoundError, TaskFormatError
from dsec.worker.tasks.harbor import parse_task
from dsec.worker.tasks.task import Task

MAXIMUM_DEPTH = 4
"""Levels of folders below the directory in which tasks are looked for: collections are one or two deep."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSet:
    """What was found.

    Attributes:
        tasks: the good ones, by name.
        broken: the errors of the others, by name.
    """

    tasks: tuple[Task, ...]
    broken: dict[str, TaskFormatError]


def _folders(root: Path, depth: int) -> Iterator[Path]:
    if (root / "task.toml").exists() or (root / "instruction.md").exists():
        yield root
    elif depth > 0:
        for entry in sorted(os.scandir(root), key=lambda entry: entry.name):
            if entry.is_dir() and not entry.name.startswith("."):
                yield from _folders(Path(entry.path), depth - 1)


def _name(folder: Path, root: Path) -> str:
    """Return the folder's path below `root`; bytes that are not UTF-8 are shown as U+FFFD."""
    relative = folder.relative_to(root)
    text = relative.as_posix() if relative.parts else folder.resolve().name
    return os.fsencode(text).decode(errors="replace")


def discover(root: Path, *, pattern: str = "*", limit: int | None = None) -> TaskSet:
    """Read every task below `root`, or `root` itself when it is one.

    Args:
        root: a task folder or a directory of them.
        pattern: shell pattern that the names must match.
        limit: read at most this many, in the order of their names.

    Raises:
        NotFoundError: there is no such directory, or no task in it that matches.
    """
    if not root.is_dir():
        raise NotFoundError(f"{root} is not a directory", resolution="name a task folder or a directory of them")
    tasks: list[Task] = []
    broken: dict[str, TaskFormatError] = {}
    for folder in _folders(root, MAXIMUM_DEPTH):
        name = _name(folder, root)
        if not fnmatch.fnmatchcase(name, pattern):
            continue
        if limit is not None and len(tasks) + len(broken) >= limit:
            break
        try:
            tasks.append(parse_task(folder, name=name))
        except TaskFormatError as error:
            broken[name] = error
    if not tasks and not broken:
        raise NotFoundError(
            f"no task in {root} matches {pattern!r}",
            resolution="a task is a folder with task.toml, instruction.md and tests/test.sh",
        )
    return TaskSet(tasks=tuple(sorted(tasks, key=lambda task: task.name)), broken=broken)
