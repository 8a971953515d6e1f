"""What attempts used and cost: every amount counted once, and nothing free because nobody knows its price."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dsec.base.units import GIB
from dsec.costs.token_prices import TokenPrices
from dsec.episode.agent_calls import UnusableCall
from dsec.episode.identity import EpisodeIdentity, ModelIdentity
from dsec.episode.ledger import attempt_use
from dsec.episode.log_events import (
    EnvironmentUsed,
    EpisodeBegan,
    EpisodeEnded,
    EpisodeHeld,
    EpisodeReleased,
    LifeBegan,
    LogEvent,
    ModelFailed,
    OperationsRunning,
    RoundAbandoned,
    RoundCommitted,
    RoundDecided,
    StateSaved,
)
from dsec.episode.operations import Effect, ModelDecision, TokenUsage
from dsec.episode.prices import Cost, CostKind, Prices, cost_of, sum_costs
from dsec.episode.spending import GradedUse, priced, spending, spending_by
from dsec.episode.totals import EnvironmentKind, EnvironmentTotal, EpisodeTotals, ModelTotal
from dsec.episode.use import AttemptUse, EnvironmentUse, ModelUse, Purpose, merge_uses, sum_models
from dsec.testing.episodes import decision, history, identity, round_record

SONNET, OPUS = ModelIdentity(name="sonnet"), ModelIdentity(name="opus")
CHAPTER = Prices(
    models={
        "sonnet": TokenPrices(input_usd_per_mtoken=2.0, output_usd_per_mtoken=10.0),
        "opus": TokenPrices(input_usd_per_mtoken=5.0, output_usd_per_mtoken=25.0),
    },
    memory_usd_per_gib_s=0.0000045,
    cpu_usd_per_s=0.000014,
)


def bought(model: ModelIdentity, inputs: int, outputs: int, time_s: float, at_s: float, number: int) -> RoundCommitted:
    """Return a round that a model decided, and that ended at a time."""
    record = round_record(number)
    usage = TokenUsage(input_tokens=inputs, output_tokens=outputs)
    decided = replace(record.decision, model=model, usage=usage)
    return RoundCommitted(replace(record, decision=decided, decide_s=time_s, committed_at_s=at_s))


def resident(began_s: float, ended_s: float, *, gib: float = 2.0, cpu_s: float = 0.0) -> EnvironmentUsed:
    return EnvironmentUsed(
        sandbox_id="sb-1",
        kind=EnvironmentKind.RESIDENT,
        began_s=began_s,
        ended_s=ended_s,
        memory_byte_s=(ended_s - began_s) * gib * GIB,
        cpu_s=cpu_s,
    )


STEPS = {"first": (SONNET, 2500, 500, 10.0), "repair": (SONNET, 1500, 300, 4.0), "upgrade": (OPUS, 3000, 600, 8.0)}
PATHS = (
    (("first",), True, 2500),
    (("first", "repair"), True, 225),
    (("first", "repair", "upgrade"), True, 147),
    (("first", "repair", "upgrade"), False, 3),
    (("first", "upgrade"), True, 245),
    (("first", "upgrade"), False, 5),
)
"""Example 11-8: the six ways through, and how many of 3,125 tasks take each; 32 times as many are its 100,000."""


def example_11_8() -> list[GradedUse]:
    attempts: list[GradedUse] = []
    for steps, passed, count in PATHS:
        events: list[LogEvent] = [EpisodeBegan(identity())]
        now_s = 1000.0
        for number, step in enumerate(steps, start=1):
            model, inputs, outputs, time_s = STEPS[step]
            now_s += time_s
            events.append(bought(model, inputs, outputs, time_s, now_s, number))
        use = attempt_use(events)
        for _ in range(count):
            name = f"task-{len(attempts)}"
            attempts.append(GradedUse(use=replace(use, task=name, episode_id=name), passed=passed, deadline_s=20.0))
    return attempts


@pytest.mark.slow
def test_the_ledger_of_example_11_8_gives_the_chapters_costs() -> None:
    attempts = example_11_8()
    found = spending(priced(attempts, CHAPTER))
    assert found.tasks == found.attempts == 3125
    assert found.cost.known_usd / found.tasks * 1000 == pytest.approx(14.56)
    assert found.passed / found.tasks == pytest.approx(0.99744)
    assert found.timely / found.tasks == pytest.approx(0.9504)
    assert found.submitted_usd == pytest.approx(0.01456)
    assert found.passed_usd == pytest.approx(0.0145974, abs=1e-7)
    assert found.timely_usd == pytest.approx(0.0153199, abs=1e-7)
    assert found.lost.known_usd == pytest.approx(3 * 0.046 + 5 * 0.040)
    first = attempts[0].use
    alone = [
        GradedUse(use=replace(first, task=one.use.task), passed=place < 2500) for place, one in enumerate(attempts)
    ]
    assert spending(priced(alone, CHAPTER)).passed_usd == pytest.approx(0.0125)


def test_half_of_ten_tasks_pass_and_each_costs_a_fifth_of_all_that_was_spent() -> None:
    use = AttemptUse(task="t", models=(ModelUse(model="m", purpose=Purpose.DECIDED, calls=1, told_usd=0.1),))
    attempts = [GradedUse(use=replace(use, task=f"t{n}"), passed=n < 5) for n in range(10)]
    found = spending(priced(attempts, Prices()))
    assert found.cost.known_usd == pytest.approx(1.0)
    assert found.passed_usd == pytest.approx(0.2)
    assert found.lost.known_usd == pytest.approx(0.5)


def test_environment_costs_what_the_chapter_computes() -> None:
    use = AttemptUse(
        task="t", environment=(EnvironmentUse(kind=EnvironmentKind.RESIDENT, memory_byte_s=18 * GIB, cpu_s=3.3),)
    )
    assert cost_of(use, CHAPTER).is_whole
    by_kind = {line.kind: line.usd for line in cost_of(use, CHAPTER).lines}
    assert by_kind[CostKind.CPU] == pytest.approx(0.0000462)
    assert by_kind[CostKind.MEMORY] == pytest.approx(0.000081)


def test_failed_calls_given_up_decisions_and_useless_rounds_are_paid_for_and_told_apart() -> None:
    usage = TokenUsage(input_tokens=100, output_tokens=10)
    given_up = decision(1, (Effect.ONCE,))
    useless = replace(round_record(1).decision, usage=usage, model=SONNET)
    useless = replace(useless, operations=(replace(useless.operations[0], call=UnusableCall(problem="no tool")),))
    events: list[LogEvent] = [
        EpisodeBegan(identity()),
        LifeBegan(at_s=100.0, model=SONNET),
        ModelFailed(number=1, model=SONNET, usage=usage, error_code="backend_failed", duration_s=3.0),
        RoundDecided(number=1, decision=replace(given_up, usage=usage, model=SONNET)),
        OperationsRunning(number=1, operations=(given_up.operations[0].operation_id,)),
        LifeBegan(at_s=110.0, model=SONNET),
        RoundAbandoned(number=1),
        RoundCommitted(replace(round_record(1), decision=useless, committed_at_s=120.0, decide_s=4.0)),
        EpisodeEnded(at_s=121.0),
    ]
    use = attempt_use(events)
    assert {line.purpose: line.calls for line in use.models} == {
        Purpose.FAILED: 1,
        Purpose.ABANDONED: 1,
        Purpose.USELESS: 1,
    }
    assert (use.lives, use.thinking_s, use.wall_s) == (2, 7.0, 21.0)
    assert (use.tools.executions, use.tools.repeated) == (2, 1)
    assert cost_of(use, CHAPTER).known_usd == pytest.approx(3 * (100 * 2 + 10 * 10) / 1e6)


def test_a_decision_that_was_announced_and_then_committed_counts_once() -> None:
    record = round_record(1, effects=(Effect.ONCE,))
    name = record.decision.operations[0].operation_id
    before: list[LogEvent] = [
        EpisodeBegan(identity()),
        RoundDecided(number=1, decision=record.decision),
        OperationsRunning(number=1, operations=(name,)),
    ]
    open_use = attempt_use(before)
    closed = attempt_use([*before, RoundCommitted(record)])
    assert [line.input_tokens for line in open_use.models] == [line.input_tokens for line in closed.models] == [100]
    assert closed.tools.executions == 1


def test_operations_that_ran_again_are_work_done_twice() -> None:
    record = round_record(1, effects=(Effect.DEDUPLICATED,))
    slow = replace(record.results[0], duration_s=3.0)
    use = attempt_use([EpisodeBegan(identity()), RoundCommitted(replace(record, results=(slow,), attempts=(2,)))])
    assert (use.tools.calls, use.tools.executions, use.tools.repeated, use.tools.repeated_s) == (1, 2, 1, 3.0)


def test_an_unknown_price_is_named_and_never_zero() -> None:
    use = AttemptUse(
        task="t",
        models=(ModelUse(model="m", purpose=Purpose.DECIDED, input_tokens=5, output_tokens=7),),
        environment=(EnvironmentUse(kind=EnvironmentKind.RESIDENT),),
    )
    nothing = cost_of(use, Prices())
    assert nothing.usd is None
    assert [(line.kind, line.amount) for line in nothing.unpriced] == [(CostKind.INPUT, 5), (CostKind.OUTPUT, 7)]
    half = cost_of(use, Prices(models={"m": TokenPrices(output_usd_per_mtoken=10.0)}))
    assert half.usd == pytest.approx(0.00007)
    assert not half.is_whole
    found = spending(priced([GradedUse(use=use, passed=True)], Prices()))
    assert found.submitted_usd is found.passed_usd is None


def test_cached_input_without_a_price_is_charged_as_input_and_what_a_service_tells_is_believed() -> None:
    line = ModelUse(model="sonnet", purpose=Purpose.DECIDED, input_tokens=1000, cached_tokens=400)
    use = AttemptUse(task="t", models=(line,))
    assert cost_of(use, CHAPTER).known_usd == pytest.approx(0.002)
    told = AttemptUse(task="t", models=(replace(line, told_usd=0.5),))
    assert cost_of(told, CHAPTER).known_usd == 0.5


def test_a_service_that_reports_nonsense_earns_no_money() -> None:
    usage = TokenUsage(input_tokens=-5, cached_tokens=9, output_tokens=3, thinking_tokens=8, cost_usd=-2.0)
    use = attempt_use([EpisodeBegan(identity()), ModelFailed(number=1, model=SONNET, usage=usage, duration_s=-1.0)])
    (line,) = use.models
    assert (line.input_tokens, line.cached_tokens, line.thinking_tokens, line.told_usd) == (0, 0, 3, 0.0)
    assert use.thinking_s == 0.0


def test_a_log_that_begins_with_a_state_goes_on_from_its_totals_and_says_what_it_lacks() -> None:
    totals = EpisodeTotals(
        lives=3,
        began_at_s=50.0,
        operations=9,
        models=(ModelTotal(model=SONNET, usage=TokenUsage(input_tokens=10, output_tokens=1, calls=4)),),
        environment=(EnvironmentTotal(kind=EnvironmentKind.RESIDENT, seconds=7.0, memory_byte_s=1.0, cpu_s=2.0),),
    )
    state = StateSaved(number=4, identity=identity(), workspace="w4", totals=totals)
    use = attempt_use([state, bought(SONNET, 5, 2, 1.0, 60.0, 5)], sequence=90)
    assert (use.sequence, use.rounds, use.lives, use.wall_s) == (90, 5, 3, 10.0)
    assert [(line.calls, line.input_tokens) for line in use.models] == [(5, 15)]
    assert "rounds 1 to 4" in use.missing[0]
    # A state in the middle of a log stands for what was counted already.
    whole: list[LogEvent] = [EpisodeBegan(identity()), bought(SONNET, 5, 2, 1.0, 60.0, 1), state]
    assert attempt_use(whole).models[0].input_tokens == 5


def test_time_in_which_an_attempt_was_held_does_not_count_against_a_deadline() -> None:
    held: list[LogEvent] = [EpisodeBegan(identity()), resident(100, 110), EpisodeHeld(at_s=110.0)]
    use = attempt_use([*held, EpisodeReleased(at_s=140.0), resident(140, 150), EpisodeEnded()])
    assert (use.wall_s, use.held_s, use.working_s) == (50, 30, 20)
    assert attempt_use([*held, resident(115, 125)]).working_s == 10
    assert GradedUse(use=use, passed=True, deadline_s=20.0).timely
    assert not GradedUse(use=use, passed=True, deadline_s=19.0).timely
    assert not GradedUse(use=use, passed=None, deadline_s=20.0).timely


def test_a_task_passes_when_one_attempt_does_and_ungraded_ones_are_counted() -> None:
    base = AttemptUse(task="a", models=(ModelUse(model="m", purpose=Purpose.DECIDED, calls=1, told_usd=1.0),))
    graded = [
        GradedUse(use=replace(base, attempt=1), passed=False),
        GradedUse(use=replace(base, attempt=2), passed=True),
        GradedUse(use=replace(base, task="b")),
    ]
    found = spending(priced(graded, Prices()))
    assert (found.tasks, found.passed, found.attempts, found.passed_attempts, found.ungraded) == (2, 1, 3, 1, 1)
    assert (found.submitted_usd, found.passed_usd) == (1.5, 3.0)
    assert [one.name for one in spending_by(priced(graded, Prices()), lambda one: one.use.task)] == ["a", "b"]


# -- properties --------------------------------------------------------------------------------------------------------

amounts = st.integers(0, 10**6)


@st.composite
def uses(draw: st.DrawFn) -> AttemptUse:
    models = draw(
        st.lists(
            st.builds(
                lambda model, purpose, inputs, cached, outputs, told: ModelUse(
                    model=model,
                    purpose=purpose,
                    calls=1,
                    input_tokens=inputs + cached,
                    cached_tokens=cached,
                    output_tokens=outputs,
                    told_usd=told,
                ),
                st.sampled_from(["sonnet", "opus", "nobody's"]),
                st.sampled_from(Purpose),
                amounts,
                amounts,
                amounts,
                st.none() | st.floats(0, 10),
            ),
            max_size=4,
        )
    )
    environment = draw(
        st.lists(
            st.builds(
                EnvironmentUse,
                kind=st.sampled_from(EnvironmentKind),
                memory_byte_s=st.floats(0, 1e12),
                cpu_s=st.floats(0, 1e4),
            ),
            max_size=3,
        )
    )
    return AttemptUse(
        task=draw(st.sampled_from("abc")),
        attempt=draw(st.integers(1, 3)),
        sequence=draw(st.integers(0, 3)),
        models=sum_models(models),
        environment=tuple(environment),
    )


@pytest.mark.slow
@settings(max_examples=20)
@given(attempts=st.lists(uses(), min_size=1, max_size=6), seed=st.integers(0, 99))
def test_the_total_is_the_sum_of_its_parts_however_they_are_cut_and_ordered(
    attempts: list[AttemptUse], seed: int
) -> None:
    def total(chosen: Sequence[AttemptUse]) -> Cost:
        return sum_costs(cost_of(use, CHAPTER) for use in chosen)

    shuffled = list(attempts)
    random.Random(seed).shuffle(shuffled)
    assert total(attempts) == total(shuffled)
    half = len(attempts) // 2
    parts = [total(attempts[:half]), total(attempts[half:])]
    assert math.isclose(total(attempts).known_usd, sum(part.known_usd for part in parts), abs_tol=1e-9)
    tokens = sum(line.input_tokens + line.output_tokens for use in attempts for line in use.models)
    beside = (CostKind.MEMORY, CostKind.CPU, CostKind.UNMEASURED)
    counted = [line for line in total(attempts).lines if line.kind not in beside]
    assert sum(line.amount for line in counted) == tokens
    groups = spending_by(priced([GradedUse(use=use) for use in attempts], CHAPTER), lambda one: one.use.task)
    assert math.isclose(sum(group.cost.known_usd for group in groups), total(attempts).known_usd, abs_tol=1e-9)
    assert sum(len(group.cost.unpriced) > 0 for group in groups) == len(
        {use.task for use in attempts if not cost_of(use, CHAPTER).is_whole}
    )


@pytest.mark.slow
@settings(max_examples=20)
@given(attempts=st.lists(uses(), max_size=6), seed=st.integers(0, 99))
def test_merging_shuffled_copies_of_logs_gives_the_same(attempts: list[AttemptUse], seed: int) -> None:
    shuffled = attempts + attempts[: len(attempts) // 2]
    random.Random(seed).shuffle(shuffled)
    merged = merge_uses(attempts)
    assert merge_uses(shuffled) == merged
    assert len({use.key for use in merged}) == len(merged)
    for use in attempts:
        assert any(kept.key == use.key and kept.sequence >= use.sequence for kept in merged)


@settings(max_examples=20)
@given(rounds=st.integers(0, 6), cut=st.integers(0, 7))
def test_a_copy_that_is_cut_short_never_replaces_the_whole_log(rounds: int, cut: int) -> None:
    events = history(rounds)
    whole, part = attempt_use(events), attempt_use(events[: max(1, min(cut, len(events)))])
    assert merge_uses([part, whole]) == merge_uses([whole, part]) == [whole]
    assert sum(line.input_tokens for line in whole.models) == sum(100 * number for number in range(1, rounds + 1))


def test_a_script_uses_no_model_and_an_environment_that_was_not_measured_is_not_free() -> None:
    record = replace(round_record(1), decision=ModelDecision(usage=TokenUsage(calls=0)), results=(), attempts=())
    use = attempt_use([EpisodeBegan(EpisodeIdentity(episode_id="ep-a", task="t")), RoundCommitted(record)])
    assert use.models == ()
    (line,) = cost_of(use, Prices()).lines
    assert (line.kind, line.usd) == (CostKind.UNMEASURED, None)
    assert use.missing == ("its environment was not measured",)


def test_what_no_log_knows_is_said() -> None:
    scaffold = replace(identity(), policy="scaffold")
    use = attempt_use([EpisodeBegan(scaffold), resident(0.0, 9.0), ModelFailed(number=1, model=SONNET)])
    assert {text.split()[0] for text in use.missing} == {"what", "it"}
    cost = cost_of(use, CHAPTER)
    assert not cost.is_whole
    assert [line.name for line in cost.unpriced] == ["scaffold"]
