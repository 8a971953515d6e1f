"""Write a stored layer as the tar of an OCI layer: the reverse of `importers.oci_layer`."""

from __future__ import annotations

import os
import stat
import tarfile
from pathlib import Path
from typing import IO, Protocol, cast

from dsec.images.listing import Node, read_xattrs, walk

_OPAQUE = (b"trusted.overlay.opaque", b"user.overlay.opaque")
_TYPES = {
    stat.S_IFREG: tarfile.REGTYPE,
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFCHR: tarfile.CHRTYPE,
    stat.S_IFBLK: tarfile.BLKTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
}


class Output(Protocol):
    """Takes an archive from front to back."""

    def write(self, data: bytes, /) -> object:
        """Take all of `data`."""


def write_layer_tar(layer: Path, output: Output) -> None:
    """Write the layer that is readable at `layer` as a pax archive. The same layer gives the same bytes."""
    fd = os.open(layer, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    linked: dict[tuple[int, int], bytes] = {}
    try:
        with tarfile.open(
            fileobj=cast(IO[bytes], output),
            mode="w|",
            format=tarfile.PAX_FORMAT,
            encoding="utf-8",
            errors="surrogateescape",
        ) as archive:
            for node in walk(fd):
                _add(archive, node, linked)
    finally:
        os.close(fd)


def _add(archive: tarfile.TarFile, node: Node, linked: dict[tuple[int, int], bytes]) -> None:
    status = node.status
    if stat.S_ISCHR(status.st_mode) and status.st_rdev == 0:
        parent, _, name = node.path.rpartition(b"/")
        archive.addfile(_plain(parent + b"/.wh." + name if parent else b".wh." + name))
        return
    if stat.S_IFMT(status.st_mode) not in _TYPES:
        return  # A socket: no archive format has them.
    xattrs = read_xattrs(node)
    header = _header(node, xattrs)
    if not stat.S_ISDIR(status.st_mode) and status.st_nlink > 1:
        first = linked.setdefault((status.st_dev, status.st_ino), node.path)
        if first != node.path:
            header.type, header.size, header.linkname = tarfile.LNKTYPE, 0, os.fsdecode(first)
    if header.isreg():
        file = os.open(node.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=node.parent_fd)
        with os.fdopen(file, "rb") as content:
            archive.addfile(header, content)
    else:
        archive.addfile(header)
    if any(name in xattrs for name in _OPAQUE):
        archive.addfile(_plain(node.path + b"/.wh..wh..opq" if node.path else b".wh..wh..opq"))


def _header(node: Node, xattrs: dict[bytes, bytes]) -> tarfile.TarInfo:
    status = node.status
    header = tarfile.TarInfo(os.fsdecode(node.path or b"."))
    header.type = _TYPES[stat.S_IFMT(status.st_mode)]
    header.mode = stat.S_IMODE(status.st_mode)
    header.uid, header.gid = status.st_uid, status.st_gid
    header.mtime = 0 if header.isdir() else status.st_mtime_ns // 1_000_000_000
    header.size = status.st_size if header.isreg() else 0
    if header.issym():
        header.linkname = os.fsdecode(os.readlink(node.name, dir_fd=node.parent_fd))
    header.devmajor, header.devminor = os.major(status.st_rdev), os.minor(status.st_rdev)
    header.pax_headers = {
        f"SCHILY.xattr.{os.fsdecode(name)}": os.fsdecode(value)
        for name, value in sorted(xattrs.items())
        if name not in _OPAQUE
    }
    return header


def _plain(path: bytes) -> tarfile.TarInfo:
    header = tarfile.TarInfo(os.fsdecode(path))
    header.mode = 0o600
    return header
