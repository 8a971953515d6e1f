"""Parse a tar stream as it arrives: ustar, pax and GNU long names. Pure: bytes in, events out, no files.

The archive comes from outside and is taken apart with bounds on everything that would be kept: names, pax records,
entries. What a plain archive of files, directories and links has no need of is refused by name: devices, FIFOs,
sparse files, volumes, unknown types.

Sources: pax interchange format (POSIX.1-2017, pax, "ustar Interchange Format" and "pax Extended Header"); GNU tar
manual, "Basic Tar Format".
"""

from __future__ import annotations

import enum
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError, UnsafeArchiveError
from dsec.base.units import KIB, TIB
from dsec.model.files import MAXIMUM_PATH_BYTES
from dsec.runtimes.container.file_errors import show

MAXIMUM_ENTRIES = 1_000_000
MAXIMUM_BYTES = 1 * TIB
"""Sum of the sizes that entries declare. The disk quota bites long before; this stops nonsense at its header."""

MAXIMUM_DEPTH = 256
MAXIMUM_NAME_BYTES = 255
MAXIMUM_EXTENSION_BYTES = 64 * KIB
"""A pax header or GNU long name; two paths of 4 KiB and some extended attributes are far below."""

BLOCK_BYTES = 512
_ENCODING = "utf-8"
_LATEST_S = float(1 << 33)
"""Times are cut to what file systems can say (the year 2242)."""

_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd")


class EntryKind(enum.Enum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    HARD_LINK = "hard link"


@dataclass(frozen=True, slots=True)
class TarEntry:
    """A checked header.

    Attributes:
        parts: the components of the name, without ``.``; none for the archive's own root.
        size_bytes: content that follows (files only).
        target: what a symbolic link says (any bytes); empty otherwise.
        target_parts: components of a hard link's target.
        mode: permission bits and the sticky bit; set-user-id and set-group-id are dropped (commands run with
            no_new_privs, where they have no effect).
    """

    kind: EntryKind
    parts: tuple[bytes, ...]
    size_bytes: int
    mode: int
    uid: int
    gid: int
    modified_at_s: float
    target: bytes = b""
    target_parts: tuple[bytes, ...] = ()

    @property
    def name(self) -> bytes:
        return b"/".join(self.parts)


_KINDS = {
    tarfile.REGTYPE: EntryKind.FILE,
    tarfile.AREGTYPE: EntryKind.FILE,
    tarfile.CONTTYPE: EntryKind.FILE,
    tarfile.DIRTYPE: EntryKind.DIRECTORY,
    tarfile.SYMTYPE: EntryKind.SYMLINK,
    tarfile.LNKTYPE: EntryKind.HARD_LINK,
}
_REFUSED = {
    tarfile.CHRTYPE: "a character device",
    tarfile.BLKTYPE: "a block device",
    tarfile.FIFOTYPE: "a FIFO",
    tarfile.GNUTYPE_SPARSE: "a sparse file",
    b"M": "the continuation of another volume",
}
_EXTENSIONS = frozenset({b"x", b"X", b"g", tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, b"V"})


class _State(enum.Enum):
    HEADER = "header"
    EXTENSION = "extension"
    CONTENT = "content"
    ENDED = "ended"


class TarParser:
    """Feed it chunks; it yields each entry, then that entry's content as memoryviews of the chunk."""

    def __init__(self) -> None:
        self._state = _State.HEADER
        self._partial = bytearray()
        self._left_bytes = 0
        self._padding_bytes = 0
        self._extension_type = b""
        self._records: dict[str, bytes] = {}
        self._offset_bytes = 0
        self._entries = 0
        self._total_bytes = 0

    @property
    def ended(self) -> bool:
        """Whether the end-of-archive mark was seen."""
        return self._state is _State.ENDED

    def check_ended(self) -> None:
        """Raise `InvalidRequestError` when the archive was cut off."""
        if not self.ended:
            raise InvalidRequestError(
                "the archive is cut off",
                detail=f"{self._offset_bytes} bytes came, without the end-of-archive mark",
                resolution="send the whole tar stream, including the zero blocks at its end",
            )

    def feed(self, data: bytes) -> Iterator[TarEntry | memoryview]:
        """Yield what becomes known by these bytes. What follows the end of the archive is ignored."""
        view = memoryview(data)
        while view and self._state is not _State.ENDED:
            if self._padding_bytes and self._left_bytes == 0:
                view = self._skip_padding(view)
            elif self._state is _State.CONTENT:
                part = view[: self._left_bytes]
                view = self._consume(view, len(part))
                self._end_content_if_complete()
                yield part
            else:
                view, entry = self._gather(view)
                if entry is not None:
                    yield entry

    @property
    def content_left_bytes(self) -> int:
        """How much of the present entry's content is still to come."""
        return self._left_bytes if self._state is _State.CONTENT else 0

    def skip_content(self, count: int) -> None:
        """Account for content that went past the parser: at most `content_left_bytes`."""
        self._left_bytes -= count
        self._offset_bytes += count
        self._end_content_if_complete()

    def _consume(self, view: memoryview, count: int) -> memoryview:
        self._left_bytes -= count
        self._offset_bytes += count
        return view[count:]

    def _skip_padding(self, view: memoryview) -> memoryview:
        count = min(self._padding_bytes, len(view))
        self._padding_bytes -= count
        self._offset_bytes += count
        return view[count:]

    def _end_content_if_complete(self) -> None:
        if self._left_bytes == 0:
            self._state = _State.HEADER

    def _gather(self, view: memoryview) -> tuple[memoryview, TarEntry | None]:
        """Collect a header block or an extension's content; act on it when it is complete."""
        needed = BLOCK_BYTES if self._state is _State.HEADER else self._left_bytes + len(self._partial)
        part = view[: needed - len(self._partial)]
        self._partial += part
        self._offset_bytes += len(part)
        if self._state is _State.EXTENSION:
            self._left_bytes -= len(part)
        if len(self._partial) < needed:
            return view[len(part) :], None
        complete = bytes(self._partial)
        self._partial.clear()
        if self._state is _State.EXTENSION:
            self._state = _State.HEADER
            self._apply_extension(complete)
            return view[len(part) :], None
        return view[len(part) :], self._header(complete)

    def _header(self, block: bytes) -> TarEntry | None:
        if not any(block):
            self._state = _State.ENDED
            return None
        info = self._parse_header(block)
        if info.type in _EXTENSIONS:
            self._begin_extension(info)
            return None
        records, self._records = self._records, {}
        entry = _checked_entry(info, block, records)
        self._count(entry)
        if entry.kind is EntryKind.FILE and entry.size_bytes:
            self._state = _State.CONTENT
            self._begin_payload(entry.size_bytes)
        return entry

    def _parse_header(self, block: bytes) -> tarfile.TarInfo:
        try:
            return tarfile.TarInfo.frombuf(block, _ENCODING, "surrogateescape")
        except (tarfile.HeaderError, ValueError) as error:
            packed = self._offset_bytes == BLOCK_BYTES and block.startswith(_COMPRESSED)
            raise InvalidRequestError(
                "the archive is compressed" if packed else "the data is not a tar archive",
                detail=f"at byte {self._offset_bytes - BLOCK_BYTES}: {error}",
                resolution="send a plain tar stream",
            ) from error

    def _begin_payload(self, size_bytes: int) -> None:
        self._left_bytes = size_bytes
        self._padding_bytes = -size_bytes % BLOCK_BYTES

    def _begin_extension(self, info: tarfile.TarInfo) -> None:
        if not 0 <= info.size <= MAXIMUM_EXTENSION_BYTES:
            raise UnsafeArchiveError(
                f"an extended header of {info.size} bytes",
                detail=f"at byte {self._offset_bytes - BLOCK_BYTES}",
                resolution=f"extended headers have at most {MAXIMUM_EXTENSION_BYTES} bytes",
            )
        self._extension_type = info.type
        self._begin_payload(info.size)
        if info.size:
            self._state = _State.EXTENSION

    def _apply_extension(self, content: bytes) -> None:
        if self._extension_type == tarfile.GNUTYPE_LONGNAME:
            self._records["path"] = content.rstrip(b"\0")
        elif self._extension_type == tarfile.GNUTYPE_LONGLINK:
            self._records["linkpath"] = content.rstrip(b"\0")
        elif self._extension_type in (b"x", b"X"):
            self._records.update(_kept(parse_pax_records(content)))
        elif self._extension_type == b"g":
            _check_global(parse_pax_records(content))

    def _count(self, entry: TarEntry) -> None:
        self._entries += 1
        self._total_bytes += entry.size_bytes
        if self._entries > MAXIMUM_ENTRIES:
            raise _unsafe(
                entry.name, f"it is entry number {self._entries}", f"archive at most {MAXIMUM_ENTRIES} entries"
            )
        if self._total_bytes > MAXIMUM_BYTES:
            raise _unsafe(
                entry.name, f"the archive declares {self._total_bytes} bytes so far", f"{MAXIMUM_BYTES} are allowed"
            )


def parse_pax_records(content: bytes) -> dict[str, bytes]:
    """Return the records ``length keyword=value`` of an extended header. Later ones win."""
    records: dict[str, bytes] = {}
    at = 0
    while at < len(content) and content[at]:
        digits, space, _ = content[at : at + 8].partition(b" ")
        length = int(digits) if space and digits.isdigit() else 0
        record = content[at : at + length]
        keyword, equals, value = record[len(digits) + 1 : -1].partition(b"=")
        if not equals or len(record) != length or not record.endswith(b"\n"):
            raise InvalidRequestError("an extended header of the archive is malformed", resolution="send a valid tar")
        records[keyword.decode(_ENCODING, "replace")] = value
        at += length
    return records


_MEANINGFUL = frozenset({"path", "linkpath", "size", "uid", "gid", "mtime"})
_SPARSE = "GNU.sparse."


def _kept(records: dict[str, bytes]) -> dict[str, bytes]:
    """Return only what entries are judged by, so that header upon header without an entry does not add up."""
    kept = {keyword: value for keyword, value in records.items() if keyword in _MEANINGFUL}
    if any(keyword.startswith("GNU.sparse.") for keyword in records):
        kept[_SPARSE] = b""
    return kept


def _check_global(records: dict[str, bytes]) -> None:
    """Refuse global headers that would change entries; a comment, as git archive writes, is fine."""
    if meaningful := sorted(_MEANINGFUL & records.keys()):
        raise UnsafeArchiveError(
            f"the archive sets {', '.join(meaningful)} for all its entries", resolution="write plain pax archives"
        )


def _unsafe(name: bytes, why: str, resolution: str) -> UnsafeArchiveError:
    return UnsafeArchiveError(f"the archive entry {show(name)} is refused: {why}", resolution=resolution)


def _checked_entry(info: tarfile.TarInfo, block: bytes, records: dict[str, bytes]) -> TarEntry:
    name = records.get("path", info.name.encode(_ENCODING, "surrogateescape"))
    if _SPARSE in records:
        raise _unsafe(name, "it is a sparse file", "archive without --sparse")
    kind = _kind(info, block, name, records)
    link = records.get("linkpath", info.linkname.encode(_ENCODING, "surrogateescape"))
    size = _number(records, "size", info.size, name)
    if size < 0:
        raise _unsafe(name, "its size is negative", "write a valid tar")
    return TarEntry(
        kind=kind,
        parts=split_name(name, name),
        size_bytes=size if kind is EntryKind.FILE else _no_content(size, name),
        mode=info.mode & 0o1777,
        uid=_number(records, "uid", info.uid, name),
        gid=_number(records, "gid", info.gid, name),
        modified_at_s=_time(records, info.mtime, name),
        target=_checked_target(link, name) if kind is EntryKind.SYMLINK else b"",
        target_parts=split_name(link, name) if kind is EntryKind.HARD_LINK else (),
    )


def _no_content(size: int, name: bytes) -> int:
    """Directories and links have none; programs that write their size all the same would put us out of step."""
    if size:
        raise _unsafe(name, f"it has {size} bytes of content but is no file", "write plain pax archives")
    return 0


def _kind(info: tarfile.TarInfo, block: bytes, name: bytes, records: dict[str, bytes]) -> EntryKind:
    if info.type in _REFUSED:
        raise _unsafe(name, f"it is {_REFUSED[info.type]}", "archive files, directories and links only")
    kind = _KINDS.get(info.type)
    if kind is None:
        raise _unsafe(name, f"its type {info.type!r} is not known", "archive files, directories and links only")
    if kind is EntryKind.FILE and name.endswith(b"/"):
        return EntryKind.DIRECTORY  # The oldest archives have no other mark.
    return kind


def split_name(name: bytes, entry_name: bytes) -> tuple[bytes, ...]:
    """Return the components of a name. Raises `UnsafeArchiveError` for what could lead out or has no bound."""
    if not name or name.startswith(b"/") or b"\0" in name:
        raise _unsafe(entry_name, "its name is absolute, empty or holds NUL", "archive relative names (tar -C DIR .)")
    if len(name) > MAXIMUM_PATH_BYTES:
        raise _unsafe(entry_name, f"a name of {len(name)} bytes", f"names have at most {MAXIMUM_PATH_BYTES}")
    parts = tuple(part for part in name.split(b"/") if part not in (b"", b"."))
    if b".." in parts:
        raise _unsafe(entry_name, "its name climbs with ..", "archive relative names (tar -C DIR .)")
    if len(parts) > MAXIMUM_DEPTH:
        raise _unsafe(entry_name, f"it is {len(parts)} levels deep", f"at most {MAXIMUM_DEPTH} are allowed")
    if any(len(part) > MAXIMUM_NAME_BYTES for part in parts):
        raise _unsafe(entry_name, "a component is too long", f"components have at most {MAXIMUM_NAME_BYTES} bytes")
    return parts


def _checked_target(link: bytes, name: bytes) -> bytes:
    if not link or b"\0" in link or len(link) >= MAXIMUM_PATH_BYTES:
        raise _unsafe(name, "the link's target is empty, too long or holds NUL", "write a valid link")
    return link


def _number(records: dict[str, bytes], keyword: str, fallback: int, name: bytes) -> int:
    text = records.get(keyword)
    if text is None:
        return fallback
    if not text.isdigit() or len(text) > 19:
        raise _unsafe(name, f"its {keyword} is not a number", "write a valid tar")
    return int(text)


def _time(records: dict[str, bytes], fallback: float, name: bytes) -> float:
    text = records.get("mtime")
    try:
        seconds = fallback if text is None else float(text)
    except ValueError as error:
        raise _unsafe(name, "its mtime is not a number", "write a valid tar") from error
    return min(max(seconds, 0.0), _LATEST_S) if seconds == seconds else 0.0
