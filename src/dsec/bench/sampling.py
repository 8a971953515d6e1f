"""Measure contestants in turn, so that what disturbs the host disturbs all of them alike.

Every round samples each contestant once, in an order of its own: in a fixed one the same contestant would always come
after the same other, and pay for what that leaves behind (cold caches, work that an engine does after it answered).
"""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from dsec.bench.progress import Progress

_SEED = 1
_Name = TypeVar("_Name", bound=Hashable)

Sample = Callable[[], Awaitable[float]]
"""Does the thing once and returns the seconds it took; what is prepared and cleared away does not count."""


@dataclass(slots=True)
class Stopwatch:
    """Seconds of a block; see `timed`."""

    seconds: float = 0.0


@contextmanager
def timed() -> Iterator[Stopwatch]:
    """Measure a block."""
    watch = Stopwatch()
    begin = time.perf_counter()
    try:
        yield watch
    finally:
        watch.seconds = time.perf_counter() - begin


async def alternate(
    contestants: Mapping[_Name, Sample], *, rounds: int, progress: Progress, warm_ups: int = 2
) -> dict[_Name, list[float]]:
    """Sample every contestant once a round; return their seconds.

    Args:
        contestants: by name.
        rounds: values of each.
        progress: hears of every round.
        warm_ups: rounds before the first that counts.
    """
    names = list(contestants)
    order = random.Random(_SEED)
    seconds: dict[_Name, list[float]] = {name: [] for name in names}
    with progress.counting("rounds", warm_ups + rounds) as advance:
        for number in range(warm_ups + rounds):
            for name in order.sample(names, len(names)):
                value = await contestants[name]()
                if number >= warm_ups:
                    seconds[name].append(value)
            advance()
    return seconds
