"""How fast a node's link is, as its transfers tell."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsec.distribution.speed import Speed

_MIB = 1 << 20


@given(st.floats(1e6, 1e10), st.lists(st.tuples(st.integers(1, 4 * _MIB), st.integers(0, 5)), min_size=1, max_size=20))
def test_a_link_is_never_taken_for_faster_than_it_is_however_transfers_overlap(
    rate: float, transfers: list[tuple[int, int]]
) -> None:
    """Each is asked for while so many others are still to come; they come one after the other, at the link's speed."""
    speed, now_s = Speed(), 0.0
    asked = [(speed.begin(), now_s)]
    for at, (size, ahead) in enumerate(transfers):
        asked += [(speed.begin(), now_s)] * (min(at + 1 + ahead, len(transfers)) - len(asked))
        now_s += size / rate
        speed.came(size)
        mark, asked_s = asked[at]
        speed.end(mark, now_s - asked_s)
        asked += [(speed.begin(), now_s)] * (at + 2 - len(asked))
        assert speed.bytes_per_s <= rate * 1.001


def test_the_best_of_the_last_transfers_counts_and_small_ones_do_not() -> None:
    speed = Speed()
    assert speed.bytes_per_s == 0
    assert speed.bound(0) == 0
    assert speed.bound(7) == 7
    for took_s in (1.0, 0.5, 2.0):
        mark = speed.begin()
        speed.came(4 * _MIB)
        speed.end(mark, took_s)
    assert speed.bytes_per_s == 8 * _MIB
    assert speed.bound(0) == 8 * _MIB
    assert speed.bound(_MIB) == _MIB
    mark = speed.begin()
    speed.came(1000)
    speed.end(mark, 1e-9)
    assert speed.bytes_per_s == 8 * _MIB
    for _ in range(16):  # The link has become slower.
        mark = speed.begin()
        speed.came(4 * _MIB)
        speed.end(mark, 4.0)
    assert speed.bytes_per_s == _MIB
