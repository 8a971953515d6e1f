"""From the segments of a log to the events that count, wherever the segments lie.

Segments are named by the sequence of their first event and by the epoch of their writer. Two rules order them: a newer
epoch cuts the older ones where it begins, so that nothing counts that a writer still wrote after its successor had read
the log; and events follow each other without a gap from the first, or from a whole state. What cannot be joined so is
not guessed at: `join_segments` returns what is proven and says what is missing.

The rules are those of leader epochs in replicated logs (Apache Kafka, KIP-101), and of fencing in BookKeeper. See
docs/formats/episode-log.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from dsec.base.errors import CapabilityMissingError, StateCorruptedError
from dsec.episode.frames import decode_frame, encode_frame
from dsec.episode.log_events import is_state
from dsec.model.value import Value

LOG_VERSION = 2
"""What is written; version 1, which knew no events beside the rounds, is read as it was."""
_NAME = re.compile(r"([0-9]{10})-([0-9]{6})\.jsonl")
_ENCODER = msgspec.json.Encoder()


class SegmentHead(Value, frozen=True, tag="segment", tag_field="event", omit_defaults=True):
    """The first line of a segment; see docs/formats/episode-log.md."""

    version: int
    episode: str
    epoch: int
    first: int
    previous: str = ""
    events: int | None = None
    wall_s: float = 0.0


_HEAD_DECODER = msgspec.json.Decoder(SegmentHead)


class _Version(msgspec.Struct):
    """What of a head of any version can be relied upon."""

    version: int


_VERSION_DECODER = msgspec.json.Decoder(_Version)


def segment_name(first: int, epoch: int) -> str:
    """Return the name of a segment; names sort as sequences do."""
    return f"{first:010}-{epoch:06}.jsonl"


def parse_segment_name(name: str) -> tuple[int, int] | None:
    """Return first sequence and epoch of a segment's name, None for another file's."""
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


def encode_head(head: SegmentHead) -> bytes:
    """Return the first line of a segment."""
    return encode_frame(_ENCODER.encode(head))


def line_checksum(line: bytes) -> str:
    """Return the checksum of a framed line, with or without its newline."""
    return line.rstrip(b"\n")[-10:-2].decode("ascii")


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One segment as it was read.

    Attributes:
        name: of its file or object.
        head: its first line.
        documents: its events up to the first line that does not verify.
        lines: the same with checksum and newline, as they lie there.
        torn_bytes: bytes behind them.
        damage: why what is behind them is no torn tail; empty: it may be one.
    """

    name: str
    head: SegmentHead
    documents: tuple[bytes, ...]
    lines: tuple[bytes, ...]
    torn_bytes: int = 0
    damage: str = ""

    @property
    def next_sequence(self) -> int:
        """The sequence behind its last event."""
        return self.head.first + len(self.documents)


def read_segment(name: str, data: bytes, *, episode_id: str) -> Segment:
    """Read the bytes of one segment.

    Raises:
        CapabilityMissingError: a newer version wrote it.
        StateCorruptedError: its head is not there, or is not that of this segment.
    """
    lines = data.splitlines(keepends=True)
    head = _read_head(name, lines[0] if lines else b"", episode_id)
    documents: list[bytes] = []
    good = len(lines[0])
    count = 1
    for line in lines[1:]:
        document = _document(line)
        if document is None:
            break
        documents.append(document)
        good += len(line)
        count += 1
    damage = _damage(name, head, lines[count:], len(documents))
    return Segment(
        name=name,
        head=head,
        documents=tuple(documents),
        lines=tuple(lines[1:count]),
        torn_bytes=len(data) - good,
        damage=damage,
    )


def _document(line: bytes) -> bytes | None:
    return decode_frame(line[:-1]) if line.endswith(b"\n") else None


def _damage(name: str, head: SegmentHead, rest: Sequence[bytes], good: int) -> str:
    if any(_document(line) is not None for line in rest):
        return f"line {good + 2} of {name} does not verify, and good lines follow it"
    if head.events is not None and (rest or good != head.events):
        return f"{name} holds {good} whole events of {head.events}"
    return ""


def _read_head(name: str, line: bytes, episode_id: str) -> SegmentHead:
    document = _document(line)
    if document is None:
        raise StateCorruptedError(f"{name} does not begin with the head of a segment", resolution=_RESOLUTION)
    try:
        version = _VERSION_DECODER.decode(document).version
        if version > LOG_VERSION:
            raise CapabilityMissingError(
                f"{name} is of version {version}, and this program knows versions up to {LOG_VERSION}",
                resolution="use the version of dsec that wrote it, or a newer one",
            )
        head = _HEAD_DECODER.decode(document)
    except msgspec.DecodeError as error:
        raise StateCorruptedError(
            f"the first line of {name} is no head of a segment", detail=str(error), resolution=_RESOLUTION
        ) from error
    named = parse_segment_name(name)
    if head.episode != episode_id or (named is not None and named != (head.first, head.epoch)):
        raise StateCorruptedError(
            f"{name} is a segment of another place",
            detail=f"{head.episode}, first event {head.first}, epoch {head.epoch}",
            resolution=_RESOLUTION,
        )
    return head


_RESOLUTION = "restore the file from a copy; the episode's copy in the object store may have it"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedLog:
    """What a set of segments proves.

    Attributes:
        documents: events without a gap.
        first: sequence of the first of them.
        problem: what is missing or damaged; empty: nothing up to the last event, so that the history is complete.
        torn_bytes: length of a torn tail, which was never acknowledged.
        segments: those that hold these events, in order.
        last_lines: the events from the first one of the last segment on, as they lie there.
        epoch: the highest that any segment was written under.
        checksum: of the last event; empty: none.
    """

    documents: list[bytes]
    first: int
    problem: str
    torn_bytes: int
    segments: tuple[Segment, ...]
    last_lines: tuple[bytes, ...]
    epoch: int
    checksum: str

    @property
    def next_sequence(self) -> int:
        """The sequence of the event that would come next."""
        return self.first + len(self.documents)

    @property
    def is_complete(self) -> bool:
        """Whether the events are all there is, from a beginning on."""
        return not self.problem


@dataclass(slots=True)
class _Run:
    """Segments that follow each other without a gap; `lines` and `documents` are their events, each once."""

    segments: list[Segment]
    first: int
    lines: list[bytes]
    documents: list[bytes]
    broken: str = ""

    @property
    def next_sequence(self) -> int:
        return self.first + len(self.lines)

    @property
    def checksum(self) -> str:
        return line_checksum(self.lines[-1]) if self.lines else ""

    def append(self, segment: Segment) -> None:
        known = self.next_sequence - segment.head.first
        self.segments.append(segment)
        self.lines += segment.lines[known:]
        self.documents += segment.documents[known:]
        self.broken = segment.damage


def join_segments(segments: Iterable[Segment]) -> JoinedLog:
    """Join segments, in any order, of one episode."""
    ordered = sorted(segments, key=lambda segment: (segment.head.first, segment.head.epoch))
    epoch = max((segment.head.epoch for segment in ordered), default=0)
    counting = [cut for segment in ordered if (cut := _cut(segment, ordered)) is not None]
    runs = _runs(counting)
    if not runs:
        return _empty(epoch, "there is no event" if ordered else "there is no segment")
    last = runs[-1]
    begin = _beginning(last)
    if begin is not None:
        return _joined(last, begin, last.broken, epoch)
    # The end cannot be reached from a beginning: what is proven is the last stretch that has one. A state that stands
    # in for a gap in front of it is a beginning, and a watermark counts it as one.
    for run in reversed(runs):
        if (begin := _beginning(run)) is not None:
            return _joined(run, begin, run.broken or _gap(run, runs), epoch)
    return _empty(epoch, f"events 1 to {runs[0].first - 1} are missing, and there is no state in their place")


def _empty(epoch: int, problem: str) -> JoinedLog:
    return JoinedLog(
        documents=[], first=1, problem=problem, torn_bytes=0, segments=(), last_lines=(), epoch=epoch, checksum=""
    )


def _gap(run: _Run, runs: list[_Run]) -> str:
    following = runs[runs.index(run) + 1]
    missing = range(run.next_sequence, following.first)
    if run.segments[-1].torn_bytes:
        return f"{run.segments[-1].name} does not verify at its end, and {following.segments[0].name} follows it"
    if not missing:
        return f"{following.segments[0].name} does not follow what is in front of it"
    return f"events {missing.start} to {missing.stop - 1} are missing"


def _cut(segment: Segment, others: Sequence[Segment]) -> Segment | None:
    """Take away what newer epochs made void; None if that is all of it."""
    newer = [other.head.first for other in others if other.head.epoch > segment.head.epoch]
    keep = min(newer) - segment.head.first if newer else len(segment.documents) + 1
    if keep <= 0:
        return None
    if keep > len(segment.documents):
        return segment
    # What follows the cut is void, so that neither a torn tail nor damage in it matters.
    return Segment(name=segment.name, head=segment.head, documents=segment.documents[:keep], lines=segment.lines[:keep])


def _runs(segments: Sequence[Segment]) -> list[_Run]:
    runs: list[_Run] = []
    for segment in segments:
        if not runs or not _follows(runs[-1], segment):
            runs.append(_Run(segments=[], first=segment.head.first, lines=[], documents=[]))
        runs[-1].append(segment)
    return runs


def _follows(run: _Run, segment: Segment) -> bool:
    """Say whether a segment goes on where a run ends, or earlier with the same events.

    On a disk, a tail behind which a segment follows is damage: a writer begins one only when all before it is saved. In
    a store, a gap and what was damaged are filled later, and what fills them is cut otherwise.
    """
    last, head = run.segments[-1], segment.head
    if (last.torn_bytes and last.head.events is None) or head.first > run.next_sequence:
        return False
    place = head.first - run.first
    before = line_checksum(run.lines[place - 1]) if place else ""
    if head.previous and before and head.previous != before:
        return False
    both = min(len(segment.lines), run.next_sequence - head.first)
    return list(segment.lines[:both]) == run.lines[place : place + both]


def _beginning(run: _Run) -> int | None:
    """Return the index of the first segment of a run with which a history can begin."""
    for index, segment in enumerate(run.segments):
        if segment.head.first == 1 or (segment.documents and is_state(segment.documents[0])):
            return index
    return None


def _joined(run: _Run, begin: int, problem: str, epoch: int) -> JoinedLog:
    segments = run.segments[begin:]
    first = segments[0].head.first
    return JoinedLog(
        documents=run.documents[first - run.first :],
        first=first,
        problem=problem,
        torn_bytes=segments[-1].torn_bytes if not problem else 0,
        segments=tuple(segments),
        last_lines=tuple(run.lines[segments[-1].head.first - run.first :]),
        epoch=epoch,
        checksum=run.checksum,
    )
