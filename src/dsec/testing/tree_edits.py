"""Random edits of a real file tree, and a description of one, to compare trees by.

Edits are tuples of numbers, so that Hypothesis can draw and shrink them; each is interpreted against what the tree
holds at that moment. They do what a guest and overlayfs do to an upper directory: all kinds of entries, hard links,
renames of directories, holes, attributes, names that are no text.
"""

from __future__ import annotations

import errno
import os
import random
import socket
import stat
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from hypothesis import strategies

from dsec.linux import inodes

Edit = tuple[int, int, int]
Description = dict[bytes, tuple[object, ...]]

_NAMES = (b"a", b"b", b"c", b"d", b"\xff\xfe", b"new\nline", b"\xc3\xa9", b"long" + b"x" * 200, b"a b")
_NOBODY = 0xFFFFFFFF
_SIZES = (0, 1, 100, 4096, 5000, 40_000, 70_000, 300_000)
_ACCESS = struct.pack("<I", 2) + b"".join(
    struct.pack("<HHI", kind, bits, owner)
    for kind, bits, owner in ((1, 6, _NOBODY), (2, 7, 1000), (4, 4, _NOBODY), (16, 7, _NOBODY), (32, 0, _NOBODY))
)
"""An access list (acl(5)) by which user 1000 may do everything."""
_ATTRIBUTES = {
    b"user.one": b"1",
    b"user.\xff": b"\xff\0",
    b"trusted.overlay.opaque": b"y",
    b"user.long": b"y" * 2000,
    b"system.posix_acl_access": _ACCESS,
    b"system.posix_acl_default": _ACCESS,
    b"security.capability": struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0),
}
_IMPOSSIBLE = frozenset(
    {
        errno.EEXIST,
        errno.ENOTEMPTY,
        errno.EINVAL,
        errno.ENOTDIR,
        errno.EISDIR,
        errno.ENODATA,
        errno.EPERM,
        errno.ENOENT,
        errno.EADDRINUSE,
        errno.EACCES,
        errno.EOPNOTSUPP,
    }
)


def edits(count: int) -> strategies.SearchStrategy[list[Edit]]:
    """Draw up to so many edits."""
    number = strategies.integers(0, 1 << 16)
    return strategies.lists(strategies.tuples(strategies.integers(0, len(_EDITS) - 1), number, number), max_size=count)


def apply_edits(top: Path, wanted: Sequence[Edit]) -> None:
    """Do some edits below a directory; those that are not possible there change nothing."""
    for kind, one, two in wanted:
        entries = _entries(top)
        try:
            _EDITS[kind](os.fsencode(top), entries, one, two)
        except OSError as error:
            if error.errno not in _IMPOSSIBLE:
                raise


def describe(top: Path) -> Description:
    """Return all that two trees must have in common to be the same, by path."""
    root = os.fsencode(top)
    names_of: dict[int, list[bytes]] = {}
    paths = [b"", *_entries(top)]
    for path in paths:
        names_of.setdefault(os.lstat(os.path.join(root, path)).st_ino, []).append(path)
    described: Description = {}
    for path in paths:
        full = os.path.join(root, path)
        status = os.lstat(full)
        content: object = None
        if stat.S_ISREG(status.st_mode):
            with open(full, "rb") as file:
                content = file.read()
        elif stat.S_ISLNK(status.st_mode):
            content = os.readlink(full)
        attributes = {name: os.getxattr(full, name, follow_symlinks=False) for name in _listed(full)}
        described[path] = (
            stat.S_IFMT(status.st_mode),
            stat.S_IMODE(status.st_mode),
            status.st_uid,
            status.st_gid,
            status.st_mtime_ns,
            status.st_rdev,
            content,
            attributes,
            tuple(sorted(names_of[status.st_ino])),
        )
    return described


def _listed(path: bytes) -> list[str]:
    return sorted(os.listxattr(path, follow_symlinks=False))


def _entries(top: Path) -> list[bytes]:
    root = os.fsencode(top)
    found = [
        os.path.relpath(os.path.join(directory, name), root)
        for directory, directories, files in os.walk(root)
        for name in directories + files
    ]
    return sorted(found)


def _is_directory(path: bytes) -> bool:
    return stat.S_ISDIR(os.lstat(path).st_mode)


def _new(root: bytes, entries: list[bytes], number: int) -> bytes:
    """Choose a place for something: a name in some directory."""
    directories = [root, *(os.path.join(root, path) for path in entries if _is_directory(os.path.join(root, path)))]
    place, name = divmod(number, len(_NAMES))
    return os.path.join(directories[place % len(directories)], _NAMES[name])


def _old(root: bytes, entries: list[bytes], number: int, kind: int = 0) -> bytes:
    """Choose something that is there, of a kind if it is given."""
    found = [
        full
        for full in (os.path.join(root, path) for path in entries)
        if not kind or stat.S_IFMT(os.lstat(full).st_mode) == kind
    ]
    if not found:
        raise FileNotFoundError(errno.ENOENT, "nothing of the kind")
    return found[number % len(found)]


def _bytes(seed: int) -> bytes:
    return random.Random(seed).randbytes(_SIZES[seed % len(_SIZES)])


def _make_directory(root: bytes, entries: list[bytes], one: int, two: int) -> None:
    os.mkdir(_new(root, entries, one), 0o700 | two & 0o7)


def _make_file(root: bytes, entries: list[bytes], one: int, two: int) -> None:
    with open(_new(root, entries, one), "xb") as file:
        file.write(_bytes(two))


def _replace_file(root: bytes, entries: list[bytes], one: int, two: int) -> None:
    """As editors do: a new file, renamed over the old one, with most of its content."""
    path = _old(root, entries, one, stat.S_IFREG)
    with open(path, "rb") as file:
        content = file.read()
    with open(path + b"~", "xb") as file:
        file.write(content[: two % (len(content) + 1)] + b"edited" + content[two % (len(content) + 1) :])
    os.rename(path + b"~", path)


def _overwrite(root: bytes, entries: list[bytes], one: int, two: int) -> None:
    path = _old(root, entries, one, stat.S_IFREG)
    with open(path, "r+b") as file:
        file.seek(two % (os.path.getsize(path) + 5000))
        file.write(_bytes(two)[:6000])


def _truncate(root: bytes, entries: list[bytes], one: int, two: int) -> None:
    path = _old(root, entries, one, stat.S_IFREG)
    os.truncate(path, two % (os.path.getsize(path) + 100_000))


def _punch(root: bytes, entries: list[bytes], one: int, two: int) -> None:
    path = _old(root, entries, one, stat.S_IFREG)
    with open(path, "r+b") as file:
        inodes.punch_hole(file.fileno(), two % (os.path.getsize(path) + 1) // 4096 * 4096, 8192)


def _clone(root: bytes, entries: list[bytes], one: int, two: int) -> None:
    paths = _old(root, entries, two, stat.S_IFREG), _old(root, entries, one, stat.S_IFREG)
    with open(paths[0], "rb") as source, open(paths[1], "r+b") as target:
        inodes.clone_file(source.fileno(), target.fileno())


def _link(root: bytes, entries: list[bytes], one: int, two: int) -> None:
    source = _old(root, entries, two)
    if _is_directory(source):
        raise IsADirectoryError(errno.EISDIR, "no hard links to directories")
    os.link(source, _new(root, entries, one), follow_symlinks=False)


def _symlink(root: bytes, entries: list[bytes], one: int, two: int) -> None:
    os.symlink((b"/etc/passwd", b"../..", b"\xff", b"x" * 1000)[two % 4], _new(root, entries, one))


def _whiteout(root: bytes, entries: list[bytes], one: int, two: int) -> None:
    path = _new(root, entries, one)
    if two % 2 and os.path.lexists(path) and not _is_directory(path):
        os.unlink(path)
    os.mknod(path, stat.S_IFCHR, 0)


def _pipe(root: bytes, entries: list[bytes], one: int, two: int) -> None:
    os.mkfifo(_new(root, entries, one), 0o600 | two & 0o77)


def _socket(root: bytes, entries: list[bytes], one: int, two: int) -> None:
    path = _new(root, entries, one)
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(b"/proc/self/fd/%d/%s" % (directory, os.path.basename(path)[:60]))
    finally:
        os.close(directory)


def _rename(root: bytes, entries: list[bytes], one: int, two: int) -> None:
    os.rename(_old(root, entries, two), _new(root, entries, one))


def _rename_directory(root: bytes, entries: list[bytes], one: int, two: int) -> None:
    os.rename(_old(root, entries, two, stat.S_IFDIR), _new(root, entries, one))


def _swap(root: bytes, entries: list[bytes], one: int, two: int) -> None:
    first, second = _old(root, entries, one), _old(root, entries, two)
    if first.startswith(second) or second.startswith(first):
        raise OSError(errno.EINVAL, "one is in the other")
    os.rename(first, root + b"/between")
    os.rename(second, first)
    os.rename(root + b"/between", second)


def _unlink(root: bytes, entries: list[bytes], one: int, two: int) -> None:
    path = _old(root, entries, one)
    if _is_directory(path):
        _remove(path)
    else:
        os.unlink(path)


def _remove(directory: bytes) -> None:
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        if _is_directory(path):
            _remove(path)
        else:
            os.unlink(path)
    os.rmdir(directory)


def _change_kind(root: bytes, entries: list[bytes], one: int, two: int) -> None:
    path = _old(root, entries, one)
    _unlink(root, entries, one, two)
    if two % 2:
        os.mkdir(path)
    else:
        os.mkfifo(path)


def _change_mode(root: bytes, entries: list[bytes], one: int, two: int) -> None:
    path = _old(root, entries, one)
    if not os.path.islink(path):
        os.chmod(path, two & 0o7777)


def _change_owner(root: bytes, entries: list[bytes], one: int, two: int) -> None:
    os.chown(_old(root, entries, one), two % 3000, two % 7, follow_symlinks=False)


def _change_top(root: bytes, entries: list[bytes], one: int, two: int) -> None:
    os.chmod(root, 0o700 | one & 0o7)
    os.setxattr(root, b"user.top", str(two).encode())


def _change_time(root: bytes, entries: list[bytes], one: int, two: int) -> None:
    time_ns = two * 1_000_000_007 - 3_000_000_000
    os.utime(_old(root, entries, one), ns=(time_ns, time_ns), follow_symlinks=False)


def _set_attribute(root: bytes, entries: list[bytes], one: int, two: int) -> None:
    name = _attribute(two)
    path = _old(root, entries, one)
    if not os.path.islink(path):
        os.setxattr(path, name, _ATTRIBUTES[name], follow_symlinks=False)


def _remove_attribute(root: bytes, entries: list[bytes], one: int, two: int) -> None:
    path = _old(root, entries, one)
    if not os.path.islink(path):
        os.removexattr(path, _attribute(two), follow_symlinks=False)


def _attribute(number: int) -> bytes:
    return list(_ATTRIBUTES)[number % len(_ATTRIBUTES)]


_EDITS: tuple[Callable[[bytes, list[bytes], int, int], None], ...] = (
    _make_directory,
    _make_file,
    _make_directory,
    _make_file,
    _replace_file,
    _overwrite,
    _truncate,
    _punch,
    _clone,
    _link,
    _symlink,
    _whiteout,
    _pipe,
    _socket,
    _rename,
    _rename_directory,
    _swap,
    _unlink,
    _change_kind,
    _change_mode,
    _change_owner,
    _change_top,
    _change_time,
    _set_attribute,
    _remove_attribute,
    _link,
)
