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


def draw_distinct(count: int, limit: int, bits: RandomBits) -> list[int]:
    """Return `count` different numbers below `limit`, or all of them when there are no more.

    Two take 64 bits: the second is drawn from the numbers that are left, so that nothing is drawn twice. More take 32
    bits each, all at once, and one that came before is drawn again.
    """
    if count >= limit:
        return list(range(limit))
    drawn = bits(32 * count)
    numbers = [((drawn & _MASK) * limit) >> 32]
    if count == 2:
        second = ((drawn >> 32) * (limit - 1)) >> 32
        numbers.append(second + (second >= numbers[0]))
        return numbers
    while len(numbers) < count:
        drawn >>= 32
        number = ((drawn & _MASK) * limit) >> 32
        while number in numbers:
            number = draw_below(limit, bits)
        numbers.append(number)
    return numbers
