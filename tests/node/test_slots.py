from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import NodeUnavailableError
from dsec.node.slots import HostIdSlots


@given(st.lists(st.one_of(st.just(-1), st.integers(0, 12)), max_size=80))
def test_the_lowest_free_slot_is_taken_and_none_twice(steps: list[int]) -> None:
    slots, taken = HostIdSlots(1 << 20, count=100), set()
    slots.claim(3)
    taken.add(3)
    for step in steps:
        if step < 0:
            slot = slots.take()
            assert slot == next(number for number in range(101) if number not in taken)
            taken.add(slot)
        else:
            slots.release(step)
            taken.discard(step)
        assert slots.taken == taken


def test_ranges_do_not_touch_and_run_out() -> None:
    slots = HostIdSlots(1 << 20, count=2)
    first, second = slots.first_host_id(slots.take()), slots.first_host_id(slots.take())
    assert second - first == 65_536
    with pytest.raises(NodeUnavailableError):
        slots.take()
