"""One entry of a tree on its way from an archive or a directory into a layer."""

from __future__ import annotations

import enum
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field


class EntryKind(enum.Enum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMBOLIC_LINK = "symbolic link"
    HARD_LINK = "hard link"
    CHARACTER_DEVICE = "character device"
    BLOCK_DEVICE = "block device"
    FIFO = "FIFO"
    SOCKET = "socket"


KINDS = {
    stat.S_IFREG: EntryKind.FILE,
    stat.S_IFDIR: EntryKind.DIRECTORY,
    stat.S_IFLNK: EntryKind.SYMBOLIC_LINK,
    stat.S_IFCHR: EntryKind.CHARACTER_DEVICE,
    stat.S_IFBLK: EntryKind.BLOCK_DEVICE,
    stat.S_IFIFO: EntryKind.FIFO,
    stat.S_IFSOCK: EntryKind.SOCKET,
}
"""What an inode is, by the type in its mode (inode(7))."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry as its archive describes it; nothing in it is trusted.

    Attributes:
        path: as written in the archive.
        kind: what it is.
        mode: permission bits.
        uid, gid: owner.
        mtime_s: seconds since the epoch.
        mtime_rest_ns: nanoseconds beyond, where they are to be kept: of what is a layer already. A layer that is made
            of an archive has whole seconds (docs/formats/image-store.md).
        size_bytes: content of a file.
        link: target of a link.
        device: device number, as `os.makedev` makes it.
        xattrs: extended attributes.
        is_whiteout: this character device hides an entry of a lower layer; set by importers only.
    """

    path: bytes
    kind: EntryKind
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime_s: float = 0.0
    mtime_rest_ns: int = 0
    size_bytes: int = 0
    link: bytes = b""
    device: int = 0
    xattrs: Mapping[bytes, bytes] = field(default_factory=dict)
    is_whiteout: bool = False

    @property
    def mtime_ns(self) -> int:
        """Nanoseconds since the epoch, as they are written: none before it, and none after the year 2242."""
        return max(0, min(int(self.mtime_s), 1 << 33)) * 1_000_000_000 + self.mtime_rest_ns

    @property
    def is_device(self) -> bool:
        return self.kind in (EntryKind.CHARACTER_DEVICE, EntryKind.BLOCK_DEVICE)

    @property
    def hides_by_accident(self) -> bool:
        """Whether overlayfs would take this for a whiteout although nobody said that it is one."""
        return self.kind is EntryKind.CHARACTER_DEVICE and self.device == 0 and not self.is_whiteout


def whiteout(path: bytes) -> Entry:
    """Return the entry by which overlayfs hides what lower layers have at `path`."""
    return Entry(path=path, kind=EntryKind.CHARACTER_DEVICE, mode=0o600, is_whiteout=True)


def opaque_xattrs(*, privileged: bool) -> dict[bytes, bytes]:
    """Return the attribute by which overlayfs hides all that lower layers have in a directory.

    Only root may use the trusted namespace; overlays of ordinary users read the other (``userxattr``).
    """
    return {b"trusted.overlay.opaque" if privileged else b"user.overlay.opaque": b"y"}
