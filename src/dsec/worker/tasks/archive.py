"""Folders of a task as tar archives: one round trip, the same bytes for the same files."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

from dsec.base.errors import TaskFormatError

_BLOCK = tarfile.BLOCKSIZE


def _walk(folder: Path) -> Iterator[Path]:
    """Yield everything below `folder`, directories before what is in them, in the order of names."""
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = Path(entry.path)
        yield path
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(path)


def _add(archive: tarfile.TarFile, path: Path, name: str, extra_mode: int) -> None:
    info = archive.gettarinfo(path, arcname=name)
    if info is None or not (info.isreg() or info.isdir() or info.issym()):
        raise TaskFormatError(f"{path} is not a file, directory or symbolic link")
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    info.mtime = int(info.mtime)
    # Tasks come out of archives and version control with any modes: owners may write, everyone may read.
    info.mode = 0o755 if info.isdir() else (info.mode & 0o777) | 0o644 | extra_mode
    if info.isreg():
        with path.open("rb") as content:
            archive.addfile(info, content)
    else:
        archive.addfile(info)


def pack_folder(folder: Path, *, prefix: str = "", directories: tuple[str, ...] = ()) -> bytes:
    """Return a tar archive of what is in `folder`, owned by root, with scripts (``*.sh``) executable.

    Args:
        folder: the folder.
        prefix: directory in the archive that holds the entries; "" is the top.
        directories: further empty directories to make.

    Raises:
        TaskFormatError: it holds a device, FIFO or socket.
    """
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in (*directories, *([prefix] if prefix else [])):
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(info)
        for path in _walk(folder):
            name = "/".join(filter(None, (prefix, path.relative_to(folder).as_posix())))
            _add(archive, path, name, 0o111 if path.suffix == ".sh" else 0)
        end = archive.offset
    # The module fills the archive up to 10 KiB; two empty blocks are all that the format asks for.
    return buffer.getvalue()[: end + 2 * _BLOCK].ljust(end + 2 * _BLOCK, b"\0")


def content_digest(folder: Path) -> str:
    """Return a hash over names, kinds, modes and bytes of everything in `folder`, as 64 hexadecimal digits."""
    digest = hashlib.sha256()
    for path in _walk(folder):
        status = path.lstat()
        executable = bool(status.st_mode & 0o111) and stat.S_ISREG(status.st_mode)
        name = os.fsencode(path.relative_to(folder))
        digest.update(b"%d %d %d " % (stat.S_IFMT(status.st_mode), executable, len(name)) + name)
        if stat.S_ISREG(status.st_mode):
            with path.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
        elif stat.S_ISLNK(status.st_mode):
            target = os.fsencode(os.readlink(path))
            digest.update(b"%d " % len(target) + target)
    return digest.hexdigest()
