"""Files of a sandbox, seen from outside.

Paths are absolute or relative to the default directory. They are text; bytes that are not UTF-8 travel as
surrogate escapes in Python (PEP 383) and percent-encoded in URLs, so that every name can be named.
"""

from __future__ import annotations

import enum

from dsec.model.value import Value

MAXIMUM_PATH_BYTES = 4096


class FileKind(enum.Enum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"
    """A FIFO, socket or device: listed, never opened."""


class FileInfo(Value, frozen=True):
    """One entry.

    Attributes:
        name: last component; undecodable bytes are shown as U+FFFD.
        path: the path in the sandbox, shown likewise.
        raw_path: the exact bytes where `path` could not show them; otherwise empty.
        kind: what it is; symbolic links are not followed.
        size_bytes: length of a file's content.
        mode: permission bits, such as 0o644.
        uid, gid: owner inside the sandbox.
        modified_at_s: seconds since the epoch.
        target: what a symbolic link points to.
    """

    name: str
    path: str
    kind: FileKind
    size_bytes: int = 0
    mode: int = 0
    uid: int = 0
    gid: int = 0
    modified_at_s: float = 0.0
    target: str | None = None
    raw_path: bytes = b""


class FileChangeKind(enum.Enum):
    CREATED = "created"
    MODIFIED = "modified"
    REMOVED = "removed"
    MOVED = "moved"
    OVERFLOW = "overflow"
    """Events were lost (the guest made too many): list again."""


class FileChange(Value, frozen=True):
    """One change under a watched directory. `path` is relative to it."""

    kind: FileChangeKind
    path: str
