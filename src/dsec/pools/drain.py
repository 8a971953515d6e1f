"""Warnings of a pool: each is said once when it begins and once when it is over, and stands in the statistics
meanwhile.

A pool must not run dry in silence: below half its level it says so and when it will be empty at the present rates,
and it says when it is. What was warned of is over only well above where it began, so that a pool at the edge does
not chatter.
"""

from __future__ import annotations

import msgspec

from dsec.pools.actions import PoolAction, Trouble, Warn

_LOW_SHARE = 0.5
_WELL_SHARE = 0.75
_BACK_SHARE = 0.25
_FAILURES_TO_TELL = 3
_LEAST_LEVEL = 4
"""A smaller pool is below half with every task that it serves."""
_NOTHING: frozenset[Trouble] = frozenset()


class DrainReading(msgspec.Struct, frozen=True):
    """What a warning's text is made of.

    Attributes:
        level, ready, waiting, total: of the pool now.
        arrival_rate_per_s, supply_rate_per_s: tasks in; sandboxes made or recycled.
        not_clean: what the last failed clean check found.
        failures_in_a_row: creations that failed one after another.
    """

    level: int
    ready: int
    waiting: int
    total: int
    arrival_rate_per_s: float
    supply_rate_per_s: float
    not_clean: str
    failures_in_a_row: int


class Drain:
    """Remember what has been said, and whether the pool was ever full: one that is only being filled does not drain."""

    __slots__ = ("_now", "_was_full")

    def __init__(self) -> None:
        self._now: dict[Trouble, str] = {}
        self._was_full = False

    def texts(self) -> tuple[str, ...]:
        """Return what is wrong now."""
        return tuple(self._now.values())

    def troubles(
        self, *, level: int, ready: int, waiting: int, at_cap: bool, not_clean: bool, failures: int
    ) -> frozenset[Trouble]:
        """Return what is wrong at these numbers, given what was wrong before."""
        if ready and ready >= _WELL_SHARE * level:
            self._was_full = True
        if ready > _WELL_SHARE * level and not (self._now or not_clean or failures):
            return _NOTHING
        found: set[Trouble] = set()
        if (
            self._was_full
            and level >= _LEAST_LEVEL
            and ready < (_WELL_SHARE if Trouble.LOW in self._now else _LOW_SHARE) * level
        ):
            found.add(Trouble.LOW)
        if self._was_full and (ready < _BACK_SHARE * level if Trouble.DRAINED in self._now else waiting > ready):
            found.add(Trouble.DRAINED)
        if at_cap and (waiting or (Trouble.CAP_REACHED in self._now and ready < _BACK_SHARE * level)):
            found.add(Trouble.CAP_REACHED)
        if not_clean:
            found.add(Trouble.NOT_CLEAN)
        if failures >= _FAILURES_TO_TELL:
            found.add(Trouble.CREATION_FAILS)
        return frozenset(found)

    def changed(self, found: frozenset[Trouble]) -> bool:
        """Whether anything began or ended."""
        return found != self._now.keys()

    def tell(self, found: frozenset[Trouble], reading: DrainReading, out: list[PoolAction]) -> None:
        """Add what begins and what ends to `out`."""
        for kind in Trouble:
            if kind in found and kind not in self._now:
                self._now[kind] = _text(kind, reading)
                out.append(Warn(kind, over=False, reason=self._now[kind]))
            elif kind not in found and self._now.pop(kind, None) is not None:
                out.append(Warn(kind, over=True, reason=_state(reading)))


def _state(reading: DrainReading) -> str:
    return (
        f"{reading.ready} ready of {reading.level} wanted, {reading.waiting} wait; "
        f"{reading.arrival_rate_per_s:.1f}/s arrive, {reading.supply_rate_per_s:.1f}/s are made or recycled"
    )


def _text(kind: Trouble, reading: DrainReading) -> str:
    if kind is Trouble.LOW:
        loss_per_s = reading.arrival_rate_per_s - reading.supply_rate_per_s
        when = f"; empty in {reading.ready / loss_per_s:.0f} s at this rate" if loss_per_s > 0 else ""
        return f"the pool drains: {_state(reading)}{when}"
    if kind is Trouble.DRAINED:
        return f"the pool is empty, tasks wait for creations: {_state(reading)}"
    if kind is Trouble.CAP_REACHED:
        return f"tasks wait and the pool holds {reading.total} sandboxes, as many as it may"
    if kind is Trouble.NOT_CLEAN:
        return f"recycling has stopped, sandboxes are made anew: clean checks fail: {reading.not_clean}"
    return f"{reading.failures_in_a_row} creations failed one after another"
