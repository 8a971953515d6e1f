"""The newest rounds of an episode, as many as who decides can be shown; older ones are in the log and nowhere else.

An episode of ten thousand rounds so takes no more memory than one of fifty. Nor does it take what its texts weigh:
while a model thinks nobody reads them, so that rounds are kept packed, and unpacked one by one as they are read. One of
some kilobytes opens in tens of microseconds. The newest stay in memory, and the others go to a file where there is one
(`Spill`). The newest round is always there, however long it is.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import msgspec

from dsec.base.units import KIB, MIB
from dsec.episode.failure_kinds import is_useless
from dsec.episode.operations import RoundRecord
from dsec.episode.tools import CommandOutput, FileContent, OutsideAnswer
from dsec.worker.episodes.spill import Place, Spill

DEFAULT_WINDOW_BYTES = 1 * MIB
_RECORD_BYTES = 1 * KIB
"""About what a round takes beside its texts."""
_MEMORY_BYTES = 48 * KIB
"""Of packed rounds that stay in memory where there is a file for the others."""
_ENCODER, _DECODER = msgspec.json.Encoder(), msgspec.json.Decoder(RoundRecord)
_FASTEST = 1


@dataclass(slots=True)
class _Kept:
    """A packed round: it or where it is, and about how long it is when it is shown."""

    packed: bytes | Place
    size: int


class RoundWindow(Sequence[RoundRecord]):
    """Implements a sequence of the newest rounds. To be closed where it has a file.

    Args:
        rounds: the rounds so far, or the newest of them.
        limit_bytes: about how much to keep, as it is shown; packed it is less.
        spill: takes what is not among the newest; it is the window's own. None: all is kept in memory.

    Attributes:
        useless: how many of the newest rounds in a row held nothing that could be carried out.
    """

    def __init__(
        self,
        rounds: Iterable[RoundRecord] = (),
        *,
        limit_bytes: int = DEFAULT_WINDOW_BYTES,
        spill: Spill | None = None,
    ) -> None:
        self._limit_bytes = limit_bytes
        self._spill = spill
        self._kept: deque[_Kept] = deque()
        self._bytes = 0
        self._in_memory: deque[_Kept] = deque()
        self._memory_bytes = 0
        self.useless = 0
        for record in rounds:
            self.append(record)

    def append(self, record: RoundRecord) -> None:
        """Take the newest round in, and let go of the oldest that are too much."""
        packed = zlib.compress(_ENCODER.encode(record), _FASTEST)
        kept = _Kept(packed, _size(record))
        self._kept.append(kept)
        self._bytes += kept.size
        self.useless = self.useless + 1 if is_useless(record) else 0
        while self._bytes > self._limit_bytes and len(self._kept) > 1:
            self._bytes -= self._kept.popleft().size
        if self._spill is not None:
            self._in_memory.append(kept)
            self._memory_bytes += len(packed)
            self._put_away(self._spill)

    def close(self) -> None:
        """Let go of the file; nothing can be read any more. Idempotent."""
        self._kept.clear()
        self._in_memory.clear()
        if self._spill is not None:
            self._spill.close()

    def _put_away(self, spill: Spill) -> None:
        while self._memory_bytes > _MEMORY_BYTES and len(self._in_memory) > 1:
            oldest = self._in_memory.popleft()
            assert isinstance(oldest.packed, bytes)
            self._memory_bytes -= len(oldest.packed)
            # Where there is no room, it stays in memory.
            oldest.packed = spill.put(oldest.packed) or oldest.packed
        first = self._kept[0].packed
        if isinstance(first, tuple) and spill.wants_room(first):
            self._put_together(spill)

    def _put_together(self, spill: Spill) -> None:
        """Write what is still kept anew, from the beginning of the file."""
        away = [(kept, spill.get(kept.packed)) for kept in self._kept if isinstance(kept.packed, tuple)]
        spill.clear()
        for kept, packed in away:
            kept.packed = spill.put(packed) or packed

    def _read(self, kept: _Kept) -> RoundRecord:
        packed = kept.packed
        if isinstance(packed, tuple):
            assert self._spill is not None
            packed = self._spill.get(packed)
        return _unpacked(packed)

    def _all_packed(self) -> list[bytes]:
        """Return all rounds; those that were put away lie one behind the other, and are read at once."""
        away = [kept.packed for kept in self._kept if isinstance(kept.packed, tuple)]
        if not away:
            return [kept.packed for kept in self._kept if isinstance(kept.packed, bytes)]
        assert self._spill is not None
        first, end = away[0][0], sum(away[-1])
        data = self._spill.get((first, end - first))
        return [
            kept.packed if isinstance(kept.packed, bytes) else data[kept.packed[0] - first : sum(kept.packed) - first]
            for kept in self._kept
        ]

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[RoundRecord]:
        return map(_unpacked, self._all_packed())

    def __reversed__(self) -> Iterator[RoundRecord]:
        return map(_unpacked, reversed(self._all_packed()))

    @overload
    def __getitem__(self, place: int) -> RoundRecord: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[RoundRecord]: ...

    def __getitem__(self, place: int | slice) -> RoundRecord | Sequence[RoundRecord]:
        if isinstance(place, slice):
            return [self._read(kept) for kept in list(self._kept)[place]]
        return self._read(self._kept[place])


def _unpacked(packed: bytes) -> RoundRecord:
    return _DECODER.decode(zlib.decompress(packed))


def _size(record: RoundRecord) -> int:
    size = _RECORD_BYTES + 2 * (len(record.decision.message) + len(record.decision.answer.text))
    for result in record.results:
        match result:
            case CommandOutput():
                size += len(result.stdout.text) + len(result.stdout.raw) + len(result.stderr.text)
            case FileContent() | OutsideAnswer():
                size += len(result.content.text) + len(result.content.raw)
            case _:
                pass
    return size
