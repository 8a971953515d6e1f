"""The copy of a log in an object store: what the watermark says is there, whatever the store does."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from dsec.base.clock import ManualClock
from dsec.base.errors import (
    AlreadyExistsError,
    CapabilityMissingError,
    DsecError,
    InvalidStateError,
    NotFoundError,
    StateCorruptedError,
    WriterFencedError,
)
from dsec.episode.durability import EVERY_ROUND, Durability, asynchronous
from dsec.episode.log_content import Completeness
from dsec.episode.log_events import EpisodeEnded, RoundCommitted, StateSaved
from dsec.stores.episode_log import EpisodeLog, create_log, open_log
from dsec.stores.episode_log_group import GroupCommit
from dsec.stores.episode_log_objects import segment_key, watermark_key
from dsec.stores.episode_log_place import LogPlace
from dsec.stores.episode_log_reading import read_episode_log
from dsec.stores.episode_log_remote import read_stored_log, restore_log
from dsec.stores.episode_log_tail import Batch, LogTail
from dsec.stores.episode_log_upload import LogUploader, UploadSettings
from dsec.stores.objects import ObjectStore
from dsec.stores.objects_folder import FolderObjectStore
from dsec.stores.objects_memory import MemoryObjectStore
from dsec.testing.episodes import EPISODE, history, identity, round_record
from dsec.testing.faulty_store import FaultyObjectStore
from dsec.testing.simulated_disk import SimulatedDisk

DIRECTORY = Path("/episodes") / EPISODE
SETTINGS = UploadSettings(backoff_s=(0.0,), batch_bytes=1, interval_s=0.0, merge_at=0)
"""One event an object, and no waiting."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def disk() -> SimulatedDisk:
    return SimulatedDisk()


@pytest.fixture
def store() -> FaultyObjectStore:
    return FaultyObjectStore(MemoryObjectStore())


def place(disk: SimulatedDisk, directory: Path = DIRECTORY) -> LogPlace:
    return LogPlace(directory=directory, disk=disk, clock=ManualClock(), segment_bytes=2500)


def write(log: EpisodeLog, rounds: int) -> None:
    """Play so many rounds and save."""
    for _ in range(rounds):
        log.append(RoundCommitted(round_record(log.progress.last_round + 1)))
    log.save()


def uploader(
    log: EpisodeLog,
    disk: SimulatedDisk,
    store: ObjectStore,
    *,
    settings: UploadSettings = SETTINGS,
    on_trouble: Callable[[DsecError], None] = lambda error: None,
) -> LogUploader:
    return LogUploader(log, place(disk), store, settings=settings, on_trouble=on_trouble)


@asynccontextmanager
async def running(upload: LogUploader) -> AsyncIterator[LogUploader]:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(upload.run)
        try:
            yield upload
        finally:
            tasks.cancel_scope.cancel()


async def copied(log: EpisodeLog, disk: SimulatedDisk, store: ObjectStore) -> None:
    """Copy everything."""
    with anyio.fail_after(60):
        async with running(uploader(log, disk, store)) as upload:
            await upload.wait_whole()


async def settled(condition: Callable[[], bool]) -> None:
    """Wait for something that another task brings about."""
    with anyio.fail_after(60):
        while not condition():  # noqa: ASYNC110 - what it waits for has no event.
            await anyio.sleep(0.001)


@pytest.mark.anyio
async def test_the_copy_is_read_back_as_the_log_was_written(disk: SimulatedDisk, store: FaultyObjectStore) -> None:
    log = create_log(place(disk), identity())
    write(log, 12)
    await copied(log, disk, store)
    content = await read_stored_log(store, EPISODE)
    assert content.events == history(12)
    assert content.completeness is Completeness.OPEN
    log.append(EpisodeEnded(reason="submitted"))
    log.save()
    await copied(log, disk, store)
    assert (await read_stored_log(store, EPISODE)).completeness is Completeness.COMPLETE


@pytest.mark.anyio
async def test_what_is_not_saved_is_not_uploaded(disk: SimulatedDisk, store: FaultyObjectStore) -> None:
    log = create_log(place(disk), identity())
    write(log, 2)
    log.append(RoundCommitted(round_record(3)))
    await copied(log, disk, store)
    assert (await read_stored_log(store, EPISODE)).progress.last_round == 2


@pytest.mark.anyio
async def test_round_two_missing_keeps_the_watermark_at_round_one_though_round_three_arrived(
    disk: SimulatedDisk, store: FaultyObjectStore
) -> None:
    log = create_log(place(disk), identity())
    write(log, 3)
    second = segment_key(EPISODE, 3, 1)
    store.faults.fails = lambda action, key: action == "put" and key == second
    troubles: list[DsecError] = []
    async with running(uploader(log, disk, store, on_trouble=troubles.append)) as upload:
        await settled(lambda: len(troubles) > 3 and upload.watermark.round == 1)
        assert await store.inner.head(segment_key(EPISODE, 4, 1)) is not None
        assert (upload.watermark.sequence, upload.watermark.round) == (2, 1)
        content = await read_stored_log(store, EPISODE)
        assert (content.completeness, content.progress.last_round) == (Completeness.INCOMPLETE, 1)
        assert "event" in content.problem
        store.faults.fails = lambda action, key: False
        with anyio.fail_after(60):
            await upload.wait_whole()
        assert upload.watermark.round == 3
    assert (await read_stored_log(store, EPISODE)).events == history(3)


@pytest.mark.anyio
async def test_a_store_that_acknowledges_and_loses_is_noticed_by_reading_back(
    disk: SimulatedDisk, store: FaultyObjectStore
) -> None:
    log = create_log(place(disk), identity())
    write(log, 5)
    draw = random.Random(1)
    store.faults.loses = lambda key: draw.random() < 0.5
    store.faults.fails_after = lambda action, key: draw.random() < 0.2
    store.faults.corrupts = lambda key: draw.random() < 0.2
    await copied(log, disk, store)
    store.faults.loses = lambda key: False
    store.faults.fails_after = lambda action, key: False
    store.faults.corrupts = lambda key: False
    assert (await read_stored_log(store, EPISODE)).events == history(5)


@pytest.mark.anyio
async def test_a_store_that_loses_later_is_found_by_an_audit_and_filled_from_the_log(
    disk: SimulatedDisk, store: FaultyObjectStore
) -> None:
    log = create_log(place(disk), identity())
    write(log, 8)
    await copied(log, disk, store)
    await store.inner.delete([segment_key(EPISODE, 4, 1), segment_key(EPISODE, 5, 1)])
    content = await read_stored_log(store, EPISODE)
    assert (content.completeness, content.progress.last_round) == (Completeness.INCOMPLETE, 2)
    watermark = await uploader(log, disk, store).audit()
    assert (watermark.sequence, watermark.round) == (3, 2)
    write(log, 2)
    upload = uploader(log, disk, store, settings=UploadSettings(backoff_s=(0.0,), interval_s=0.0))
    with anyio.fail_after(60):
        async with running(upload):
            await upload.wait_whole()
    assert (await read_stored_log(store, EPISODE)).events == history(10)


@pytest.mark.anyio
async def test_the_end_of_a_copy_that_is_lost_is_missed_because_of_the_watermark(
    disk: SimulatedDisk, store: FaultyObjectStore
) -> None:
    log = create_log(place(disk), identity())
    write(log, 4)
    await copied(log, disk, store)
    await store.inner.delete([segment_key(EPISODE, 5, 1)])
    content = await read_stored_log(store, EPISODE)
    assert content.completeness is Completeness.INCOMPLETE
    assert "once showed events up to 5, and now up to 4" in content.problem
    await store.inner.delete([watermark_key(EPISODE)])
    content = await read_stored_log(store, EPISODE)
    assert (content.completeness, content.progress.last_round) == (Completeness.INCOMPLETE, 3)


@pytest.mark.anyio
async def test_a_stale_list_hides_nothing(disk: SimulatedDisk, store: FaultyObjectStore) -> None:
    log = create_log(place(disk), identity())
    write(log, 2)
    await store.make_lists_stale()
    await copied(log, disk, store)
    assert (await read_stored_log(store, EPISODE)).events == history(2)
    await store.make_lists_stale()
    write(log, 3)
    await copied(log, disk, store)
    log.close()
    log, _ = open_log(place(disk))
    write(log, 3)
    await copied(log, disk, store)
    assert (await read_stored_log(store, EPISODE)).events == history(8)


@pytest.mark.anyio
async def test_a_new_epoch_goes_on_at_the_watermark_and_cuts_what_the_old_one_left_behind_it(
    disk: SimulatedDisk, store: FaultyObjectStore
) -> None:
    log = create_log(place(disk), identity())
    write(log, 3)
    await copied(log, disk, store)
    log.close()
    log, _ = open_log(place(disk))
    write(log, 2)
    puts = len([key for action, key in store.calls if action == "put" and "/log/" in key])
    await copied(log, disk, store)
    assert len([key for action, key in store.calls if action == "put" and "/log/" in key]) == puts + 2
    assert (await read_stored_log(store, EPISODE)).events == history(5)


@pytest.mark.anyio
async def test_a_state_stands_in_for_rounds_that_never_arrived(disk: SimulatedDisk, store: FaultyObjectStore) -> None:
    log = create_log(place(disk), identity())
    write(log, 4)
    store.faults.fails = lambda action, key: action == "put" and key == segment_key(EPISODE, 3, 1)
    async with running(uploader(log, disk, store)) as upload:
        await settled(lambda: upload.watermark.round == 1)
        log.append(StateSaved(number=4, identity=identity(), workspace="w4"))
        write(log, 2)
        with anyio.fail_after(60):
            await upload.wait_whole()
    assert upload.watermark.round == 6
    content = await read_stored_log(store, EPISODE)
    assert content.completeness is Completeness.OPEN
    assert [record.number for record in content.rounds] == [5, 6]


@pytest.mark.anyio
async def test_a_store_that_knows_more_than_the_log_is_never_written_over(
    disk: SimulatedDisk, store: FaultyObjectStore
) -> None:
    log = create_log(place(disk), identity())
    write(log, 5)
    await copied(log, disk, store)
    other_disk = SimulatedDisk()
    other = create_log(place(other_disk), identity())
    write(other, 2)
    with pytest.raises(StateCorruptedError, match="the disk has lost what was saved"):
        await uploader(other, other_disk, store).run()
    assert (await read_stored_log(store, EPISODE)).events == history(5)


@pytest.mark.anyio
async def test_two_workers_with_histories_of_their_own_do_not_mix(
    disk: SimulatedDisk, store: FaultyObjectStore
) -> None:
    log = create_log(place(disk), identity())
    write(log, 2)
    await copied(log, disk, store)
    other_disk = SimulatedDisk()
    other = create_log(place(other_disk), identity())
    for number in (1, 2, 3):
        other.append(RoundCommitted(round_record(number, size=5)))
    other.save()
    with pytest.raises(WriterFencedError, match="another history"):
        await uploader(other, other_disk, store).run()
    # The same, met at an object: the watermark was lost.
    await store.inner.delete([watermark_key(EPISODE)])
    with pytest.raises(WriterFencedError, match="somebody else has stored events"):
        await uploader(other, other_disk, store).run()
    assert (await read_stored_log(store, EPISODE, believe_watermark=False)).events == history(2)


@pytest.mark.anyio
async def test_a_store_that_does_not_answer_costs_nothing_but_waiting(
    disk: SimulatedDisk, store: FaultyObjectStore
) -> None:
    log = create_log(place(disk), identity())
    store.faults.fails = lambda action, key: True
    troubles: list[DsecError] = []
    upload = uploader(log, disk, store, on_trouble=troubles.append)
    async with running(upload):
        await settled(lambda: len(troubles) > 3)
        write(log, 30)
        assert not upload.is_whole
        store.faults.fails = lambda action, key: False
        upload.wake()
        with anyio.fail_after(60):
            await upload.wait_whole()
        assert upload.is_whole
    assert (await read_stored_log(store, EPISODE)).events == history(30)


@pytest.mark.anyio
async def test_a_worker_elsewhere_goes_on_from_the_copy(disk: SimulatedDisk, store: FaultyObjectStore) -> None:
    log = create_log(place(disk), identity())
    write(log, 9)
    await copied(log, disk, store)
    elsewhere = SimulatedDisk()
    content = await restore_log(place(elsewhere), store)
    assert content.events == history(9)
    with pytest.raises(AlreadyExistsError):
        await restore_log(place(elsewhere), store)
    other, content = open_log(place(elsewhere))
    assert other.epoch == 2
    write(other, 3)
    await copied(other, elsewhere, store)
    assert (await read_stored_log(store, EPISODE)).events == history(12)
    assert read_episode_log(DIRECTORY, disk=elsewhere).events == history(12)


@pytest.mark.anyio
async def test_a_worker_that_was_given_up_elsewhere_is_told_so_by_the_store(
    disk: SimulatedDisk, store: FaultyObjectStore
) -> None:
    log = create_log(place(disk), identity())
    write(log, 4)
    await copied(log, disk, store)
    elsewhere = SimulatedDisk()
    await restore_log(place(elsewhere), store)
    other, _ = open_log(place(elsewhere))
    other.append(RoundCommitted(round_record(5, size=9)))
    other.save()
    await copied(other, elsewhere, store)
    write(log, 3)
    with pytest.raises(WriterFencedError, match=r"in epoch 2|another history|somebody else"):
        await uploader(log, disk, store).run()
    content = await read_stored_log(store, EPISODE)
    assert content.rounds[-1] == round_record(5, size=9)


@pytest.mark.anyio
async def test_who_waits_for_a_copy_hears_that_nobody_copies_any_more(
    disk: SimulatedDisk, store: FaultyObjectStore
) -> None:
    log = create_log(place(disk), identity())
    store.faults.fails = lambda action, key: action == "put"
    upload = uploader(log, disk, store)
    heard: list[str] = []

    async def wait() -> None:
        try:
            await upload.wait_whole()
        except InvalidStateError as error:
            heard.append(error.brief)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as waiting, running(upload):
            waiting.start_soon(wait)
            await settled(lambda: len(store.calls) > 5)
        await wait()
        assert upload.has_ended
        assert len(heard) == 2
        assert "no further than event 0" in heard[0]
        store.faults.fails = lambda action, key: False
        await copied(log, disk, store)


@pytest.mark.anyio
@pytest.mark.parametrize("is_gone", [False, True], ids=["there again", "gone"])
async def test_a_batch_that_was_given_up_and_that_no_state_stands_in_for_is_cut_from_the_disk_again(
    disk: SimulatedDisk, store: FaultyObjectStore, monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    log = create_log(place(disk), identity())
    write(log, 3)
    missing = segment_key(EPISODE, 3, 1)
    given_up: list[int] = []
    read = LogTail.read

    def read_but_one(tail: LogTail, batches: Sequence[Batch], *, epoch: int, episode_id: str) -> bytes | None:
        if batches[0].first == 3 and not given_up:
            given_up.append(3)
            if is_gone:
                disk.remove(DIRECTORY / batches[0].segment)
            return None
        return read(tail, batches, epoch=epoch, episode_id=episode_id)

    monkeypatch.setattr(LogTail, "read", read_but_one)
    with anyio.fail_after(60):
        if is_gone:
            with pytest.raises(StateCorruptedError, match="is gone"):
                await uploader(log, disk, store).run()
            return
        async with running(uploader(log, disk, store)) as upload:
            await upload.wait_whole()
    assert await store.inner.head(missing) is not None
    assert (await read_stored_log(store, EPISODE)).events == history(3)


@pytest.mark.anyio
async def test_what_is_saved_within_an_interval_shares_an_object(disk: SimulatedDisk, store: FaultyObjectStore) -> None:
    log = create_log(place(disk), identity())
    upload = uploader(log, disk, store, settings=UploadSettings(interval_s=1000.0))
    async with running(upload):
        await settled(lambda: upload.watermark.sequence == 1)
        for _ in range(5):
            write(log, 1)
            upload.wake()
            await anyio.lowlevel.checkpoint()
        with anyio.fail_after(60):
            await upload.wait_whole()
    puts = [key for action, key in store.calls if action == "put" and "/log/" in key]
    assert len(puts) == 2
    assert upload.watermark.round == 5


MERGING = UploadSettings(backoff_s=(0.0,), interval_s=0.0, merge_at=5)


async def one_object_a_round(log: EpisodeLog, upload: LogUploader, rounds: int) -> None:
    for _ in range(rounds):
        write(log, 1)
        await upload.wait_whole()


async def log_keys(store: FaultyObjectStore) -> list[str]:
    return [info.key async for info in store.inner.list(f"episodes/{EPISODE}/log/")]


@pytest.mark.anyio
async def test_many_small_objects_are_replaced_by_few_and_nothing_is_missing_meanwhile(
    disk: SimulatedDisk, store: FaultyObjectStore
) -> None:
    log = create_log(place(disk), identity())
    async with running(uploader(log, disk, store, settings=MERGING)) as upload:
        for _ in range(20):
            await one_object_a_round(log, upload, 3)
            assert (await read_stored_log(store, EPISODE)).events == history(log.progress.last_round)
    assert len(await log_keys(store)) < 20
    elsewhere = SimulatedDisk()
    await restore_log(place(elsewhere), store)
    other, content = open_log(place(elsewhere))
    other.close()
    assert content.events == history(60)


@pytest.mark.anyio
async def test_a_reader_that_meets_a_merge_under_way_is_not_deceived(
    disk: SimulatedDisk, store: FaultyObjectStore
) -> None:
    log = create_log(place(disk), identity())
    plain = UploadSettings(backoff_s=(0.0,), interval_s=0.0, merge_at=0)
    async with running(uploader(log, disk, store, settings=plain)) as upload:
        await one_object_a_round(log, upload, 7)
    keys = await log_keys(store)
    whole = [await store.inner.get(key) for key in keys]
    tail = LogTail(log, DIRECTORY, disk)
    batches = [batch for batch in (tail.next_batch() for _ in range(9)) if batch is not None]
    data = tail.read(batches, epoch=1, episode_id=EPISODE)
    assert data is not None
    # Whatever the reader has of the old objects when the new one takes their place:
    for seen in range(1, len(keys)):
        for key, content in zip(keys, whole, strict=True):
            await store.inner.put(key, content)
        gets = [0]

        class Merging(FaultyObjectStore):
            async def get(
                self, key: str, *, timeout_s: float = 60.0, seen: int = seen, gets: list[int] = gets
            ) -> bytes:
                if "/log/" in key:
                    gets[0] += 1
                    if gets[0] == seen + 1:
                        await self.inner.put(keys[0], data)
                        await self.inner.delete(keys[1:])
                return await super().get(key)

        content = await read_stored_log(Merging(store.inner), EPISODE)
        assert content.completeness is Completeness.OPEN, content.problem
        assert content.events == history(7)


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(8))
async def test_merging_loses_nothing_whatever_the_store_does(seed: int) -> None:
    draw = random.Random(seed)
    disk, store = SimulatedDisk(), FaultyObjectStore(MemoryObjectStore())
    log = create_log(place(disk), identity())
    async with running(uploader(log, disk, store, settings=MERGING)) as upload:
        for turn in range(12):
            store.faults.fails = lambda action, key: draw.random() < 0.2
            store.faults.fails_after = lambda action, key: draw.random() < 0.1
            store.faults.loses = lambda key: draw.random() < 0.2
            store.faults.truncates = lambda key: draw.random() < 0.1
            with anyio.fail_after(60):
                await one_object_a_round(log, upload, 3)
            if turn == 7:
                log.append(
                    StateSaved(number=log.progress.last_round, identity=identity(), workspace=log.progress.workspace)
                )
            store.faults = type(store.faults)()
            content = await read_stored_log(store, EPISODE)
            assert content.completeness is Completeness.OPEN, content.problem
            assert content.progress.last_round >= upload.watermark.round


@pytest.mark.anyio
async def test_a_new_epoch_goes_on_behind_objects_that_were_merged(
    disk: SimulatedDisk, store: FaultyObjectStore
) -> None:
    log = create_log(place(disk), identity())
    for _ in range(3):
        async with running(uploader(log, disk, store, settings=MERGING)) as upload:
            await one_object_a_round(log, upload, 13)
        log.close()
        log, _ = open_log(place(disk))
    assert (await read_stored_log(store, EPISODE)).events == history(39)


@pytest.mark.anyio
async def test_an_incomplete_copy_is_not_restored(disk: SimulatedDisk, store: FaultyObjectStore) -> None:
    log = create_log(place(disk), identity())
    write(log, 4)
    await copied(log, disk, store)
    await store.inner.delete([segment_key(EPISODE, 3, 1)])
    elsewhere = SimulatedDisk()
    with pytest.raises(StateCorruptedError, match="is incomplete"):
        await restore_log(place(elsewhere), store)
    assert not elsewhere.names(DIRECTORY)


@pytest.mark.anyio
async def test_a_copy_that_was_filled_with_overlaps_is_restored_whole(
    disk: SimulatedDisk, store: FaultyObjectStore
) -> None:
    log = create_log(place(disk), identity())
    write(log, 8)
    await copied(log, disk, store)
    await store.inner.delete([segment_key(EPISODE, 4, 1)])
    await uploader(log, disk, store).audit()
    upload = uploader(log, disk, store, settings=UploadSettings(backoff_s=(0.0,), interval_s=0.0))
    with anyio.fail_after(60):
        async with running(upload):
            await upload.wait_whole()
    elsewhere = SimulatedDisk()
    await restore_log(place(elsewhere), store)
    other, content = open_log(place(elsewhere))
    assert content.events == history(8)
    write(other, 1)
    assert read_episode_log(DIRECTORY, disk=elsewhere).events == history(9)


@pytest.mark.anyio
async def test_there_is_no_copy_of_what_was_never_copied(store: FaultyObjectStore) -> None:
    with pytest.raises(NotFoundError):
        await read_stored_log(store, EPISODE)


@pytest.mark.anyio
async def test_a_copy_of_a_newer_version_is_refused(disk: SimulatedDisk, store: FaultyObjectStore) -> None:
    await store.put(watermark_key(EPISODE), b'{"version":3,"of":"the future"}')
    with pytest.raises(CapabilityMissingError):
        await read_stored_log(store, EPISODE)
    with pytest.raises(CapabilityMissingError):
        await uploader(create_log(place(disk), identity()), disk, store).run()


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(12))
async def test_whatever_a_store_does_the_watermark_promises_only_what_is_there(seed: int) -> None:
    draw = random.Random(seed)
    disk, store = SimulatedDisk(), FaultyObjectStore(MemoryObjectStore())
    log = create_log(place(disk), identity())
    store.faults.fails = lambda action, key: draw.random() < 0.3
    store.faults.fails_after = lambda action, key: draw.random() < 0.2
    store.faults.loses = lambda key: draw.random() < 0.3
    store.faults.truncates = lambda key: draw.random() < 0.1
    upload = uploader(
        log, disk, store, settings=UploadSettings(backoff_s=(0.0,), batch_bytes=draw.choice([1, 900]), interval_s=0.0)
    )
    async with running(upload):
        for _ in range(15):
            write(log, draw.randint(1, 3))
            upload.wake()
            for _ in range(draw.randint(0, 40)):
                await anyio.lowlevel.checkpoint()
            promised = upload.watermark
            content = (
                await read_stored_log(store.inner, EPISODE, believe_watermark=False) if promised.sequence else None
            )
            if content is not None:
                assert content.next_sequence > promised.sequence
                assert content.progress.last_round >= promised.round
                assert content.events == history(log.progress.last_round)[: len(content.events)]
        store.faults = type(store.faults)()
        with anyio.fail_after(60):
            await upload.wait_whole()
    assert (await read_stored_log(store, EPISODE)).events == history(log.progress.last_round)


@pytest.mark.anyio
@pytest.mark.parametrize("durability", [EVERY_ROUND, asynchronous(3)])
async def test_an_uploader_is_woken_by_each_save(
    disk: SimulatedDisk, store: FaultyObjectStore, durability: Durability
) -> None:
    log = create_log(place(disk), identity())
    upload = uploader(log, disk, store)
    async with GroupCommit(threads=2) as group, running(upload):
        durable = group.attach(log, durability, on_saved=upload.wake)
        for number in range(1, 11):
            await durable.commit(RoundCommitted(round_record(number)))
        await durable.flush()
        await settled(lambda: upload.is_whole)
        assert upload.watermark.round == 10


@pytest.mark.anyio
async def test_real_files_on_both_sides(tmp_path: Path) -> None:
    store = FolderObjectStore(tmp_path / "store")
    where = LogPlace(directory=tmp_path / "episodes" / EPISODE, segment_bytes=4000)
    log = create_log(where, identity())
    write(log, 20)
    async with running(LogUploader(log, where, store)) as upload:
        with anyio.fail_after(60):
            await upload.wait_whole()
    log.close()
    elsewhere = LogPlace(directory=tmp_path / "elsewhere" / EPISODE)
    await restore_log(elsewhere, store)
    other, content = open_log(elsewhere)
    other.close()
    assert content.events == history(20)
