"""How a node gets one chunk: a small state machine that says whom to ask next.

::

              ┌───────────── nobody left to ask ──────────────┐
              ▼                                               │
    LookUp ───┬── peers ──► Ask peer ── failed ──► Ask next ──┤
      ▲       ├── origin ─► TakeOrigin                        │
      │       └── wait ───► Pause ──┐                         │
      └─────────────────────────────┘      too often, too long ──► TakeOrigin

It ends at the origin, always: after so many lookups, so many peers or so long, so that neither a dead tracker nor
hostile peers cost more than `patience_s`. Whatever is fetched is verified by whoever drives this.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from dsec.distribution.messages import Answer, Candidate, Failure, FailureKind
from dsec.distribution.policy import AcquisitionPolicy

_USUAL_TIMES = 4.0
"""A wait of so many usual times is a long one."""


@dataclass(frozen=True, slots=True)
class LookUp:
    """Ask the tracker; it is told `failures` with it."""

    failures: tuple[Failure, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask a peer for the chunk, for at most so long.

    One that lets us wait, for a slot or for the chunk itself, gives signs of life meanwhile. Without them it stalls, as
    one does that stops in the middle; if they came and the time is over it is busy: it waits for others and may be
    honest.
    """

    peer: Candidate
    timeout_s: float
    hold_s: float
    """For so long until its answer begins."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait so long, then go on."""

    wait_s: float


@dataclass(frozen=True, slots=True)
class TakeOrigin:
    """Leave it to the origin; the tracker is told `failures` that it has not heard of."""

    failures: tuple[Failure, ...]
    granted: bool
    """Whether the tracker wants it so; otherwise peers were given up."""


Step = LookUp | Ask | Pause | TakeOrigin


class Acquisition:
    """One chunk's way to one node.

    Args:
        chunk: its name.
        policy: settings.
        now_s: when it began.
        usual_s: how long a chunk takes from a peer lately; 0: not known.
    """

    __slots__ = ("_begun_s", "_candidates", "_failed", "_failures", "_granted", "_holds", "_pause_s", "_pauses",
                 "_policy", "_usual_s", "attempts", "chunk", "lookups")  # fmt: skip

    def __init__(self, chunk: str, policy: AcquisitionPolicy, now_s: float, usual_s: float = 0.0) -> None:
        self.chunk = chunk
        self.lookups = 0
        self.attempts = 0
        self._policy = policy
        self._begun_s = now_s
        self._usual_s = usual_s
        self._candidates: deque[Candidate] = deque()
        self._failures: list[Failure] = []
        self._failed: set[str] = set()
        self._pause_s = 0.0
        self._granted = False
        self._holds = 0
        self._pauses = 0

    def next(self, now_s: float) -> Step:
        """Return what to do now."""
        left_s = self._begun_s + self._policy.patience_s - now_s
        if self._granted or left_s <= 0 or self.attempts >= self._policy.attempts:
            return TakeOrigin(self._take_failures(), self._granted)
        if self._candidates:
            self.attempts += 1
            peer = self._candidates.popleft()
            if not peer.pending:
                return Ask(peer, left_s, left_s)
            # Meanwhile others may have the chunk; only where all are slow is it worth while to wait for longer.
            hold_s = max(self._policy.hold_s, _USUAL_TIMES * self._usual_s) * 2.0**self._holds
            self._holds += 1
            return Ask(peer, left_s, min(left_s, hold_s))
        if self._pause_s:
            # Each time twice as long: where all are slow, asking often helps nobody.
            wait_s = min(self._pause_s * 2.0**self._pauses, left_s, self._policy.wait_limit_s)
            self._pause_s = 0.0
            self._pauses += 1
            return Pause(wait_s)
        if self.lookups >= self._policy.lookups:
            return TakeOrigin(self._take_failures(), granted=False)
        self.lookups += 1
        return LookUp(self._take_failures())

    def answered(self, answer: Answer | None) -> None:
        """Take the tracker's answer; None: it gave none, which ends the asking."""
        if answer is None:
            self.lookups = self._policy.lookups
            return
        self._granted = answer.origin
        # Whom it proposes although it just failed is not asked again: a tracker need not be right.
        self._candidates = deque(peer for peer in answer.peers if peer.node not in self._failed)
        if not self._candidates and not answer.origin:
            # Also after nonsense: asking again at once would only be refused again.
            self._pause_s = answer.wait_s if answer.wait_s > 0 else self._policy.wait_limit_s

    def failed(self, peer: str, kind: FailureKind) -> None:
        """Note that the peer that was asked gave nothing that is of use."""
        if kind is not FailureKind.BUSY:
            self._failed.add(peer)
        self._failures.append(Failure(peer=peer, chunk=self.chunk, kind=kind))

    def untold(self) -> tuple[Failure, ...]:
        """Return failures that the tracker has not heard of, once the chunk is there; each is returned once."""
        return self._take_failures()

    def _take_failures(self) -> tuple[Failure, ...]:
        failures, self._failures = tuple(self._failures), []
        return failures
