"""Draw a few different numbers below n from a source of random bits.

The source is a function such as ``random.Random(seed).getrandbits``; nothing here knows where its bits come from. A
number below n is made of 32 bits by multiplication and shift (Lemire, *Fast random integer generation in an
interval*, 2019, without its rejection step): no value is more likely than another by more than n / 2**32, which for
10,000 nodes is 2 in a million.
"""

from __future__ import annotations

from collections.abc import Callable

RandomBits = Callable[[int], int]
"""Returns a whole number of so many random bits, such as `random.Random(7).getrandbits`."""

_MASK = 0xFFFFFFFF


def draw_below(limit: int, bits: RandomBits) -> int:
    """Return a number from 0 to `limit` - 1."""
    return (bits(32) * limit) >> 32


def draw_two(limit: int, bits: RandomBits) -> tuple[int, int]:
    """Return two different numbers below `limit`, which is 2 or more, for 64 bits."""
    drawn = bits(64)
    first = ((drawn & _MASK) * limit) >> 32
    second = ((drawn >> 32) * (limit - 1)) >> 32
    return first, second + (second >= first)


def draw_distinct(count: int, limit: int, bits: RandomBits) -> list[int]:
    """Return `count` different numbers below `limit`, or all of them when there are no more.

    Two take 64 bits at once; more are drawn one by one, and a number that came before is passed over.
    """
    if count >= limit:
        return list(range(limit))
    if count == 2:
        return list(draw_two(limit, bits))
    drawn: list[int] = []
    while len(drawn) < count:
        number = draw_below(limit, bits)
        if number not in drawn:
            drawn.append(number)
    return drawn
