"""What the router keeps of one backend, and how it changes with what becomes of calls.

Health follows from failures in a row: after some the backend is left out for a time that doubles with each further
one; then a single call tries it, and only when that went well it is open to all again. A backend that says it is
limited or overloaded is not ill: it is left alone as long as it asks, or for a short time that doubles.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dsec.routing.backend import Backend
from dsec.routing.policy import RoutingPolicy
from dsec.routing.retrying import Failure, FailureKind
from dsec.routing.view import BackendView, has_room, queue_time_s
from dsec.routing.windows import MinuteWindow

_PAUSING = frozenset({FailureKind.LIMITED, FailureKind.OVERLOADED})
_BLAMELESS = frozenset({FailureKind.REFUSED, FailureKind.TOO_LONG, FailureKind.CANCELLED, FailureKind.EXPIRED})
_DOUBLINGS = 30
_HIT_STEPS = 20
"""The share of hits is used in steps of a twentieth: finer differences are noise, and equal backends stay equal."""


@dataclass(slots=True, eq=False)
class Assignment:
    """A call at a backend.

    Attributes:
        state: the backend's.
        project: whose it is.
        blocks: of its prompt.
        input_tokens: of its prompt.
        counted_tokens: what it counts for the limit of tokens.
        hit_tokens: what the cache should have held when it was assigned.
        first_token_s: when the answer should have begun, counted from the assignment.
        assigned_s: when it was assigned.
        started_s: when it got a slot; None: it waits.
        began_s: when the first byte came; None: none came.
        request_cell, token_cell: where it counts for the limits per minute.
        is_done: whether it ended or was withdrawn.
    """

    state: BackendState
    project: str
    blocks: tuple[int, ...]
    input_tokens: int
    counted_tokens: int
    hit_tokens: int
    first_token_s: float
    assigned_s: float
    started_s: float | None = None
    began_s: float | None = None
    request_cell: int = 0
    token_cell: int = 0
    is_done: bool = False

    @property
    def backend(self) -> str:
        """Name of the backend."""
        return self.state.backend.name


class BackendState:
    """One backend as the router knows it.

    Attributes:
        backend: what is declared.
        rank: its place among all backends.
        number: its place in its group.
        bit: the same as a bit.
        running, waiting: calls there.
        waiting_by_project: those that wait, by project.
        hold_s: mean time that a call holds a slot; 0 until one was expected or seen.
        reported_queue_s: queue inside of the backend.
        hits: share of predicted hits that were real.
        hit_share: the same in the steps in which it is used; never 0, since a backend of which no hit was expected
            could never show that it has changed.
        queue_s: predicted wait of the next call.
        load: calls there over its slots.
        base_s: what is the same for every call there: network, queue, crowding.
        requests, tokens: of the limits per minute.
        failures: in a row.
        pauses: in a row.
        paused_until_s, suspended_until_s: when it is open again.
        trial: the call that tries a suspended backend.
        begun: answers that began.
        error_s: mean distance of the predicted from the real time to the first token.
    """

    __slots__ = (
        "_policy",
        "backend",
        "base_s",
        "begun",
        "bit",
        "error_s",
        "failures",
        "hit_share",
        "hits",
        "hold_s",
        "load",
        "number",
        "paused_until_s",
        "pauses",
        "queue_s",
        "rank",
        "reported_queue_s",
        "requests",
        "running",
        "suspended_until_s",
        "tokens",
        "trial",
        "waiting",
        "waiting_by_project",
    )  # fmt: skip

    def __init__(self, backend: Backend, rank: int, number: int, policy: RoutingPolicy) -> None:
        self.backend = backend
        self.rank = rank
        self.number = number
        self.bit = 1 << number
        self.running = self.waiting = 0
        self.waiting_by_project: dict[str, int] = {}
        self.hold_s = self.reported_queue_s = 0.0
        self.hits = 1.0
        self.requests = MinuteWindow(backend.limits.requests_per_minute)
        self.tokens = MinuteWindow(backend.limits.tokens_per_minute)
        self.failures = self.pauses = 0
        self.paused_until_s = self.suspended_until_s = -math.inf
        self.trial: Assignment | None = None
        self.begun = 0
        self.error_s = 0.0
        self._policy = policy
        self.refresh()

    def refresh(self) -> None:
        """Bring the figures up to date that decisions use, after a change."""
        self.hit_share = max(round(self.hits * _HIT_STEPS), 1) / _HIT_STEPS
        self.queue_s = queue_time_s(
            slots=self.backend.limits.slots,
            calls=self.running + self.waiting,
            hold_s=self.hold_s,
            reported_queue_s=self.reported_queue_s,
        )
        self.load = (self.running + self.waiting) / (self.backend.limits.slots or 1)
        fill = self.load if self.backend.limits.slots is not None else 0.0
        self.base_s = self.backend.network_s + self.queue_s + self._policy.crowding_s * fill

    @property
    def is_full(self) -> bool:
        """Whether no call may wait any more, whosever it is."""
        limits = self.backend.limits
        return limits.slots is not None and self.running + self.waiting >= limits.slots + limits.waiting

    @property
    def is_crowded(self) -> bool:
        """Whether some project may have as many calls waiting as places are left."""
        limits = self.backend.limits
        return limits.slots is not None and self.running + 2 * self.waiting >= limits.slots + limits.waiting

    def has_room(self, project: str) -> bool:
        """Say whether one more call of a project may wait."""
        limits = self.backend.limits
        return limits.slots is None or has_room(
            slots=limits.slots,
            waiting=limits.waiting,
            calls=self.running + self.waiting,
            own=self.waiting_by_project.get(project, 0),
        )

    def closed_until_s(self) -> float:
        """Return until when it is paused or suspended; infinite while a call tries it."""
        return math.inf if self.trial is not None else max(self.paused_until_s, self.suspended_until_s)

    def view(self, hit_tokens: int, bound_tokens: int, project: str, now_s: float) -> BackendView:
        """Return all facts for the decision on a call."""
        return BackendView(
            backend=self.backend,
            rank=self.rank,
            running=self.running,
            waiting=self.waiting,
            own_waiting=self.waiting_by_project.get(project, 0),
            hold_s=self.hold_s,
            reported_queue_s=self.reported_queue_s,
            hit_tokens=hit_tokens,
            hit_share=self.hit_share,
            requests_used=self.requests.used(now_s),
            tokens_used=self.tokens.used(now_s),
            requests_open_at_s=self.requests.opens_at_s(1, now_s) or now_s,
            tokens_open_at_s=self.tokens.opens_at_s(bound_tokens, now_s),
            paused_until_s=self.paused_until_s,
            suspended_until_s=math.inf if self.trial is not None else self.suspended_until_s,
        )

    # What becomes of calls.

    def assign(self, call: Assignment, expected_hold_s: float) -> None:
        """Count a call that will be sent."""
        self.waiting += 1
        if call.project:
            self.waiting_by_project[call.project] = self.waiting_by_project.get(call.project, 0) + 1
        self.requests.reserve(1)
        self.tokens.reserve(call.counted_tokens)
        if self.hold_s == 0:
            self.hold_s = expected_hold_s
        if self.failures >= self._policy.suspend_after:
            self.trial = call

    def start(self, call: Assignment, now_s: float) -> None:
        """Count a call as sent."""
        self._stop_waiting(call)
        self.running += 1
        call.started_s = now_s
        call.request_cell = self.requests.send(1, now_s)
        call.token_cell = self.tokens.send(call.counted_tokens, now_s)

    def begin(self, call: Assignment, now_s: float) -> None:
        """Learn how far the prediction was off."""
        call.began_s = now_s
        self.begun += 1
        error_s = abs(now_s - call.assigned_s - call.first_token_s)
        self.error_s += (error_s - self.error_s) * max(self._policy.hold_weight, 1 / self.begun)

    def leave(self, call: Assignment) -> None:
        """Count a call no longer; one that was never sent leaves no trace."""
        call.is_done = True
        if call.started_s is None:
            self._stop_waiting(call)
            self.requests.cancel(1)
            self.tokens.cancel(call.counted_tokens)
        else:
            self.running -= 1
        if self.trial is call:
            self.trial = None

    def _stop_waiting(self, call: Assignment) -> None:
        self.waiting -= 1
        if call.project:
            self.waiting_by_project[call.project] -= 1
            if not self.waiting_by_project[call.project]:
                del self.waiting_by_project[call.project]

    def succeeded(self, call: Assignment, now_s: float) -> None:
        """Trust it again, and learn how long calls take."""
        self.failures = self.pauses = 0
        self.suspended_until_s = -math.inf
        if call.started_s is not None:
            held_s = max(now_s - call.started_s, 0.0)
            self.hold_s = (
                held_s if self.hold_s == 0 else self.hold_s + (held_s - self.hold_s) * self._policy.hold_weight
            )

    def failed(self, failure: Failure, now_s: float) -> None:
        """Leave it alone, or out, for a while, if the failure is its own.

        Calls that were under way together fail together. So what fails while it is closed doubles nothing.
        """
        if failure.kind in _PAUSING:
            self._pause(failure, now_s)
        elif failure.kind not in _BLAMELESS and now_s >= self.suspended_until_s:
            self._suspend(failure, now_s)

    def _pause(self, failure: Failure, now_s: float) -> None:
        policy = self._policy
        is_paused = now_s < self.paused_until_s
        asked_s = failure.retry_after_s
        if asked_s is None:
            if is_paused:
                return
            asked_s = policy.pause_s * 2 ** min(self.pauses, _DOUBLINGS)
        self.pauses += not is_paused
        self.paused_until_s = max(self.paused_until_s, now_s + min(max(asked_s, 0.0), policy.pause_limit_s))

    def _suspend(self, failure: Failure, now_s: float) -> None:
        policy = self._policy
        least = policy.suspend_after if failure.kind is FailureKind.DENIED else 0
        self.failures = max(self.failures + 1, least)
        if self.failures >= policy.suspend_after:
            doublings = min(self.failures - policy.suspend_after, _DOUBLINGS)
            self.suspended_until_s = now_s + min(policy.suspend_s * 2**doublings, policy.suspend_limit_s)

    def learn_hits(self, share: float) -> None:
        """Learn how much of a predicted hit was real."""
        self.hits += (share - self.hits) * self._policy.hit_weight
