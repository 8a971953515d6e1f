"""Who drives an episode, among workers on any hosts: a lease in the object store.

On one host the kernel tells writers apart (`episode_log_tenure`). Between hosts there is only the store: it has no
clock that workers share and no locks, but *put if absent*, and reads that see what was put. Holders of an episode are
numbered. Whoever puts the next number holds it from then on; the one before has to have stopped by then, and since it
cannot be asked, it stops by itself.

The holder beats: it puts a new value, then looks whether the next number is taken. If not, it is valid until a lease
after the *beginning* of that put, by its own clock. A contender reads the beat, waits a whole lease by its own clock,
takes the next number, and reads the beat again:

- It is the same: the holder's last validity began before our first reading, and is over. Whatever it puts from now on,
  it then finds our number.
- It is another: the holder may have become valid until just before our number was there, so we wait another lease;
  beating again it finds our number.

So at no moment are two valid, whatever is delayed for however long; clocks need not agree on the time, only run at the
same speed, also while a machine sleeps. This is the lock of Gray and Cheriton ("Leases", SOSP 1989) on a store as it
is. What is acknowledged while one is valid is acknowledged by one (`LogPlace.may_acknowledge`).
"""

from __future__ import annotations

import secrets

import anyio
import msgspec

from dsec.base.clock import Clock, SystemClock
from dsec.base.errors import (
    LimitExceededError,
    NotFoundError,
    StateCorruptedError,
    StateLockedError,
    StoreUnavailableError,
    WriterFencedError,
)
from dsec.episode.identity import check_episode_id
from dsec.model.value import Value
from dsec.stores.objects import ObjectStore

DEFAULT_LEASE_S = 60.0
"""Long beside what a store takes to answer, since a holder whose store does not answer for so long has to stop."""
MAXIMUM_HOLDERS = 999_999
_HOST_CLOCK = SystemClock()


class HolderRecord(Value, frozen=True):
    """The object of a holder.

    Attributes:
        version: of the format.
        writer: who it is, for people.
        lease_s: how long it is waited for.
    """

    version: int = 1
    writer: str = ""
    lease_s: float = DEFAULT_LEASE_S


class StoreLease:
    """An episode that this worker holds; see `hold_episode`.

    Attributes:
        number: of the holder.
    """

    def __init__(
        self, store: ObjectStore, episode_id: str, number: int, *, clock: Clock, lease_s: float, valid_until_s: float
    ) -> None:
        self.number = number
        self._store = store
        self._episode_id = episode_id
        self._clock = clock
        self._lease_s = lease_s
        self._valid_until_s = valid_until_s

    def is_valid(self) -> bool:
        """Say whether nobody else can hold the episode now."""
        return self._clock.boot_s() < self._valid_until_s

    def suspend(self) -> None:
        """Be invalid until the next renewal."""
        self._valid_until_s = 0.0

    async def renew(self) -> None:
        """Beat.

        Raises:
            WriterFencedError: somebody else holds the episode, or is about to.
            StoreUnavailableError: the store does not answer; the lease runs out.
        """
        began_s = self._clock.boot_s()
        await self._store.put(_beat_key(self._episode_id, self.number), secrets.token_hex(8).encode())
        if await self._store.head(_holder_key(self._episode_id, self.number + 1)) is not None:
            self.suspend()
            raise WriterFencedError(
                f"another worker has taken {self._episode_id} over",
                detail=f"holder {self.number + 1} in {self._store.url}",
                resolution="end this loop; the other one goes on from what is in the store",
            )
        self._valid_until_s = began_s + self._lease_s

    async def keep(self) -> None:
        """Renew until cancelled.

        Raises:
            WriterFencedError: somebody else holds the episode.
        """
        while True:
            await anyio.sleep(self._lease_s / 3)
            try:
                await self.renew()
            except StoreUnavailableError:
                continue  # If that goes on, the lease runs out, and nothing is acknowledged any more.

    async def release(self) -> None:
        """Give the episode up; the next one need not wait."""
        self.suspend()
        await self._store.put(_released_key(self._episode_id, self.number), b"")


async def hold_episode(
    store: ObjectStore,
    episode_id: str,
    *,
    writer: str = "",
    clock: Clock = _HOST_CLOCK,
    lease_s: float = DEFAULT_LEASE_S,
    waits: bool = False,
    poll_s: float = 1.0,
) -> StoreLease:
    """Become the holder of an episode.

    Args:
        store: where all its workers look.
        episode_id: whose.
        writer: who asks, for people.
        clock: its boot clock counts leases.
        lease_s: how long others wait for us.
        waits: whether to wait until the holder's lease is over, instead of giving up at once.
        poll_s: how often the clock is looked at while waiting.

    Raises:
        StateLockedError: somebody holds it and lives, or somebody was quicker.
        WriterFencedError: somebody took it over again while we waited.
        StoreUnavailableError: the store does not answer.
    """
    check_episode_id(episode_id)
    number = await _newest(store, episode_id)
    before = await _beat(store, episode_id, number)
    if number and not await _is_released(store, episode_id, number):
        if not waits:
            raise _held(episode_id, number)
        await _wait_lease(store, episode_id, number, clock, poll_s)
        if await _beat(store, episode_id, number) != before:
            raise _held(episode_id, number)
    if number >= MAXIMUM_HOLDERS:
        raise LimitExceededError(f"{episode_id} has had {MAXIMUM_HOLDERS} holders")
    began_s = clock.boot_s()
    record = msgspec.json.encode(HolderRecord(writer=writer[:64], lease_s=lease_s))
    if not await store.put(_holder_key(episode_id, number + 1), record, if_absent=True):
        raise _held(episode_id, number + 1)
    lease = StoreLease(store, episode_id, number + 1, clock=clock, lease_s=lease_s, valid_until_s=began_s + lease_s)
    if await _beat(store, episode_id, number) != before:
        lease.suspend()
        await _wait_lease(store, episode_id, number, clock, poll_s)
        await lease.renew()
    return lease


async def release_own(store: ObjectStore, episode_id: str, *, writer: str) -> bool:
    """Give an episode up that a dead holder of the same name held; return whether there was one.

    Only for who knows that the holder is dead and will not come back, such as who has its directory's lock.

    Raises:
        StoreUnavailableError: the store does not answer.
    """
    number = await _newest(store, check_episode_id(episode_id))
    if not number or await _is_released(store, episode_id, number):
        return False
    if (await _record(store, _holder_key(episode_id, number))).writer != writer[:64]:
        return False
    await store.put(_released_key(episode_id, number), b"")
    return True


async def _newest(store: ObjectStore, episode_id: str) -> int:
    """Return the number of the newest holder. A list may be old: it says where to begin to ask."""
    prefix = _prefix(episode_id)
    number = 0
    async for info in store.list(prefix):
        name = info.key.removeprefix(prefix)
        if name.endswith(".json") and name.removesuffix(".json").isdigit():
            number = max(number, int(name.removesuffix(".json")))
    while await store.head(_holder_key(episode_id, number + 1)) is not None:
        number += 1
    return number


async def _beat(store: ObjectStore, episode_id: str, number: int) -> bytes:
    try:
        return await store.get(_beat_key(episode_id, number))
    except NotFoundError:
        return b""


async def _is_released(store: ObjectStore, episode_id: str, number: int) -> bool:
    return await store.head(_released_key(episode_id, number)) is not None


async def _wait_lease(store: ObjectStore, episode_id: str, number: int, clock: Clock, poll_s: float) -> None:
    """Wait until a holder that does not beat any more cannot be valid, or gives up."""
    lease_s = (await _record(store, _holder_key(episode_id, number))).lease_s
    began_s = clock.boot_s()
    while clock.boot_s() - began_s < lease_s and not await _is_released(store, episode_id, number):  # noqa: ASYNC110
        await anyio.sleep(poll_s)


async def _record(store: ObjectStore, key: str) -> HolderRecord:
    try:
        return msgspec.json.decode(await store.get(key), type=HolderRecord)
    except msgspec.DecodeError as error:
        raise StateCorruptedError(f"{store.url}/{key} is no record of a holder", detail=str(error)) from error


def _held(episode_id: str, number: int) -> StateLockedError:
    return StateLockedError(
        f"another worker holds {episode_id}",
        detail=f"holder {number}",
        resolution="one worker drives an episode; wait until it has ended, or until its lease is over",
    )


def _prefix(episode_id: str) -> str:
    return f"episodes/{episode_id}/holders/"


def _holder_key(episode_id: str, number: int) -> str:
    return f"{_prefix(episode_id)}{number:06}.json"


def _beat_key(episode_id: str, number: int) -> str:
    return f"{_prefix(episode_id)}{number:06}.beat"


def _released_key(episode_id: str, number: int) -> str:
    return f"{_prefix(episode_id)}{number:06}.released"
