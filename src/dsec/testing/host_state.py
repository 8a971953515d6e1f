"""What one node has on a host, so that tests can see that nothing of it is left."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from dsec.linux import mounts


@dataclass(frozen=True, slots=True)
class HostState:
    """A reading.

    Attributes:
        mounts: mount points below the node's run directory (which may be one itself, as long as the node exists).
        groups: the node's control groups, in every hierarchy.
        processes: pids and command lines of processes in those groups or started for that run directory. Those that
            have ended and only wait for the host's init to take note have no command line any more, and do not count.
        run_entries: names in the run directory.
        scratch: what OCI runtimes that were killed left in the host's /tmp. It carries no node's name, so that a
            runtime that somebody else kills meanwhile shows too.
        descriptors: what this process has open, by kind; sockets and pipes are counted.
    """

    mounts: frozenset[str]
    groups: frozenset[str]
    processes: frozenset[str]
    run_entries: frozenset[str]
    scratch: frozenset[str]
    descriptors: tuple[tuple[str, int], ...]

    @classmethod
    def read(cls, node_id: str, run_directory: Path) -> HostState:
        """Read everything that carries the node's name."""
        return cls(
            mounts=frozenset(
                entry.target for entry in mounts.mounts_under(run_directory) if entry.target != str(run_directory)
            ),
            groups=frozenset(_groups(node_id)),
            processes=frozenset(_processes(node_id, run_directory)),
            run_entries=frozenset(os.listdir(run_directory)) if run_directory.is_dir() else frozenset(),
            scratch=frozenset(name for name in os.listdir("/tmp") if name.startswith(("crun.", "runc."))),
            descriptors=_descriptors(),
        )


def assert_no_leaks(before: HostState, after: HostState) -> None:
    """Fail when `after` holds anything that `before` did not."""
    for name in ("mounts", "groups", "processes", "run_entries", "scratch"):
        extra = getattr(after, name) - getattr(before, name)
        assert not extra, f"left behind: {name}: {sorted(extra)}"
    known = dict(before.descriptors)
    more = {kind: (known.get(kind, 0), count) for kind, count in after.descriptors if count > known.get(kind, 0)}
    assert not more, f"descriptors left open (kind: before, after): {more}"


def _groups(node_id: str) -> list[str]:
    roots = {entry.target for entry in mounts.mount_table() if entry.kind in ("cgroup", "cgroup2")}
    tops = (Path(root) / "dsec" / node_id for root in roots)
    # Path.rglob fails where a group goes while it looks; os.walk passes over it.
    return [os.path.join(directory, name) for top in tops for directory, names, _ in os.walk(top) for name in names]


def _processes(node_id: str, run_directory: Path) -> list[str]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            command, groups = _read(f"/proc/{entry}/cmdline"), _read(f"/proc/{entry}/cgroup")
            if int(entry) == os.getpid() or not command:
                continue
            if f"/dsec/{node_id}/" in groups or f"{run_directory}/" in command:
                found.append(f"{entry} {command.replace(chr(0), ' ')}")
    return found


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf8", errors="replace")
    except OSError:
        return ""


def _descriptors() -> tuple[tuple[str, int], ...]:
    counts: dict[str, int] = {}
    for entry in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{entry}")
        except OSError:
            continue
        kind = target.partition(":[")[0] if ":[" in target else target
        counts[kind] = counts.get(kind, 0) + 1
    return tuple(sorted(counts.items()))
