"""What is done when an episode is opened again: against a model that knows what truly happened, and by example."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import msgspec
import pytest

from dsec.base.errors import InvalidRequestError, InvalidStateError, StateCorruptedError
from dsec.episode.episode_progress import EpisodeProgress, fold
from dsec.episode.log_events import (
    EpisodeEnded,
    LogEvent,
    OperationFinished,
    OperationSettled,
    OperationsRunning,
    RoundAbandoned,
    RoundCommitted,
    RoundDecided,
    StateSaved,
    Verdict,
)
from dsec.episode.operations import Effect, RoundRecord
from dsec.episode.recovery import (
    AskOutside,
    AwaitVerdict,
    CompensateOutside,
    ReturnRecorded,
    RunOperation,
    SendAgain,
    check_resumable_at,
    plan_recovery,
)
from dsec.testing.episodes import decision, history, identity, result, round_record


def open_round(effects: list[Effect], *events: LogEvent, workspace: str = "w2") -> EpisodeProgress:
    """Return the progress of an episode of two rounds with a third one under way."""
    return fold([*history(2), RoundDecided(number=3, decision=decision(3, effects), workspace=workspace), *events])


def op(place: int) -> str:
    return f"ep-test.r3.d1.c{place}"


def running(*places: int, attempt: int = 1) -> OperationsRunning:
    return OperationsRunning(number=3, operations=tuple(op(place) for place in places), attempt=attempt)


def finished(place: int, text: str = "done", workspace: str = "") -> OperationFinished:
    return OperationFinished(number=3, operation=op(place), result=result(text), workspace=workspace)


def test_between_rounds_the_model_is_asked_for_the_next_one() -> None:
    plan = plan_recovery(fold(history(2)), workspace="w2")
    assert (plan.last_round, plan.number, plan.ask_model, plan.can_go_on) == (2, 3, True, True)
    assert not plan.workspace.restore


def test_a_workspace_of_another_version_is_restored_before_anything_else() -> None:
    plan = plan_recovery(fold(history(2)), workspace="w2-and-more", restorable={"w1", "w2"})
    assert (plan.workspace.version, plan.workspace.restore) == ("w2", True)
    assert plan_recovery(fold(history(2)), workspace=None, restorable={"w2"}).workspace.restore


def test_a_workspace_that_cannot_be_restored_stops_the_episode() -> None:
    plan = plan_recovery(fold(history(2)), workspace="other", restorable={"w1"})
    assert not plan.can_go_on
    assert "is other, and that cannot be restored" in plan.workspace.lost


@pytest.mark.parametrize(
    ("effect", "action"),
    [
        (Effect.NONE, RunOperation),
        (Effect.ASKED, AskOutside),
        (Effect.DEDUPLICATED, SendAgain),
        (Effect.COMPENSATED, CompensateOutside),
        (Effect.ONCE, AwaitVerdict),
    ],
)
def test_an_operation_that_began_without_a_result_is_treated_by_its_effect(effect: Effect, action: type) -> None:
    plan = plan_recovery(open_round([effect], running(0)), workspace="w2")
    assert isinstance(plan.actions[0], action)
    assert plan.can_go_on == (effect is not Effect.ONCE)


@pytest.mark.parametrize("effect", list(Effect))
def test_an_operation_that_had_not_begun_is_run_for_the_first_time(effect: Effect) -> None:
    (action,) = plan_recovery(open_round([effect]), workspace="w2").actions
    assert isinstance(action, RunOperation)
    assert action.attempt == 1


@pytest.mark.parametrize("effect", [effect for effect in Effect if effect.is_announced])
def test_a_recorded_result_is_returned_and_nothing_runs(effect: Effect) -> None:
    (action,) = plan_recovery(open_round([effect], running(0), finished(0)), workspace="w2").actions
    assert action == ReturnRecorded(operation_id=op(0), result=result("done"))


def test_a_verdict_ends_the_waiting() -> None:
    happened = OperationSettled(number=3, operation=op(0), verdict=Verdict.HAPPENED, result=result("seen"), by="anna")
    (action,) = plan_recovery(open_round([Effect.ONCE], running(0), happened), workspace="w2").actions
    assert action == ReturnRecorded(operation_id=op(0), result=result("seen"))
    did_not = OperationSettled(number=3, operation=op(0), verdict=Verdict.DID_NOT_HAPPEN, by="anna")
    (action,) = plan_recovery(open_round([Effect.ONCE], running(0), did_not), workspace="w2").actions
    assert isinstance(action, RunOperation)
    assert action.attempt == 2
    again = open_round([Effect.ONCE], running(0), did_not, running(0, attempt=2))
    assert isinstance(plan_recovery(again, workspace="w2").actions[0], AwaitVerdict)


def test_what_changed_the_workspace_or_looked_at_it_is_run_again_and_what_happened_outside_is_not() -> None:
    effects = [Effect.NONE, Effect.WORKSPACE, Effect.NONE, Effect.ONCE, Effect.WORKSPACE]
    events: list[LogEvent] = [finished(0), finished(1), finished(2), running(3), finished(3)]
    plan = plan_recovery(open_round(effects, *events), workspace="half way", restorable={"w2"})
    assert plan.workspace.restore
    kinds = [type(action) for action in plan.actions]
    assert kinds == [ReturnRecorded, RunOperation, RunOperation, ReturnRecorded, RunOperation]


def test_a_saved_point_inside_the_round_saves_what_is_in_front_of_it() -> None:
    effects = [Effect.WORKSPACE, Effect.WORKSPACE, Effect.NONE]
    progress = open_round(effects, finished(0, workspace="w2.1"), finished(1, workspace="w2.2"))
    plan = plan_recovery(progress, workspace="half way", restorable={"w2", "w2.1"})
    assert plan.workspace.version == "w2.1"
    assert [type(action) for action in plan.actions] == [ReturnRecorded, RunOperation, RunOperation]
    plan = plan_recovery(progress, workspace="w2.2")
    assert not plan.workspace.restore
    assert [type(action) for action in plan.actions] == [ReturnRecorded, ReturnRecorded, RunOperation]


def test_a_version_that_was_saved_while_a_neighbour_may_have_run_is_no_point_to_go_on_from() -> None:
    decided = decision(3, [Effect.WORKSPACE] * 3)
    parallel = tuple(msgspec.structs.replace(found, parallel=True) for found in decided.operations[:2])
    decided = msgspec.structs.replace(decided, operations=(*parallel, decided.operations[2]))
    events = [finished(0, workspace="w2.1"), finished(1, workspace="w2.2")]
    progress = fold([*history(2), RoundDecided(number=3, decision=decided, workspace="w2"), *events])
    with pytest.raises(InvalidRequestError, match="was not saved"):
        check_resumable_at(progress, number=2, operations=1)
    assert check_resumable_at(progress, number=2, operations=2) == "w2.2"
    plan = plan_recovery(progress, workspace="w2.1", restorable={"w2", "w2.1"})
    assert plan.workspace.version == "w2"


def test_a_workspace_without_a_recorded_version_is_not_trusted() -> None:
    plan = plan_recovery(open_round([Effect.WORKSPACE], workspace=""), workspace="anything")
    assert not plan.can_go_on
    plan = plan_recovery(open_round([Effect.ONCE], workspace=""), workspace="")
    assert plan.can_go_on


def test_an_ended_episode_has_nothing_to_do() -> None:
    plan = plan_recovery(fold([*history(2), EpisodeEnded(reason="submitted")]), workspace=None)
    assert plan.ended is not None
    assert not plan.can_go_on


def test_a_point_inside_a_round_can_be_resumed_at_only_if_it_was_saved() -> None:
    progress = open_round([Effect.WORKSPACE] * 3, finished(0, workspace="w2.1"), finished(1))
    assert check_resumable_at(progress, number=2) == "w2"
    assert check_resumable_at(progress, number=2, operations=1) == "w2.1"
    for operations in (0, 2, 3):
        with pytest.raises(InvalidRequestError, match="was not saved after"):
            check_resumable_at(progress, number=2, operations=operations)
    with pytest.raises(InvalidRequestError, match="gone on with after round 2"):
        check_resumable_at(progress, number=1)
    with pytest.raises(InvalidRequestError, match="was not saved"):
        check_resumable_at(fold(history(2)), number=2, operations=1)


def test_an_episode_that_has_not_begun_cannot_be_recovered() -> None:
    with pytest.raises(InvalidRequestError):
        plan_recovery(EpisodeProgress(), workspace=None)


# -- every history of a small round, against a model that knows the truth ---------------------------------------------


@dataclass
class World:
    """What is true: how often each operation took effect outside, and what the disk holds."""

    effects: tuple[Effect, ...]
    happened: list[int] = field(default_factory=list)
    log: list[LogEvent] = field(default_factory=list)
    workspace: str = "w2"

    def __post_init__(self) -> None:
        self.happened = [0] * len(self.effects)

    def play(self, steps: int) -> None:
        """Carry the round out as a loop does, and die after so many steps; an effect and its record are two steps."""
        self.log = [RoundDecided(number=3, decision=decision(3, self.effects), workspace="w2")]
        moves = itertools.product(range(len(self.effects)), (self.announce, self.act, self.record))
        for place, move in itertools.islice(moves, steps):
            move(place)

    def announce(self, place: int) -> None:
        if self.effects[place].is_announced:
            self.log.append(running(place))

    def act(self, place: int) -> None:
        self.happened[place] += 1
        if self.effects[place] is Effect.WORKSPACE:
            self.workspace += f"+{place}"

    def record(self, place: int) -> None:
        self.log.append(finished(place, f"{place}"))

    def recover(self) -> list[int]:
        """Do what recovery says; return the places that wait for a verdict."""
        plan = plan_recovery(fold([*history(2), *self.log]), workspace=self.workspace, restorable={"w2"})
        if plan.workspace.restore:
            self.workspace = plan.workspace.version
        assert not plan.workspace.lost
        waiting = []
        for place, action in enumerate(plan.actions):
            match action:
                case ReturnRecorded():
                    assert action.result == result(f"{place}")
                case RunOperation():
                    self.act(place)
                case AskOutside():
                    if not self.happened[place]:
                        self.act(place)
                case SendAgain():
                    self.happened[place] = 1
                case CompensateOutside():
                    self.happened[place] = 0
                    self.act(place)
                case AwaitVerdict():
                    waiting.append(place)
        return waiting


@pytest.mark.parametrize("count", [1, 2, 3])
def test_whenever_the_loop_dies_nothing_outside_happens_twice_and_unknown_is_exactly_where_it_must_be(
    count: int,
) -> None:
    for effects in itertools.product(Effect, repeat=count):
        for steps in range(3 * count + 1):
            world = World(effects)
            world.play(steps)
            begun_without_record = steps // 3 if steps % 3 and steps < 3 * count else None
            waiting = world.recover()
            expected = (
                [begun_without_record]
                if begun_without_record is not None and effects[begun_without_record] is Effect.ONCE
                else []
            )
            assert waiting == expected
            for place, effect in enumerate(effects):
                if effect.is_announced and place not in waiting:
                    assert world.happened[place] == 1, (effects, steps, place)
                elif effect.is_announced:
                    assert world.happened[place] <= 1
                else:
                    assert world.happened[place] >= 1
            in_order = "".join(f"+{place}" for place, effect in enumerate(effects) if effect is Effect.WORKSPACE)
            assert world.workspace == f"w2{in_order}", (effects, steps)


# -- what a log refuses ------------------------------------------------------------------------------------------------


def committed(effects: list[Effect]) -> RoundCommitted:
    return RoundCommitted(round_record(3, effects=effects))


@pytest.mark.parametrize(
    ("events", "refused", "why"),
    [
        ([], RoundCommitted(round_record(4)), "does not follow"),
        ([], RoundCommitted(round_record(2)), "does not follow"),
        ([], committed([Effect.ONCE]), "never announced"),
        ([], RoundDecided(number=4, decision=decision(4)), "does not follow"),
        ([], running(0), "no round is under way"),
        ([], StateSaved(number=1, identity=identity(), workspace="w1"), "the last one is 2"),
        ([], StateSaved(number=2, identity=identity("ep-other"), workspace="w2"), "another episode"),
        ([], history(0)[0], "begun already"),
        ([EpisodeEnded()], RoundCommitted(round_record(3)), "has ended"),
    ],
)
def test_an_event_out_of_order_is_refused(events: list[LogEvent], refused: LogEvent, why: str) -> None:
    progress = fold([*history(2), *events])
    with pytest.raises(InvalidStateError, match=why):
        progress.check(refused)
    with pytest.raises(StateCorruptedError, match=why):
        progress.apply(refused)


@pytest.mark.parametrize(
    ("effect", "events", "refused", "why"),
    [
        (Effect.ONCE, [], committed([Effect.ONCE]), "never announced"),
        (Effect.ONCE, [], finished(0), "never announced"),
        (Effect.ONCE, [running(0)], running(0), "was announced before"),
        (Effect.ONCE, [running(0), finished(0)], running(0, attempt=2), "must not run twice"),
        (Effect.ONCE, [running(0), finished(0)], finished(0), "result already"),
        (Effect.ONCE, [running(0)], RoundAbandoned(number=3), "nobody knows"),
        (Effect.ONCE, [running(0), finished(0, "other")], committed([Effect.ONCE]), "another result"),
        (Effect.WORKSPACE, [], committed([Effect.NONE]), "decided otherwise"),
        (Effect.WORKSPACE, [], running(1), "no operation of the decision"),
        (Effect.WORKSPACE, [], StateSaved(number=2, identity=identity(), workspace="w2"), "end of a round"),
        (
            Effect.WORKSPACE,
            [],
            OperationSettled(number=3, operation=op(0), verdict=Verdict.DID_NOT_HAPPEN),
            "is not unknown",
        ),
    ],
)
def test_inside_a_round_what_breaks_a_promise_is_refused(
    effect: Effect, events: list[LogEvent], refused: LogEvent, why: str
) -> None:
    progress = open_round([effect], *events)
    with pytest.raises(InvalidStateError, match=why):
        progress.check(refused)


def test_a_decision_that_was_given_up_is_followed_by_one_with_other_ids() -> None:
    progress = open_round([Effect.WORKSPACE], RoundAbandoned(number=3, reason="the output was cut"))
    assert progress.decisions == 1
    again = RoundDecided(number=3, decision=decision(3, attempt=2), workspace="w2")
    progress.apply(again)
    record: RoundRecord = round_record(3)
    with pytest.raises(InvalidStateError, match="decided otherwise"):
        progress.check(RoundCommitted(record))
