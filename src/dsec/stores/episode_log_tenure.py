"""Who writes a log: one writer, and each knows when it is no longer the one.

A writer's tenure is a file ``epoch-<n>`` in the log's directory. It comes into being under that name locked (flock(2)
before link(2)), so that of two writers who want the same epoch one gets it. A tenure whose lock is free is a dead
writer's: the next one follows at once. A tenure that is locked is a living process's, which may be stopped: it can be
followed when its lease is over, by the clock that runs on while a machine sleeps. The stopped writer may wake at any
instruction, so the lease protects nothing by itself; what does is the order of things (BookKeeper's fencing):

- the successor first takes its tenure, then reads;
- a writer first writes and syncs, then looks whether it has been succeeded, then acknowledges.

So what is acknowledged was written before the successor read. Tenures are removed oldest first, and only below one's
own; a writer therefore has been succeeded if the next tenure is there or, looked at after that, its own is not.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from pathlib import Path

import msgspec

from dsec.base.clock import Clock
from dsec.base.errors import LimitExceededError, StateLockedError
from dsec.model.value import Value
from dsec.stores.episode_log_disk import Disk

DEFAULT_LEASE_S = 30.0
"""Long beside a pause of a process, short beside the hours that a rollout is worth."""
MAXIMUM_EPOCH = 999_999
_BYTES = 256
_NAME = re.compile(r"epoch-([0-9]{6})")
_TEMPORARY = re.compile(r"\.tenure-[0-9a-f]{16}\.tmp")


class TenureRecord(Value, frozen=True):
    """What a tenure says, padded with spaces to 256 bytes.

    Attributes:
        epoch: the writer's.
        writer: who it is, for people.
        until_boot_s: when its lease is over, in seconds since the boot of its host.
    """

    epoch: int
    writer: str
    until_boot_s: float


class Tenure:
    """The tenure of a living writer; see `take_tenure`."""

    def __init__(
        self, disk: Disk, directory: Path, handle: int, record: TenureRecord, clock: Clock, lease_s: float
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._handle = handle
        self._record = record
        self._clock = clock
        self._lease_s = lease_s
        self._own = directory / _name(record.epoch)
        self._next = directory / _name(record.epoch + 1)

    @property
    def epoch(self) -> int:
        """The writer's epoch."""
        return self._record.epoch

    def is_current(self) -> bool:
        """Say whether nobody has succeeded this writer so far; the order of the two looks is part of the proof."""
        return not self._disk.exists(self._next) and self._disk.exists(self._own)

    def renew(self) -> None:
        """Let the lease begin anew if a third of it is over. A writer that does not is succeeded, once it is over."""
        now_s = self._clock.boot_s()
        if self._record.until_boot_s - now_s > self._lease_s * 2 / 3:
            return
        self._record = msgspec.structs.replace(self._record, until_boot_s=now_s + self._lease_s)
        try:
            self._disk.overwrite(self._handle, _encode(self._record))
        except OSError:
            pass  # The lease then ends early: somebody may follow sooner, and nothing is lost by that.

    def remove_older(self) -> None:
        """Remove the tenures of those who came before, oldest first, and what killed candidates left."""
        for name in self._disk.names(self._directory):
            epoch = _epoch(name)
            if (epoch is not None and epoch < self.epoch) or _TEMPORARY.fullmatch(name):
                self._disk.remove(self._directory / name)

    def release(self) -> None:
        """Let the next writer follow at once. Idempotent."""
        if self._handle >= 0:
            self._disk.close(self._handle)
            self._handle = -1


def take_tenure(
    disk: Disk,
    directory: Path,
    *,
    writer: str,
    clock: Clock,
    lease_s: float = DEFAULT_LEASE_S,
    epochs: Sequence[int] = (),
) -> Tenure:
    """Become the writer of the log in a directory that is there.

    Args:
        disk: where it is.
        directory: of the log.
        writer: who asks, for people; 64 characters of it are kept.
        clock: its boot clock measures leases.
        lease_s: how long a writer that does not renew is waited for.
        epochs: that are known from elsewhere, such as from segments; ours is higher.

    Raises:
        StateLockedError: a writer lives and its lease is not over, or somebody else was quicker.
    """
    tenures = [epoch for name in disk.names(directory) if (epoch := _epoch(name)) is not None]
    if tenures:
        _check_free(disk, directory / _name(max(tenures)), clock)
    epoch = max([0, *tenures, *epochs]) + 1
    if epoch > MAXIMUM_EPOCH:
        raise LimitExceededError(f"the log in {directory} has been opened {MAXIMUM_EPOCH} times")
    record = TenureRecord(epoch=epoch, writer=writer[:64], until_boot_s=clock.boot_s() + lease_s)
    temporary = directory / f".tenure-{secrets.token_hex(8)}.tmp"
    handle = disk.create(temporary)
    try:
        disk.try_lock(handle)
        disk.write(handle, _encode(record))
        if not _take_name(disk, temporary, directory / _name(epoch)):
            raise _locked(directory, "somebody else has just opened it")
        # Between our look and our link, others may have come and gone, and taken the names between away.
        if any((found := _epoch(name)) is not None and found > epoch for name in disk.names(directory)):
            disk.remove(directory / _name(epoch))
            raise _locked(directory, "somebody else has just opened it")
    except BaseException:
        disk.close(handle)
        raise
    finally:
        disk.remove(temporary)
    return Tenure(disk, directory, handle, record, clock, lease_s)


def _take_name(disk: Disk, temporary: Path, name: Path) -> bool:
    try:
        return disk.link(temporary, name)
    except FileNotFoundError:
        return False  # A successor has swept our first name away.


def _check_free(disk: Disk, path: Path, clock: Clock) -> None:
    try:
        handle = disk.open(path)
    except FileNotFoundError:
        return  # Its successor has removed it just now, and will be met at the next name.
    try:
        if disk.try_lock(handle):
            return
        record = _decode(disk.read(path))
    except FileNotFoundError:
        return
    finally:
        disk.close(handle)
    if record is not None and clock.boot_s() < record.until_boot_s:
        left_s = record.until_boot_s - clock.boot_s()
        raise _locked(path.parent, f"{record.writer or 'a writer'} has it for another {left_s:.0f} s")


def _locked(directory: Path, detail: str) -> StateLockedError:
    return StateLockedError(
        f"another writer has the log in {directory}",
        detail=detail,
        resolution="one worker drives an episode; wait until that one has ended, or until its lease is over",
    )


def _name(epoch: int) -> str:
    return f"epoch-{epoch:06}"


def _epoch(name: str) -> int | None:
    match = _NAME.fullmatch(name)
    return None if match is None else int(match[1])


def _encode(record: TenureRecord) -> bytes:
    return msgspec.json.encode(record).ljust(_BYTES)


def _decode(data: bytes) -> TenureRecord | None:
    """A tenure that cannot be read promises no lease: the machine stopped while it was made, or is full."""
    try:
        return msgspec.json.decode(data, type=TenureRecord)
    except msgspec.DecodeError:
        return None
