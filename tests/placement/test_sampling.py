"""Random choices are different nodes, every one as likely as another, and determined by the bits."""

from __future__ import annotations

import math
import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dsec.placement.sampling import draw_distinct


@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(1, 2000))
def test_the_numbers_are_different_and_below_the_limit(seed: int, count: int, limit: int) -> None:
    numbers = draw_distinct(count, limit, random.Random(seed).getrandbits)
    assert len(set(numbers)) == len(numbers) == min(count, limit)
    assert all(0 <= number < limit for number in numbers)
    assert numbers == draw_distinct(count, limit, random.Random(seed).getrandbits)


def test_every_pair_is_as_likely_as_any_other() -> None:
    bits, draws, limit = random.Random(1).getrandbits, 42_000, 7
    for count in (2, 3):
        seen = Counter(frozenset(draw_distinct(count, limit, bits)) for _ in range(draws))
        expected = draws / math.comb(limit, count)
        assert len(seen) == math.comb(limit, count)
        assert all(abs(times - expected) < 6 * math.sqrt(expected) for times in seen.values())


@given(st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=2), st.integers(3, 50))
def test_any_bits_give_two_numbers(halves: list[int], limit: int) -> None:
    first, second = draw_distinct(2, limit, lambda _count: halves[0] | halves[1] << 32)
    assert first != second
    assert max(first, second) < limit
