"""The log of one episode, open for writing: events are appended, and count once they are saved.

Format and rules are in docs/formats/episode-log.md, the proof that one writer is enough in `episode_log_tenure`. What
this module adds is what it takes for bytes to be on a disk:

- *Opening writes the last segment anew.* A torn tail is left behind so; and what the writer before failed to sync is
  written and synced once more, instead of being believed because the page cache shows it. Linux shows pages there that
  it could not write, and calls them clean.
- *A failed write stops the log* and is taken back, so that the log ends with its last whole event. A loop whose round
  cannot be saved ends there.
- *A failed sync makes the log suspect.* It is never tried again: the second one would succeed and mean nothing.

All calls block; `dsec.stores.episode_log_group` drives many logs from an event loop. `append` and `save` may run in
different threads at the same time, each in one; everything else may not run beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

from dsec.base.errors import (
    AlreadyExistsError,
    DsecError,
    InvalidStateError,
    LimitExceededError,
    LogSuspectError,
    NotFoundError,
    StateCorruptedError,
    WriterFencedError,
)
from dsec.base.units import MIB
from dsec.episode.durability import Unsaved
from dsec.episode.episode_progress import EpisodeProgress
from dsec.episode.frames import encode_frame
from dsec.episode.identity import EpisodeIdentity
from dsec.episode.log_content import LogContent, read_content
from dsec.episode.log_events import EpisodeBegan, LogEvent, RoundCommitted, StateSaved, encode_log_event
from dsec.episode.segments import (
    LOG_VERSION,
    JoinedLog,
    SegmentHead,
    encode_head,
    line_checksum,
    parse_segment_name,
    segment_name,
)
from dsec.stores.episode_log_disk import write_new
from dsec.stores.episode_log_place import LogPlace, disk_failure
from dsec.stores.episode_log_reading import load_segments
from dsec.stores.episode_log_tenure import Tenure, take_tenure

MAXIMUM_EVENT_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True)
class _Count:
    """How far something has come.

    Attributes:
        sequence: of the last event.
        bytes: of the newest segment.
        rounds, operations: committed since the log was opened.
    """

    sequence: int = 0
    bytes: int = 0
    rounds: int = 0
    operations: int = 0


@dataclass(frozen=True, slots=True)
class SavedSegment:
    """A segment, up to where it is saved: name, sequence of its first event, and saved length; -1: all of it is."""

    name: str
    first: int
    bytes: int


class EpisodeLog:
    """A log that this process writes; see `create_log` and `open_log`.

    Attributes:
        progress: what the events add up to, unsaved ones included.
    """

    def __init__(self, place: LogPlace, tenure: Tenure, progress: EpisodeProgress, *, sequence: int) -> None:
        self._place = place
        self._disk = place.disk
        self._tenure = tenure
        self.progress = progress
        self._handle = -1
        self._name = ""
        self._first = 0
        self._checksum = ""
        self._sealed: list[SavedSegment] = []
        self._written = _Count(sequence=sequence)
        self._saved = _Count(sequence=sequence)
        self._failure: DsecError | None = None

    def __enter__(self) -> EpisodeLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def place(self) -> LogPlace:
        """Where it lies."""
        return self._place

    @property
    def epoch(self) -> int:
        """This writer's epoch."""
        return self._tenure.epoch

    @property
    def next_sequence(self) -> int:
        """The sequence of the next event."""
        return self._written.sequence + 1

    @property
    def saved_sequence(self) -> int:
        """The last event that is saved."""
        return self._saved.sequence

    @property
    def unsaved(self) -> Unsaved:
        """Rounds, and operations of these, that were appended and are not saved."""
        return Unsaved(
            rounds=self._written.rounds - self._saved.rounds,
            operations=self._written.operations - self._saved.operations,
        )

    @property
    def has_unsaved_events(self) -> bool:
        """Whether any event is not saved."""
        return self._written.sequence > self._saved.sequence

    @property
    def is_segment_full(self) -> bool:
        """Whether the next event begins a new segment, which takes longer than to append."""
        return self._written.bytes >= self._place.segment_bytes

    @property
    def is_usable(self) -> bool:
        """Whether it was neither closed nor stopped by a failure."""
        return self._failure is None

    def saved_segments(self) -> tuple[SavedSegment, ...]:
        """Return the segments up to where they are saved, in order."""
        return (*self._sealed, SavedSegment(self._name, self._first, self._saved.bytes))

    def append(self, event: LogEvent) -> int:
        """Append an event and return its sequence. It survives this process, and with `save` the machine.

        A `StateSaved` is saved when this returns, and everything in front of it is dropped.

        Raises:
            InvalidStateError: it may not come next; nothing was written.
            LimitExceededError: it is longer than 64 MiB; nothing was written.
            HostDiskFullError, PlatformError: it could not be written. The log ends before it and takes nothing more.
            LogSuspectError, WriterFencedError: see `save`.
        """
        self._check_usable()
        self.progress.check(event)
        line = encode_frame(encode_log_event(event))
        if len(line) > MAXIMUM_EVENT_BYTES:
            raise LimitExceededError(
                f"an event of {len(line)} bytes is too long for the log of an episode",
                resolution=f"keep less of what tools return; the limit is {MAXIMUM_EVENT_BYTES} bytes",
            )
        try:
            self._append_line(event, line)
        except BaseException:
            # Whatever interrupts this, such as a signal, may have left a part of a line, or one that is not counted.
            self._stop(
                self._failure or InvalidStateError(f"writing the log in {self._place.directory} was interrupted")
            )
            raise
        return self._written.sequence

    def save(self) -> None:
        """Bring everything that was appended before this call to the disk; then it is acknowledged.

        Raises:
            LogSuspectError: the disk failed. Nothing more is written; open the log anew.
            WriterFencedError: another writer has taken over.
        """
        self._check_usable()
        reached = self._written
        if reached.sequence > self._saved.sequence:
            try:
                self._disk.sync(self._handle)
            except OSError as error:
                raise self._stop(self._suspect(error)) from error
        self._check_current()
        self._saved = reached

    def rotate(self) -> None:
        """Save everything and begin a new segment.

        Raises:
            HostDiskFullError, PlatformError, LogSuspectError, WriterFencedError: as for `append` and `save`.
        """
        self.save()
        self._begin_segment(self.next_sequence, self._checksum, [])

    def renew(self) -> None:
        """Tell others that this writer lives, while it has nothing to write.

        Raises:
            WriterFencedError: another writer has taken over.
        """
        self._check_usable()
        self._check_current()

    def close(self) -> None:
        """Let go; what was appended and not saved is not acknowledged. Idempotent."""
        if self._handle >= 0:
            self._disk.close(self._handle)
            self._handle = -1
        self._tenure.release()
        self._failure = self._failure or InvalidStateError(f"the log in {self._place.directory} is closed")

    # -- what happens to files -----------------------------------------------------------------------------------------

    def _append_line(self, event: LogEvent, line: bytes) -> None:
        if isinstance(event, StateSaved):
            self._append_state(line)
        else:
            if self.is_segment_full:
                self.rotate()
            self._write(line)
            self._advance(line, event)
        self.progress.apply_checked(event)

    def _append_state(self, line: bytes) -> None:
        self.save()
        self._begin_segment(self.next_sequence, self._checksum, [line])
        # From here on whoever succeeds us reads the state, so that nobody needs what is in front of it; before,
        # somebody may have read that already, and go on with it.
        self._check_current()
        self._saved = self._written = replace(self._written, sequence=self._written.sequence + 1)
        # Who reads beside us is told first that they are gone: what the log names is there.
        dropped, self._sealed = self._sealed, []
        for segment in dropped:
            try:
                self._disk.remove(self._place.directory / segment.name)
            except OSError:
                continue  # It counts for nothing, and the next state takes it away.

    def _write(self, line: bytes) -> None:
        try:
            rest = memoryview(line)
            while rest:
                rest = rest[self._disk.write(self._handle, rest) :]
        except OSError as error:
            raise self._stop(self._undo(error)) from error

    def _undo(self, error: OSError) -> DsecError:
        """Take a part of a line back."""
        try:
            self._disk.truncate(self._handle, self._written.bytes)
        except OSError as second:
            return self._suspect(second)
        return self._failed(error)

    def _advance(self, line: bytes, event: LogEvent) -> None:
        written = self._written
        self._checksum = line_checksum(line)
        rounds, operations = 0, 0
        if isinstance(event, RoundCommitted):
            rounds, operations = 1, len(event.record.decision.operations)
        # One assignment: another thread may be reading it for a save.
        self._written = _Count(
            written.sequence + 1, written.bytes + len(line), written.rounds + rounds, written.operations + operations
        )

    def _begin_segment(self, first: int, previous: str, lines: Sequence[bytes]) -> None:
        """Make a segment that is whole and saved under its name, and write there from now on."""
        place, disk = self._place, self._disk
        name = segment_name(first, self.epoch)
        head = SegmentHead(
            version=LOG_VERSION,
            episode=place.directory.name,
            epoch=self.epoch,
            first=first,
            previous=previous,
            wall_s=place.clock.wall_s(),
        )
        data = b"".join((encode_head(head), *lines))
        temporary = place.directory / f".{name.removesuffix('.jsonl')}.tmp"
        handle = self._create(temporary, data)
        try:
            disk.rename(temporary, place.directory / name)
            disk.sync_directory(place.directory)
        except OSError as error:
            disk.close(handle)
            self._check_current()  # A successor may have swept the temporary name away.
            raise self._stop(self._suspect(error)) from error
        if self._handle >= 0:
            disk.close(self._handle)
            if self._name != name:  # A segment that held no event yet has just been replaced by this one.
                self._sealed.append(SavedSegment(self._name, self._first, self._saved.bytes))
        self._handle, self._name, self._first = handle, name, first
        if lines:
            self._checksum = line_checksum(lines[-1])
        self._saved = self._written = replace(self._written, bytes=len(data))

    def _create(self, temporary: Path, data: bytes) -> int:
        """Write and sync a file under a name that counts for nothing."""
        try:
            return write_new(self._disk, temporary, data)
        except OSError as error:
            raise self._stop(self._failed(error)) from error

    def _carry_over(self, joined: JoinedLog) -> None:
        """Write the last segment's events into one of our own, and take away what that makes void."""
        last = joined.segments[-1]
        self._checksum = joined.checksum
        self._sealed = [SavedSegment(segment.name, segment.head.first, -1) for segment in joined.segments[:-1]]
        self._begin_segment(last.head.first, last.head.previous, joined.last_lines)
        self._check_current()
        for name in self._disk.names(self._place.directory):
            found = parse_segment_name(name)
            is_void = found is not None and found[0] >= last.head.first and found[1] < self.epoch
            if is_void or (name.startswith(".") and name.endswith(".tmp") and not name.startswith(".tenure-")):
                self._disk.remove(self._place.directory / name)
        self._tenure.remove_older()

    # -- failures ------------------------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise type(self._failure)(
                self._failure.brief, detail=self._failure.detail, resolution=self._failure.resolution
            )

    def _check_current(self) -> None:
        """Find out whether we are still the writer, and say that we live."""
        try:
            is_current = self._tenure.is_current()
        except OSError as error:
            raise self._stop(self._suspect(error)) from error
        if not is_current:
            raise self._stop(
                WriterFencedError(
                    f"another writer has taken over the log in {self._place.directory}",
                    resolution="end this loop; the other one goes on from what was saved",
                )
            )
        if not self._place.may_acknowledge():
            raise self._stop(
                WriterFencedError(
                    f"this host may not acknowledge anything for {self._place.directory.name} any more",
                    resolution="its lease is over: the store did not answer for too long, or another worker has it",
                )
            )
        self._tenure.renew()

    def _stop(self, failure: DsecError) -> DsecError:
        self._failure = failure
        return failure

    def _suspect(self, error: OSError) -> DsecError:
        return LogSuspectError(
            f"the disk failed while the log in {self._place.directory} was saved",
            detail=error.strerror or "",
            resolution="look at the disk, and resume the episode: what was acknowledged is there",
        )

    def _failed(self, error: OSError) -> DsecError:
        return disk_failure(self._place.directory, error)


def create_log(place: LogPlace, identity: EpisodeIdentity) -> EpisodeLog:
    """Begin the log of an episode; its first event is saved when this returns.

    Raises:
        AlreadyExistsError: there is one; open it.
        InvalidStateError: the directory has another name than the episode.
        StateLockedError: somebody else is about to begin it.
        HostDiskFullError, PlatformError: the disk failed.
    """
    if place.directory.name != identity.episode_id:
        raise InvalidStateError(f"the log of {identity.episode_id} cannot be in {place.directory}")
    with _Translated(place.directory):
        place.disk.make_directory(place.directory)
        tenure = take_tenure(place.disk, place.directory, writer=place.writer, clock=place.clock, lease_s=place.lease_s)
    try:
        if any(parse_segment_name(name) is not None for name in place.disk.names(place.directory)):
            raise AlreadyExistsError(f"there is a log in {place.directory}", resolution="open it")
        log = EpisodeLog(place, tenure, EpisodeProgress(), sequence=0)
        began = EpisodeBegan(identity)
        log.progress.check(began)
        log._begin_segment(1, "", [encode_frame(encode_log_event(began))])
        log.progress.apply_checked(began)
        log._saved = log._written = replace(log._written, sequence=1)
        log._check_current()
        with _Translated(place.directory):
            tenure.remove_older()
    except BaseException:
        tenure.release()
        raise
    return log


def open_log(place: LogPlace) -> tuple[EpisodeLog, LogContent]:
    """Open a log for writing, as the writer that all others give way to; also return what it says.

    Raises:
        NotFoundError: there is none.
        StateLockedError: another writer lives, and its lease is not over.
        CapabilityMissingError: a newer version wrote it.
        StateCorruptedError: it is damaged, or has a gap. No segment was changed.
        HostDiskFullError, PlatformError: the disk failed.
    """
    with _Translated(place.directory):
        names = place.disk.names(place.directory)
    epochs = [found[1] for name in names if (found := parse_segment_name(name)) is not None]
    if not epochs:
        raise NotFoundError(f"there is no log of an episode in {place.directory}")
    with _Translated(place.directory):
        tenure = take_tenure(
            place.disk, place.directory, writer=place.writer, clock=place.clock, lease_s=place.lease_s, epochs=epochs
        )
    try:
        # Only now: what was read before the tenure could have grown since.
        joined, problem = load_segments(place.directory, disk=place.disk)
        content = read_content(joined, name=str(place.directory), problem=problem)
        if content.problem:
            raise StateCorruptedError(
                f"the log in {place.directory} is damaged: {content.problem}",
                resolution="restore it from its copy in the object store, or from a copy of your own",
            )
    except BaseException:
        tenure.remove_older()
        tenure.release()
        raise
    log = EpisodeLog(place, tenure, content.progress, sequence=content.next_sequence - 1)
    try:
        with _Translated(place.directory):
            log._carry_over(joined)
    except BaseException:
        log.close()
        raise
    return log, content


class _Translated:
    """Turns what the disk says into our errors."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, OSError):
            raise disk_failure(self._directory, error) from error
