"""Whatever rounds look like: steps are bounded, taken once, and in the order of the models."""

from __future__ import annotations

from collections import Counter, deque

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dsec.episode.agent_calls import Submit, UnusableCall
from dsec.episode.content import Content
from dsec.episode.failure_kinds import CHECK_FAILED_CODE, FailureKind
from dsec.episode.identity import ModelIdentity
from dsec.episode.operations import RoundRecord, TokenUsage
from dsec.episode.recovery_experience import Experience, Step, StepTaken
from dsec.episode.recovery_learning import escalated_after, repaired_after
from dsec.episode.spec import AgentPolicy, EpisodeLimits, EpisodeRecovery, EpisodeSpec, ModelEndpoint
from dsec.episode.tools import CommandOutput, Run, ToolFailed, ToolResult
from dsec.episode.totals import EpisodeTotals, Steering
from dsec.testing.episodes import round_record
from dsec.worker.episodes.ports import Escalate, Finished, GoOn, Situation
from dsec.worker.episodes.recovery.escalation import TreeRecovery

MODELS = tuple(ModelEndpoint(url="http://127.0.0.1:1/v1", name=name) for name in ("small", "big", "biggest"))
LOOKS = ("well", "same", "useless", "refused", "tools_failed")


def looking(number: int, look: str, model: str) -> RoundRecord:
    """Return a round that looks so."""
    output: ToolResult = CommandOutput(exit_code=0, stdout=Content(text=str(number)))
    call: object = Run(script=f"echo {number}")
    match look:
        case "same":
            call, output = Run(script="ls"), CommandOutput(exit_code=0)
        case "useless":
            call, output = UnusableCall(problem="no"), ToolFailed("invalid_request", "no")
        case "refused":
            call, output = Submit(), ToolFailed(CHECK_FAILED_CODE, "no")
        case "tools_failed":
            output = ToolFailed("path_not_found", "no")
    record = round_record(number)
    operation = replace(record.decision.operations[0], call=call)
    decision = replace(
        record.decision, operations=(operation,), model=ModelIdentity(name=model), usage=TokenUsage(calls=0)
    )
    return replace(record, decision=decision, results=(output,))


taken = st.builds(
    StepTaken,
    step=st.sampled_from([Step.REPAIR, Step.ESCALATE]),
    model=st.sampled_from(["small", "big", "biggest"]),
    after=st.sampled_from([FailureKind.CHECK_FAILED, FailureKind.USELESS, FailureKind.STUCK]),
    failed=st.none() | st.sampled_from([FailureKind.CHECK_FAILED, FailureKind.STUCK]),
    time_s=st.floats(0, 50),
)


@settings(max_examples=25, deadline=None)
@given(
    looks=st.lists(
        st.sampled_from(LOOKS).flatmap(lambda look: st.integers(1, 9).map(lambda count: [look] * count)),
        min_size=4,
        max_size=9,
    ).map(lambda runs: [look for run in runs for look in run]),
    models=st.integers(1, 3),
    recovery=st.builds(EpisodeRecovery, repairs=st.integers(0, 3), enough=st.sampled_from([0, 1, 20])),
    learned=st.lists(taken, max_size=20),
    deadline_s=st.none() | st.floats(10, 400),
)
def test_steps_are_bounded_taken_once_and_in_order(
    looks: list[str], models: int, recovery: EpisodeRecovery, learned: list[StepTaken], deadline_s: float | None
) -> None:
    spec = EpisodeSpec(
        task="t",
        policy=AgentPolicy(model=MODELS[0], stronger=MODELS[1:models]),
        limits=EpisodeLimits(deadline_s=deadline_s),
        recovery=recovery,
    )
    strategy = TreeRecovery(spec, lambda: Experience(learned))
    rounds: deque[RoundRecord] = deque(maxlen=30)
    totals, place, number = EpisodeTotals(began_at_s=1.0), 0, 1
    repairs: Counter[tuple[int, FailureKind]] = Counter()

    def situation() -> Situation:
        endpoint = totals.endpoint
        return Situation(
            spec=spec, number=number, elapsed_s=3.0 * number, totals=totals, rounds=list(rounds), endpoint=endpoint
        )

    for look in looks:
        course = strategy.before_round(situation())
        if isinstance(course, Finished):
            last = looks[number - 2]
            expected = {"check_failed": "refused", "stuck": "same", "deadline_exceeded": last}
            assert expected[course.error_code] == last
            return
        if isinstance(course, Escalate):
            assert escalated_after(course.reason) is not None
            place += 1
            assert course.endpoint == MODELS[place]
            assert place < models
            totals = replace(totals, endpoint=course.endpoint, changed_after=number - 1)
        elif course.steer:
            kind = repaired_after(course.by)
            assert kind is not None
            repairs[place, kind] += 1
            assert repairs[place, kind] <= recovery.repairs
            told = Steering(message=course.steer, by=course.by, after_round=number - 1)
            totals = replace(totals, steered=(*totals.steered, told))
        # Asked again after a death, with what the log says now, it does nothing more.
        assert strategy.before_round(situation()) == GoOn()
        rounds.append(looking(number, look, MODELS[place].name))
        number += 1
