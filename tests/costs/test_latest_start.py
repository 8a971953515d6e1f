"""Work that waits behind a batch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.latest_start import double_use_s, latest_start


@given(duration=st.floats(0, 100), preparation=st.floats(0, 100), slack=st.floats(0, 100))
def test_work_begun_as_late_as_allowed_ends_with_the_batch(duration: float, preparation: float, slack: float) -> None:
    end = duration + preparation + slack
    start = latest_start(batch_end_s=end, duration_s=duration, preparation_s=preparation)
    assert start.preparation_starts_s + preparation + duration == pytest.approx(end)
    assert start.slack_s == pytest.approx(slack, abs=1e-9)


def test_work_that_no_longer_fits_is_an_error_that_says_by_how_much() -> None:
    with pytest.raises(InvalidRequestError, match="5 s after the batch"):
        latest_start(batch_end_s=120, duration_s=100, preparation_s=5, now_s=20)


def test_a_resource_is_used_twice_only_while_the_first_still_runs() -> None:
    assert double_use_s(handed_over_s=1.0, really_ended_s=1.5) == 0.5
    assert double_use_s(handed_over_s=1.5, really_ended_s=1.0) == 0.0
