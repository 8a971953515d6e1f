"""An episode in a worker's hands: its lease in the store, its log, and the copy of the log that goes there.

The order is the one that the proofs ask for: hold the episode among all workers, bring the log back if only the store
has it, open it, copy it. Whatever ends one of these ends the others: a lease that is over stops the log at its next
acknowledgement, and an uploader that finds another history stops the loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import anyio
import anyio.to_thread

from dsec.base.errors import DsecError, InvalidStateError, NotFoundError, OutsideUnavailableError
from dsec.episode.durability import Durability
from dsec.episode.identity import EpisodeIdentity
from dsec.episode.log_content import LogContent
from dsec.episode.operations import RoundRecord
from dsec.stores.episode_log_group import DurableLog
from dsec.stores.episode_log_lease import StoreLease, hold_episode, release_own
from dsec.stores.episode_log_place import LogPlace
from dsec.stores.episode_log_remote import restore_log
from dsec.stores.episode_log_upload import LogUploader
from dsec.stores.objects import ObjectStore
from dsec.worker.episodes.begun import check_not_begun, mark_begun
from dsec.worker.episodes.parts import WorkerParts

_LOOK_S = 1.0
"""How often a log that waits for its copy is looked at: a disk may fail meanwhile."""
_EPOCHS = 1_000_000
"""More than a log can have (docs/formats/episode-log.md)."""


class Holding:
    """See `hold`.

    Attributes:
        log: of the episode.
        rounds: the newest rounds, when the log was opened.
        uploader: copies it; None: there is no store.
    """

    def __init__(
        self,
        parts: WorkerParts,
        log: DurableLog,
        rounds: Sequence[RoundRecord],
        lease: StoreLease | None,
        on_failure: Callable[[DsecError], None],
    ) -> None:
        self._parts = parts
        self._lease = lease
        self._scopes: list[anyio.CancelScope] = []
        self._on_failure = on_failure
        self._is_closed = False
        self.log = log
        self.rounds = rounds
        self.uploader: LogUploader | None = None

    @property
    def uploaded_sequence(self) -> int:
        """Up to which the store has the log without a gap."""
        return self.uploader.watermark.sequence if self.uploader is not None else 0

    @property
    def is_lease_over(self) -> bool:
        """Whether the lease ran out because the store did not answer. Nobody else need have the episode then."""
        return self._lease is not None and not self._lease.is_valid()

    @property
    def fencing_epoch(self) -> int:
        """What systems outside are told: it grows with each taking of the episode, here or by another worker.

        The epoch of the log grows on one disk only. A worker that brings a log back from the store may know of fewer
        epochs than the one that it follows had, so the number of the holder comes first.
        """
        number = self._lease.number if self._lease is not None else 0
        return number * _EPOCHS + self.log.log.epoch

    def begin(self, store: ObjectStore, lease: StoreLease) -> None:
        """Copy the log, and keep the lease, until this is closed."""
        settings = self._parts.settings
        self.uploader = LogUploader(
            self.log.log, self.log.place, store, settings=settings.upload, limiter=self._parts.uploads
        )
        self._parts.tasks.start_soon(self._beside, self.uploader.run)
        self._parts.tasks.start_soon(self._beside, lease.keep)

    async def wait_uploaded(self, timeout_s: float) -> bool:
        """Wait until all that is saved is in the store; return whether it is."""
        if self.uploader is None:
            return True
        with anyio.move_on_after(timeout_s):
            try:
                await self.uploader.wait_whole()
            except InvalidStateError:
                await anyio.sleep_forever()  # Nobody copies any more, and who asks over and over must not spin.
        return self.uploader.is_whole

    async def publish(self) -> None:
        """Wait until the store has all that is saved, an announcement among it: whoever takes the episode over when
        this host is lost has to know what may have happened outside. Without a store nobody can take it over.

        Raises:
            OutsideUnavailableError: the store does not take it, or the log takes nothing more, so that what becomes of
                the effect could not be recorded. It must not happen.
        """
        if self.uploader is None:
            return
        with anyio.move_on_after(self._parts.settings.announce_s):
            try:
                await self._wait_published(self.uploader)
            except DsecError as error:
                raise OutsideUnavailableError(
                    "the log took an announcement and nothing more, so that what it announces was not begun",
                    detail=error.brief,
                    resolution="it is tried again with the log opened anew",
                ) from error
            return
        raise OutsideUnavailableError(
            "the store did not take an announcement in time, so that what it announces was not begun",
            resolution="it is tried again; look at the store",
        )

    async def _wait_published(self, uploader: LogUploader) -> None:
        """Raise what ended the log: whoever asks for the episode meanwhile opens it anew, and this is waited for."""
        while True:
            with anyio.move_on_after(_LOOK_S) as looking:
                await uploader.wait_whole()
            if (failure := self.log.failure) is not None:
                raise failure
            if not looking.cancelled_caught:
                return

    async def aclose(self) -> None:
        """Let go; never fails. What is not copied is copied when the log is opened again."""
        self._is_closed = True
        for scope in self._scopes:
            scope.cancel()
        await self.log.aclose()
        if self._lease is not None:
            await _give_back(self._lease)

    async def _beside(self, run: Callable[[], Awaitable[None]]) -> None:
        if self._is_closed:
            return
        with anyio.CancelScope() as scope:
            self._scopes.append(scope)
            await self._parts.beside(run, self._on_failure)


async def hold(
    parts: WorkerParts,
    episode_id: str,
    durability: Durability,
    *,
    identity: EpisodeIdentity,
    on_saved: Callable[[], None],
    on_failure: Callable[[DsecError], None],
) -> Holding:
    """Take an episode into this worker's hands; begin its log if it has none anywhere.

    Args:
        parts: of the worker.
        episode_id: whose.
        durability: when rounds are saved.
        identity: with which the log begins.
        on_saved: called after each save.
        on_failure: hears what ends it from beside: another worker, another history.

    Raises:
        StateLockedError: another worker has it.
        StateCorruptedError: its log has begun and is gone, or is damaged.
        DsecError: disk or store failed, or the log is damaged.
    """
    lease = None if parts.store is None else await _lease(parts, parts.store, episode_id)
    place = LogPlace(
        directory=parts.shelf.log_directory(episode_id),
        writer=parts.worker_id,
        disk=parts.disk,
        clock=parts.clock,
        lease_s=parts.settings.lease_s,
        segment_bytes=parts.settings.segment_bytes,
        may_acknowledge=lease.is_valid if lease is not None else _always,
    )
    wakes: list[Callable[[], None]] = [on_saved]

    def saved() -> None:
        for wake in wakes:
            wake()

    try:
        log, rounds = await _open(parts, place, durability, identity, saved)
    except BaseException:
        if lease is not None:
            await _give_back(lease)
        raise
    holding = Holding(parts, log, rounds, lease, on_failure)
    if parts.store is not None and lease is not None:
        holding.begin(parts.store, lease)
        assert holding.uploader is not None
        wakes.append(holding.uploader.wake)
    return holding


def _always() -> bool:
    return True


async def _lease(parts: WorkerParts, store: ObjectStore, episode_id: str) -> StoreLease:
    """Hold the episode. A lease that this directory's worker left when it died is over: its lock is ours now."""
    await release_own(store, episode_id, writer=parts.worker_id)
    return await hold_episode(
        store,
        episode_id,
        writer=parts.worker_id,
        clock=parts.clock,
        lease_s=parts.settings.store_lease_s,
        waits=True,
        poll_s=min(1.0, parts.settings.store_lease_s / 10),
    )


async def _give_back(lease: StoreLease) -> None:
    with anyio.move_on_after(5.0, shield=True):
        try:
            await lease.release()
        except DsecError:
            pass  # The next worker waits for the lease instead.


async def _open(
    parts: WorkerParts,
    place: LogPlace,
    durability: Durability,
    identity: EpisodeIdentity,
    on_saved: Callable[[], None],
) -> tuple[DurableLog, Sequence[RoundRecord]]:
    log, rounds = await _open_or_begin(parts, place, durability, identity, on_saved)
    try:
        # Also where a worker died in front of this, or knew of no such mark.
        await anyio.to_thread.run_sync(mark_begun, place)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await log.aclose()
        raise
    return log, rounds


async def _open_or_begin(
    parts: WorkerParts,
    place: LogPlace,
    durability: Durability,
    identity: EpisodeIdentity,
    on_saved: Callable[[], None],
) -> tuple[DurableLog, Sequence[RoundRecord]]:
    try:
        return await _read(parts, place, durability, on_saved)
    except NotFoundError:
        pass
    if parts.store is not None and await _restored(place, parts.store):
        return await _read(parts, place, durability, on_saved)
    await anyio.to_thread.run_sync(check_not_begun, place)
    return await parts.group.create(place, identity, durability, on_saved=on_saved), ()


async def _read(
    parts: WorkerParts, place: LogPlace, durability: Durability, on_saved: Callable[[], None]
) -> tuple[DurableLog, Sequence[RoundRecord]]:
    async with parts.openings:
        log, content = await parts.group.open(place, durability, on_saved=on_saved)
    return log, newest_rounds(content)


async def _restored(place: LogPlace, store: ObjectStore) -> bool:
    try:
        await restore_log(place, store)
    except NotFoundError:
        return False
    return True


def newest_rounds(content: LogContent) -> Sequence[RoundRecord]:
    """Return the rounds that a log holds, with those in front of them that its state holds."""
    state, rounds = content.progress.state, content.rounds
    recent = state.recent if state is not None else ()
    # Where nothing was dropped yet, what the state holds is in the log, too.
    return (*(record for record in recent if not rounds or record.number < rounds[0].number), *rounds)
