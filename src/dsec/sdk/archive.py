"""Local directories to tar streams and back.

A download is written by a hostile guest's hand. It is unpacked so that nothing can land outside the target:

- Names are relative, without ``..``, and every component of them is opened with ``O_NOFOLLOW`` from the directory
  above (openat(2)): no link, neither one from the archive nor one that was there before, is ever followed.
- A symbolic link may begin with ``..`` and must not contain it later. The depth of its directory is known exactly,
  since that was reached through real directories, so that leading ``..`` are counted; what follows can only pass
  through links for which the same holds.
- A hard link may name only a file that this archive brought.
- Devices, FIFOs and sockets are refused; set-user-id and owner are not taken over; bytes, entries and depth are
  bounded.
"""

from __future__ import annotations

import os
import posixpath
import stat
import tarfile
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

import anyio
from anyio import from_thread, to_thread
from anyio.streams.memory import MemoryObjectReceiveStream

from dsec.base.errors import DsecError, InvalidRequestError, PathNotFoundError, UnsafeArchiveError, UnsupportedFileError
from dsec.base.units import GIB, format_size

CHUNK_BYTES = 1 << 20
_BLOCK = 512
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackLimits:
    """Bounds of one download.

    Attributes:
        total_bytes: content of all files.
        entries: files, directories and links.
        depth: components of a name.
    """

    total_bytes: int = 16 * GIB
    entries: int = 1_000_000
    depth: int = 128


DEFAULT_UNPACK_LIMITS = UnpackLimits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """What a download brought.

    Attributes:
        entries: how many files, directories and links.
        total_bytes: content of the files.
        left_out: names of links that lead out of the target, when those were to be skipped.
    """

    entries: int
    total_bytes: int
    left_out: tuple[str, ...] = ()


# -- packing ----------------------------------------------------------------------------------------------------


def pack(source: Path) -> Iterator[bytes]:
    """Yield a tar stream of a file, or of a directory's content, in flat memory.

    Raises:
        PathNotFoundError: there is nothing at `source`.
        UnsupportedFileError: something below is a FIFO, socket or device; told before the first byte.
        InvalidRequestError: a file cannot be read or shrank while it was read.
    """
    try:
        entries = list(_entries(source))
        held = bytearray()
        for path, name, info in entries:
            held += _header(path, name, info)
            if stat.S_ISREG(info.st_mode):
                for piece in _content(path, info.st_size):
                    held += piece
                    if len(held) >= CHUNK_BYTES:
                        yield bytes(held)
                        held.clear()
        yield bytes(held) + bytes(2 * _BLOCK)
    except FileNotFoundError as error:
        raise PathNotFoundError(f"there is nothing at {error.filename}") from error
    except OSError as error:
        raise InvalidRequestError(f"cannot read {error.filename}", detail=str(error.strerror)) from error


def _entries(source: Path) -> Iterator[tuple[Path, str, os.stat_result]]:
    info = source.stat()
    if not stat.S_ISDIR(info.st_mode):
        yield _checked(source, source.name, info)
        return
    for folder, directories, files in os.walk(source, onerror=_raise):
        directories.sort()
        for name in sorted([*directories, *files]):
            path = Path(folder) / name
            yield _checked(path, path.relative_to(source).as_posix(), path.lstat())


def _raise(error: OSError) -> None:
    raise error


def _checked(path: Path, name: str, info: os.stat_result) -> tuple[Path, str, os.stat_result]:
    if not (stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode) or stat.S_ISLNK(info.st_mode)):
        raise UnsupportedFileError(
            f"{path} is not a file, directory or link", resolution="remove it, or upload the rest piece by piece"
        )
    return path, name, info


def _header(path: Path, name: str, info: os.stat_result) -> bytes:
    entry = tarfile.TarInfo(name)
    entry.mode = stat.S_IMODE(info.st_mode)
    entry.mtime = int(info.st_mtime)
    if stat.S_ISDIR(info.st_mode):
        entry.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(info.st_mode):
        entry.type = tarfile.SYMTYPE
        entry.linkname = os.readlink(path)
    else:
        entry.size = info.st_size
    return entry.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _content(path: Path, size_bytes: int) -> Iterator[bytes]:
    left = size_bytes
    with open(path, "rb", buffering=0) as file:
        while left:
            piece = file.read(min(CHUNK_BYTES, left))
            if not piece:
                raise InvalidRequestError(f"{path} became shorter while it was read")
            left -= len(piece)
            yield piece
    yield bytes(-size_bytes % _BLOCK)


async def pack_stream(source: Path) -> AsyncIterator[bytes]:
    """Yield what `pack` yields, read in a worker thread."""
    pieces = pack(source)
    while True:
        piece = await to_thread.run_sync(next, pieces, None)
        if piece is None:
            return
        yield piece


# -- unpacking --------------------------------------------------------------------------------------------------


def unpack(
    archive: Iterable[bytes],
    target: Path,
    *,
    limits: UnpackLimits = DEFAULT_UNPACK_LIMITS,
    skip_outward_links: bool = False,
) -> Unpacked:
    """Unpack a tar stream into the directory `target`, which is made if needed.

    Raises:
        UnsafeArchiveError: an entry is refused, a limit exceeded, or the stream is no tar. What came before stays.
        InvalidRequestError: the local file system refused.
    """
    try:
        target.mkdir(parents=True, exist_ok=True)
        with _Unpacking(target, limits, skip_outward_links) as unpacking:
            reader = cast(IO[bytes], _Reader(archive))
            with tarfile.open(fileobj=reader, mode="r|", encoding="utf-8", errors="surrogateescape") as tar:
                for entry in tar:
                    unpacking.add(tar, entry)
                    tar.members.clear()  # type: ignore[attr-defined]  # tarfile keeps every entry; memory stays flat.
            return unpacking.result()
    except tarfile.TarError as error:
        raise UnsafeArchiveError("the archive is damaged or was cut", detail=str(error)) from error
    except OSError as error:
        raise InvalidRequestError(f"cannot write below {target}", detail=str(error)) from error


class _Reader:
    """A file for tarfile over pieces of bytes."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._held = b""

    def read(self, size: int) -> bytes:
        while len(self._held) < size:
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._held += piece
        data, self._held = self._held[:size], self._held[size:]
        return data


@dataclass(slots=True)
class _Unpacking:
    target: Path
    limits: UnpackLimits
    skip_outward_links: bool
    entries: int = 0
    total_bytes: int = 0
    left_out: list[str] = field(default_factory=list)
    _files: set[str] = field(default_factory=set)
    _root: int = -1

    def __enter__(self) -> _Unpacking:
        self._root = os.open(self.target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._root)

    def result(self) -> Unpacked:
        return Unpacked(entries=self.entries, total_bytes=self.total_bytes, left_out=tuple(self.left_out))

    def add(self, tar: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        parts = self._parts(entry.name)
        self._count(entry)
        if not parts:
            return  # The top directory itself.
        with ExitStack() as stack:
            parent = self._open_parent(parts, stack)
            if entry.isdir():
                self._make_directory(parent, parts[-1], entry)
            elif entry.issym():
                self._link(parent, parts, entry)
            elif entry.islnk():
                self._hard_link(parent, parts, entry, stack)
            elif entry.isreg():
                self._write(parent, parts, tar, entry)
            else:
                raise UnsafeArchiveError(f"{entry.name!r} is a device or FIFO")

    def _parts(self, name: str) -> list[str]:
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/") or ".." in parts or "\0" in name:
            raise UnsafeArchiveError(f"{name[:200]!r} leads out of the target")
        if len(parts) > self.limits.depth:
            raise UnsafeArchiveError(f"{name[:200]!r} is deeper than {self.limits.depth} directories")
        return parts

    def _count(self, entry: tarfile.TarInfo) -> None:
        self.entries += 1
        self.total_bytes += entry.size if entry.isreg() else 0
        if self.entries > self.limits.entries:
            raise UnsafeArchiveError(f"the archive has more than {self.limits.entries} entries")
        if self.total_bytes > self.limits.total_bytes:
            raise UnsafeArchiveError(
                f"the archive holds more than {format_size(self.limits.total_bytes)}",
                resolution="raise `limits.total_bytes` if that much is meant",
            )

    def _open_parent(self, parts: list[str], stack: ExitStack) -> int:
        directory = self._root
        for part in parts[:-1]:
            try:
                os.mkdir(part, 0o755, dir_fd=directory)
            except FileExistsError:
                pass  # It is a directory, or opening it below says that it is not.
            try:
                directory = os.open(part, _DIRECTORY, dir_fd=directory)
            except NotADirectoryError as error:
                raise UnsafeArchiveError(f"{'/'.join(parts)!r} passes through a link or file") from error
            stack.callback(os.close, directory)
        return directory

    def _make_directory(self, parent: int, name: str, entry: tarfile.TarInfo) -> None:
        try:
            os.mkdir(name, 0o755, dir_fd=parent)
        except FileExistsError:
            pass  # Opening it without following links says whether it is a directory.
        try:
            directory = os.open(name, _DIRECTORY, dir_fd=parent)
        except NotADirectoryError as error:
            raise UnsafeArchiveError(f"{entry.name!r} is a link or file already") from error
        try:
            os.fchmod(directory, (entry.mode & 0o777) | 0o700)  # What we could not enter could not be filled.
        finally:
            os.close(directory)

    def _link(self, parent: int, parts: list[str], entry: tarfile.TarInfo) -> None:
        if _leads_out(entry.linkname, depth=len(parts) - 1):
            if not self.skip_outward_links:
                raise UnsafeArchiveError(
                    f"the link {entry.name!r} leads out of the target",
                    detail=f"to {entry.linkname[:200]!r}",
                    resolution="download with skip_outward_links to leave such links out",
                )
            self.left_out.append(entry.name)
            return
        _clear(parent, parts[-1])
        os.symlink(entry.linkname, parts[-1], dir_fd=parent)
        self._files.discard("/".join(parts))

    def _hard_link(self, parent: int, parts: list[str], entry: tarfile.TarInfo, stack: ExitStack) -> None:
        source = self._parts(entry.linkname)
        if "/".join(source) not in self._files:
            raise UnsafeArchiveError(f"the hard link {entry.name!r} names no file of the archive")
        if source == parts:
            return
        source_parent = self._open_parent(source, stack)
        _clear(parent, parts[-1])
        os.link(source[-1], parts[-1], src_dir_fd=source_parent, dst_dir_fd=parent, follow_symlinks=False)
        self._files.add("/".join(parts))

    def _write(self, parent: int, parts: list[str], tar: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
        _clear(parent, parts[-1])
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        content = tar.extractfile(entry)
        assert content is not None
        with os.fdopen(os.open(parts[-1], flags, 0o600, dir_fd=parent), "wb", buffering=0) as file:
            while piece := content.read(CHUNK_BYTES):
                file.write(piece)
            os.fchmod(file.fileno(), entry.mode & 0o777)
            os.utime(file.fileno(), (entry.mtime, entry.mtime))
        self._files.add("/".join(parts))


def _leads_out(link: str, *, depth: int) -> bool:
    """Tell whether a link in a directory `depth` below the target may lead out of it."""
    if posixpath.isabs(link) or "\0" in link or not link:
        return True
    parts = [part for part in link.split("/") if part not in ("", ".")]
    ups = 0
    while ups < len(parts) and parts[ups] == "..":
        ups += 1
    return ups > depth or ".." in parts[ups:]


def _clear(parent: int, name: str) -> None:
    """Remove a file or link that stands in the way; a directory there is an error."""
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        pass  # Nothing is in the way.
    except IsADirectoryError as error:
        raise UnsafeArchiveError(f"{name!r} is a directory already") from error


async def unpack_stream(
    archive: AsyncIterable[bytes],
    target: Path,
    *,
    limits: UnpackLimits = DEFAULT_UNPACK_LIMITS,
    skip_outward_links: bool = False,
) -> Unpacked:
    """Do what `unpack` does, in a worker thread that is fed from this task."""
    feed, food = anyio.create_memory_object_stream[bytes](2)
    outcome: list[Unpacked | DsecError] = []

    async def work() -> None:
        with food:
            try:
                outcome.append(
                    await to_thread.run_sync(
                        lambda: unpack(_pulled(food), target, limits=limits, skip_outward_links=skip_outward_links)
                    )
                )
            except DsecError as error:
                outcome.append(error)

    failure: DsecError | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(work)
        with feed:
            try:
                async for chunk in archive:
                    await feed.send(chunk)
            except anyio.BrokenResourceError:
                pass  # The worker gave up and says why.
            except DsecError as error:
                failure = error  # What made the stream end early explains more than that it ended.
    result = outcome[0]
    if failure is not None or isinstance(result, DsecError):
        raise failure or result  # type: ignore[misc]  # One of them is an error, as the line above says.
    return result


def _pulled(food: MemoryObjectReceiveStream[bytes]) -> Iterator[bytes]:
    while True:
        try:
            yield from_thread.run(food.receive)
        except anyio.EndOfStream:
            return
