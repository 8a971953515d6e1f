"""The clean check: whether a sandbox is what a fresh one is.

A recycled sandbox is a new generation: its processes, namespaces and control group are new and its writable layer
is empty, by the way a rollback works. The check does not trust that. It looks at what a predecessor could have
left: processes and groups of commands, mounts, and entries of the writable layer, and compares each with a sandbox
of the same pool that was created and never used. What it does not see: the content of read-only layers, which no
guest can change, and pages of the host's cache.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dsec.base.errors import RuntimeFailedError
from dsec.node.core import Core
from dsec.node.sandbox import Sandbox

_MOST_ENTRIES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanState:
    """What is compared.

    Attributes:
        processes: processes and threads, the init included; None where nobody counts.
        command_groups: groups of commands.
        mounts: mounts inside.
        written: entries of the writable layer, with their kind and size.
    """

    processes: int | None
    command_groups: tuple[str, ...]
    mounts: tuple[str, ...]
    written: tuple[str, ...]


async def observe(core: Core, sandbox: Sandbox) -> CleanState:
    """Look at a sandbox in which nothing should run."""
    seen = await sandbox.running().instance.fingerprint()
    layer = core.parts.layers.get(sandbox.record.layer)
    if layer is None:
        raise RuntimeFailedError(f"the writable layer {sandbox.record.layer} is gone")
    return CleanState(
        processes=seen.processes,
        command_groups=seen.command_groups,
        mounts=seen.mounts,
        written=tuple(sorted(_entries(layer.upper))),
    )


def difference(expected: CleanState, seen: CleanState) -> str:
    """Say in which way `seen` is not clean; empty when it is."""
    if seen.command_groups:
        return f"groups of commands are left: {_few(seen.command_groups)}"
    if seen.processes != expected.processes:
        return f"{seen.processes} processes run, {expected.processes} do in a fresh one"
    for what, clean, found in (
        ("mounts", expected.mounts, seen.mounts),
        ("files of the writable layer", expected.written, seen.written),
    ):
        more, less = set(found) - set(clean), set(clean) - set(found)
        if more:
            return f"{what} that a fresh one has not: {_few(sorted(more))}"
        if less:
            return f"{what} of a fresh one are missing: {_few(sorted(less))}"
    return ""


def _few(names: tuple[str, ...] | list[str]) -> str:
    shown = ", ".join(_printable(name[:100]) for name in names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


def _printable(name: str) -> str:
    """What a guest named may be no UTF-8, which no event could carry."""
    return name.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _entries(upper: Path) -> Iterator[str]:
    """Name what the writable layer holds; at most `_MOST_ENTRIES`, which no clean one has."""
    left = [str(upper)]
    count = 0
    while left and count < _MOST_ENTRIES:
        for entry in _scan(left.pop()):
            count += 1
            status = entry.stat(follow_symlinks=False)
            yield f"{os.path.relpath(entry.path, upper)} {status.st_mode:o} {status.st_size}"
            if entry.is_dir(follow_symlinks=False):
                left.append(entry.path)


def _scan(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            return list(entries)
    except FileNotFoundError:
        # Layers in memory have no directories.
        return []
