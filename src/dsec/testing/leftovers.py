"""What a process of tests leaves on its host: at the end of a session there may be nothing.

Others work on the host meanwhile, and may run the same tests. So all is told by marks that no one else's things carry:

- Files: `Session` gives the process a directory for temporary files of its own (``TMPDIR``), which its children
  inherit. Whatever is in it at the end was left.
- Processes: whoever has that directory in its environment, and is not this process.
- Mounts and loop devices: those on, or of, files in that directory or in pytest's own.
- Nodes: run directories and control groups carry a node's id. Ids are read after each test, from its state directories
  and from the table of mounts, which names a run directory by the state directory.
- Users: `dsec.testing.ordinary_user` names them by this process.

A process that is killed (pytest-timeout does so) cannot look. Its directory is not locked any more, and the next
session takes it away, unless something is mounted in it.
"""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dsec.linux import mounts
from dsec.runtimes.container.runtime import RUN_DIRECTORY
from dsec.testing.ordinary_user import user_name

_PREFIX = "dsec-session-"
PATIENCE_S = 240.0
"""Daemons end after the last mount, and the kernel lets go of a loop device when it comes to it."""


@dataclass(slots=True)
class Session:
    """A session of tests in this process.

    Attributes:
        temporary: where the process and its children make temporary files.
        others: further directories that are this session's.
        node_ids: nodes that tests had.
    """

    temporary: Path
    _lock: int
    others: list[Path] = field(default_factory=list)
    node_ids: set[str] = field(default_factory=set)

    @classmethod
    def begin(cls) -> Session:
        """Give this process a directory for temporary files. Ordinary users may use it, as they may /tmp."""
        for former in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            if (lock := _try_lock(former)) is not None:
                _remove(former)
                os.close(lock)
        fresh = Path(tempfile.mkdtemp())
        fresh.chmod(0o1777)
        lock = _try_lock(fresh)
        assert lock is not None
        # Whoever looks for directories that nobody holds sees it with its lock.
        directory = fresh.rename(fresh.with_name(_PREFIX + fresh.name.removeprefix("tmp")))
        os.environ["TMPDIR"] = tempfile.tempdir = str(directory)
        return cls(directory, lock)

    def note_nodes(self, values: Iterable[object]) -> None:
        """Note the nodes of a test: those whose state directory is among the values or in a directory of theirs, and
        those whose run directory stands.
        """
        for value in values:
            if isinstance(value, Path):
                for file in (value / "node.id", *value.glob("*/node.id")):
                    if name := _read(file).strip():
                        self.node_ids.add(name)
        for entry in mounts.mounts_under(RUN_DIRECTORY):
            if self._is_ours(entry.source):
                self.node_ids.add(Path(entry.target).name)

    def wait_nothing_left(self, patience_s: float = PATIENCE_S) -> list[str]:
        """Wait until nothing is left, and return what stayed when patience ended."""
        self.note_nodes(())
        deadline_s = time.monotonic() + patience_s
        while (left := sorted(self._left())) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        return left

    def end(self) -> None:
        """Remove the directory, unless something is mounted in it."""
        _remove(self.temporary)
        os.close(self._lock)

    def _left(self) -> Iterator[str]:
        yield from (f"file {entry}" for entry in self.temporary.iterdir())
        yield from (f"process {line}" for line in self._processes())
        for entry in mounts.mount_table():
            if self._is_ours(entry.target) or self._is_ours(entry.source):
                yield f"mount {entry.target} of {entry.source}"
        for file in Path("/sys/block").glob("loop*/loop/backing_file"):
            if self._is_ours(backing := _read(file).strip()):
                yield f"loop device {file.parent.parent.name} of {backing}"
        groups = {entry.target for entry in mounts.mount_table() if entry.kind in ("cgroup", "cgroup2")}
        for name in self.node_ids:
            places = (RUN_DIRECTORY / name, *(Path(root, "dsec", name) for root in groups))
            yield from (f"directory {place} of node {name}" for place in places if place.exists())
        if user_name() in {entry.pw_name for entry in pwd.getpwall()}:
            yield f"user {user_name()}"

    def _processes(self) -> Iterator[str]:
        mark = f"TMPDIR={self.temporary}".encode()
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if int(entry.name) != os.getpid() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    yield f"{entry.name} {(entry / 'cmdline').read_text(errors='replace').replace(chr(0), ' ')}"
            except OSError:
                continue  # It has ended.

    def _is_ours(self, path: str) -> bool:
        return any(path.startswith(f"{place}/") for place in (self.temporary, *self.others))


def _try_lock(directory: Path) -> int | None:
    """Return a descriptor that holds the directory; None: somebody else does, or it is another user's, or gone."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_uid == os.geteuid():
            return descriptor
    except BlockingIOError:
        pass
    os.close(descriptor)
    return None


def _remove(directory: Path) -> None:
    if not list(mounts.mounts_under(directory)):
        shutil.rmtree(directory, ignore_errors=True)


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
