"""Histories saved round by round."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.durable_progress import durable_progress

histories = st.sets(st.integers(1, 15))


@given(saved=histories, run=st.integers(0, 15), state=st.integers(0, 15))
def test_everything_up_to_the_contiguous_round_is_there_and_the_next_is_not(
    saved: set[int], run: int, state: int
) -> None:
    progress = durable_progress(saved=sorted(saved, reverse=True), run=run, state_round=state)
    assert set(range(state + 1, progress.contiguous_round + 1)) <= saved
    assert progress.contiguous_round + 1 not in saved
    assert not set(progress.missing) & saved


@given(saved=histories, added=st.integers(1, 15))
def test_one_more_saved_round_never_loses_progress(saved: set[int], added: int) -> None:
    before = durable_progress(saved=list(saved), run=15)
    assert durable_progress(saved=[*saved, added], run=15).contiguous_round >= before.contiguous_round


def test_a_later_round_does_not_move_the_position_across_a_gap() -> None:
    progress = durable_progress(saved=[1, 3], run=3)
    assert (progress.contiguous_round, progress.last_round, progress.missing) == (1, 3, (2,))
    assert not progress.is_complete


def test_rounds_are_numbered_from_one() -> None:
    with pytest.raises(InvalidRequestError, match="saved is 0"):
        durable_progress(saved=[0], run=1)
