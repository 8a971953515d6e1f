"""What a node sends to others, limited: transfers at a time, of these to one peer, and bytes a second.

A peer that is refused goes to the next one, which costs it a round trip; a peer that is served slowly costs everybody
who waits behind it. So transfers are few at a time, and the rest is refused at once. The rate is a token bucket: what
was not used may be made up for at once, up to `burst_bytes` (RFC 2697's committed burst). Peers that wait for a chunk
which is still on its way take no slot until it is there; they are counted apart, since each costs a connection.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from dsec.distribution.policy import UploadPolicy
from dsec.model.value import Value


class Refused(Value, frozen=True):
    """Why a peer is sent away, and after how long asking again may help."""

    reason: str
    retry_after_s: float


class Stage(enum.Enum):
    """What a peer is doing here."""

    HELD = "held"
    SENDING = "sending"
    OVER = "over"


@dataclass(slots=True, eq=False)
class Upload:
    """One peer's request; made by `Uploads`."""

    peer: str
    stage: Stage


class Uploads:
    """The uploads of one node."""

    def __init__(self, policy: UploadPolicy, now_s: float = 0.0) -> None:
        self.policy = policy
        self.sending = 0
        self.held = 0
        self.refused = 0
        self.sent_bytes = 0
        self._by_peer: dict[str, int] = {}
        self._tokens = float(policy.burst_bytes)
        self._filled_s = now_s

    def hold(self, peer: str) -> Upload | Refused:
        """Let a peer wait, for a chunk that is on its way or for a slot."""
        if not self.policy.slots:
            return self._refuse("this node sends nothing")
        if self.held >= self.policy.holds:
            return self._refuse(f"{self.held} peers wait here already")
        self.held += 1
        return Upload(peer, Stage.HELD)

    def begin(self, peer: str) -> Upload | Refused:
        """Begin to send to a peer."""
        refused = self._room(peer)
        if refused is not None:
            self.refused += 1
            return refused
        self._count(peer, 1)
        return Upload(peer, Stage.SENDING)

    def advance(self, upload: Upload) -> Refused | None:
        """Begin to send to one that waited, whose chunk is there; when there is no slot for it yet, it waits on."""
        if upload.stage is not Stage.HELD:
            return None
        refused = self._room(upload.peer)
        if refused is not None:
            return refused
        self.held -= 1
        self._count(upload.peer, 1)
        upload.stage = Stage.SENDING
        return None

    def end(self, upload: Upload) -> None:
        """End a request, whatever became of it; harmless when it is over."""
        if upload.stage is Stage.HELD:
            self.held -= 1
        elif upload.stage is Stage.SENDING:
            self._count(upload.peer, -1)
        upload.stage = Stage.OVER

    def spend(self, size_bytes: int, now_s: float) -> float:
        """Count bytes that are sent now; return for how many seconds to send nothing after them."""
        self.sent_bytes += size_bytes
        rate = self.policy.bytes_per_s
        if not rate:
            return 0.0
        passed_s = max(0.0, now_s - self._filled_s)
        self._filled_s = max(now_s, self._filled_s)
        self._tokens = min(float(self.policy.burst_bytes), self._tokens + passed_s * rate) - size_bytes
        return max(0.0, -self._tokens / rate)

    def _room(self, peer: str) -> Refused | None:
        if self.sending >= self.policy.slots:
            return self._refused(f"{self.sending} transfers are under way")
        if self._by_peer.get(peer, 0) >= self.policy.slots_a_peer:
            return self._refused(f"{self._by_peer[peer]} transfers to {peer} are under way")
        return None

    def _refuse(self, reason: str) -> Refused:
        self.refused += 1
        return self._refused(reason)

    def _refused(self, reason: str) -> Refused:
        return Refused(reason=reason, retry_after_s=self.policy.retry_s)

    def _count(self, peer: str, by: int) -> None:
        self.sending += by
        number = self._by_peer.get(peer, 0) + by
        if number:
            self._by_peer[peer] = number
        else:
            del self._by_peer[peer]
