"""The ledger: every attempt is a record before it is sent, and another when it has ended.

Framed JSON lines (`dsec.episode.frames`), appended with one `write` each: what the kernel has taken survives the death
of this process at any instruction, so an attempt that a backend has seen is always known. A line costs some
microseconds, so it is written in the event loop; a thread carries the file to the disk itself once in a while, for
losses of power. One gateway holds a state directory at a time.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from dsec.base.clock import Clock
from dsec.base.errors import HostDiskFullError, StateLockedError
from dsec.episode.frames import encode_frame, scan_frames
from dsec.gateway.decoding import decode_record
from dsec.gateway.ledger_record import AnyRecord, Attempt, Began, Ended, Opened, unknown_end

FORMAT_VERSION = 1
_LOCK_TRIES, _LOCK_PAUSE_S = 5, 0.01
_NAME = "ledger-{:06d}.jsonl"
_decoder = msgspec.json.Decoder(AnyRecord)
_encoder = msgspec.json.Encoder()


class Ledger:
    """The open end of a ledger.

    Args:
        directory: where its files are.
        clock: for the time in records.
        segment_bytes: a file that has grown to this size is followed by the next.
        sync_interval_s: how long the disk may lag behind.

    Raises:
        StateLockedError: another gateway holds the directory.
        StateCorruptedError: its newest file is damaged.
    """

    def __init__(self, directory: Path, clock: Clock, *, segment_bytes: int, sync_interval_s: float = 1.0) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._directory = directory
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._lock = _hold(directory / "gateway.lock")
        self._fd = -1
        self._size = 0
        self._dirty = False
        self._stop = threading.Event()
        try:
            self._open_newest()
        except BaseException:
            os.close(self._lock)
            raise
        self._syncing = threading.Thread(target=self._sync_now_and_then, args=(sync_interval_s,), name="ledger")
        self._syncing.start()

    def write(self, record: Began | Ended) -> None:
        """Append a record; it survives this process once this returns.

        Raises:
            HostDiskFullError: it could not be written, and nothing of it was.
        """
        if self._size >= self._segment_bytes and isinstance(record, Began):
            self._open(self._sequence + 1)
        self._append(_encoder.encode(record))

    def close(self) -> None:
        """Carry everything to the disk and let go. Idempotent."""
        if self._fd < 0:
            return
        self._stop.set()
        self._syncing.join()
        os.fsync(self._fd)
        os.close(self._fd)
        os.close(self._lock)
        self._fd = -1

    # -- files ---------------------------------------------------------------------------------------------------------

    def _open_newest(self) -> None:
        files = ledger_files(self._directory)
        if not files:
            self._open(1)
            return
        newest = files[-1]
        scan = scan_frames(newest.read_bytes(), name=str(newest))
        if not scan.documents:
            newest.unlink()
            self._open(_sequence(newest))
            return
        self._sequence = _sequence(newest)
        self._fd = os.open(newest, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        os.ftruncate(self._fd, scan.good_bytes)  # A torn last line was never acknowledged.
        self._size = scan.good_bytes

    def _open(self, sequence: int) -> None:
        path = self._directory / _NAME.format(sequence)
        try:
            fresh = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise HostDiskFullError(f"the ledger in {self._directory} cannot grow: {error.strerror}") from error
        before, self._fd, self._size, self._sequence = self._fd, fresh, 0, sequence
        if before >= 0:
            os.fsync(before)
            os.close(before)
        opened = Opened(version=FORMAT_VERSION, wall_s=self._clock.wall_s(), sequence=sequence)
        self._append(_encoder.encode(opened))

    def _append(self, document: bytes) -> None:
        line = encode_frame(document)
        try:
            written = os.write(self._fd, line)
        except OSError as error:
            raise HostDiskFullError(f"the ledger in {self._directory} cannot grow: {error.strerror}") from error
        if written < len(line):
            os.ftruncate(self._fd, self._size)
            raise HostDiskFullError(f"the ledger in {self._directory} cannot grow: the disk is full")
        self._size += written
        self._dirty = True

    def _sync_now_and_then(self, interval_s: float) -> None:
        while not self._stop.wait(interval_s):
            if self._dirty:
                self._dirty = False
                try:
                    os.fdatasync(self._fd)
                except OSError:
                    # The file was just followed by the next one, which carries it to the disk itself.
                    self._dirty = True


def _hold(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    for left in reversed(range(_LOCK_TRIES)):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError as error:
            if not left:
                os.close(descriptor)
                raise StateLockedError(
                    f"another gateway holds {path.parent}", resolution="stop it, or set another state_dir"
                ) from error
        time.sleep(_LOCK_PAUSE_S)  # A command that reads the ledger holds the lock for a moment.
    return descriptor


def _sequence(file: Path) -> int:
    return int(file.stem.removeprefix("ledger-"))


def ledger_files(directory: Path) -> list[Path]:
    """Return the files of a ledger, the oldest first."""
    return sorted(directory.glob("ledger-[0-9]*.jsonl"))


def read_records(directory: Path) -> Iterator[AnyRecord]:
    """Yield every record of a ledger in order; it may be in use meanwhile.

    Raises:
        StateCorruptedError: it cannot be understood.
    """
    for file in ledger_files(directory):
        for document in scan_frames(file.read_bytes(), name=str(file)).documents:
            yield decode_record(document, _decoder, file=file, version=FORMAT_VERSION)


def is_held(directory: Path) -> bool:
    """Say whether a living gateway holds a directory."""
    try:
        descriptor = os.open(directory / "gateway.lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def read_attempts(directory: Path) -> Iterator[Attempt]:
    """Yield every attempt once that is not under way; those without an end last, as of unknown outcome.

    A gateway that starts writes an end for what its predecessor left open, so that what is open in a directory that a
    gateway holds is under way there.
    """
    held = is_held(directory)
    yield from pair_attempts(read_records(directory), open_too=not held)


def pair_attempts(
    records: Iterable[AnyRecord], *, open_too: bool = True, left_open: dict[str, Began] | None = None
) -> Iterator[Attempt]:
    """Yield attempts from records in order.

    Args:
        records: of a ledger.
        open_too: yield those that never ended last, as of unknown outcome.
        left_open: takes those that never ended, by id.
    """
    open_ = {} if left_open is None else left_open
    for record in records:
        if isinstance(record, Began):
            open_[record.attempt] = record
        elif isinstance(record, Ended) and (began := open_.pop(record.attempt, None)) is not None:
            yield Attempt(began=began, ended=record)
    if open_too:
        for began in open_.values():
            yield Attempt(began=began, ended=unknown_end(began))
