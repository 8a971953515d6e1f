"""The machine has no dead end, and every state can be destroyed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidStateError
from dsec.lifecycle.machine import LIVE, TRANSITIONS, Event, next_state
from dsec.model.sandbox import SandboxState


def test_the_usual_life() -> None:
    state = SandboxState.PENDING
    trace = []
    for event in (
        Event.CREATE_BEGAN, Event.CREATED, Event.PAUSED, Event.RESUMED, Event.ROLLBACK_BEGAN, Event.ROLLED_BACK,
        Event.MIGRATION_BEGAN, Event.MIGRATED, Event.STOP_BEGAN, Event.STOPPED,
    ):  # fmt: skip
        state = next_state(state, event)
        trace.append(state.value)
    assert trace == [
        "creating", "ready", "paused", "ready", "rolling_back", "ready", "migrating", "ready", "stopping", "stopped",
    ]  # fmt: skip


@given(st.lists(st.sampled_from(Event), max_size=40))
def test_whatever_happened_a_sandbox_can_be_destroyed_and_destroyed_again(events: list[Event]) -> None:
    state = SandboxState.PENDING
    for event in events:
        try:
            state = next_state(state, event)
        except InvalidStateError:
            continue
    for event in (Event.STOP_BEGAN, Event.STOPPED, Event.STOP_BEGAN, Event.STOPPED):
        state = next_state(state, event)
    assert state is SandboxState.STOPPED


@pytest.mark.parametrize("state", SandboxState)
def test_no_state_but_stopped_is_a_dead_end(state: SandboxState) -> None:
    after = {next_ for (before, _), next_ in TRANSITIONS.items() if before is state and next_ is not state}
    assert bool(after) is (state is not SandboxState.STOPPED)


@given(st.sampled_from(SandboxState), st.sampled_from(Event))
def test_an_impossible_event_names_those_that_are_possible(state: SandboxState, event: Event) -> None:
    if (state, event) in TRANSITIONS:
        return
    with pytest.raises(InvalidStateError) as caught:
        next_state(state, event, sandbox_id="sbx-a")
    assert "sbx-a" in caught.value.brief
    possible = [known.value for before, known in TRANSITIONS if before is state]
    assert all(name in caught.value.resolution for name in possible)


def test_only_acknowledged_sandboxes_are_live() -> None:
    assert SandboxState.CREATING not in LIVE
    assert SandboxState.FAILED not in LIVE
