"""Whom not to take chunks from, and whom not to believe when it says so.

Every chunk is verified by whoever takes it, so that a liar can never make anybody use wrong bytes: all that it can do
is waste time, in two ways. It gives wrong bytes; or it says of honest peers that they did, until everybody goes to the
origin. The rules against the one must not be the means of the other:

- **Who was deceived, shuns.** What a node says of a peer holds for itself, at once and without any doubt: the block is
  not proposed to it from that peer again, and after `blocks` of them nothing is.
- **For others** its word counts only if the tracker had sent it there for that chunk: an accuser cannot choose its
victims.
  One such word puts the *block* at that peer into quarantine. To put the *peer* there takes several blocks (or several
  silences) and several accusers.
- **Accusers are judged too.** One that accuses more than a few peers with which nobody else found fault is likelier to
  have bad memory, or bad intentions. Its words then count for itself only, also those that it said before.
- **Conspirators** can agree with each other. At most a share of all nodes is in quarantine at a time; the rest goes on.

A quarantine ends, since disks are exchanged and hosts repaired. A while after that (parole) one accusation is enough,
and each time lasts twice as long. What is said of nodes is remembered by their ids, longer than the nodes themselves: a
restart absolves nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from dsec.distribution.messages import Failure, FailureKind, Verdict, VerdictKind
from dsec.distribution.policy import SuspicionPolicy

_FAULTLESS = (FailureKind.MISSING, FailureKind.BUSY, FailureKind.BROKEN)
_CHUNKS_A_PEER = 64
_WITNESSES_A_CHUNK = 16
_SILENCES_A_PEER = 64
_GRUDGES = 1024
_OWN_SILENCES = 2
"""After so many silences of a peer a node is not sent there for a while, whatever others find."""
_DOUBLINGS = 30
_Key = TypeVar("_Key")
_Content = TypeVar("_Content")


class Suspicion:
    """What one tracker has heard of misbehaviour."""

    def __init__(self, policy: SuspicionPolicy) -> None:
        self._policy = policy
        self._accused: dict[str, _Accused] = {}
        self._accusers: dict[str, _Accuser] = {}
        self._quarantined: dict[str, float] = {}

    def shuns(self, asker: str, peer: str, chunk: str, now_s: float) -> bool:
        """Say whether a node is not to be sent to a peer for a chunk."""
        accuser = self._accusers.get(asker)
        if accuser is not None and accuser.shuns(peer, chunk, now_s):
            return True
        accused = self._accused.get(peer)
        if accused is None:
            return False
        return self.is_quarantined(peer, now_s) or any(self._believed(accused.wrong.get(chunk, {}), now_s))

    def may_shun(self, asker: str, peer: str) -> bool:
        """Say whether `shuns` has anything to look up for the two, whatever the chunk."""
        return asker in self._accusers or peer in self._accused or peer in self._quarantined

    def is_quarantined(self, peer: str, now_s: float) -> bool:
        """Say whether nothing is to be taken from a peer."""
        return self._quarantined.get(peer, now_s) > now_s

    def is_distrusted(self, node: str, now_s: float) -> bool:
        """Say whether what a node says of others counts for nobody else."""
        accuser = self._accusers.get(node)
        return accuser is not None and accuser.distrusted_until_s > now_s

    def quarantined(self, now_s: float) -> tuple[str, ...]:
        """Return the peers that nothing is taken from."""
        return tuple(sorted(peer for peer in self._quarantined if self.is_quarantined(peer, now_s)))

    def accuse(self, reporter: str, failure: Failure, now_s: float, *, sent: bool, nodes: int) -> list[Verdict]:
        """Take what a node says of a peer.

        Args:
            reporter: who says it.
            failure: what it says.
            now_s: the time.
            sent: whether the tracker had sent it to that peer for that chunk.
            nodes: how many are known.

        Returns:
            What was decided because of it.
        """
        if failure.kind in _FAULTLESS or failure.peer == reporter:
            return []
        accuser = self._accusers.setdefault(reporter, _Accuser())
        accuser.bear(failure, now_s, self._policy)
        if not sent or self.is_distrusted(reporter, now_s):
            return []
        accused = self._accused.setdefault(failure.peer, _Accused())
        if failure.kind is not FailureKind.WRONG:
            accused.fell_silent(reporter, now_s)
            return self._judge(failure.peer, now_s, nodes)
        accuser.accused[failure.peer] = now_s
        accused.gave_wrong(failure.chunk, reporter, now_s)
        if self._accuses_too_many(reporter, accuser, now_s):
            return [self._distrust(reporter, accuser, now_s)]
        block = Verdict(
            kind=VerdictKind.BLOCK_QUARANTINED,
            node=failure.peer,
            until_s=now_s + self._policy.block_quarantine_s,
            chunk=failure.chunk,
            reporters=(reporter,),
        )
        return [block, *self._judge(failure.peer, now_s, nodes)]

    def forget(self, now_s: float) -> None:
        """Drop what is too old to matter."""
        keep_s = max(self._policy.window_s, self._policy.block_quarantine_s)
        for peer, accused in list(self._accused.items()):
            accused.forget(now_s - keep_s)
            if accused.is_blank(now_s):
                del self._accused[peer]
        for node, accuser in list(self._accusers.items()):
            accuser.forget(now_s, now_s - self._policy.window_s)
            if accuser.is_blank(now_s):
                del self._accusers[node]
        self._quarantined = {peer: until_s for peer, until_s in self._quarantined.items() if until_s > now_s}

    def _believed(self, witnesses: dict[str, float], now_s: float) -> Iterable[str]:
        """Yield those whose word on one block still counts."""
        since_s = now_s - self._policy.block_quarantine_s
        return (who for who, at_s in witnesses.items() if at_s >= since_s and not self.is_distrusted(who, now_s))

    def _judge(self, peer: str, now_s: float, nodes: int) -> list[Verdict]:
        """Put a peer into quarantine if what is believed of it is enough."""
        accused, policy = self._accused[peer], self._policy
        if self.is_quarantined(peer, now_s):
            return []
        since_s = max(now_s - policy.window_s, accused.heard_from_s)
        wrong = {
            chunk: {who for who in self._believed(witnesses, now_s) if witnesses[who] >= since_s}
            for chunk, witnesses in accused.wrong.items()
        }
        blocks = sum(bool(witnesses) for witnesses in wrong.values())
        by = set().union(*wrong.values())
        silent = [who for who, at_s in accused.silences if at_s >= since_s and not self.is_distrusted(who, now_s)]
        on_parole = now_s < accused.parole_until_s
        if blocks and (on_parole or (blocks >= policy.blocks and len(by) >= policy.reporters)):
            return [self._quarantine(peer, accused, policy.quarantine_s, by, now_s, nodes)]
        if len(silent) >= policy.failures and len(set(silent)) >= policy.reporters:
            return [self._quarantine(peer, accused, policy.pause_s, set(silent), now_s, nodes)]
        return []

    def _quarantine(
        self, peer: str, accused: _Accused, length_s: float, by: set[str], now_s: float, nodes: int
    ) -> Verdict:
        policy = self._policy
        until_s = now_s + min(length_s * 2.0 ** min(accused.times, _DOUBLINGS), policy.quarantine_limit_s)
        accused.times += 1
        accused.heard_from_s = now_s
        accused.parole_until_s = until_s + policy.parole_s
        accused.silences.clear()
        self._quarantined.pop(peer, None)
        self._quarantined[peer] = until_s
        allowed = max(1, int(policy.quarantined_share * nodes))
        while len(self._quarantined) > allowed:
            # The dictionary is in the order of the verdicts: the oldest goes free.
            del self._quarantined[next(iter(self._quarantined))]
        return Verdict(kind=VerdictKind.PEER_QUARANTINED, node=peer, until_s=until_s, reporters=tuple(sorted(by)))

    def _accuses_too_many(self, reporter: str, accuser: _Accuser, now_s: float) -> bool:
        since_s = now_s - self._policy.window_s
        alone = sum(
            at_s >= since_s and not self._has_other_accuser(peer, reporter, now_s)
            for peer, at_s in accuser.accused.items()
        )
        return alone > self._policy.accused

    def _has_other_accuser(self, peer: str, reporter: str, now_s: float) -> bool:
        accused = self._accused.get(peer)
        return accused is not None and any(
            who != reporter for witnesses in accused.wrong.values() for who in self._believed(witnesses, now_s)
        )

    def _distrust(self, reporter: str, accuser: _Accuser, now_s: float) -> Verdict:
        accuser.distrusted_until_s = now_s + self._policy.distrust_s
        for peer, accused in self._accused.items():
            accused.strike(reporter)
            if peer in accuser.accused and not self._has_other_accuser(peer, reporter, now_s):
                self._absolve(peer, accused)
        return Verdict(kind=VerdictKind.REPORTER_DISTRUSTED, node=reporter, until_s=accuser.distrusted_until_s)

    def _absolve(self, peer: str, accused: _Accused) -> None:
        """Let a peer go of which only one that is not believed any more said anything."""
        if self._quarantined.pop(peer, None) is not None:
            accused.times = max(0, accused.times - 1)
            accused.parole_until_s = 0.0


class _Accused:
    """What was said of one peer.

    Attributes:
        wrong: of each chunk, who says that it was given wrongly, and when.
        silences: who found it unreachable or stalled, and when.
        times: how often it was in quarantine.
        heard_from_s: what was said before its last quarantine does not count for the next.
        parole_until_s: until then one accusation is enough.
    """

    __slots__ = ("heard_from_s", "parole_until_s", "silences", "times", "wrong")

    def __init__(self) -> None:
        self.wrong: dict[str, dict[str, float]] = {}
        self.silences: list[tuple[str, float]] = []
        self.times = 0
        self.heard_from_s = float("-inf")
        self.parole_until_s = 0.0

    def gave_wrong(self, chunk: str, reporter: str, now_s: float) -> None:
        witnesses = self.wrong.setdefault(chunk, {})
        if len(witnesses) < _WITNESSES_A_CHUNK or reporter in witnesses:
            witnesses[reporter] = now_s
        _keep_last(self.wrong, _CHUNKS_A_PEER)

    def fell_silent(self, reporter: str, now_s: float) -> None:
        self.silences.append((reporter, now_s))
        del self.silences[:-_SILENCES_A_PEER]

    def strike(self, reporter: str) -> None:
        """Strike out what one said."""
        for witnesses in self.wrong.values():
            witnesses.pop(reporter, None)
        self.silences = [(who, at_s) for who, at_s in self.silences if who != reporter]

    def forget(self, before_s: float) -> None:
        self.silences = [(who, at_s) for who, at_s in self.silences if at_s >= before_s]
        for chunk, witnesses in list(self.wrong.items()):
            kept = {who: at_s for who, at_s in witnesses.items() if at_s >= before_s}
            if kept:
                self.wrong[chunk] = kept
            else:
                del self.wrong[chunk]

    def is_blank(self, now_s: float) -> bool:
        return not self.wrong and not self.silences and self.parole_until_s <= now_s


class _Accuser:
    """What one node said of others, and what holds for itself because of it.

    Attributes:
        accused: peers that it accused of wrong bytes, and when last.
        distrusted_until_s: until then its word counts for itself only.
        blocks: until when it is not sent to a peer for a chunk.
        peers: until when it is not sent to a peer at all.
        faults: how often a peer gave it wrong bytes, or was silent.
    """

    __slots__ = ("accused", "blocks", "distrusted_until_s", "faults", "peers")

    def __init__(self) -> None:
        self.accused: dict[str, float] = {}
        self.distrusted_until_s = float("-inf")
        self.blocks: dict[tuple[str, str], float] = {}
        self.peers: dict[str, float] = {}
        self.faults: dict[tuple[str, bool], int] = {}

    def shuns(self, peer: str, chunk: str, now_s: float) -> bool:
        return self.peers.get(peer, now_s) > now_s or self.blocks.get((peer, chunk), now_s) > now_s

    def bear(self, failure: Failure, now_s: float, policy: SuspicionPolicy) -> None:
        """Let it have its own way with a peer that it says failed it."""
        wrong = failure.kind is FailureKind.WRONG
        if wrong:
            self.blocks[(failure.peer, failure.chunk)] = now_s + policy.block_quarantine_s
        count = self.faults[(failure.peer, wrong)] = self.faults.get((failure.peer, wrong), 0) + 1
        if count >= (policy.blocks if wrong else _OWN_SILENCES):
            self.peers[failure.peer] = now_s + (policy.quarantine_s if wrong else policy.pause_s)
            del self.faults[(failure.peer, wrong)]
        _keep_last(self.blocks, _GRUDGES)
        _keep_last(self.peers, _GRUDGES)
        _keep_last(self.faults, _GRUDGES)
        _keep_last(self.accused, _GRUDGES)

    def forget(self, now_s: float, before_s: float) -> None:
        self.accused = {peer: at_s for peer, at_s in self.accused.items() if at_s >= before_s}
        self.blocks = {block: until_s for block, until_s in self.blocks.items() if until_s > now_s}
        self.peers = {peer: until_s for peer, until_s in self.peers.items() if until_s > now_s}

    def is_blank(self, now_s: float) -> bool:
        return not (self.accused or self.blocks or self.peers) and self.distrusted_until_s <= now_s


def _keep_last(table: dict[_Key, _Content], count: int) -> None:
    while len(table) > count:
        del table[next(iter(table))]
