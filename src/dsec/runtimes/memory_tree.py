"""The file tree of an in-memory writable layer.

A tree is a flat mapping from absolute, normalised paths to entries. Paths are resolved the way the kernel's
`RESOLVE_IN_ROOT` does: links and ``..`` never leave the root. The permission bits of the entry itself and of the
directory that holds it count; those of directories further up do not.
"""

from __future__ import annotations

import posixpath
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from dsec.base.errors import (
    InvalidRequestError,
    NotADirectoryInSandboxError,
    PathNotFoundError,
    PermissionDeniedError,
    SandboxDiskFullError,
    UserNotFoundError,
)
from dsec.model.files import MAXIMUM_PATH_BYTES, FileChangeKind, FileInfo, FileKind

USERS = {"root": (0, 0), "user": (1000, 1000), "nobody": (65534, 65534)}
_DIRECTORIES = ("/", "/bin", "/dev", "/etc", "/home", "/home/user", "/root", "/tmp", "/usr", "/usr/bin", "/var")
_MAXIMUM_LINKS = 40

Identity = tuple[int, int]


def resolve_user(user: str | None) -> Identity:
    """Return uid and gid of a name, ``uid`` or ``uid:gid``; root's for None."""
    if user is None:
        return (0, 0)
    if user in USERS:
        return USERS[user]
    head, _, tail = user.partition(":")
    if head.isdigit() and (not tail or tail.isdigit()):
        return (int(head), int(tail or head))
    raise UserNotFoundError(f"user {user!r} does not exist in the sandbox")


@dataclass(slots=True)
class Entry:
    """One file, directory or link; its length is what it costs of the quota."""

    kind: FileKind
    mode: int
    uid: int = 0
    gid: int = 0
    content: bytes = b""
    target: str = ""
    modified_at_s: float = field(default_factory=time.time)

    def __len__(self) -> int:
        return len(self.content)


Entries = dict[str, Entry]


class Watch(Protocol):
    """Somebody who hears of changes."""

    def offer(self, kind: FileChangeKind, path: str) -> None: ...


class Tree:
    """A file tree with a quota; every instance of the writable layer shares it."""

    def __init__(self, entries: Entries, quota_bytes: int | None, is_alive: Callable[[], None]) -> None:
        self.entries = entries
        self.quota_bytes = quota_bytes
        self.check_alive = is_alive
        self.watches: set[Watch] = set()
        for path in _DIRECTORIES:
            if path not in entries:
                entries[path] = _base_directory(path)

    def resolve(self, path: str, *, follow_last: bool = True) -> str:
        """Return the normalised path of what `path` names, whether it exists or not."""
        self.check_alive()
        if "\0" in path:
            raise InvalidRequestError("a path holds a NUL byte")
        if len(path.encode("utf-8", "surrogateescape")) >= MAXIMUM_PATH_BYTES:
            raise InvalidRequestError(f"the path is longer than {MAXIMUM_PATH_BYTES - 1} bytes")
        pending = deque(path.split("/"))
        here, links = "/", 0
        while pending:
            name = pending.popleft()
            if name in ("", "."):
                continue
            if name == "..":
                here = posixpath.dirname(here)
                continue
            self._check_component(here, name)
            step = posixpath.join(here, name)
            entry = self.entries.get(step)
            if entry is not None and entry.kind is FileKind.SYMLINK and (follow_last or pending):
                links += 1
                if links > _MAXIMUM_LINKS:
                    raise PathNotFoundError(f"too many links in {path!r}")
                pending.extendleft(reversed(entry.target.split("/")))
                here = "/" if entry.target.startswith("/") else here
                continue
            here = step
        return here

    def _check_component(self, here: str, name: str) -> None:
        entry = self.entries.get(here)
        if entry is not None and entry.kind is not FileKind.DIRECTORY:
            raise NotADirectoryInSandboxError(f"{here} is not a directory")
        if len(name.encode("utf-8", "surrogateescape")) > 255:
            raise InvalidRequestError(f"a name in the path is longer than 255 bytes: {name[:40]!r}...")

    def get(self, path: str, *, follow: bool = True) -> tuple[str, Entry]:
        """Return the resolved path and its entry."""
        resolved = self.resolve(path, follow_last=follow)
        entry = self.entries.get(resolved)
        if entry is None:
            raise PathNotFoundError(f"{path} does not exist in the sandbox")
        return resolved, entry

    def children(self, directory: str) -> list[str]:
        prefix = directory.rstrip("/") + "/"
        return [path for path in self.entries if path.startswith(prefix) and path != "/"]

    def make_directories(self, path: str, identity: Identity, mode: int = 0o755) -> bool:
        """Make `path` (resolved) and its missing parents; return whether it is new."""
        entry = self.entries.get(path)
        if entry is not None:
            if entry.kind is not FileKind.DIRECTORY:
                raise NotADirectoryInSandboxError(f"{path} is not a directory")
            return False
        parent = posixpath.dirname(path)
        self.make_directories(parent, identity)
        self.require(parent, identity, 0o2)
        self.put(path, Entry(FileKind.DIRECTORY, mode, *identity))
        return True

    def require(self, path: str, identity: Identity, bits: int) -> None:
        """Raise `PermissionDeniedError` unless `identity` has `bits` (of rwx) on an existing path."""
        entry = self.entries[path]
        if identity[0] == 0:
            return
        shift = 6 if entry.uid == identity[0] else 3 if entry.gid == identity[1] else 0
        if (entry.mode >> shift) & bits != bits:
            raise PermissionDeniedError(f"user {identity[0]} may not do this to {path}")

    def put(self, path: str, entry: Entry) -> None:
        """Place an entry, within the quota, and tell who watches."""
        before = self.entries.get(path)
        used = sum(map(len, self.entries.values())) - (len(before) if before else 0)
        if self.quota_bytes is not None and used + len(entry) > self.quota_bytes:
            raise SandboxDiskFullError(f"the sandbox's quota of {self.quota_bytes} bytes is reached")
        self.entries[path] = entry
        self.changed(FileChangeKind.MODIFIED if before else FileChangeKind.CREATED, path)

    def delete(self, path: str) -> None:
        del self.entries[path]
        self.changed(FileChangeKind.REMOVED, path)

    def changed(self, kind: FileChangeKind, path: str) -> None:
        for watch in self.watches:
            watch.offer(kind, path)


def _base_directory(path: str) -> Entry:
    mode = {"/tmp": 0o1777, "/root": 0o700}.get(path, 0o755)
    owner = USERS["user"] if path == "/home/user" else (0, 0)
    return Entry(FileKind.DIRECTORY, mode, *owner, modified_at_s=0.0)


def file_info(path: str, entry: Entry) -> FileInfo:
    raw = path.encode("utf-8", "surrogateescape")
    shown = raw.decode("utf-8", "replace")
    return FileInfo(
        name=posixpath.basename(shown) or "/",
        path=shown,
        raw_path=b"" if shown.encode() == raw else raw,
        kind=entry.kind,
        size_bytes=len(entry),
        mode=entry.mode & 0o7777,
        uid=entry.uid,
        gid=entry.gid,
        modified_at_s=entry.modified_at_s,
        target=entry.target or None,
    )
