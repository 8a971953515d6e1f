"""The nodes of a tracker: what each says of itself, and how often others were sent to it.

A node is a member from its first announcement until its lease ends. Sending is to be shared evenly among members, and
only the tracker sees all of it: it counts how often somebody was sent to each and to all together lately, so that one
can be compared with the mean. Those that leave take nothing out of the mean; it is forgotten as fast as all else.

How many members there are says how long they gather news before they announce it, and by that how often those in step
ask (`dsec.distribution.places`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from dsec.distribution.messages import Announcement
from dsec.distribution.places import is_turn, turns_every
from dsec.distribution.policy import ChoicePolicy, TrackerPolicy

_HALF_LIFE_S = 10.0
"""How fast it is forgotten how often somebody was sent to a node."""
_USUAL_BYTES_PER_S = 125_000_000
"""What a node is taken to send that does not say: 1 Gbit/s. A chain of fast nodes costs milliseconds until they know
better, a tree of slow ones a transfer at each fork."""
_PLAN_LASTS_S = 5.0
"""So long does a node know what it fetches next that asked ahead."""


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


class Members:
    """All nodes that one tracker knows, by their names."""

    def __init__(self, policy: TrackerPolicy) -> None:
        self._policy = policy
        self._by_name: dict[str, Member] = {}
        self._sent = Sendings()
        self._every = 1

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._by_name.values())

    def __getitem__(self, name: str) -> Member:
        return self._by_name[name]

    def get(self, name: str) -> Member | None:
        """Return a node, also one whose lease is over and that was not forgotten yet."""
        return self._by_name.get(name)

    def alive(self, name: str, now_s: float) -> Member | None:
        """Return a node that has a lease."""
        node = self._by_name.get(name)
        return node if node is not None and node.lease_until_s > now_s else None

    def expired(self, now_s: float) -> list[Member]:
        """Return the nodes whose lease is over."""
        return [node for node in self if node.lease_until_s <= now_s]

    # Who comes and goes.

    def add(self, announcement: Announcement) -> Member:
        """Take in a node that nothing is known of; `renew` gives it a lease."""
        node = self._by_name[announcement.node] = Member(
            name=announcement.node, address=announcement.address, life=announcement.life
        )
        return node

    def renew(self, node: Member, announcement: Announcement, now_s: float) -> None:
        """Begin a node's lease anew, and take what it says of itself."""
        node.address = announcement.address
        node.heard_s, node.lease_until_s = now_s, now_s + self._policy.lease_s
        node.bandwidth_bytes_per_s = min(announcement.upload_bytes_per_s, self._policy.bandwidth_most_bytes_per_s)
        node.slots, node.uploads = announcement.upload_slots, announcement.uploads

    def remove(self, node: Member) -> None:
        """Forget a node."""
        del self._by_name[node.name]

    # What was sent to whom.

    def note_sent(self, node: Member, now_s: float, times: int = 1) -> None:
        """Count that somebody was sent to a node; fewer times than none take back what was counted in advance."""
        node.note_sent(now_s, times)
        self._sent.note_sent(now_s, times)

    def usual_sent(self, now_s: float) -> float:
        """Return how often somebody was sent to a node lately, in the mean of all; those that are gone count on."""
        return self._sent.sent_to_at(now_s) / max(1, len(self._by_name))

    # How often they ask.

    @property
    def news_s(self) -> float:
        """How long each is to gather what is new."""
        return self._policy.news_s * len(self._by_name)

    @property
    def every(self) -> int:
        """Those that keep places ask for one chunk in so many."""
        return self._every

    def settle_turns(self) -> None:
        """Let it follow from how many there are now how often they ask."""
        self._every = turns_every(self.news_s)

    def is_turn(self, chunk: str) -> bool:
        """Say whether nodes that keep places ask for a chunk all the same."""
        return is_turn(chunk, self._every)

    def may_follow(self, node: Member, now_s: float) -> bool:
        """Say whether a node may keep its place: where many are, who does not know what it fetches next."""
        return self._every > 1 and now_s >= node.planned_s + _PLAN_LASTS_S
