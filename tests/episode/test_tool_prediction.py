"""Which tool comes next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.episode.agent_calls import AgentCall, EditFile, ReadLines, Search, Submit, UnusableCall
from dsec.episode.operations import Effect, ModelDecision, Operation
from dsec.episode.tool_prediction import NOTHING, ToolTransitions, tools_of
from dsec.episode.tools import Run

SHELL, EDIT = Run(script="pytest"), EditFile(path="a", old="x", new="y")
calls = st.sampled_from(
    [SHELL, EDIT, ReadLines(path="a"), Search(pattern="x"), Submit(), UnusableCall(problem="no such tool")]
)


def decision(*made: AgentCall) -> ModelDecision:
    return ModelDecision(
        operations=tuple(
            Operation(
                operation_id=f"ep-a.r1.d1.c{place}",
                call=call,
                effect=Effect.NONE if isinstance(call, Submit) else Effect.WORKSPACE,
            )
            for place, call in enumerate(made)
        )
    )


def test_calls_that_need_no_sandbox_are_no_tools_of_one() -> None:
    assert tools_of(decision(Submit(), SHELL, UnusableCall(problem="?"), SHELL, EDIT)) == ("shell", "edit")
    assert tools_of(decision(Submit())) == ()
    checked = Operation(operation_id="ep-a.r1.d1.c0", call=Submit(), effect=Effect.WORKSPACE)
    assert tools_of(ModelDecision(operations=(checked,))) == ("submit",), "its check runs there"


@given(rounds=st.lists(st.lists(calls, max_size=3), max_size=20))
def test_probabilities_are_probabilities_and_a_guess_is_one_of_them(rounds: list[list[AgentCall]]) -> None:
    seen = ToolTransitions({"shell": "start-database"})
    for made in rounds:
        seen.add(decision(*made))
    found = seen.probabilities()
    assert sum(found.values()) == pytest.approx(1.0)
    guess = seen.guess()
    assert guess.tool != NOTHING
    assert 0 < guess.probability <= 1 - found[NOTHING] + 1e-9


def test_transitions_are_learned_and_choose_the_preparation() -> None:
    seen = ToolTransitions({"shell": "start-database"})
    for _ in range(5):
        seen.add(decision(EDIT))
        seen.add(decision(SHELL))
    assert seen.guess().preparation == ""  # After a test comes an edit, which needs the files alone.
    seen.add(decision(EDIT))
    guess = seen.guess()
    assert (guess.preparation, guess.tool) == ("start-database", "shell")
    assert guess.probability > 0.6


def test_what_the_model_has_written_is_no_guess() -> None:
    seen = ToolTransitions({"shell": "start-database"})
    assert seen.heard("submit") is None
    heard = seen.heard("shell")
    assert heard is not None
    assert (heard.preparation, heard.probability) == ("start-database", 1.0)
    stranger = seen.heard("what is this")
    assert stranger is not None
    assert stranger.preparation == ""


def test_a_round_may_need_several_preparations() -> None:
    seen = ToolTransitions({"shell": "a", "search": "b", "read": "a"})
    assert seen.preparations_for(["shell", "read", "search", "edit"]) == ("a", "b")
