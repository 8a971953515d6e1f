"""Layers drawn at random, and what a real overlay of layers shows, entry by entry."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st

from dsec.images.listing import Node
from dsec.linux import mounts

CAPABILITY = bytes.fromhex("0100000202000000000000000000000000000000")
"""cap_net_raw+ep, as setcap(8) writes it."""

_NAMES = ["a", "b", "c"]
_KINDS = ["file", "file", "directory", "directory", "opaque", "whiteout", "link", "fifo", "device", "hard", "capable"]
Drawn = dict[str, str]
"""Kind of each entry of a layer, by path; parents come first."""


@st.composite
def layers(draw: st.DrawFn) -> Drawn:
    """Draw what is in one layer: few names, so that layers meet."""
    drawn: Drawn = {}
    for _ in range(draw(st.integers(0, 9))):
        directories = ["", *(path + "/" for path, kind in drawn.items() if kind in ("directory", "opaque"))]
        path = draw(st.sampled_from(directories)) + draw(st.sampled_from(_NAMES))
        if path not in drawn:
            drawn[path] = draw(st.sampled_from(_KINDS))
    return drawn


def make_layer(root: Path, drawn: Drawn, number: int) -> Path:
    """Make a layer as a directory; what is in it tells its number."""
    root.mkdir()
    files: list[Path] = []
    for path, kind in drawn.items():
        _make_entry(root / path, kind, number, files)
    for path, kind in reversed(drawn.items()):
        if kind in ("directory", "opaque"):
            os.chmod(root / path, 0o711 + number)
            os.chown(root / path, number, number)
    return root


def _make_entry(path: Path, kind: str, number: int, files: list[Path]) -> None:
    if kind in ("directory", "opaque"):
        path.mkdir()
        if kind == "opaque":
            os.setxattr(path, "trusted.overlay.opaque", b"y")
        return
    if kind == "whiteout":
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(0, 0))
    elif kind == "device":
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
    elif kind == "fifo":
        os.mkfifo(path, 0o640)
    elif kind == "link":
        path.symlink_to(f"target{number}")
    elif kind == "hard" and files:
        os.link(files[0], path)
    else:
        _make_file(path, number, capable=kind == "capable")
        files.append(path)
    time_ns = 1_000_000_000_123_456_789 + number
    os.utime(path, ns=(time_ns, time_ns), follow_symlinks=False)


def _make_file(path: Path, number: int, *, capable: bool) -> None:
    path.write_text(f"{path.name} of layer {number}")
    os.chown(path, number, number + 1)
    path.chmod(0o4750 if number % 2 else 0o644)
    os.setxattr(path, "user.number", str(number).encode())
    if capable:
        os.setxattr(path, "security.capability", CAPABILITY)


@dataclass(frozen=True, slots=True)
class Seen:
    """An entry as lstat(2) and its like show it; `first` is the first path of the same inode."""

    mode: int
    owner: tuple[int, int]
    mtime_ns: int
    device: int
    content: bytes
    xattrs: tuple[tuple[str, bytes], ...]
    first: bytes


def entries(root_fd: int) -> dict[bytes, Seen]:
    """Return all entries below a directory. Times of directories are left out: layers do not keep them.

    A name that cannot be opened is left out too: a whiteout in a directory that only one layer has.
    """
    found: dict[bytes, Seen] = {}
    linked: dict[tuple[int, int], bytes] = {}
    for node in _walked(root_fd, b""):
        status = node.status
        where = b"/proc/self/fd/%d/%s" % (node.parent_fd, node.name)
        is_directory = stat.S_ISDIR(status.st_mode)
        found[node.path] = Seen(
            mode=status.st_mode,
            owner=(status.st_uid, status.st_gid),
            mtime_ns=0 if is_directory else status.st_mtime_ns,
            device=status.st_rdev,
            content=_content(where, status),
            xattrs=tuple((name, os.getxattr(where, name, follow_symlinks=False)) for name in _attributes(where)),
            first=node.path if is_directory else linked.setdefault((status.st_dev, status.st_ino), node.path),
        )
    return found


def _walked(fd: int, path: bytes) -> Iterator[Node]:
    if not path:
        yield Node(b"", fd, b".", os.stat(fd))
    for name in sorted(os.fsencode(entry) for entry in os.listdir(fd)):
        try:
            status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            continue
        where = path + b"/" + name if path else name
        yield Node(where, fd, name, status)
        if stat.S_ISDIR(status.st_mode):
            child = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=fd)
            try:
                yield from _walked(child, where)
            finally:
                os.close(child)


def _attributes(where: bytes) -> list[str]:
    names = sorted(os.listxattr(where, follow_symlinks=False))
    return [name for name in names if name.startswith("user.") or name == "security.capability"]


def _content(where: bytes, status: os.stat_result) -> bytes:
    if stat.S_ISLNK(status.st_mode):
        return os.readlink(where)
    return Path(os.fsdecode(where)).read_bytes() if stat.S_ISREG(status.st_mode) else b""


def shown(layer_paths: Sequence[Path], empty: Path) -> dict[bytes, Seen]:
    """Return what an overlay of layers shows.

    Args:
        layer_paths: from the lowest up.
        empty: an empty directory, since overlayfs wants two layers at least.
    """
    options: list[tuple[str, str | None]] = [("lowerdir+", str(path)) for path in (*reversed(layer_paths), empty)]
    mount_fd = mounts.new_mount("overlay", [*options, ("xino", "off")])
    try:
        root_fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=mount_fd)
        try:
            return entries(root_fd)
        finally:
            os.close(root_fd)
    finally:
        os.close(mount_fd)
