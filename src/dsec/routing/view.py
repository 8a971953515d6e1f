"""What is known of a backend at the moment of a decision, for one call."""

from __future__ import annotations

from dsec.model.value import Value
from dsec.routing.backend import Backend


class BackendView(Value, frozen=True):
    """All facts that a decision rests on; equal views give equal decisions.

    Attributes:
        backend: what is declared.
        rank: its place among all backends; the last word among equals.
        running: calls that it serves now.
        waiting: calls that wait at the gateway for one of its slots.
        own_waiting: of these, the calls of this call's project.
        hold_s: how long a call usually holds a slot.
        reported_queue_s: queue inside of the backend, if it tells; it counts on top.
        hit_tokens: tokens of this call's prompt that its cache should hold.
        hit_share: probability that it does hold what it should.
        requests_used: of the limit per minute, calls that wait to be sent among them.
        tokens_used: the same for tokens.
        requests_open_at_s: when one more request keeps the limit.
        tokens_open_at_s: when this call's tokens keep theirs; None: never, they are more than the limit.
        paused_until_s: it asked to be left alone until then.
        suspended_until_s: it failed, and is not trusted until then; infinite while one call tries whether it works.
    """

    backend: Backend
    rank: int = 0
    running: int = 0
    waiting: int = 0
    own_waiting: int = 0
    hold_s: float = 0.0
    reported_queue_s: float = 0.0
    hit_tokens: int = 0
    hit_share: float = 1.0
    requests_used: int = 0
    tokens_used: int = 0
    requests_open_at_s: float = 0.0
    tokens_open_at_s: float | None = 0.0
    paused_until_s: float = 0.0
    suspended_until_s: float = 0.0

    @property
    def has_room(self) -> bool:
        """Whether one more call of this project may wait."""
        limits = self.backend.limits
        return limits.slots is None or has_room(
            slots=limits.slots, waiting=limits.waiting, calls=self.running + self.waiting, own=self.own_waiting
        )

    @property
    def fill(self) -> float:
        """Calls there over its slots; 0 where slots are without limit."""
        return self.load if self.backend.limits.slots is not None else 0.0

    @property
    def load(self) -> float:
        """Calls there over its slots; without a limit of slots, plain calls."""
        return (self.running + self.waiting) / (self.backend.limits.slots or 1)


def has_room(*, slots: int, waiting: int, calls: int, own: int) -> bool:
    """Say whether one more call of a project finds room.

    A slot that is free is for anybody. Of places to wait, a project has no more than are left (dynamic thresholds of
    Choudhury and Hahne, 1998): one that comes alone may fill half of them, two a third each, and none shuts out others.

    Args:
        slots: calls served side by side.
        waiting: places to wait.
        calls: calls there, running or waiting.
        own: of these, the project's that wait; 0 for a call without a project.
    """
    left = slots + waiting - calls
    return left > waiting or own < left


def queue_time_s(*, slots: int | None, calls: int, hold_s: float, reported_queue_s: float = 0.0) -> float:
    """Return how long the next call waits for a slot.

    The calls in the slots end at different times, so that with s slots, each held for T, one falls free every T / s.
    A call behind n others in the queue takes the (n + 1)-th that does.

    Args:
        slots: calls served side by side; None: no limit.
        calls: calls there, running or waiting.
        hold_s: how long a call holds a slot.
        reported_queue_s: what the backend says of its own queue.
    """
    if slots is None or calls < slots:
        return reported_queue_s
    return reported_queue_s + (calls - slots + 1) * hold_s / slots
