"""Repair, escalate or stop: the chapter's example from counts, and what deadlines, costs and ignorance change."""

from __future__ import annotations

import functools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.episode.failure_kinds import FailureKind
from dsec.episode.recovery_experience import ASSUMED, Experience, Step, StepTaken
from dsec.episode.recovery_tree import (
    RecoveryRules,
    RecoveryState,
    decide_recovery,
    evaluate_plan,
    expected_recovery,
)

CHECK, STUCK = FailureKind.CHECK_FAILED, FailureKind.STUCK
SONNET, OPUS = "sonnet", "opus"


def taken(
    step: Step, model: str, after: FailureKind | None, time_s: float, cost_usd: float, **counts: int
) -> list[StepTaken]:
    """Return so many equal steps for each outcome: `passed`, or the value of a kind of failure."""
    return [
        StepTaken(
            step=step,
            model=model,
            after=after,
            failed=None if outcome == "passed" else FailureKind(outcome),
            time_s=time_s,
            cost_usd=cost_usd,
        )
        for outcome, count in counts.items()
        for _ in range(count)
    ]


@functools.cache
def chapter() -> Experience:
    """Return what example 11-8 says, as 3,125 tasks. It repairs neither where it lets the stronger model go on at once,
    nor what that one did: as if no such repair had ever helped."""
    return Experience(
        [
            *taken(Step.FIRST, SONNET, None, 10.0, 0.010, passed=2500, check_failed=375, stuck=250),
            *taken(Step.REPAIR, SONNET, CHECK, 4.0, 0.006, passed=225, check_failed=150),
            *taken(Step.REPAIR, SONNET, STUCK, 4.0, 0.006, stuck=100),
            *taken(Step.REPAIR, OPUS, CHECK, 4.0, 0.006, check_failed=100),
            *taken(Step.ESCALATE, OPUS, CHECK, 8.0, 0.030, passed=147, check_failed=3),
            *taken(Step.ESCALATE, OPUS, STUCK, 8.0, 0.030, passed=245, check_failed=5),
        ],
        prior_weight=0.0,
    )


def rules(**changed: object) -> RecoveryRules:
    return RecoveryRules(**{"models": (SONNET, OPUS), "repairs": 1, **changed})  # type: ignore[arg-type]


def test_the_tree_that_is_learned_from_example_11_8_has_the_chapters_six_rows() -> None:
    outcome = expected_recovery(rules(deadline_s=20.0, enforce=False), chapter())
    rows = [(path.probability, path.cost_usd, path.time_s, path.timely) for path in outcome.paths]
    assert rows == [
        (pytest.approx(0.80000), pytest.approx(0.010), 10, True),
        (pytest.approx(0.07200), pytest.approx(0.016), 14, True),
        (pytest.approx(0.04704), pytest.approx(0.046), 22, False),
        (pytest.approx(0.00096), pytest.approx(0.046), 22, False),
        (pytest.approx(0.07840), pytest.approx(0.040), 18, True),
        (pytest.approx(0.00160), pytest.approx(0.040), 18, False),
    ]
    assert [path.ending for path in outcome.paths] == ["passed", "passed", "passed", "failed", "passed", "failed"]
    assert 1000 * outcome.cost_usd == pytest.approx(14.56)
    assert outcome.success_share == pytest.approx(0.99744)
    assert outcome.timely_share == pytest.approx(0.9504)
    assert outcome.success_cost_usd == pytest.approx(0.0145974, abs=1e-7)
    assert outcome.timely_success_cost_usd == pytest.approx(0.0153199, abs=1e-7)
    thousand = {visit.node.rpartition("/")[2]: round(1000 * visit.share) for visit in outcome.visits}
    assert thousand["repair after check_failed"] == 120
    assert thousand["escalate after check_failed"] + thousand["escalate after stuck"] == 48 + 80


@pytest.mark.parametrize(
    ("deadline_s", "after_check", "timely", "cost_usd"),
    [
        # Repair and escalation would end at 22 s. With 20 s or 18 s for all, the stronger model at once is in time.
        (22.0, Step.REPAIR, 0.99744, 0.01456),
        (20.0, Step.ESCALATE, 0.996, 0.016),
        (18.0, Step.ESCALATE, 0.996, 0.016),
        # The stronger model would come too late; a repair does not. Where that does not help either, it stops.
        (17.0, Step.REPAIR, 0.872, 0.01072),
        (14.0, Step.REPAIR, 0.872, 0.01072),
        (13.0, Step.STOP, 0.8, 0.010),
    ],
)
def test_an_enforced_deadline_changes_what_is_tried(
    deadline_s: float, after_check: Step, timely: float, cost_usd: float
) -> None:
    state = RecoveryState(after=CHECK, elapsed_s=10.0, spent_usd=0.010)
    decision = decide_recovery(state, rules(deadline_s=deadline_s), chapter())
    assert decision.step is after_check
    outcome = expected_recovery(rules(deadline_s=deadline_s), chapter())
    assert outcome.timely_share == pytest.approx(timely)
    assert outcome.late_share == 0
    assert outcome.cost_usd == pytest.approx(cost_usd)


def test_a_deadline_that_is_only_evaluated_changes_nothing_that_is_done() -> None:
    state = RecoveryState(after=CHECK, elapsed_s=19.0)
    assert decide_recovery(state, rules(deadline_s=20.0, enforce=False), chapter()).step is Step.REPAIR
    assert decide_recovery(state, rules(deadline_s=20.0), chapter()).step is Step.STOP


def test_how_it_failed_decides_what_is_tried() -> None:
    after_check = decide_recovery(RecoveryState(after=CHECK), rules(), chapter())
    after_stuck = decide_recovery(RecoveryState(after=STUCK), rules(), chapter())
    assert (after_check.step, after_check.model) == (Step.REPAIR, 0)
    assert after_check.success == pytest.approx(0.6 + 0.4 * 0.98)
    assert "repair, then escalate" in after_check.reason
    assert (after_stuck.step, after_stuck.model) == (Step.ESCALATE, 1)
    again = decide_recovery(RecoveryState(after=CHECK, repairs=1), rules(), chapter())
    assert again.step is Step.ESCALATE
    assert decide_recovery(RecoveryState(after=CHECK, model=1, repairs=1), rules(), chapter()).step is Step.STOP
    for final in (FailureKind.LIMITED, FailureKind.LOST):
        assert decide_recovery(RecoveryState(after=final), rules(), chapter()).step is Step.STOP


def test_a_cost_limit_keeps_the_dearest_path_below_it() -> None:
    def step(limit: float, spent: float | None = 0.010) -> Step:
        return decide_recovery(RecoveryState(after=CHECK, spent_usd=spent), rules(cost_usd=limit), chapter()).step

    assert step(0.046) is Step.REPAIR
    assert step(0.045) is Step.ESCALATE
    assert step(0.039) is Step.REPAIR
    assert step(0.0155) is Step.STOP
    assert step(1.0, spent=None) is Step.STOP


def test_with_a_price_for_success_a_step_has_to_be_worth_its_cost() -> None:
    def decision(worth: float) -> Step:
        return decide_recovery(RecoveryState(after=STUCK), rules(worth_usd=worth), chapter()).step

    assert decision(0.030 / 0.98 * 1.01) is Step.ESCALATE
    assert decision(0.030 / 0.98 * 0.99) is Step.STOP


def test_until_enough_was_tried_the_usual_order_is_taken() -> None:
    nothing = Experience()
    first = decide_recovery(RecoveryState(after=STUCK), rules(), nothing)
    assert (first.step, first.success) == (Step.REPAIR, None)
    assert "0 tries after stuck" in first.reason
    assert decide_recovery(RecoveryState(after=STUCK, repairs=1), rules(repairs=2), nothing).step is Step.ESCALATE
    last = RecoveryState(after=STUCK, model=1, repairs=1)
    assert decide_recovery(last, rules(repairs=2), nothing).step is Step.REPAIR
    few = Experience(taken(Step.REPAIR, SONNET, STUCK, 4.0, 0.006, stuck=19), prior_weight=0.0)
    assert decide_recovery(RecoveryState(after=STUCK), rules(repairs=1, models=(SONNET,)), few).step is Step.REPAIR
    few.learn(taken(Step.REPAIR, SONNET, STUCK, 4.0, 0.006, stuck=1))
    assert decide_recovery(RecoveryState(after=STUCK), rules(repairs=1, models=(SONNET,)), few).step is Step.STOP


def test_a_step_is_given_the_time_that_most_of_them_took_and_not_the_mean() -> None:
    slow = [
        *taken(Step.REPAIR, SONNET, CHECK, 4.0, 0.0, passed=85),
        *taken(Step.REPAIR, SONNET, CHECK, 60.0, 0.0, passed=15),
    ]
    experience = Experience(slow)
    only = rules(models=(SONNET,), deadline_s=30.0)
    assert decide_recovery(RecoveryState(after=CHECK), only, experience).step is Step.STOP
    bold = rules(models=(SONNET,), deadline_s=30.0, quantile=0.8)
    assert decide_recovery(RecoveryState(after=CHECK), bold, experience).step is Step.REPAIR


def test_estimates_begin_at_assumptions_and_forget_them() -> None:
    assumed = ASSUMED[Step.REPAIR, CHECK]
    assert Experience().estimate(Step.REPAIR, CHECK, SONNET).passes == assumed
    one = Experience(taken(Step.REPAIR, SONNET, CHECK, 1.0, 0.0, passed=1))
    wide = (1 + 4 * assumed) / 5
    assert one.estimate(Step.REPAIR, CHECK, OPUS).passes == pytest.approx(wide)
    assert one.estimate(Step.REPAIR, CHECK, OPUS).tries == 0
    assert one.estimate(Step.REPAIR, CHECK, SONNET).passes == pytest.approx((1 + 4 * wide) / 5)
    many = Experience(taken(Step.REPAIR, SONNET, CHECK, 1.0, 0.0, passed=100, check_failed=900))
    assert many.estimate(Step.REPAIR, CHECK, SONNET).passes == pytest.approx(0.1, abs=0.005)
    assert Experience().estimate(Step.REPAIR, CHECK, SONNET).time_s is None


def test_rules_that_cannot_be_are_refused() -> None:
    for wrong in ({"models": ()}, {"repairs": -1}, {"quantile": 0.0}, {"enough": -1}):
        with pytest.raises(InvalidRequestError):
            rules(**wrong)


# -- properties --------------------------------------------------------------------------------------------------------

steps = st.lists(
    st.builds(
        StepTaken,
        step=st.sampled_from([Step.REPAIR, Step.ESCALATE]),
        model=st.sampled_from([SONNET, OPUS, "third"]),
        after=st.sampled_from([CHECK, STUCK, FailureKind.USELESS]),
        failed=st.none() | st.sampled_from([CHECK, STUCK, FailureKind.USELESS, FailureKind.LIMITED]),
        time_s=st.floats(0, 100),
        cost_usd=st.none() | st.floats(0, 1),
    ),
    max_size=40,
)
states = st.builds(
    RecoveryState,
    after=st.sampled_from([CHECK, STUCK, FailureKind.USELESS]),
    model=st.integers(0, 2),
    repairs=st.integers(0, 3),
    elapsed_s=st.floats(0, 100),
    spent_usd=st.floats(0, 1),
)
any_rules = st.builds(
    RecoveryRules,
    models=st.just((SONNET, OPUS, "third")),
    repairs=st.integers(0, 2),
    deadline_s=st.none() | st.floats(1, 200),
    enforce=st.booleans(),
    cost_usd=st.none() | st.floats(0, 2),
    worth_usd=st.none() | st.floats(0, 2),
    enough=st.sampled_from([0, 5]),
)


@settings(max_examples=25, deadline=None)
@given(learned=steps, state=states, chosen=any_rules, seed=st.integers(0, 9))
def test_what_is_decided_is_allowed_and_does_not_depend_on_the_order_of_learning(
    learned: list[StepTaken], state: RecoveryState, chosen: RecoveryRules, seed: int
) -> None:
    experience = Experience(learned)
    decision = decide_recovery(state, chosen, experience)
    shuffled = list(learned)
    random.Random(seed).shuffle(shuffled)
    assert decide_recovery(state, chosen, Experience(shuffled)).step is decision.step
    found = experience.estimate(decision.step, state.after, chosen.models[decision.model], quantile=chosen.quantile)
    match decision.step:
        case Step.STOP:
            return
        case Step.REPAIR:
            assert decision.model == state.model
            assert state.repairs < chosen.repairs
        case _:
            assert decision.model == state.model + 1 < len(chosen.models)
    if chosen.enforce and chosen.deadline_s is not None:
        assert state.elapsed_s + (found.time_s or 0.0) <= chosen.deadline_s + 1e-6
    if chosen.cost_usd is not None and state.spent_usd is not None:
        assert state.spent_usd + (found.cost_usd or 0.0) <= chosen.cost_usd + 1e-6
    for plan in decision.plans:
        again = evaluate_plan(plan.steps, state, chosen, experience)
        assert again == plan.outcome
        assert again.success_share + again.failed_share + again.stopped_share == pytest.approx(1)


def play_chapter(draw: random.Random, chosen: RecoveryRules, experience: Experience, tasks: int) -> tuple[float, float]:
    """Play tasks of example 11-8's world by what is decided, learning; return the share that passed, and the mean cost.

    Where the chapter escalates at once no repair helps, nor after the stronger model.
    """
    passes = {(Step.REPAIR, CHECK, 0): 0.6, (Step.ESCALATE, CHECK, 1): 0.98, (Step.ESCALATE, STUCK, 1): 0.98}
    terms = {Step.FIRST: (10.0, 0.010), Step.REPAIR: (4.0, 0.006), Step.ESCALATE: (8.0, 0.030)}
    passed, cost = 0, 0.0
    for _ in range(tasks):
        fate = draw.choices([None, CHECK, STUCK], [0.80, 0.12, 0.08])[0]
        steps = [StepTaken(step=Step.FIRST, model=SONNET, failed=fate, time_s=10.0, cost_usd=0.010)]
        state = RecoveryState(after=fate or CHECK, elapsed_s=10.0)
        while fate is not None:
            decision = decide_recovery(state, chosen, experience)
            if decision.step is Step.STOP:
                break
            before, (time_s, usd) = fate, terms[decision.step]
            fate = None if draw.random() < passes.get((decision.step, before, decision.model), 0.0) else before
            model = chosen.models[decision.model]
            steps.append(
                StepTaken(step=decision.step, model=model, after=before, failed=fate, time_s=time_s, cost_usd=usd)
            )
            repairs = state.repairs + 1 if decision.step is Step.REPAIR else 0
            state = RecoveryState(
                after=before, model=decision.model, repairs=repairs, elapsed_s=state.elapsed_s + time_s
            )
        passed += fate is None
        cost += sum(step.cost_usd or 0.0 for step in steps)
        experience.learn(steps)
    return passed / tasks, cost / tasks


@pytest.mark.slow
def test_who_knows_nothing_at_first_comes_to_do_what_the_chapter_does() -> None:
    draw, experience, chosen = random.Random(11), Experience(), rules()
    play_chapter(draw, chosen, experience, 500)
    share, cost = play_chapter(draw, chosen, experience, 3000)
    assert decide_recovery(RecoveryState(after=CHECK), chosen, experience).step is Step.REPAIR
    assert decide_recovery(RecoveryState(after=STUCK), chosen, experience).step is Step.ESCALATE
    assert share == pytest.approx(0.99744, abs=0.004)
    assert cost == pytest.approx(0.01456, rel=0.06)
    expected = expected_recovery(chosen, experience)
    assert expected.success_share == pytest.approx(share, abs=0.01)
    assert expected.cost_usd == pytest.approx(cost, rel=0.05)
