"""How contents are cut into chunks. Pure; the format does not depend on it, only what is shared and what it costs.

- Long ranges are cut at multiples of `CHUNK_BYTES` from the beginning of the file, so that copies of a file in which a
  few blocks differ share the rest.
- Short ranges and small files go together into one chunk of about `GROUP_BYTES`: a chunk costs some 60 us and 41 bytes,
  whatever its size. Where a group ends is told by the paths in it, so that two trees that differ in one small file
  have the same groups but for one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from dsec.state.diff import Content

CHUNK_BYTES = 128 << 10
GROUP_BYTES = 64 << 10
_SHORT_BYTES = 32 << 10
_FILES_OF_A_GROUP = 16
"""A group ends, on average, after so many files."""


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes of one file that a chunk is to hold."""

    path: bytes
    start: int
    length: int


@dataclass(slots=True)
class _Group:
    parts: list[Part] = field(default_factory=list)
    size: int = 0

    def take(self) -> list[Part]:
        parts, self.parts, self.size = self.parts, [], 0
        return parts


def cut(contents: Iterable[tuple[bytes, Content]]) -> Iterator[list[Part]]:
    """Yield the parts of each chunk for some files, given in the order of paths. No chunk is empty."""
    group = _Group()
    for path, content in contents:
        if group.parts and zlib.crc32(path) % _FILES_OF_A_GROUP == 0:
            yield group.take()
        for each in content.ranges:
            if each.end - each.start >= _SHORT_BYTES:
                yield from ([part] for part in _pieces(path, each.start, each.end))
                continue
            group.parts.append(Part(path, each.start, each.end - each.start))
            group.size += each.end - each.start
            if group.size >= GROUP_BYTES:
                yield group.take()
    if group.parts:
        yield group.take()


def _pieces(path: bytes, start: int, end: int) -> Iterator[Part]:
    while start < end:
        last = min(end, (start // CHUNK_BYTES + 1) * CHUNK_BYTES)
        yield Part(path, start, last - start)
        start = last
