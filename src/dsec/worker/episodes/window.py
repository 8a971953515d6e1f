"""The newest rounds of an episode, as many as who decides can be shown; older ones are in the log and nowhere else.

An episode of ten thousand rounds so takes no more memory than one of fifty. Nor does it take what its texts weigh:
while a model thinks nobody reads them, so that rounds are kept packed, and unpacked one by one as they are read. One of
some kilobytes opens in tens of microseconds. The newest round is always there, however long it is.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import overload

import msgspec

from dsec.base.units import KIB, MIB
from dsec.episode.failure_kinds import is_useless
from dsec.episode.operations import RoundRecord
from dsec.episode.tools import CommandOutput, FileContent, OutsideAnswer

DEFAULT_WINDOW_BYTES = 1 * MIB
_RECORD_BYTES = 1 * KIB
"""About what a round takes beside its texts."""
_ENCODER, _DECODER = msgspec.json.Encoder(), msgspec.json.Decoder(RoundRecord)
_FASTEST = 1


class RoundWindow(Sequence[RoundRecord]):
    """Implements a sequence of the newest rounds.

    Args:
        rounds: the rounds so far, or the newest of them.
        limit_bytes: about how much to keep, as it is shown; packed it is less.

    Attributes:
        useless: how many of the newest rounds in a row held nothing that could be carried out.
    """

    def __init__(self, rounds: Iterable[RoundRecord] = (), *, limit_bytes: int = DEFAULT_WINDOW_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._packed: deque[tuple[bytes, int]] = deque()
        self._bytes = 0
        self.useless = 0
        for record in rounds:
            self.append(record)

    def append(self, record: RoundRecord) -> None:
        """Take the newest round in, and let go of the oldest that are too much."""
        size = _size(record)
        self._packed.append((zlib.compress(_ENCODER.encode(record), _FASTEST), size))
        self._bytes += size
        self.useless = self.useless + 1 if is_useless(record) else 0
        while self._bytes > self._limit_bytes and len(self._packed) > 1:
            self._bytes -= self._packed.popleft()[1]

    def __len__(self) -> int:
        return len(self._packed)

    def __iter__(self) -> Iterator[RoundRecord]:
        return (_unpacked(packed) for packed, _ in tuple(self._packed))

    def __reversed__(self) -> Iterator[RoundRecord]:
        return (_unpacked(packed) for packed, _ in reversed(tuple(self._packed)))

    @overload
    def __getitem__(self, place: int) -> RoundRecord: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[RoundRecord]: ...

    def __getitem__(self, place: int | slice) -> RoundRecord | Sequence[RoundRecord]:
        if isinstance(place, slice):
            return [_unpacked(packed) for packed, _ in tuple(self._packed)[place]]
        return _unpacked(self._packed[place][0])


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
