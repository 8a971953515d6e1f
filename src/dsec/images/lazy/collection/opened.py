"""An object store as whoever publishes, pulls or collects sees it: with its grace period and its time."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import anyio
import msgspec

from dsec.base.clock import Clock, SystemClock
from dsec.base.errors import CapabilityMissingError, InvalidRequestError, StateCorruptedError, StoreUnavailableError
from dsec.base.foreign_json import decode_foreign
from dsec.base.units import format_duration
from dsec.images.lazy.collection.objects import (
    CLOCK,
    DEFAULT_GRACE_S,
    FORMAT,
    Part,
    StoreFormat,
    Tombstone,
    read_tombstone,
    window_s,
)
from dsec.stores.objects import ObjectStore

_VERSION = 1
_MAXIMUM_FORMAT_BYTES = 65_536
_TRIES = 3
REQUESTS_AT_ONCE = 32
"""Small ones, as `head`."""
_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """What tells the time; tests move it.

    Attributes:
        clock: this host's, for durations.
        sleep: waits so many seconds.
    """

    clock: Clock = field(default_factory=SystemClock)
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep


class LayerObjects:
    """An object store that has published images; make it with `open_layer_objects`.

    Attributes:
        store: the store.
        grace_s: its grace period.
        times: this host's clock.
    """

    def __init__(self, store: ObjectStore, grace_s: float, times: Times, store_s: float, boot_s: float) -> None:
        self.store = store
        self.grace_s = grace_s
        self.times = times
        self._ahead_s = store_s - boot_s

    @property
    def window_s(self) -> float:
        """How long after a tombstone was read a deletion that follows from it may take place."""
        return window_s(self.grace_s)

    def now_s(self) -> float:
        """Return the store's time, asked for once and counted on by this host's clock."""
        return self.times.clock.boot_s() + self._ahead_s

    async def tombstone(self, part: Part) -> Tombstone | None:
        """Return the tombstone of a part; None where it has none."""
        info = await self.store.head(part.tombstone_key)
        return None if info is None else read_tombstone(info.size_bytes, info.modified_at_s)


async def open_layer_objects(
    store: ObjectStore, *, grace_s: float | None = None, times: Times | None = None
) -> LayerObjects:
    """Look at a store's format, writing it where there is none, and at its time.

    Args:
        store: the store.
        grace_s: the grace period that it has, or is to have where none is set yet; None: whichever it has.
        times: this host's clock; None: the real one.

    Raises:
        CapabilityMissingError: it is of another version.
        InvalidRequestError: it has another grace period.
        StoreUnavailableError: it does not answer.
    """
    wanted = StoreFormat(version=_VERSION, grace_s=DEFAULT_GRACE_S if grace_s is None else grace_s)
    if await store.head(FORMAT) is None:
        await store.put(FORMAT, msgspec.json.encode(wanted), if_absent=True)
    data = await store.get_range(FORMAT, 0, _MAXIMUM_FORMAT_BYTES)
    try:
        found = decode_foreign(data, StoreFormat)
    except msgspec.MsgspecError as error:
        raise StateCorruptedError(
            f"{FORMAT} of {store.url} does not parse",
            detail=str(error),
            resolution=f'write {{"version": 1, "grace_s": {DEFAULT_GRACE_S}}} there while nobody publishes or collects',
        ) from error
    if found.version != _VERSION:
        raise CapabilityMissingError(
            f"the images of {store.url} are kept in version {found.version}; this program knows {_VERSION}",
            resolution="use the DSec version that wrote it, or a later one",
        )
    if grace_s is not None and grace_s != found.grace_s:
        raise InvalidRequestError(
            f"{store.url} has a grace period of {format_duration(found.grace_s)}, not {format_duration(grace_s)}",
            resolution="whoever publishes there relies on it: it is set when the first image is published or the first "
            f"collection is made, and changed in {FORMAT} while nobody does either",
        )
    times = Times() if times is None else times
    store_s, boot_s = await _store_time(store, times)
    return LayerObjects(store, found.grace_s, times, store_s, boot_s)


async def _store_time(store: ObjectStore, times: Times) -> tuple[float, float]:
    """Return the store's time and this host's, at one moment, the store's rather too early than too late."""
    for _ in range(_TRIES):
        key = f"{CLOCK}{secrets.token_hex(16)}"
        await store.put(key, b"")
        try:
            info = await store.head(key)
        finally:
            await store.delete([key])
        if info is not None:
            return info.modified_at_s, times.clock.boot_s()
        # A collector took it for what a killed process left: this host stood still for very long.
    raise StoreUnavailableError(f"{store.url} acknowledged an object and does not hold it")


async def each(
    items: Sequence[_Item], act: Callable[[_Item], Awaitable[None]], *, at_once: int = REQUESTS_AT_ONCE
) -> None:
    """Do something about each of some items, so many at a time; raise the first failure as itself."""
    waiting = iter(items)
    failures: list[Exception] = []

    async def work() -> None:
        for item in waiting:
            try:
                await act(item)
            except Exception as error:  # noqa: BLE001 - a supervisor: the first failure ends the others, raised below.
                failures.append(error)
                group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for _ in range(min(at_once, len(items))):
            group.start_soon(work)
    if failures:
        raise failures[0]
