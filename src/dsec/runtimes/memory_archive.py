"""Tar streams in and out of an in-memory tree."""

from __future__ import annotations

import io
import json
import posixpath
import tarfile

from dsec.base.errors import SandboxDiskFullError, UnsafeArchiveError
from dsec.base.units import GIB
from dsec.linux.pipes import Pipe
from dsec.model.files import FileKind
from dsec.runtimes.memory_tree import Entry, Identity, Tree

_MAXIMUM_ARCHIVE_BYTES = 1 * GIB
_TYPES = {FileKind.DIRECTORY: tarfile.DIRTYPE, FileKind.SYMLINK: tarfile.SYMTYPE, FileKind.FILE: tarfile.REGTYPE}


def pack(tree: Tree, root: str) -> bytes:
    """Return a pax archive of `root`; its names are relative to it, and a single file has its own name."""
    left_out: list[str] = []
    buffer = io.BytesIO()
    is_directory = tree.entries[root].kind is FileKind.DIRECTORY
    base = root.rstrip("/") if is_directory else posixpath.dirname(root).rstrip("/")
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(tree.children(root)) if is_directory else [root]:
            entry = tree.entries[path]
            if entry.kind is FileKind.OTHER:
                left_out.append(path[len(base) + 1 :])
                continue
            archive.addfile(_member(path[len(base) + 1 :], entry), io.BytesIO(entry.content))
        if left_out:
            archive.addfile(_remark(left_out))
    return buffer.getvalue()


def _member(name: str, entry: Entry) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type = _TYPES[entry.kind]
    member.size = len(entry) if entry.kind is FileKind.FILE else 0
    member.mode, member.uid, member.gid = entry.mode, entry.uid, entry.gid
    member.mtime = int(entry.modified_at_s)
    member.linkname = entry.target
    return member


def _remark(left_out: list[str]) -> tarfile.TarInfo:
    """Return a last entry for the directory itself; a trailing global header is a damaged archive to common readers."""
    member = tarfile.TarInfo("./")
    member.type, member.mode = tarfile.DIRTYPE, 0o755
    member.pax_headers = {"DSEC.left_out": json.dumps(left_out), "DSEC.left_out_count": str(len(left_out))}
    return member


class UnpackingWriter:
    """A `Writer` that unpacks when it is committed."""

    def __init__(self, tree: Tree, directory: str, identity: Identity) -> None:
        self._tree, self._directory, self._identity = tree, directory, identity
        self._data = bytearray()

    async def write(self, data: bytes) -> None:
        self._tree.check_alive()
        if len(self._data) + len(data) > _MAXIMUM_ARCHIVE_BYTES:
            raise SandboxDiskFullError("the archive is larger than the fake's memory allows")
        self._data += data

    async def drain(self, pipe: Pipe, count: int) -> None:
        await self.write(pipe.take(count))

    async def commit(self) -> None:
        try:
            with tarfile.open(fileobj=io.BytesIO(bytes(self._data)), mode="r:") as archive:
                for member in archive:
                    self._unpack(archive, member)
        except tarfile.TarError as error:
            raise UnsafeArchiveError("this is not a tar archive", detail=str(error)) from error

    async def abort(self) -> None:
        self._data.clear()

    def _unpack(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        name = member.name
        if name.startswith("/") or ".." in name.split("/"):
            raise UnsafeArchiveError(f"the archive names a path outside its root: {name[:200]!r}")
        path = posixpath.normpath(posixpath.join(self._directory, name))
        self._check_parents(posixpath.dirname(path))
        if member.isdir():
            self._tree.make_directories(path, self._identity, member.mode & 0o7777)
            return
        self._tree.make_directories(posixpath.dirname(path), self._identity)
        self._tree.put(path, self._entry(archive, member))

    def _check_parents(self, directory: str) -> None:
        """Refuse an entry below a link: links are stored as they are and never followed."""
        while directory not in ("/", self._directory):
            entry = self._tree.entries.get(directory)
            if entry is not None and entry.kind is not FileKind.DIRECTORY:
                raise UnsafeArchiveError(f"a parent of an archive's entry is a link or a file: {directory[:200]!r}")
            directory = posixpath.dirname(directory)

    def _entry(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> Entry:
        if member.issym():
            if _climbs_out(member.linkname, posixpath.dirname(posixpath.join(self._directory, member.name))):
                raise UnsafeArchiveError(f"the archive holds a link out of its root: {member.name[:200]!r}")
            return Entry(FileKind.SYMLINK, 0o777, *self._identity, target=member.linkname)
        if not member.isreg() and not member.islnk():
            raise UnsafeArchiveError(f"the archive holds a device or FIFO: {member.name[:200]!r}")
        source = archive.extractfile(member)
        content = source.read() if source is not None else b""
        return Entry(FileKind.FILE, member.mode & 0o7777, *self._identity, content=content)


def _climbs_out(target: str, directory: str) -> bool:
    """Return whether a link in `directory` goes up further than the sandbox's root; absolute targets are ordinary."""
    depth = 0 if target.startswith("/") else len([part for part in directory.split("/") if part])
    for part in target.split("/"):
        depth += {"..": -1, ".": 0, "": 0}.get(part, 1)
        if depth < 0:
            return True
    return False
