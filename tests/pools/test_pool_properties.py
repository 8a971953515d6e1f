"""Whatever happens in whatever order: the cap holds, nothing is given twice or unclean, nobody starves or is lost."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from dsec.model.pool import PoolPolicy
from dsec.pools import actions, events
from dsec.pools.pool import Pool


class PoolMachine(RuleBasedStateMachine):
    """A pool, and a world that keeps its own books."""

    @initialize(
        floor=st.integers(0, 6),
        maximum=st.none() | st.integers(1, 12),
        creations=st.integers(1, 4),
        recycles=st.integers(1, 3),
        until_fresh=st.integers(1, 4),
        waiting=st.integers(0, 12),
    )
    def begin(
        self, floor: int, maximum: int | None, creations: int, recycles: int, until_fresh: int, waiting: int
    ) -> None:
        self.policy = PoolPolicy(
            floor=floor,
            maximum=maximum,
            creations_at_once=creations,
            recycles_at_once=recycles,
            failed_checks_until_fresh=until_fresh,
            maximum_waiting=waiting,
            shrink_after_s=3.0,
        )
        self.pool = Pool(self.policy)
        self.now_s = 0.0
        self.creating = self.made = self.asked = 0
        self.clean: set[str] = set()
        self.in_use: dict[str, str] = {}
        self.recycling: set[str] = set()
        self.leaving: set[str] = set()
        self.queued: set[str] = set()
        self.waiting: dict[str, str] = {}
        self.passed: Counter[str] = Counter()
        self.ahead: dict[str, int] = {}

    def tell(self, event: events.PoolEvent) -> None:
        for action in self.pool.handle(event, self.now_s):
            assert not hasattr(action, "reason") or action.reason or isinstance(action, actions.Refuse)
            self.carry_out(action)

    def carry_out(self, action: actions.PoolAction) -> None:
        match action:
            case actions.Create(count=count):
                assert count > 0
                self.creating += count
                assert self.creating <= self.policy.creations_at_once
            case actions.HandOut(task=task, sandbox=sandbox):
                self.clean.remove(sandbox)  # Given while clean, and so never twice.
                group = self.waiting.pop(task)
                self.in_use[sandbox] = task
                for other in self.waiting:
                    self.passed[other] += self.waiting[other] != group
            case actions.Recycle(sandbox=sandbox):
                self.queued.remove(sandbox)
                self.recycling.add(sandbox)
                assert len(self.recycling) <= self.policy.recycles_at_once
            case actions.Destroy(sandbox=sandbox):
                self.clean.discard(sandbox)
                self.queued.discard(sandbox)
                assert sandbox not in self.in_use
                assert sandbox not in self.leaving
                self.leaving.add(sandbox)
            case actions.Refuse(task=task):
                self.waiting.pop(task, None)

    @rule(group=st.sampled_from("abc"))
    def arrive(self, group: str) -> None:
        self.asked += 1
        task = f"t{self.asked}"
        self.ahead[task] = list(self.waiting.values()).count(group)
        self.waiting[task] = group
        self.tell(events.TaskArrived(task, group))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        task = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[task]
        self.tell(events.TaskLeft(task))

    @precondition(lambda self: self.creating)
    @rule()
    def create(self) -> None:
        self.creating -= 1
        self.made += 1
        self.clean.add(f"s{self.made}")
        self.tell(events.Created(f"s{self.made}"))

    @precondition(lambda self: self.creating)
    @rule(code=st.sampled_from(["runtime_failed", "image_not_found"]))
    def fail(self, code: str) -> None:
        self.creating -= 1
        self.tell(events.CreationFailed("broken", code))

    @precondition(lambda self: self.in_use)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        sandbox = data.draw(st.sampled_from(sorted(self.in_use)))
        del self.in_use[sandbox]
        self.queued.add(sandbox)
        self.tell(events.Returned(sandbox))

    @precondition(lambda self: self.recycling)
    @rule(data=st.data(), clean=st.booleans())
    def recycle(self, data: st.DataObject, clean: bool) -> None:
        sandbox = data.draw(st.sampled_from(sorted(self.recycling)))
        self.recycling.remove(sandbox)
        if clean:
            self.clean.add(sandbox)
        self.tell(events.Recycled(sandbox, clean=clean, reason="" if clean else "dirty"))

    @precondition(lambda self: self.leaving)
    @rule(data=st.data())
    def vanish(self, data: st.DataObject) -> None:
        sandbox = data.draw(st.sampled_from(sorted(self.leaving)))
        self.leaving.remove(sandbox)
        self.tell(events.Gone(sandbox))

    @precondition(lambda self: self.in_use)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        sandbox = data.draw(st.sampled_from(sorted(self.in_use)))
        del self.in_use[sandbox]
        self.tell(events.Gone(sandbox))

    @rule(seconds=st.floats(0, 20))
    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        self.tell(events.Ticked())

    @rule(count=st.integers(0, 5))
    def shrink(self, count: int) -> None:
        self.tell(events.ShrinkAsked(count, "memory"))

    @invariant()
    def the_cap_is_never_overshot(self) -> None:
        if hasattr(self, "pool") and self.policy.maximum is not None:
            assert self.pool.total() <= self.policy.maximum

    @invariant()
    def the_books_agree(self) -> None:
        if not hasattr(self, "pool"):
            return
        now = self.pool.statistics(self.now_s)
        assert now.ready == len(self.clean)
        assert now.in_use == len(self.in_use)
        assert now.creating == self.creating
        assert (now.recycle_queue, now.recycling) == (len(self.queued), len(self.recycling))
        assert now.leaving == len(self.leaving)
        assert now.waiting == len(self.waiting) <= self.policy.maximum_waiting
        assert now.total == self.pool.total()

    @invariant()
    def nobody_waits_while_something_stands_ready(self) -> None:
        if hasattr(self, "pool"):
            assert not (self.waiting and self.clean)

    @invariant()
    def nobody_is_passed_over_beyond_the_bound(self) -> None:
        """Each of a group waits for at most one hand-out to each other group for itself and for each that was ahead of
        it in its own when it came."""
        if not hasattr(self, "pool"):
            return
        for task in self.waiting:
            assert self.passed[task] <= 2 * (self.ahead[task] + 1)  # There are two other groups.
        for task in list(self.passed):
            if task not in self.waiting:
                del self.passed[task]

    @invariant()
    def who_waits_below_the_cap_has_something_coming(self) -> None:
        """No task is forgotten: below the cap something is being made or made clean for it."""
        if not hasattr(self, "pool") or not self.waiting:
            return
        maximum = self.policy.maximum
        if maximum is None or self.pool.total() < maximum:
            assert self.creating or self.recycling or self.queued


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPool = PoolMachine.TestCase
