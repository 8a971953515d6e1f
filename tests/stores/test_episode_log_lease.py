"""Leases in a store: never two holders at once, whatever is delayed; and the log that minds them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from dsec.base.clock import ManualClock
from dsec.base.errors import StateLockedError, StoreUnavailableError, WriterFencedError
from dsec.episode.log_events import RoundCommitted
from dsec.stores.episode_log import create_log
from dsec.stores.episode_log_lease import StoreLease, hold_episode
from dsec.stores.episode_log_place import LogPlace
from dsec.stores.objects import DEFAULT_TIMEOUT_S, ObjectInfo
from dsec.stores.objects_memory import MemoryObjectStore
from dsec.testing.episodes import EPISODE, identity, round_record
from dsec.testing.faulty_store import FaultyObjectStore
from dsec.testing.simulated_disk import SimulatedDisk

LEASE_S = 60.0


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def store() -> FaultyObjectStore:
    return FaultyObjectStore(MemoryObjectStore())


async def hold(store: FaultyObjectStore | SlowStore, clock: ManualClock, *, waits: bool = False) -> StoreLease:
    return await hold_episode(store, EPISODE, clock=clock, lease_s=LEASE_S, waits=waits, poll_s=0.0)


@pytest.mark.anyio
async def test_an_episode_is_held_by_one_until_it_is_released(store: FaultyObjectStore) -> None:
    clock = ManualClock()
    lease = await hold(store, clock)
    assert lease.is_valid()
    with pytest.raises(StateLockedError, match="another worker holds"):
        await hold(store, clock)
    await lease.release()
    assert not lease.is_valid()
    other = await hold(store, clock)
    assert other.number == lease.number + 1
    with pytest.raises(WriterFencedError):
        await lease.renew()


@pytest.mark.anyio
async def test_a_lease_that_is_not_renewed_runs_out(store: FaultyObjectStore) -> None:
    clock = ManualClock()
    lease = await hold(store, clock)
    clock.advance(LEASE_S - 1)
    assert lease.is_valid()
    await lease.renew()
    clock.advance(LEASE_S - 1)
    assert lease.is_valid()
    store.faults.fails = lambda action, key: True
    with pytest.raises(StoreUnavailableError):
        await lease.renew()
    clock.advance(2)
    assert not lease.is_valid()


@pytest.mark.anyio
async def test_a_stale_list_makes_nobody_a_second_holder(store: FaultyObjectStore) -> None:
    clock = ManualClock()
    await store.make_lists_stale()
    await hold(store, clock)
    with pytest.raises(StateLockedError):
        await hold(store, clock)


@pytest.mark.anyio
async def test_a_contender_waits_a_whole_lease_and_the_holder_then_stops(store: FaultyObjectStore) -> None:
    clock = ManualClock()
    lease = await hold(store, clock)
    taken: list[StoreLease] = []

    async def contend() -> None:
        taken.append(await hold(store, clock, waits=True))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(contend)
        for advanced_s in (0.0, LEASE_S - 1.0, 2.0):
            assert not taken
            clock.advance(advanced_s)
            for _ in range(50):
                await anyio.lowlevel.checkpoint()
    assert taken[0].is_valid()
    assert not lease.is_valid()


class SlowStore(MemoryObjectStore):
    """A store whose calls take effect at some moment and are answered at a later one."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.draw = draw

    async def _dawdle(self) -> None:
        for _ in range(self.draw.choice([0, 0, 1, 3, 30])):
            await anyio.lowlevel.checkpoint()

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> bool:
        await self._dawdle()
        done = await super().put(key, data, if_absent=if_absent)
        await self._dawdle()
        return done

    async def get(self, key: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        await self._dawdle()
        try:
            return await super().get(key)
        finally:
            await self._dawdle()

    async def head(self, key: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> ObjectInfo | None:
        await self._dawdle()
        found = await super().head(key)
        await self._dawdle()
        return found


class LateStore(MemoryObjectStore):
    """A store in which a put takes effect at once and is answered much later."""

    def __init__(self, clock: ManualClock, answers_after_s: float) -> None:
        super().__init__()
        self.clock, self.answers_after_s = clock, answers_after_s

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> bool:
        done = await super().put(key, data, if_absent=if_absent)
        self.clock.advance(self.answers_after_s)
        return done


@pytest.mark.anyio
async def test_a_lease_counts_from_before_the_put_that_began_or_renewed_it() -> None:
    """A contender may have seen the put when it took effect, and waits a lease from then on, not from the answer."""
    clock = ManualClock()
    store = LateStore(clock, 10.0)
    lease = await hold_episode(store, EPISODE, clock=clock, lease_s=LEASE_S)
    for _ in range(2):
        clock.advance(LEASE_S - 10.5)
        assert lease.is_valid()
        clock.advance(1.0)
        assert not lease.is_valid()
        await lease.renew()


@pytest.mark.anyio
async def test_a_lease_whose_first_put_is_answered_after_it_is_over_was_never_valid() -> None:
    clock = ManualClock()
    lease = await hold_episode(LateStore(clock, LEASE_S + 1.0), EPISODE, clock=clock, lease_s=LEASE_S)
    assert not lease.is_valid()


def check_one(held: Sequence[StoreLease]) -> None:
    assert sum(lease.is_valid() for lease in held) <= 1


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(150))
async def test_whatever_is_delayed_no_two_are_valid_at_once(seed: int) -> None:
    draw = random.Random(seed)
    store, clock = SlowStore(draw), ManualClock()
    held: list[StoreLease] = []
    turns = [0]

    async def worker() -> None:
        while True:
            await anyio.lowlevel.checkpoint()
            try:
                lease = await hold(store, clock, waits=draw.random() < 0.9)
            except (StateLockedError, WriterFencedError):
                continue
            turns[0] += 1
            held.append(lease)
            check_one(held)
            for _ in range(draw.randint(0, 4)):
                for _ in range(draw.randint(0, 60)):  # Sometimes it sleeps through its lease.
                    await anyio.lowlevel.checkpoint()
                try:
                    await lease.renew()
                except WriterFencedError:
                    break
                check_one(held)
            if draw.random() < 0.2:
                await lease.release()

    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(worker)
        for _ in range(1500):
            await anyio.lowlevel.checkpoint()
            clock.advance(draw.choice([0.0, 0.5, 3.0]))
            check_one(held)
        tasks.cancel_scope.cancel()
    assert turns[0] > 3


@pytest.mark.anyio
async def test_a_log_acknowledges_nothing_once_its_host_does_not_hold_the_episode(store: FaultyObjectStore) -> None:
    clock = ManualClock()
    lease = await hold(store, clock)
    place = LogPlace(
        directory=Path("/episodes") / EPISODE, disk=SimulatedDisk(), clock=clock, may_acknowledge=lease.is_valid
    )
    log = create_log(place, identity())
    log.append(RoundCommitted(round_record(1)))
    log.save()
    clock.advance(LEASE_S + 1)
    log.append(RoundCommitted(round_record(2)))
    with pytest.raises(WriterFencedError, match="may not acknowledge"):
        log.save()
    assert log.saved_sequence == 2
    log.close()
