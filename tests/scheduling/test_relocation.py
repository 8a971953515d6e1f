"""Wait, move or spread; the numbers are those of the chapter's example 11-3 and exercise 11-4."""

from __future__ import annotations

import pytest

from dsec.base.errors import InvalidRequestError
from dsec.costs.relocation import Start
from dsec.scheduling.relocation import Goal, Predictions, choose_start


def test_moving_beats_waiting_and_spreading():
    example = Predictions(wait_s=12.0, move_s=4.0, run_local_s=20.0, spread_ready_s=1.0, spread_run_s=32.0)
    choice = choose_start(example, Goal.COMPLETION)
    assert (choice.start, choice.completes_s) == (Start.MOVE, 24.0)
    assert choice.reason == "move: completion by wait 32 s, spread 33 s, move 24 s"


@pytest.mark.parametrize(
    ("move_s", "for_the_new_job", "for_both"),
    [
        (4.9, Start.MOVE, Start.MOVE),
        (5.0, Start.MOVE, Start.WAIT),
        (11.9, Start.MOVE, Start.WAIT),
        (12.0, Start.WAIT, Start.WAIT),
    ],
)
def test_the_two_goals_part_between_5_and_12_seconds(move_s, for_the_new_job, for_both):
    exercise = Predictions(wait_s=12.0, move_s=move_s, moved_extra_s=2.0, run_local_s=20.0)
    assert choose_start(exercise, Goal.COMPLETION).start is for_the_new_job
    assert choose_start(exercise, Goal.TOTAL_DELAY).start is for_both


def test_what_cannot_be_foreseen_is_not_chosen():
    assert choose_start(Predictions(run_local_s=20.0), Goal.COMPLETION).start is None
    assert (
        choose_start(Predictions(run_local_s=20.0, spread_ready_s=1.0, spread_run_s=90.0), Goal.COMPLETION).start
        is Start.SPREAD
    )


def test_negative_times_are_refused():
    with pytest.raises(InvalidRequestError):
        choose_start(Predictions(run_local_s=1.0, move_s=-1.0), Goal.COMPLETION)
