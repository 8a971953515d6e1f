"""Copy a log to an object store in the background, and know up to where the copy is whole.

Batches of saved events are put at the same time, and arrive in any order or not at all. The watermark is what matters:
the last event up to which *every* one was read back from the store. That event 3 arrived does not move it past event 2
that did not; event 2 is tried again until it is there. A store that acknowledges and loses is noticed by reading back;
one that loses later is noticed by `audit`, which takes the watermark back and fills the gap from the log.

A batch that a whole state has made unnecessary is given up; the state stands in for it, and the copy begins there. If
none does, it is cut from the disk again: nothing that is saved stays behind with nobody sending it. Who waits for the
copy hears so when nobody copies any more.
Source: the chapter, section 11.5.1 and figure 11-44.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from dsec.base.errors import (
    DsecError,
    InvalidStateError,
    NotFoundError,
    StateCorruptedError,
    StoreUnavailableError,
    WriterFencedError,
)
from dsec.episode.segments import read_segment, segment_name
from dsec.stores.episode_log import EpisodeLog
from dsec.stores.episode_log_objects import (
    NOTHING_STORED,
    Watermark,
    decode_watermark,
    encode_watermark,
    segment_key,
    watermark_key,
)
from dsec.stores.episode_log_place import LogPlace
from dsec.stores.episode_log_remote import read_stored_log
from dsec.stores.episode_log_tail import DEFAULT_BATCH_BYTES, Batch, LogTail
from dsec.stores.objects import ObjectStore

DEFAULT_BACKOFF_S = (1.0, 3.0, 9.0, 30.0)
"""Seconds before a batch is tried again; the last one over and over, since a gap is filled whenever it can be."""
DEFAULT_AT_ONCE = 4
_READINGS = 3
"""How often an answer that makes no sense is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadSettings:
    """How a log is copied.

    Attributes:
        at_once: batches of one log under way.
        batch_bytes: about the size of an object.
        merge_at: so many small objects that follow each other are replaced by one; 0: never.
        interval_s: what is saved within so many seconds shares an object, and its requests; nobody waits for it.
        backoff_s: waits before further tries.
        timeout_s: of each call to the store.
    """

    at_once: int = DEFAULT_AT_ONCE
    batch_bytes: int = DEFAULT_BATCH_BYTES
    merge_at: int = 64
    interval_s: float = 1.0
    backoff_s: Sequence[float] = DEFAULT_BACKOFF_S
    timeout_s: float = 60.0


@dataclass(slots=True)
class _UnderWay:
    """A batch that is not below the watermark yet."""

    batch: Batch
    stored: bool = False
    dropped: bool = False


@dataclass(slots=True)
class _Progress:
    """How far the copy has come.

    Attributes:
        told: the watermark that the store shows.
        reached: the one that what is stored allows.
        batches: behind it, in order.
        whole: objects below it that this writer put, in order, and that may be merged.
    """

    told: Watermark = NOTHING_STORED
    reached: Watermark = NOTHING_STORED
    batches: list[_UnderWay] = field(default_factory=list)
    whole: list[Batch] = field(default_factory=list)

    @property
    def has_gap(self) -> bool:
        """Whether nothing is under way, and a batch was given up for a state that never came."""
        if not self.batches or not self.batches[0].dropped:
            return False
        return all(one.dropped or (one.stored and not one.batch.is_state) for one in self.batches)

    def take_small(self, count: int, maximum_bytes: int) -> list[Batch]:
        """Return the first objects worth merging, at least so many that follow each other; forget what never will."""
        while self.whole:
            run: list[Batch] = []
            length = 0
            for batch in self.whole:
                length += batch.length
                follows = not run or (batch.first == run[-1].last + 1 and not batch.is_state)
                if not follows or (run and length > maximum_bytes):
                    break
                run.append(batch)
            if len(run) >= count:
                return run
            if len(run) == len(self.whole):
                return []  # More may follow.
            del self.whole[: len(run)]
        return []

    def advance(self, epoch: int) -> Watermark:
        """Take in what is stored now."""
        # A state that is stored stands in for whatever is in front of it.
        del self.batches[
            : max((n for n, one in enumerate(self.batches) if one.stored and one.batch.is_state), default=0)
        ]
        while self.batches and self.batches[0].stored:
            batch = self.batches.pop(0).batch
            self.whole.append(batch)
            self.reached = Watermark(epoch=epoch, sequence=batch.last, round=batch.round, checksum=batch.checksum)
        return self.reached


class LogUploader:
    """Copies one log; `run` it beside the loop, `wake` it when something was saved.

    Args:
        log: the log; it is only read.
        place: where it lies.
        store: where to.
        settings: how.
        limiter: shared by the uploaders of a worker: how many puts run at once, and so how much memory they take.
        on_trouble: hears of every failure; uploading goes on.

    Attributes:
        watermark: what is whole in the store.
    """

    def __init__(
        self,
        log: EpisodeLog,
        place: LogPlace,
        store: ObjectStore,
        *,
        settings: UploadSettings | None = None,
        limiter: anyio.CapacityLimiter | None = None,
        on_trouble: Callable[[DsecError], None] = lambda error: None,
    ) -> None:
        self._log = log
        self._place = place
        self._episode_id = Path(place.directory).name
        self._store = store
        self._settings = settings or UploadSettings()
        self._limiter = limiter or anyio.CapacityLimiter(self._settings.at_once)
        self._on_trouble = on_trouble
        self._progress = _Progress()
        self._tail: LogTail | None = None
        self._changed = anyio.Event()
        self._told = anyio.Event()
        self._has_ended = False
        self._failure: DsecError | None = None
        self._hurry = anyio.Event()
        self._publishing = anyio.Lock()

    @property
    def watermark(self) -> Watermark:
        return self._progress.told

    @property
    def is_whole(self) -> bool:
        """Whether everything that is saved is below the watermark."""
        return self.watermark.sequence >= self._log.saved_sequence

    @property
    def has_ended(self) -> bool:
        """Whether `run` has ended, so that the watermark does not move any more."""
        return self._has_ended

    def wake(self) -> None:
        """Something was saved."""
        self._changed.set()

    async def run(self) -> None:
        """Copy until cancelled.

        Raises:
            WriterFencedError: somebody else writes this episode, elsewhere.
            StateCorruptedError: the store knows of more than the log does.
            DsecError: the store refuses to be asked.
        """
        self._has_ended, self._failure = False, None
        try:
            await self._copy()
        except DsecError as error:
            self._failure = error
            raise
        finally:
            self._has_ended = True
            self._tell()

    async def _copy(self) -> None:
        await self._begin()
        try:
            async with anyio.create_task_group() as tasks:
                while True:
                    changed = self._changed = anyio.Event()
                    await self._start_batches(tasks)
                    await self._merge()
                    await changed.wait()
                    with anyio.move_on_after(self._settings.interval_s):
                        await self._hurry.wait()
        except BaseExceptionGroup as group:
            # Batches end the run only with what cannot be helped by trying again; one of these is enough.
            fatal = group.subgroup((WriterFencedError, StateCorruptedError))
            if fatal is not None:
                raise _first(fatal) from group
            raise

    async def wait_whole(self) -> Watermark:
        """Wait until all that was saved before this call is below the watermark; `run` runs beside it.

        Raises:
            InvalidStateError: `run` has ended before that was so, and nobody copies any more.
        """
        wanted = self._log.saved_sequence
        hurry = self._hurry
        hurry.set()
        self.wake()
        try:
            while self.watermark.sequence < wanted:
                self._check_runs()
                await self._told.wait()
        finally:
            if self._hurry is hurry:
                self._hurry = anyio.Event()
        return self.watermark

    def _check_runs(self) -> None:
        if self._has_ended:
            raise InvalidStateError(
                f"the log of {self._episode_id} is copied no further than event {self.watermark.sequence}",
                detail=self._failure.brief if self._failure is not None else "whoever copied it was told to end",
                resolution="open the log anew; its copy then goes on where it is whole",
            ) from self._failure

    def _tell(self) -> None:
        """Wake all who wait for the watermark."""
        told, self._told = self._told, anyio.Event()
        told.set()

    async def audit(self) -> Watermark:
        """Look whether the store still has what it once showed; take the watermark back to the first loss.

        Returns the watermark that is true; `run`, begun anew, fills the gap from the log, as far as the log goes back.

        Raises:
            StoreUnavailableError: the store does not answer; nothing was changed.
        """
        content = await read_stored_log(self._store, self._episode_id, believe_watermark=False)
        proven = content.next_sequence - 1 if content.events else 0
        before = await self._stored_watermark()
        if proven < before.sequence:
            round_ = content.progress.last_round
            await self._publish(Watermark(epoch=self._log.epoch, sequence=proven, round=round_, checksum=""))
        return self.watermark

    # -- the beginning -------------------------------------------------------------------------------------------------

    async def _begin(self) -> None:
        """Go on where the copy is whole, if it is one of this log."""
        watermark = await self._ask_patiently()
        if watermark.sequence > self._log.saved_sequence:
            raise StateCorruptedError(
                f"the store knows of {self._episode_id} up to event {watermark.sequence}, and the log in "
                f"{self._place.directory} ends with event {self._log.saved_sequence}",
                resolution="restore the log from the store; the disk has lost what was saved",
            )
        tail = self._tail_behind(watermark)
        ours = await anyio.to_thread.run_sync(tail.checksum_of, watermark.sequence) if watermark.checksum else None
        if ours is not None and ours != watermark.checksum:
            raise WriterFencedError(
                f"the store holds another history of {self._episode_id} than the log in {self._place.directory}",
                detail=f"event {watermark.sequence} is not the same",
                resolution="find out which of two workers should drive the episode, and restore its log",
            )
        self._progress.told = self._progress.reached = watermark
        self._tail = tail

    def _tail_behind(self, watermark: Watermark) -> LogTail:
        return LogTail(
            self._log,
            self._place.directory,
            self._place.disk,
            sequence=watermark.sequence,
            checksum=watermark.checksum,
            round=watermark.round,
        )

    async def _ask_patiently(self) -> Watermark:
        for tries in range(1_000_000):
            try:
                return await self._stored_watermark()
            except StoreUnavailableError as error:
                self._on_trouble(error)
                await anyio.sleep(self._delay_s(tries))
        raise StoreUnavailableError(f"{self._store.url} never answered")

    async def _stored_watermark(self) -> Watermark:
        """Return the watermark in the store. One that cannot be read says nothing, and everything is put again."""
        key = watermark_key(self._episode_id)
        for _ in range(_READINGS):
            try:
                data = await self._store.get(key, timeout_s=self._settings.timeout_s)
                return decode_watermark(data, name=f"{self._store.url}/{key}")
            except NotFoundError:
                return NOTHING_STORED
            except StateCorruptedError as error:
                self._on_trouble(error)
        return NOTHING_STORED

    # -- batches -------------------------------------------------------------------------------------------------------

    async def _start_batches(self, tasks: TaskGroup) -> None:
        assert self._tail is not None
        while sum(not (one.stored or one.dropped) for one in self._progress.batches) < self._settings.at_once:
            batch = await anyio.to_thread.run_sync(self._tail.next_batch, self._settings.batch_bytes)
            if batch is None and self._progress.has_gap:
                # What is gone from the disk as well ends the run, by the error of the tail.
                self._progress.batches.clear()
                self._tail = self._tail_behind(self._progress.reached)
                continue
            if batch is None:
                return
            one = _UnderWay(batch)
            self._progress.batches.append(one)
            tasks.start_soon(self._carry, one)

    async def _carry(self, one: _UnderWay) -> None:
        tries = 0
        while True:
            try:
                async with self._limiter:
                    await self._store_batch(one)
                await self._advance()
                self._changed.set()
                return
            except (WriterFencedError, StateCorruptedError):
                raise
            except DsecError as error:
                self._on_trouble(error)
            await anyio.sleep(self._delay_s(tries))
            tries += 1

    def _delay_s(self, tries: int) -> float:
        backoff_s = self._settings.backoff_s
        return backoff_s[min(tries, len(backoff_s) - 1)]

    async def _store_batch(self, one: _UnderWay) -> None:
        """Put a batch, and count it only when the store shows it."""
        if one.stored or one.dropped:
            return
        assert self._tail is not None
        epoch = self._log.epoch
        read = self._tail.read
        data = await anyio.to_thread.run_sync(lambda: read([one.batch], epoch=epoch, episode_id=self._episode_id))
        if data is None:
            one.dropped = True
            return
        key, timeout_s = segment_key(self._episode_id, one.batch.first, epoch), self._settings.timeout_s
        is_new = await self._store.put(key, data, if_absent=True, timeout_s=timeout_s)
        shown = await self._store.get(key, timeout_s=timeout_s)
        if shown != data:
            await self._settle_difference(key, one.batch, data, shown, is_new=is_new)
        one.stored = True

    async def _settle_difference(self, key: str, batch: Batch, data: bytes, shown: bytes, *, is_new: bool) -> None:
        """The store shows something else than was put: a broken answer, a broken object, another cut of the same
        events by us, or another writer's. Return if it holds our events; raise otherwise, to try again or for good.
        """
        name = segment_name(batch.first, self._log.epoch)
        ours = read_segment(name, data, episode_id=self._episode_id).lines
        try:
            theirs = read_segment(name, shown, episode_id=self._episode_id).lines
        except StateCorruptedError:
            theirs = ()
        both = min(len(ours), len(theirs))
        if ours[:both] != theirs[:both]:
            raise WriterFencedError(
                f"somebody else has stored events of {self._episode_id} from {batch.first} on",
                detail=f"{self._store.url}/{key}",
                resolution="end this loop; one worker drives an episode",
            )
        if both == len(ours) and not is_new:
            return
        if not is_new:
            await self._store.put(key, data, timeout_s=self._settings.timeout_s)
        raise StoreUnavailableError(f"{self._store.url} does not show {key} as it was put")

    async def _merge(self) -> None:
        """Replace small objects by one under the key of the first: a long episode of short rounds would have thousands.

        What is replaced holds the same events, so that a reader finds them at every moment; the others go when the
        store has shown the one. If it does not work, the next wake tries again.
        """
        count, tail = self._settings.merge_at, self._tail
        small = self._progress.take_small(count, self._settings.batch_bytes) if count else []
        if not small or tail is None:
            return
        epoch = self._log.epoch
        try:
            data = await anyio.to_thread.run_sync(lambda: tail.read(small, epoch=epoch, episode_id=self._episode_id))
            if data is not None:
                keys = [segment_key(self._episode_id, one.first, epoch) for one in small]
                await self._store.put(keys[0], data, timeout_s=self._settings.timeout_s)
                if await self._store.get(keys[0], timeout_s=self._settings.timeout_s) != data:
                    raise StoreUnavailableError(f"{self._store.url} does not show {keys[0]} as it was put")
                await self._store.delete(keys[1:], timeout_s=self._settings.timeout_s)
        except DsecError as error:
            self._on_trouble(error)
            return
        del self._progress.whole[: len(small)]

    async def _advance(self) -> None:
        """Move the watermark, and tell the store; a failure leaves it to the next try."""
        async with self._publishing:
            watermark = self._progress.advance(self._log.epoch)
            if watermark.sequence > self.watermark.sequence:
                await self._publish(watermark)

    async def _publish(self, watermark: Watermark) -> None:
        """Put the watermark, unless a newer writer has put one: then this one is no longer the one that counts."""
        if (newest := (await self._stored_watermark()).epoch) > self._log.epoch:
            raise WriterFencedError(
                f"another worker has gone on with {self._episode_id}, in epoch {newest}",
                detail=f"{self._store.url}/{watermark_key(self._episode_id)}",
                resolution="end this loop; one worker drives an episode",
            )
        key, data = watermark_key(self._episode_id), encode_watermark(watermark)
        await self._store.put(key, data, timeout_s=self._settings.timeout_s)
        if await self._store.get(key, timeout_s=self._settings.timeout_s) != data:
            raise StoreUnavailableError(f"{self._store.url} does not show {key} as it was put")
        self._progress.told = watermark
        self._tell()


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
