"""Environments behind faster models."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.costs.preparation_shift import preparation_choices, tool_start

times = st.floats(0, 100)


@given(model=times, preparation=times, lead=times)
def test_a_tool_starts_when_both_are_there(model: float, preparation: float, lead: float) -> None:
    start = tool_start(model_s=model, preparation_s=preparation, lead_s=lead)
    assert start.start_s == max(model, start.ready_s)
    assert min(start.wait_s, start.idle_s) == 0
    assert start.wait_s == pytest.approx(max(preparation - lead - model, 0), abs=1e-9)


@given(fast=times, slow=times, preparation=times)
def test_a_faster_model_never_waits_less_and_never_starts_its_tool_later(
    fast: float, slow: float, preparation: float
) -> None:
    fast, slow = sorted((fast, slow))
    quick = tool_start(model_s=fast, preparation_s=preparation)
    calm = tool_start(model_s=slow, preparation_s=preparation)
    assert quick.wait_s >= calm.wait_s
    assert quick.start_s <= calm.start_s


@given(model=times, preparation=times, tool=times, lead=times, used=st.floats(0, 1))
def test_waiting_is_bought_with_memory(model: float, preparation: float, tool: float, lead: float, used: float) -> None:
    choices = preparation_choices(
        model_s=model, preparation_s=preparation, tool_s=tool, memory_gib=2, lead_s=lead, used_share=used
    )
    assert choices.on_demand.wait_s >= choices.just_in_time.wait_s >= choices.early.wait_s >= choices.kept.wait_s == 0
    assert choices.on_demand.unused_gib_s == 0
    assert choices.on_demand.resident_gib_s <= choices.just_in_time.resident_gib_s + 1e-6
    assert choices.just_in_time.resident_gib_s <= choices.early.resident_gib_s + 1e-6


def test_stepping_through_time_gives_the_same_memory() -> None:
    # One model call of 3 s, preparation of 2 s, tool of 1 s, in steps of 1 s, with 2 GiB from the preparation on.
    choices = preparation_choices(model_s=3, preparation_s=2, tool_s=1, memory_gib=2, lead_s=1)
    resident = {
        "on_demand": [0, 0, 0, 0, 2, 2, 2],
        "just_in_time": [0, 0, 2, 2, 2, 0, 0],
        "early": [2, 2, 2, 2, 2, 0, 0],
        "kept": [0, 2, 2, 2, 2, 0, 0],
    }
    for name, gib in resident.items():
        assert getattr(choices, name).resident_gib_s == sum(gib), name


def test_probabilities_and_times_are_checked() -> None:
    with pytest.raises(InvalidRequestError, match="used_share"):
        preparation_choices(model_s=1, preparation_s=1, tool_s=1, memory_gib=1, used_share=2)
    with pytest.raises(InvalidRequestError, match="lead_s"):
        tool_start(model_s=1, preparation_s=1, lead_s=-1)
