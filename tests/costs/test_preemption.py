"""What a preempted job loses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.preemption import preemption_loss, reclaim_wait

times = st.floats(0, 1e4)


@given(done=times, share=st.floats(0, 1), restore=times, save=times)
def test_a_job_is_never_delayed_by_more_than_starting_again(
    done: float, share: float, restore: float, save: float
) -> None:
    loss = preemption_loss(done_s=done, since_checkpoint_s=share * done, restore_s=restore, save_s=save)
    assert loss.job_delay_s <= done
    assert loss.job_delay_s in (loss.from_checkpoint_s, loss.from_start_s)
    assert loss.saved_by_checkpoint_s == pytest.approx(loss.from_start_s - loss.from_checkpoint_s, abs=1e-9)


@given(done=times, younger=st.floats(0, 1), older=st.floats(0, 1))
def test_a_younger_checkpoint_never_loses_more(done: float, younger: float, older: float) -> None:
    younger, older = sorted((younger, older))
    lost_young = preemption_loss(done_s=done, since_checkpoint_s=younger * done, restore_s=2).job_delay_s
    assert lost_young <= preemption_loss(done_s=done, since_checkpoint_s=older * done, restore_s=2).job_delay_s


def test_starting_again_wins_where_restoring_takes_longer_than_all_that_was_done() -> None:
    loss = preemption_loss(done_s=1, since_checkpoint_s=0, restore_s=2)
    assert loss.job_delay_s == 1
    assert loss.lost_work_s == 1
    assert loss.saved_by_checkpoint_s == -1


def test_no_more_can_be_undone_than_was_done() -> None:
    with pytest.raises(InvalidRequestError, match="only 20 s of work"):
        preemption_loss(done_s=20, since_checkpoint_s=21, restore_s=2)


@pytest.mark.parametrize(("save_s", "in_time", "late_by_s"), [(30, False, 28), (2, True, 0), (1, True, 0)])
def test_preemption_helps_only_whom_it_reaches_in_time(save_s: float, in_time: bool, late_by_s: float) -> None:
    wait = reclaim_wait(patience_s=2, save_s=save_s)
    assert (wait.in_time, wait.late_by_s) == (in_time, late_by_s)
