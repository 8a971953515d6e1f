"""Sparse files in tar archives: where the pieces lie whose bytes the archive holds. All between them are zeros.

GNU tar writes three kinds that are understood: its old type ``S`` with a map in the header and in blocks behind it, and
pax archives of versions 0.1 (the map is a record) and 1.0 (it lies before the content). Version 0.0 repeats records of
one name, which no other reader needs, and is refused.

A map is checked before a byte is written: pieces in order, none over another, all within the file's size, and together
as long as what the archive holds.

Source: GNU tar manual, "Storing Sparse Files".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dsec.base.units import MIB

_MAXIMUM_PIECES = 1_000_000
_MAXIMUM_DIGITS = 20
_BLOCK_BYTES = 512
_OLD_MAP_START, _OLD_MAP_PIECES, _OLD_IS_LONGER, _OLD_SIZE = 386, 4, 482, 483
_BLOCK_PIECES, _BLOCK_IS_LONGER = 21, 504
_NUMBER_BYTES = 12

Piece = tuple[int, int]
"""Offset in the file, and length."""
Number = Callable[[bytes], int]
"""Parses a field of a header."""


class BadSparseMapError(ValueError):
    """The map of a sparse file contradicts itself, or is of a version that is not understood."""


@dataclass(frozen=True, slots=True)
class SparseMap:
    """Size of a file, and the pieces of it that the archive holds."""

    size_bytes: int
    pieces: tuple[Piece, ...]

    @property
    def stored_bytes(self) -> int:
        return sum(length for _, length in self.pieces)

    def checked(self, stored_bytes: int) -> SparseMap:
        """Return this map. Raises `BadSparseMapError` unless it fits itself and what the archive holds."""
        end = 0
        for offset, length in self.pieces:
            if offset < end or length < 0:
                raise BadSparseMapError("pieces of it overlap")
            end = offset + length
        if end > self.size_bytes or self.stored_bytes != stored_bytes:
            raise BadSparseMapError("its map does not fit its size")
        return self


def old_gnu(header: bytes, read: Callable[[int], bytes], number: Number) -> SparseMap:
    """Return the map of a file of type ``S``; `read` gives the blocks behind the header."""
    fields = header[_OLD_MAP_START:]
    pieces = list(_fields(fields, _OLD_MAP_PIECES, number))
    is_longer = header[_OLD_IS_LONGER]
    while is_longer:
        block = read(_BLOCK_BYTES)
        pieces += _fields(block, _BLOCK_PIECES, number)
        is_longer = block[_BLOCK_IS_LONGER]
        _check_count(len(pieces))
    return SparseMap(number(header[_OLD_SIZE : _OLD_SIZE + _NUMBER_BYTES]), tuple(pieces))


def _fields(block: bytes, count: int, number: Number) -> Iterator[Piece]:
    for start in range(0, count * 2 * _NUMBER_BYTES, 2 * _NUMBER_BYTES):
        offset, length = block[start : start + _NUMBER_BYTES], block[start + _NUMBER_BYTES : start + 2 * _NUMBER_BYTES]
        if not offset.strip(b" \0"):
            return
        yield number(offset), number(length)


def is_sparse(pax: Mapping[bytes, bytes]) -> bool:
    """Tell whether pax records say that the file is sparse."""
    return any(key.startswith(b"GNU.sparse") for key in pax)


def from_records(pax: Mapping[bytes, bytes]) -> SparseMap | None:
    """Return the map that pax records hold (0.1); None: it lies before the content (1.0)."""
    if (pax.get(b"GNU.sparse.major"), pax.get(b"GNU.sparse.minor")) == (b"1", b"0"):
        return None
    listed = pax.get(b"GNU.sparse.map")
    if listed is None:
        raise BadSparseMapError("it is a sparse file of a version that is not understood")
    numbers = [_digits(text) for text in listed.split(b",")] if listed else []
    return _paired(_digits(pax.get(b"GNU.sparse.size", b"")), numbers)


def from_content(pax: Mapping[bytes, bytes], read: Callable[[int], bytes]) -> SparseMap:
    """Return the map that lies before the content: decimal numbers, one a line, in whole blocks."""
    lines = _lines(read)
    count = next(lines)
    _check_count(count)
    numbers = [next(lines) for _ in range(2 * count)]
    return _paired(_digits(pax.get(b"GNU.sparse.realsize", b"")), numbers)


def _lines(read: Callable[[int], bytes]) -> Iterator[int]:
    pending = b""
    while True:
        line, newline, rest = pending.partition(b"\n")
        if newline:
            yield _digits(line)
            pending = rest
        elif len(pending) > _MAXIMUM_DIGITS:
            raise BadSparseMapError("its map holds no number")
        else:
            more = read(_BLOCK_BYTES)
            if not more:
                raise BadSparseMapError("its map is cut off")
            pending += more


def _paired(size_bytes: int, numbers: Sequence[int]) -> SparseMap:
    _check_count(len(numbers) // 2)
    if len(numbers) % 2:
        raise BadSparseMapError("its map is cut off")
    return SparseMap(size_bytes, tuple(zip(numbers[::2], numbers[1::2], strict=True)))


def _digits(text: bytes) -> int:
    if not text.isdigit() or len(text) > _MAXIMUM_DIGITS:
        raise BadSparseMapError(f"{text[:40]!r} of its map is not a number")
    return int(text)


def _check_count(pieces: int) -> None:
    if pieces > _MAXIMUM_PIECES:
        raise BadSparseMapError(f"it has more than {_MAXIMUM_PIECES} pieces")


def zeros(count: int) -> Iterator[bytes]:
    """Yield so many zeros, in pieces."""
    while count > 0:
        yield bytes(min(count, MIB))
        count -= MIB
