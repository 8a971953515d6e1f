"""What a pool does, event by event."""

from __future__ import annotations

from dsec.model.pool import PoolPolicy
from dsec.pools.actions import Create, Destroy, HandOut, PoolAction, Recycle, Refuse, Trouble, Warn
from dsec.pools.events import (
    Adopted,
    Created,
    CreationFailed,
    Gone,
    PolicyChanged,
    PoolEvent,
    Recycled,
    Returned,
    ShrinkAsked,
    Spoiled,
    TaskArrived,
    TaskLeft,
    Ticked,
)
from dsec.pools.pool import Pool


def still(**policy: object) -> PoolPolicy:
    """A policy whose level stays at `floor`, whatever comes."""
    return PoolPolicy(fixed_level=policy.pop("floor"), **policy)  # type: ignore[arg-type]


class Trace:
    """A pool, and what it said."""

    def __init__(self, **policy: object) -> None:
        self.pool = Pool(still(**policy))
        self.now_s = 0.0

    def then(self, event: PoolEvent, *, after_s: float = 0.0) -> list[PoolAction]:
        self.now_s += after_s
        return list(self.pool.handle(event, self.now_s))

    def filled(self, count: int) -> Trace:
        self.then(Ticked())
        for number in range(count):
            self.then(Created(f"s{number}"))
        return self

    def does(self, event: PoolEvent, *, after_s: float = 0.0) -> list[tuple[str, object]]:
        return [short(action) for action in self.then(event, after_s=after_s)]


def short(action: PoolAction) -> tuple[str, object]:
    match action:
        case Create(count=count):
            return ("create", count)
        case HandOut(task=task, sandbox=sandbox):
            return ("give", (task, sandbox))
        case Recycle(sandbox=sandbox):
            return ("recycle", sandbox)
        case Destroy(sandbox=sandbox):
            return ("destroy", sandbox)
        case Refuse(task=task):
            return ("refuse", task)
        case Warn(kind=kind, over=over):
            return ("over" if over else "warn", kind)
    raise AssertionError(action)


def test_an_empty_pool_fills_to_its_floor_a_few_at_a_time() -> None:
    trace = Trace(floor=5, creations_at_once=2)
    assert trace.does(Ticked()) == [("create", 2)]
    assert trace.does(Ticked()) == []
    assert trace.does(Created("s0")) == [("create", 1)]
    for number in (1, 2):
        assert trace.does(Created(f"s{number}")) == [("create", 1)]
    assert trace.does(Created("s3")) == []
    assert trace.does(Created("s4")) == []
    assert trace.pool.statistics(0.0).ready == 5


def test_a_task_gets_what_stands_ready_at_once_and_the_gap_is_filled() -> None:
    trace = Trace(floor=2).filled(2)
    assert trace.does(TaskArrived("t")) == [("give", ("t", "s1")), ("create", 1)]


def test_a_task_that_finds_nothing_waits_for_the_creation_it_causes() -> None:
    trace = Trace(floor=0)
    assert trace.does(TaskArrived("t")) == [("create", 1)]
    (given,) = trace.then(Created("s0"), after_s=1.5)
    assert isinstance(given, HandOut)
    assert given.waited_s == 1.5


def test_a_returned_sandbox_is_recycled_and_only_then_given() -> None:
    trace = Trace(floor=1, maximum=1).filled(1)
    assert trace.does(TaskArrived("a")) == [("give", ("a", "s0"))]
    assert ("give", ("b", "s0")) not in trace.does(TaskArrived("b"))
    assert ("recycle", "s0") in trace.does(Returned("s0"))
    assert ("give", ("b", "s0")) in trace.does(Recycled("s0", clean=True))


def test_no_more_recycles_run_at_once_than_may() -> None:
    trace = Trace(floor=4, maximum=4, recycles_at_once=2).filled(4)
    for number in range(4):
        trace.then(TaskArrived(f"t{number}"))
    began = [what for number in range(4) for what, _ in trace.does(Returned(f"s{number}"))]
    assert began.count("recycle") == 2
    assert trace.pool.statistics(0.0).recycle_queue == 2
    assert [what for what, _ in trace.does(Recycled("s0", clean=True))].count("recycle") == 1


def test_what_is_not_clean_is_destroyed_and_counts_against_the_cap_until_it_is_gone() -> None:
    trace = Trace(floor=1, maximum=1).filled(1)
    trace.then(TaskArrived("a"))
    trace.then(Returned("s0"))
    assert trace.does(Recycled("s0", clean=False, reason="a mount")) == [("destroy", "s0")]
    assert trace.does(Ticked()) == []
    assert trace.does(Gone("s0")) == [("create", 1)]


def test_a_pool_whose_checks_all_fail_makes_anew_says_so_and_tries_again_later() -> None:
    trace = Trace(floor=1, maximum=1, failed_checks_until_fresh=2, recycle_again_after_s=60.0)
    trace.then(Ticked())
    seen = []
    for number in range(4):
        name = f"s{number}"
        for event in (Created(name), TaskArrived(f"t{number}"), Returned(name)):
            seen += trace.does(event)
        if number < 2:
            seen += trace.does(Recycled(name, clean=False, reason="left a mount"))
        seen += trace.does(Gone(name))
    assert [what for what, _ in seen].count("recycle") == 2
    assert ("warn", Trouble.NOT_CLEAN) in seen
    assert any("left a mount" in text for text in trace.pool.statistics(trace.now_s).warnings)
    trace.then(Created("s9"), after_s=61.0)
    trace.then(TaskArrived("t9"))
    assert ("recycle", "s9") in trace.does(Returned("s9"))
    assert ("over", Trouble.NOT_CLEAN) in trace.does(Recycled("s9", clean=True))


def test_a_first_failure_is_tried_again_at_once_and_a_second_is_told_to_who_waits() -> None:
    trace = Trace(floor=0)
    assert trace.does(TaskArrived("t")) == [("create", 1)]
    assert trace.does(CreationFailed("broken")) == [("create", 1)]
    (told,) = trace.then(CreationFailed("broken", "runtime_failed"))
    assert told == Refuse("t", "runtime_failed", "broken")


def test_what_no_retry_mends_is_told_at_once() -> None:
    trace = Trace(floor=0)
    trace.then(TaskArrived("t"))
    assert trace.does(CreationFailed("no such image", "image_not_found")) == [("refuse", "t")]


def test_filling_backs_off_after_failures_and_tells_of_them() -> None:
    trace = Trace(floor=1)
    trace.then(Ticked())
    assert trace.does(CreationFailed("broken")) == [("create", 1)]
    assert trace.does(CreationFailed("broken")) == []
    assert trace.does(Ticked(), after_s=0.9) == []
    assert trace.does(Ticked(), after_s=0.2) == [("create", 1)]
    assert trace.does(CreationFailed("broken")) == [("warn", Trouble.CREATION_FAILS)]
    assert trace.does(Ticked(), after_s=2.9) == []
    assert trace.does(Ticked(), after_s=0.2) == [("create", 1)]
    assert trace.does(Created("s0")) == [("over", Trouble.CREATION_FAILS)]


def test_a_pool_that_drains_says_so_once_with_the_numbers_and_when_it_is_over() -> None:
    trace = Trace(floor=4, creations_at_once=1).filled(4)
    said = [trace.does(TaskArrived(f"t{number}"), after_s=0.5) for number in range(5)]
    assert [("warn", Trouble.LOW) in each for each in said] == [False, False, True, False, False]
    assert ("warn", Trouble.DRAINED) in said[4]
    low = trace.pool.statistics(trace.now_s).warnings[0]
    assert "1 ready of 4 wanted" in low
    assert "/s arrive" in low
    back = [trace.does(Created(f"n{number}"), after_s=1.0) for number in range(5)]
    seen = [each for some in back for each in some]
    assert ("over", Trouble.DRAINED) in seen
    assert ("over", Trouble.LOW) in seen
    assert trace.pool.statistics(trace.now_s).warnings == ()


def test_a_pool_that_is_only_being_filled_does_not_cry() -> None:
    trace = Trace(floor=20, creations_at_once=1)
    assert all(not isinstance(action, Warn) for number in range(9) for action in trace.then(Created(f"s{number}")))


def test_too_many_that_wait_are_refused_with_when_to_ask_again() -> None:
    trace = Trace(floor=0, maximum=1, maximum_waiting=1)
    trace.then(TaskArrived("a"))
    (refused,) = [action for action in trace.then(TaskArrived("b")) if isinstance(action, Refuse)]
    assert refused.task == "b"
    assert "(1)" in refused.reason
    assert refused.retry_after_s == 9.0


def test_who_leaves_is_given_nothing() -> None:
    trace = Trace(floor=0)
    trace.then(TaskArrived("a"))
    trace.then(TaskLeft("a"))
    assert trace.does(Created("s0")) == []
    assert trace.pool.statistics(0.0).ready == 1


def test_surplus_is_given_up_after_a_while_and_returns_that_nobody_needs_are_destroyed() -> None:
    trace = Trace(floor=2).filled(2)
    trace.then(TaskArrived("a"))
    trace.then(Created("s2"))
    trace.then(PolicyChanged(still(floor=0)))
    assert trace.does(Returned("s1")) == [("destroy", "s1")]
    assert trace.does(Ticked(), after_s=9.0) == []
    assert sorted(trace.does(Ticked(), after_s=1.5)) == [("destroy", "s0"), ("destroy", "s2")]


def test_a_lowered_cap_gives_up_what_stands_ready_at_once() -> None:
    trace = Trace(floor=4).filled(4)
    lower = still(floor=4, maximum=2)
    assert [what for what, _ in trace.does(PolicyChanged(lower))] == ["destroy", "destroy"]


def test_asked_for_room_it_gives_up_and_does_not_fill_again_at_once() -> None:
    trace = Trace(floor=4).filled(4)
    assert [what for what, _ in trace.does(ShrinkAsked(3, "memory"))] == ["destroy"] * 3 + ["warn"]
    assert trace.does(Ticked(), after_s=1.0) == []
    assert ("create", 3) in trace.does(Ticked(), after_s=10.0)


def test_what_is_spoiled_is_destroyed_and_replaced_and_what_is_in_use_is_left() -> None:
    trace = Trace(floor=2).filled(3)
    trace.then(TaskArrived("t"))
    assert trace.does(Spoiled(("s0", "s2", "other"), "another image")) == [("destroy", "s0"), ("create", 1)]


def test_what_an_earlier_node_left_is_counted_again() -> None:
    trace = Trace(floor=2, maximum=3)
    trace.then(Adopted(ready=("ready",), in_use=("old",)))
    now = trace.pool.statistics(0.0)
    assert (now.in_use, now.ready, now.creating) == (1, 1, 1)
    assert trace.does(TaskArrived("t")) == [("give", ("t", "ready"))]


def test_events_of_sandboxes_that_are_not_there_change_nothing() -> None:
    trace = Trace(floor=1).filled(1)
    before = trace.pool.statistics(0.0)
    for event in (Returned("x"), Recycled("x", clean=True), Gone("x"), TaskLeft("x"), Returned("s0")):
        assert trace.does(event) == []
    assert trace.pool.statistics(0.0) == before


def test_a_task_that_creates_and_drops_ten_a_second_does_not_starve_others() -> None:
    """The churning task has 30 requests in the queue; each other task still gets every other sandbox."""
    trace = Trace(floor=0, maximum=2, creations_at_once=2)
    for number in range(30):
        trace.then(TaskArrived(f"churn-{number}", "churner"))
    for number in range(5):
        trace.then(TaskArrived(f"calm-{number}", "calm"))
    given, clean = [], ["s0", "s1"]
    events: list[PoolEvent] = [Created("s0"), Created("s1")]
    while events:
        for action in trace.then(events.pop(0), after_s=0.1):
            if isinstance(action, HandOut):
                given.append(action.task)
                events.append(Returned(action.sandbox))
            elif isinstance(action, Recycle):
                events.append(Recycled(action.sandbox, clean=True))
    assert clean
    assert [task.partition("-")[0] for task in given[:10]] == ["churn", "calm"] * 5
    assert len(given) == 35


def test_a_pool_that_stays_at_its_cap_says_so_once() -> None:
    """Every hand-out empties it and every return is waited for: that is one trouble, not one for each task."""
    trace = Trace(floor=8, maximum=8, creations_at_once=8).filled(8)
    said: list[tuple[str, object]] = []
    for number in range(9):
        said += trace.does(TaskArrived(f"t{number}", ""), after_s=0.1)
    for number in range(8):
        # Each that comes back is waited for when it is clean, or the next asks a moment after.
        said += trace.does(Returned(f"s{number}"), after_s=0.1)
        said += trace.does(Recycled(f"s{number}", clean=True), after_s=0.1)
        said += trace.does(TaskArrived(f"late{number}", ""), after_s=0.1)
    told = [kind for kind in said if kind[1] is Trouble.CAP_REACHED]
    assert told == [("warn", Trouble.CAP_REACHED)]
    for number in range(8):
        said += trace.does(TaskLeft(f"late{number}")) + trace.does(Returned(f"s{number}"))
        said += trace.does(Recycled(f"s{number}", clean=True), after_s=0.1)
    assert said.count(("over", Trouble.CAP_REACHED)) == 1
