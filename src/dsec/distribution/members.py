"""The nodes of a tracker: what each says of itself, and how often others were sent to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from dsec.distribution.policy import ChoicePolicy

_HALF_LIFE_S = 10.0
"""How fast it is forgotten how often somebody was sent to a node."""
_USUAL_BYTES_PER_S = 125_000_000
"""What a node is taken to send that does not say: 1 Gbit/s. A chain of fast nodes costs milliseconds until they know
better, a tree of slow ones a transfer at each fork."""


@dataclass(slots=True)
class Sendings:
    """How often somebody was sent somewhere lately."""

    sent_to: float = 0.0
    sent_to_as_of_s: float = 0.0

    def sent_to_at(self, now_s: float) -> float:
        """Return how often, as of now."""
        passed_s = now_s - self.sent_to_as_of_s
        return self.sent_to * 0.5 ** (passed_s / _HALF_LIFE_S) if passed_s > 0 else self.sent_to

    def note_sent(self, now_s: float, times: int) -> None:
        self.sent_to = max(0.0, self.sent_to_at(now_s) + times)
        self.sent_to_as_of_s = max(now_s, self.sent_to_as_of_s)


@dataclass(slots=True, kw_only=True)
class Member(Sendings):
    """One node with a lease.

    Attributes:
        planned_s: when it last asked for chunks ahead.
        stood_back: chunks for which it let others go before it lately.
    """

    name: str
    address: str
    life: str
    sequence: int = 0
    lease_until_s: float = 0.0
    bandwidth_bytes_per_s: int = 0
    slots: int = 0
    uploads: int = 0
    heard_s: float = 0.0
    planned_s: float = float("-inf")
    stood_back: set[str] = field(default_factory=set)

    def chunk_s(self, policy: ChoicePolicy) -> float:
        """Return how long it takes to send a chunk of the usual size."""
        return policy.chunk_bytes / (self.bandwidth_bytes_per_s or _USUAL_BYTES_PER_S)
