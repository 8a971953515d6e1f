"""One pool as a state machine: an event in, actions out.

Theory. Three queues: tasks that wait, sandboxes that stand ready, sandboxes to be recycled. Every sandbox of the
pool is in exactly one place::

    (creating) ──► ready ──► in use ──► recycle queue ──► (recycling) ──► ready
                     │                        │                 │
                     └────────────────────────┴─────────────────┴──► (leaving) ──► gone

What is in brackets is in flight. Their sum counts against the cap, in flight included, so that the cap is never
overshot. After every event the machine settles: give ready sandboxes to tasks; begin recycles; begin creations for
what is still missing; give up what has been too much for too long.

Recycling is preferred to creating, since a returned sandbox holds its place already: a returned one is kept while
fewer than the level and its slack stand ready or are coming. Creations only fill up to the level itself; between
the two marks returns and arrivals balance without any creation.

Sources: the training report (three queues, water levels); DeepSeek Elastic Compute (arXiv 2609.22978), pooled
sandboxes.
"""

from __future__ import annotations

import math
from collections import deque

from dsec.model.pool import PoolPolicy, PoolStatistics
from dsec.model.retry import RetryPolicy, code_may_be_repeated
from dsec.pools import events
from dsec.pools.actions import Create, Destroy, HandOut, PoolAction, Recycle, Refuse
from dsec.pools.drain import Drain, DrainReading
from dsec.pools.level import ready_level
from dsec.pools.rate import MeanOfLast, RateWindow
from dsec.pools.recycling import Recycling
from dsec.pools.waiting import WaitingTasks

_HOLDS_REMEMBERED = 64


class Pool:
    """Decide for one pool. `handle` is the only way to change it.

    Args:
        policy: what is set about it.
        retries: how long filling waits after creations that failed.
    """

    def __init__(self, policy: PoolPolicy, *, retries: RetryPolicy = RetryPolicy()) -> None:
        self.policy = policy
        self._retries = retries
        self._waiting = WaitingTasks()
        self._ready: dict[str, None] = {}
        self._in_use: dict[str, float] = {}
        self._recycle_queue: deque[str] = deque()
        self._recycling: dict[str, float] = {}
        self._leaving: set[str] = set()
        self._creating = 0
        self._failures_in_a_row = 0
        self._fill_again_s = -math.inf
        self._too_many_since_s: float | None = None
        self._returned_s: dict[str, float] = {}
        self._health = Recycling()
        self._drain = Drain()
        self._arrivals = RateWindow(policy.window_s, least_s=policy.horizon_s)
        self._created = RateWindow(policy.window_s, least_s=policy.horizon_s)
        self._recycled = RateWindow(policy.window_s, least_s=policy.horizon_s)
        self._hold_s = MeanOfLast(_HOLDS_REMEMBERED)
        self._recycle_s = MeanOfLast(_HOLDS_REMEMBERED)
        self._hand_outs = self._creations = self._recycles = 0
        self._creation_failures = self._failed_checks = self._refusals = 0

    # -- reading ----------------------------------------------------------------------------------------------------

    def level(self, now_s: float) -> int:
        """Return how many sandboxes should stand ready."""
        return ready_level(
            self.policy,
            arrival_rate_per_s=self._arrivals.per_s(now_s),
            dispersion=self._arrivals.dispersion(now_s),
            hold_time_s=self._hold_s.mean(),
            recycle_time_s=self._recycle_s.mean() or 0.0,
            concurrency=len(self._in_use) + len(self._waiting),
        )

    def total(self) -> int:
        """Return every sandbox that counts against the cap, in flight included."""
        return (
            len(self._ready)
            + len(self._in_use)
            + self._creating
            + len(self._recycle_queue)
            + len(self._recycling)
            + len(self._leaving)
        )

    def statistics(self, now_s: float) -> PoolStatistics:
        """Return a reading."""
        oldest_s = self._waiting.oldest_s()
        return PoolStatistics(
            level=self.level(now_s),
            waiting=len(self._waiting),
            oldest_wait_s=0.0 if oldest_s is None else max(0.0, now_s - oldest_s),
            ready=len(self._ready),
            in_use=len(self._in_use),
            creating=self._creating,
            recycle_queue=len(self._recycle_queue),
            recycling=len(self._recycling),
            leaving=len(self._leaving),
            arrival_rate_per_s=self._arrivals.per_s(now_s),
            creation_rate_per_s=self._created.per_s(now_s),
            recycle_rate_per_s=self._recycled.per_s(now_s),
            hold_time_s=self._hold_s.mean(),
            hand_outs=self._hand_outs,
            creations=self._creations,
            recycles=self._recycles,
            creation_failures=self._creation_failures,
            failed_checks=self._failed_checks,
            refusals=self._refusals,
            recycles_now=not self._health.stopped,
            warnings=self._drain.texts(),
        )

    # -- events -----------------------------------------------------------------------------------------------------

    def handle(self, event: events.PoolEvent, now_s: float) -> tuple[PoolAction, ...]:
        """Take an event in and return what to do, in this order.

        Args:
            event: one of `dsec.pools.events`.
            now_s: the time; any clock that does not go back.
        """
        out: list[PoolAction] = []
        match event:
            case events.TaskArrived():
                self._task_arrived(event, now_s, out)
            case events.Returned():
                self._returned(event.sandbox, now_s)
            case events.Recycled():
                self._recycle_ended(event, now_s, out)
            case events.Created():
                self._creation_done(event.sandbox, now_s)
            case events.CreationFailed():
                self._creation_failed(event, now_s, out)
            case events.TaskLeft():
                self._waiting.leave(event.task)
            case events.Gone():
                self._gone(event.sandbox)
            case events.Adopted():
                self._adopted(event, now_s)
            case events.PolicyChanged():
                self._policy_changed(event.policy)
            case events.ShrinkAsked():
                self._shrink(event, now_s, out)
            case events.Spoiled():
                self._spoil(event, out)
        self._settle(now_s, out)
        return tuple(out)

    def _task_arrived(self, event: events.TaskArrived, now_s: float, out: list[PoolAction]) -> None:
        self._arrivals.add(now_s)
        if len(self._waiting) >= self.policy.maximum_waiting and event.task not in self._waiting:
            self._refusals += 1
            reason = f"{len(self._waiting)} tasks wait for this pool, as many as may ({self.policy.maximum_waiting})"
            out.append(Refuse(event.task, "node_unavailable", reason, self._expected_wait_s(now_s)))
            return
        self._waiting.add(event.task, event.group, now_s)

    def _expected_wait_s(self, now_s: float) -> float:
        """How long until half of those who wait are served at the present rate; between 1 s and a minute."""
        rate_per_s = self._created.per_s(now_s) + self._recycled.per_s(now_s)
        return min(60.0, max(1.0, len(self._waiting) / 2 / rate_per_s)) if rate_per_s else 9.0

    def _returned(self, sandbox: str, now_s: float) -> None:
        since_s = self._in_use.pop(sandbox, None)
        if since_s is None:
            return
        self._hold_s.add(now_s - since_s)
        self._returned_s[sandbox] = now_s
        self._recycle_queue.append(sandbox)

    def _recycle_ended(self, event: events.Recycled, now_s: float, out: list[PoolAction]) -> None:
        if self._recycling.pop(event.sandbox, None) is None:
            return
        self._health.ended(self.policy, now_s, clean=event.clean, reason=event.reason)
        returned_s = self._returned_s.pop(event.sandbox, now_s)
        if event.clean:
            self._recycles += 1
            self._recycled.add(now_s)
            self._recycle_s.add(now_s - returned_s)
            self._ready[event.sandbox] = None
            return
        self._failed_checks += 1
        if event.exists:
            self._destroy(event.sandbox, f"it is not clean: {event.reason}", out)

    def _creation_done(self, sandbox: str, now_s: float) -> None:
        self._creating = max(0, self._creating - 1)
        self._failures_in_a_row = 0
        self._fill_again_s = -math.inf
        self._creations += 1
        self._created.add(now_s)
        self._ready[sandbox] = None

    def _creation_failed(self, event: events.CreationFailed, now_s: float, out: list[PoolAction]) -> None:
        """A first failure is tried again at once. A further one, or one that no retry mends, is told to the task
        whose turn it was; filling waits, longer after each."""
        self._creating = max(0, self._creating - 1)
        self._creation_failures += 1
        self._failures_in_a_row += 1
        self._fill_again_s = now_s + self._retries.steady_pause_s(self._failures_in_a_row)
        if self._waiting and (self._failures_in_a_row > 1 or not code_may_be_repeated(event.code)):
            task, _ = self._waiting.next()
            self._refusals += 1
            out.append(
                Refuse(
                    task, event.code, event.brief, event.retry_after_s, detail=event.detail, resolution=event.resolution
                )
            )

    def _gone(self, sandbox: str) -> None:
        self._leaving.discard(sandbox)
        self._ready.pop(sandbox, None)
        self._in_use.pop(sandbox, None)
        self._recycling.pop(sandbox, None)
        self._returned_s.pop(sandbox, None)
        if sandbox in self._recycle_queue:
            self._recycle_queue.remove(sandbox)

    def _adopted(self, event: events.Adopted, now_s: float) -> None:
        self._ready.update(dict.fromkeys(event.ready))
        self._in_use.update(dict.fromkeys(event.in_use, now_s))

    def _policy_changed(self, policy: PoolPolicy) -> None:
        if (policy.window_s, policy.horizon_s) != (self.policy.window_s, self.policy.horizon_s):
            self._arrivals = RateWindow(policy.window_s, least_s=policy.horizon_s)
            self._created = RateWindow(policy.window_s, least_s=policy.horizon_s)
            self._recycled = RateWindow(policy.window_s, least_s=policy.horizon_s)
        self.policy = policy
        self._too_many_since_s = None

    def _shrink(self, event: events.ShrinkAsked, now_s: float, out: list[PoolAction]) -> None:
        for _ in range(min(event.count, len(self._ready))):
            self._destroy(self._take_ready(), event.reason, out)
        # Else the level would ask for them again at once.
        self._fill_again_s = max(self._fill_again_s, now_s + self.policy.shrink_after_s)

    def _spoil(self, event: events.Spoiled, out: list[PoolAction]) -> None:
        for sandbox in event.sandboxes:
            if sandbox in self._ready:
                del self._ready[sandbox]
                self._destroy(sandbox, event.reason, out)

    # -- settling ---------------------------------------------------------------------------------------------------

    def _settle(self, now_s: float, out: list[PoolAction]) -> None:
        self._hand_out(now_s, out)
        level = self.level(now_s)
        self._sort_returned(level, now_s, out)
        self._create(level, now_s, out)
        self._give_up(level, now_s, out)
        self._warn(level, now_s, out)

    def _hand_out(self, now_s: float, out: list[PoolAction]) -> None:
        while self._waiting and self._ready:
            task, since_s = self._waiting.next()
            sandbox = self._take_ready()
            self._in_use[sandbox] = now_s
            self._hand_outs += 1
            waited_s = max(0.0, now_s - since_s)
            out.append(HandOut(task, sandbox, waited_s, "it was next in turn" if waited_s else "one stood ready"))

    def _take_ready(self) -> str:
        """The one that became ready last: its pages are the likeliest to be in memory, and the oldest can be given
        up."""
        return self._ready.popitem()[0]

    def _sort_returned(self, level: int, now_s: float, out: list[PoolAction]) -> None:
        """Begin recycles; what is not worth one is destroyed."""
        while self._recycle_queue:
            coming = len(self._ready) + self._creating + len(self._recycling)
            if not self._health.may_begin(self.policy, now_s):
                reason = f"clean checks fail ({self._health.last_reason}): sandboxes are made anew instead"
                self._destroy(self._recycle_queue.popleft(), reason, out)
            elif self._over_cap() or coming >= self._high(level) + len(self._waiting):
                self._destroy(self._recycle_queue.popleft(), f"{coming} are ready or coming, {level} are wanted", out)
            elif len(self._recycling) < self.policy.recycles_at_once:
                sandbox = self._recycle_queue.popleft()
                self._recycling[sandbox] = now_s
                self._health.begun()
                out.append(Recycle(sandbox, f"{coming} are ready or coming, {level} are wanted"))
            else:
                return

    def _over_cap(self) -> bool:
        """Whether the cap was lowered below what there is."""
        return self.policy.maximum is not None and self.total() - len(self._leaving) > self.policy.maximum

    def _high(self, level: int) -> int:
        """Ready sandboxes above this are too many."""
        return level + max(1, math.ceil(self.policy.slack_share * level)) if level else 0

    def _create(self, level: int, now_s: float, out: list[PoolAction]) -> None:
        coming = len(self._ready) + self._creating + len(self._recycling) + len(self._recycle_queue)
        wanted = level + len(self._waiting) - coming
        if now_s < self._fill_again_s:
            wanted = min(wanted, len(self._waiting) - self._creating)
        room = self.policy.creations_at_once - self._creating
        if self.policy.maximum is not None:
            room = min(room, self.policy.maximum - self.total())
        count = min(wanted, room)
        if count > 0:
            self._creating += count
            out.append(Create(count, f"{len(self._waiting)} wait, {coming} are ready or coming, {level} are wanted"))

    def _give_up(self, level: int, now_s: float, out: list[PoolAction]) -> None:
        over_cap = self._over_cap()
        if len(self._ready) <= self._high(level) and not over_cap:
            self._too_many_since_s = None
            return
        if self._too_many_since_s is None:
            self._too_many_since_s = now_s
        if not over_cap and now_s - self._too_many_since_s < self.policy.shrink_after_s:
            return
        while self._ready and (len(self._ready) > self._high(level) or self._over_cap()):
            oldest = next(iter(self._ready))
            reason = f"{len(self._ready)} stand ready, {level} are wanted"
            del self._ready[oldest]
            self._destroy(oldest, reason, out)

    def _destroy(self, sandbox: str, reason: str, out: list[PoolAction]) -> None:
        self._returned_s.pop(sandbox, None)
        self._leaving.add(sandbox)
        out.append(Destroy(sandbox, reason))

    def _warn(self, level: int, now_s: float, out: list[PoolAction]) -> None:
        maximum = self.policy.maximum
        found = self._drain.troubles(
            level=level,
            ready=len(self._ready),
            waiting=len(self._waiting),
            at_cap=maximum is not None and self.total() >= maximum,
            not_clean=self._health.stopped,
            failures=self._failures_in_a_row,
        )
        if self._drain.changed(found):
            self._drain.tell(found, self._drain_reading(level, now_s), out)

    def _drain_reading(self, level: int, now_s: float) -> DrainReading:
        return DrainReading(
            level=level,
            ready=len(self._ready),
            waiting=len(self._waiting),
            total=self.total(),
            arrival_rate_per_s=self._arrivals.per_s(now_s),
            supply_rate_per_s=self._created.per_s(now_s) + self._recycled.per_s(now_s),
            not_clean=self._health.last_reason,
            failures_in_a_row=self._failures_in_a_row,
        )
