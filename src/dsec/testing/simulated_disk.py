"""A disk in memory that can lose power, be killed at any operation, fill up, and fail to sync as Linux does.

What a program sees (the page cache) and what is on the platter are kept apart. A *kill* leaves the cache as it is and
frees the locks. A *loss of power* leaves what was synced, and of the rest whatever a chooser picks: of each file some
beginning of the unsynced bytes, perhaps followed by zeros where the size was written and the data was not; of each
directory some beginning of the unsynced changes of names.

A sync that fails drops what was dirty: the bytes stay readable, are not on the platter, and the next sync succeeds
without writing them (Rebello et al., "Can Applications Recover from fsync Failures?", ATC 2020).
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from dsec.testing.faults import Killed

Chooser = Callable[[int], int]
"""Returns a number from 0 up to its argument, both included."""

_Change = tuple[tuple[Path, "_File | None"], ...]


@dataclass(slots=True, eq=False)
class _File:
    """One inode: what is seen, what is on the platter, and which ranges are still to be brought there."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    dirty: list[tuple[int, int]] = field(default_factory=list)
    holder: int | None = None

    def put(self, start: int, data: bytes) -> None:
        self.data[start : start + len(data)] = data
        self.dirty.append((start, start + len(data)))

    def sync(self) -> None:
        for start, end in self.dirty:
            _extend(self.durable, end)
            self.durable[start:end] = self.data[start:end]
        del self.durable[len(self.data) :]
        self.dirty.clear()

    def after_power_loss(self, choose: Chooser) -> _File:
        content = bytearray(self.durable)
        for start, end in self.dirty:
            reached = start + choose(end - start)
            if reached > start:
                _extend(content, reached)
                content[start:reached] = self.data[start:reached]
            if reached < end and choose(1):
                _extend(content, end)  # The size was written, the data was not.
        return _File(data=content, durable=bytearray(content))


def _extend(content: bytearray, length: int) -> None:
    content.extend(bytes(max(0, length - len(content))))


@dataclass(slots=True)
class DiskFaults:
    """What goes wrong; each is asked with the operation and the path's name, at each operation.

    Attributes:
        full: a write takes half of its bytes, and the next one none (ENOSPC); a new file cannot be made.
        failing: the operation raises EIO; a sync that fails drops what was dirty.
    """

    full: Callable[[str, str], bool] = lambda operation, name: False
    failing: Callable[[str, str], bool] = lambda operation, name: False


class SimulatedDisk:
    """Implements `dsec.stores.episode_log_disk.Disk`.

    Args:
        kill_at: number of the operation, from 1, at which the program is killed: half of a write happens, of anything
            else nothing; 0: never.
        kill_after: the operation happens first.
        on_operation: hears of every operation, before it happens.
    """

    def __init__(
        self,
        *,
        kill_at: int = 0,
        kill_after: bool = False,
        on_operation: Callable[[str, str], None] = lambda operation, name: None,
    ) -> None:
        self.kill_at, self.kill_after = kill_at, kill_after
        self.on_operation = on_operation
        self.faults = DiskFaults()
        self.operations = 0
        self.performed: list[tuple[str, str]] = []
        self._names: dict[Path, _File] = {}
        self._durable_names: dict[Path, _File] = {}
        self._pending: dict[Path, list[_Change]] = {}
        self._handles: dict[int, tuple[_File, Path]] = {}
        self._half_full: set[int] = set()
        self._next_handle = 1

    # -- what happens to the machine -----------------------------------------------------------------------------------

    def after_kill(self) -> SimulatedDisk:
        """Return the disk as the next process finds it: all that was written is seen, and no lock is held."""
        after = SimulatedDisk()
        after._names, after._durable_names = dict(self._names), dict(self._durable_names)
        after._pending = {directory: list(changes) for directory, changes in self._pending.items()}
        for file in self._names.values():
            file.holder = None
        return after

    def after_power_loss(self, choose: Chooser) -> SimulatedDisk:
        """Return the disk as it is when the machine starts again."""
        names = dict(self._durable_names)
        for changes in self._pending.values():
            for change in changes[: choose(len(changes))]:
                _apply(names, change)
        files = {id(file): file.after_power_loss(choose) for file in names.values()}
        after = SimulatedDisk()
        after._names = {path: files[id(file)] for path, file in names.items()}
        after._durable_names = dict(after._names)
        return after

    # -- the port ------------------------------------------------------------------------------------------------------

    def make_directory(self, path: Path) -> None:
        self._step("make_directory", path)

    def names(self, directory: Path) -> list[str]:
        return sorted(path.name for path in self._names if path.parent == directory)

    def read(self, path: Path, offset: int = 0, length: int = -1) -> bytes:
        data = self._find(path).data
        return bytes(data[offset:] if length < 0 else data[offset : offset + length])

    def exists(self, path: Path) -> bool:
        self.on_operation("exists", path.name)
        return path in self._names

    def create(self, path: Path) -> int:
        self._step("create", path)
        if self.faults.full("create", path.name):
            raise OSError(errno.ENOSPC, "No space left on device")
        if path in self._names:
            raise FileExistsError(errno.EEXIST, "File exists")
        file = _File()
        self._change(((path, file),))
        self._finish()
        return self._handle(file, path)

    def open(self, path: Path) -> int:
        return self._handle(self._find(path), path)

    def write(self, handle: int, data: bytes | memoryview) -> int:
        file, path = self._handles[handle]
        taken = bytes(data)
        if self._is_killed_now() and not self.kill_after:
            file.put(len(file.data), taken[: len(taken) // 2])
        self._step("write", path)
        if self.faults.full("write", path.name):
            if handle in self._half_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            self._half_full.add(handle)
            taken = taken[: len(taken) // 2]
        file.put(len(file.data), taken)
        self._finish()
        return len(taken)

    def overwrite(self, handle: int, data: bytes) -> None:
        file, path = self._handles[handle]
        self._step("overwrite", path)
        file.put(0, data)

    def truncate(self, handle: int, size: int) -> None:
        file, path = self._handles[handle]
        self._step("truncate", path)
        del file.data[size:]
        file.dirty = [(start, min(end, size)) for start, end in file.dirty if start < size]
        self._half_full.discard(handle)

    def sync(self, handle: int) -> None:
        file, path = self._handles[handle]
        try:
            self._step("sync", path)
        except OSError:
            file.dirty.clear()
            raise
        file.sync()
        self._finish()

    def sync_directory(self, path: Path) -> None:
        self._step("sync_directory", path)
        for change in self._pending.pop(path, []):
            _apply(self._durable_names, change)
        self._finish()

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename", target)
        self._change(((source, None), (target, self._find(source))))
        self._finish()

    def link(self, source: Path, target: Path) -> bool:
        self._step("link", target)
        if target in self._names:
            return False
        self._change(((target, self._find(source)),))
        self._finish()
        return True

    def remove(self, path: Path) -> None:
        self._step("remove", path)
        if path in self._names:
            self._change(((path, None),))
        self._finish()

    def try_lock(self, handle: int) -> bool:
        file, _ = self._handles[handle]
        if file.holder is not None and file.holder != handle:
            return False
        file.holder = handle
        return True

    def close(self, handle: int) -> None:
        file, _ = self._handles.pop(handle)
        if file.holder == handle:
            file.holder = None

    # -- inside --------------------------------------------------------------------------------------------------------

    def _find(self, path: Path) -> _File:
        if path not in self._names:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory")
        return self._names[path]

    def _handle(self, file: _File, path: Path) -> int:
        # Handles of all disks made of one another are distinct, so that locks tell who holds them.
        handle = self._next_handle + id(self) * 1000
        self._next_handle += 1
        self._handles[handle] = (file, path)
        return handle

    def _change(self, change: _Change) -> None:
        _apply(self._names, change)
        self._pending.setdefault(change[0][0].parent, []).append(change)

    def _is_killed_now(self) -> bool:
        return self.operations + 1 == self.kill_at

    def _step(self, operation: str, path: Path) -> None:
        self.on_operation(operation, path.name)
        if self.kill_at and self.operations >= self.kill_at:
            raise Killed
        self.operations += 1
        self.performed.append((operation, path.name))
        if self.operations == self.kill_at and not self.kill_after:
            raise Killed
        if self.faults.failing(operation, path.name):
            raise OSError(errno.EIO, "Input/output error")

    def _finish(self) -> None:
        if self.operations == self.kill_at:
            raise Killed


def _apply(names: dict[Path, _File], change: _Change) -> None:
    for path, file in change:
        if file is None:
            names.pop(path, None)
        else:
            names[path] = file
