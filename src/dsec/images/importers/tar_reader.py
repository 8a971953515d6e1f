"""Read tar streams strictly: every header is checked, and what is broken is an error, never the end.

Python's `tarfile` takes a damaged header in the middle for the end of the archive and reads an extended header of any
length into memory; a reader of images must do neither. Understood are ustar, the GNU extensions for long names and
big numbers, and pax headers with their ``SCHILY.xattr.*`` attributes. Names and attributes are bytes throughout.
Sparse files are those of `dsec.images.importers.sparse`.

Sources: POSIX.1-2017 pax, "ustar Interchange Format" and "pax Header Block"; GNU tar manual, "Basic Tar Format".
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from dsec.base.errors import InvalidRequestError, UnsafeArchiveError
from dsec.base.units import MIB
from dsec.images.entries import Entry, EntryKind
from dsec.images.importers.sparse import (
    BadSparseMapError,
    SparseMap,
    from_content,
    from_records,
    is_sparse,
    old_gnu,
    zeros,
)

BLOCK_BYTES = 512
_MAX_HEADER_BYTES = MIB
"""Longest extended header: far above a path of 4 KiB and attributes of 64 KiB."""
_MAX_RECORDS = 1000
"""Records of an entry: those of a global header are looked at for each of millions of entries."""

_KINDS = {
    b"0": EntryKind.FILE,
    b"\0": EntryKind.FILE,
    b"7": EntryKind.FILE,
    b"1": EntryKind.HARD_LINK,
    b"2": EntryKind.SYMBOLIC_LINK,
    b"3": EntryKind.CHARACTER_DEVICE,
    b"4": EntryKind.BLOCK_DEVICE,
    b"5": EntryKind.DIRECTORY,
    b"6": EntryKind.FIFO,
    b"S": EntryKind.FILE,
}
_MAX_MAJOR, _MAX_MINOR = (1 << 12) - 1, (1 << 20) - 1
"""Of Linux's device numbers."""
_XATTR = b"SCHILY.xattr."
_Pax = dict[bytes, bytes]


class ByteStream(Protocol):
    """What a tar is read from."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; empty at the end."""


class TarReader:
    """Iterate over the entries of a tar stream. `content` yields the bytes of the entry that was returned last.

    Args:
        stream: where to read.
        is_verified: a digest says whether the stream is whole. Then it may end behind a file's content without padding
            and end marker, as the layers that some tools write do; otherwise that is how a cut-off archive looks.
    """

    def __init__(self, stream: ByteStream, *, is_verified: bool = False) -> None:
        self._stream = stream
        self._is_verified = is_verified
        self._ahead = b""
        self._offset = 0
        self._left = 0
        self._padding = 0
        self._sparse: SparseMap | None = None
        self._global: _Pax = {}

    def __iter__(self) -> Iterator[Entry]:
        while (entry := self._next()) is not None:
            yield entry

    def content(self) -> Iterator[bytes]:
        """Yield what is left of the current file's content; of a sparse one, with the zeros that are not stored."""
        sparse, self._sparse = self._sparse, None
        end = 0
        for offset, length in () if sparse is None else sparse.pieces:
            yield from zeros(offset - end)
            yield from self._stored(length)
            end = offset + length
        if sparse is not None:
            yield from zeros(sparse.size_bytes - end)
        yield from self._stored(self._left)

    def _stored(self, count: int) -> Iterator[bytes]:
        """Yield the next bytes that the archive holds of the current file."""
        while count:
            chunk = self._read(min(count, MIB))
            count -= len(chunk)
            self._left -= len(chunk)
            yield chunk

    def _skip(self) -> None:
        self._sparse = None  # Nobody wants its zeros.
        for _ in self.content():
            pass

    def _next(self) -> Entry | None:
        """Return the next entry, with the extended headers before it applied; None at the end of the archive."""
        pax, long_name, long_link = dict(self._global), None, None
        while True:
            self._skip()  # The caller did not want the rest of the last entry.
            header = self._header()
            if header is None:
                return None
            if header.kind == b"x":
                pax.update(_parse_pax(self._extended(header), self._where()))
            elif header.kind == b"g":
                self._global.update(_parse_pax(self._extended(header), self._where()))
                pax = dict(self._global) | pax
            elif header.kind == b"L":
                long_name = self._extended(header).rstrip(b"\0")
            elif header.kind == b"K":
                long_link = self._extended(header).rstrip(b"\0")
            else:
                return self._entry(header, pax, long_name, long_link)
            _check_records(header, pax)

    def _header(self) -> _Header | None:
        if self._is_verified and self._at_end():
            return None
        self._read(self._padding)
        block = self._read(BLOCK_BYTES)
        if block.count(0) == BLOCK_BYTES:
            return None
        header = _parse_header(block, self._where())
        self._left, self._padding = header.size_bytes, -header.size_bytes % BLOCK_BYTES
        return header

    def _at_end(self) -> bool:
        """Read the padding before the next header and its first byte; return whether there was none."""
        while self._padding and (data := self._stream.read(self._padding)):
            self._padding -= len(data)
            self._offset += len(data)
        self._ahead = self._stream.read(1)
        return not self._ahead

    def _extended(self, header: _Header) -> bytes:
        if header.size_bytes > _MAX_HEADER_BYTES:
            raise UnsafeArchiveError(
                f"the archive's entry {header.name[:200]!r} is refused: its extended header has {header.size_bytes} "
                f"bytes, more than {_MAX_HEADER_BYTES}"
            )
        return b"".join(self.content())

    def _entry(self, header: _Header, pax: _Pax, long_name: bytes | None, long_link: bytes | None) -> Entry:
        path = pax.get(b"path", long_name if long_name is not None else header.name)
        kind = _KINDS.get(header.kind)
        if kind is None:
            raise _refused(path, f"its type {header.kind!r} is not known", "use a plain tar archive (tar --format=pax)")
        if kind is EntryKind.FILE and path.endswith(b"/"):
            kind = EntryKind.DIRECTORY  # How archives before ustar said so.
        # Only files have content; the size that some writers give links and directories means nothing.
        size = _pax_int(pax, b"size", header.size_bytes, path) if kind is EntryKind.FILE else 0
        self._left, self._padding = size, -size % BLOCK_BYTES
        if kind is EntryKind.FILE and (header.kind == b"S" or is_sparse(pax)):
            path = pax.get(b"GNU.sparse.name", path)
            size = self._sparse_size(header, pax, path)
        return Entry(
            path=path,
            kind=kind,
            mode=header.mode & 0o7777,
            uid=_pax_int(pax, b"uid", header.uid, path),
            gid=_pax_int(pax, b"gid", header.gid, path),
            mtime_s=_pax_seconds(pax, header.mtime_s, path),
            size_bytes=size,
            link=pax.get(b"linkpath", long_link if long_link is not None else header.link),
            device=_device(header, path),
            xattrs={key[len(_XATTR) :]: value for key, value in pax.items() if key.startswith(_XATTR)},
        )

    def _sparse_size(self, header: _Header, pax: _Pax, path: bytes) -> int:
        """Read the map of a sparse file and return the file's size."""
        try:
            if header.kind == b"S":
                found = old_gnu(header.block, self._read, lambda field: _size(field, self._where()))
            else:
                found = from_records(pax) or from_content(
                    pax, lambda count: b"".join(self._stored(min(count, self._left)))
                )
            self._sparse = found.checked(self._left)
        except BadSparseMapError as error:
            raise _refused(path, str(error), "make the archive again without tar's --sparse") from error
        return found.size_bytes

    def _read(self, size: int) -> bytes:
        """Return exactly `size` bytes."""
        if not size:
            return b""
        data, self._ahead = self._ahead, b""
        while len(data) < size:
            more = self._stream.read(size - len(data))
            if not more:
                raise InvalidRequestError(
                    f"the archive ends in the middle, after {self._offset + len(data)} bytes",
                    resolution="copy or make it again; it is cut off",
                )
            data += more
        self._offset += size
        return data

    def _where(self) -> int:
        return self._offset - BLOCK_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class _Header:
    """The fields of a header block."""

    name: bytes
    mode: int
    uid: int
    gid: int
    size_bytes: int
    mtime_s: int
    kind: bytes
    link: bytes
    major: int
    minor: int
    block: bytes


def _parse_header(block: bytes, offset: int) -> _Header:
    stored = _number(block[148:156], offset)
    # The checksum counts its own field as eight spaces; some old writers summed signed bytes.
    unsigned = sum(block) - sum(block[148:156]) + 8 * 32
    if stored != unsigned and stored != unsigned - 256 * sum(byte > 127 for byte in block[:148] + block[156:]):
        raise _damaged(offset, "its checksum is wrong")
    name, prefix = _text(block[0:100]), b""
    is_ustar = block[257:263] == b"ustar\0"
    if is_ustar:
        prefix = _text(block[345:500])
    kind = block[156:157]
    is_device = kind in b"34" and block[257:262] == b"ustar"
    return _Header(
        name=prefix + b"/" + name if prefix else name,
        mode=_number(block[100:108], offset),
        uid=_number(block[108:116], offset),
        gid=_number(block[116:124], offset),
        size_bytes=_size(block[124:136], offset),
        mtime_s=_number(block[136:148], offset),
        kind=kind,
        link=_text(block[157:257]),
        major=_number(block[329:337], offset) if is_device else 0,
        minor=_number(block[337:345], offset) if is_device else 0,
        block=block,
    )


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes, offset: int) -> int:
    """Parse an octal number, or a base-256 one as GNU tar and star write them."""
    if field[0] & 0x80:
        value = int.from_bytes(field, "big") & ((1 << (8 * len(field) - 1)) - 1)
        return value - (1 << (8 * len(field) - 1)) if field[0] & 0x40 else value
    text = field.strip(b" \0")
    try:
        return int(text, 8) if text else 0
    except ValueError:
        raise _damaged(offset, f"{field!r} is not a number") from None


def _size(field: bytes, offset: int) -> int:
    size = _number(field, offset)
    if size < 0:
        raise _damaged(offset, f"its size is {size}")
    return size


def _parse_pax(data: bytes, offset: int) -> _Pax:
    """Parse records ``LENGTH KEY=VALUE\\n``, where the length counts the whole record."""
    found: _Pax = {}
    position = 0
    while position < len(data):
        space = data.find(b" ", position, position + 20)
        digits = data[position:space] if space > 0 else b""
        end = position + int(digits) if digits.isdigit() else 0
        key, equals, value = data[space + 1 : end].partition(b"=")
        if not (space < end <= len(data)) or not equals or not value.endswith(b"\n"):
            raise _damaged(offset, "its pax header is malformed")
        found[key] = value[:-1]
        position = end
    return found


def _pax_int(pax: _Pax, key: bytes, default: int, path: bytes) -> int:
    text = pax.get(key)
    if text is None:
        return default
    if not text.isdigit() or len(text) > 20:
        raise _refused(path, f"its {key.decode()} is {text[:40]!r}", "make the archive again")
    return int(text)


def _pax_seconds(pax: _Pax, default: int, path: bytes) -> float:
    text = pax.get(b"mtime")
    if text is None:
        return default
    try:
        whole = int(text.partition(b".")[0] or b"0")
    except ValueError:
        raise _refused(path, f"its mtime is {text[:40]!r}", "make the archive again") from None
    return whole


def _device(header: _Header, path: bytes) -> int:
    if not (0 <= header.major <= _MAX_MAJOR and 0 <= header.minor <= _MAX_MINOR):
        raise _refused(path, f"there is no device {header.major}:{header.minor}", "make the archive again without it")
    return os.makedev(header.major, header.minor)


def _check_records(header: _Header, pax: _Pax) -> None:
    """Bound what several extended headers of one entry add up to: each alone is bounded when it is read."""
    if len(pax) > _MAX_RECORDS:
        raise UnsafeArchiveError(
            f"the archive's entry {header.name[:200]!r} is refused: its extended headers hold more than "
            f"{_MAX_RECORDS} records"
        )
    if sum(len(key) + len(value) for key, value in pax.items()) > _MAX_HEADER_BYTES:
        raise UnsafeArchiveError(
            f"the archive's entry {header.name[:200]!r} is refused: its extended headers hold more than "
            f"{_MAX_HEADER_BYTES} bytes"
        )


def _refused(path: bytes, reason: str, resolution: str) -> UnsafeArchiveError:
    shown = path[:200].decode("utf-8", "backslashreplace")
    return UnsafeArchiveError(f"the archive's entry {shown!r} is refused: {reason}", resolution=resolution)


def _damaged(offset: int, reason: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"the archive is damaged, or is no tar: the header at byte {offset} is not one ({reason})",
        resolution="copy or make the archive again",
    )
