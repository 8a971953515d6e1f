"""Exchange of node views between scheduler instances, without anybody in the middle.

Anti-entropy (Demers and others, *Epidemic algorithms for replicated database maintenance*, PODC 1987):
now and then each instance picks another at random and the two make their knowledge equal. What one learns reaches n
instances in about log2 n + ln n rounds, whoever is down, and two sides of a partition become equal soon after it
heals, because nothing is a message that can be missed: only states are compared. The digests are those of Scuttlebutt
(van Renesse and others, LADIS 2008): a node's (incarnation, version) says which of two views is newer, so that
merging is taking the maximum, which may be done in any order and any number of times.

One exchange has three messages::

    a → b   Digest    versions of the nodes in one range of names
    b → a   Updates   views that are newer at b, and names of nodes that are newer at a
    a → b   Updates   the views that were wanted

*Messages are bounded.* A digest covers one range of names, and the next digest begins where it ended. Updates are
filled with the youngest views first until `message_bytes` are used; what does not fit is found missing in the next
round.

*No clock is compared.* A view travels with its age, a duration. Whoever gets it subtracts the age from its own clock.
The time on the way is not counted, so that a view seems younger than it is by as much; a clock that is an hour off
changes nothing.

*Instances* are known by a heartbeat: a number that each counts up for itself. One whose number has not grown for
`lost_s` on the observer's own clock is lost, and its shards are taken over. The table of shards travels along.

The peers are trusted: an instance that invents versions can keep true views out. They speak over authenticated
connections.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.model.value import Value
from dsec.placement.sampling import RandomBits, draw_below
from dsec.placement.shards import ShardTable, newer_table, rebalanced
from dsec.placement.view import LONGEST_NAME, NodeView, is_newer

_Item = TypeVar("_Item")

_LONGEST_NAME_BYTES = 6 * LONGEST_NAME
"""Of a name in JSON, where one character takes at most six."""


class GossipPolicy(Value, frozen=True):
    """How views are exchanged.

    Attributes:
        message_bytes: the largest message, encoded as JSON.
        digest_entries: versions in one digest.
        forget_s: views older than this are dropped and not taken any more. It takes the place of tombstones: a node
            that was taken out for good is remembered by nobody an hour later.
        lost_s: an instance whose heartbeat stands still for so long is lost.
    """

    message_bytes: int = 64_000
    digest_entries: int = 512
    forget_s: float = 3600.0
    lost_s: float = 10.0

    def __post_init__(self) -> None:
        if self.message_bytes < 16_000 or self.digest_entries < 1:
            raise InvalidRequestError(
                f"gossip: message_bytes is {self.message_bytes} and digest_entries {self.digest_entries}",
                resolution="give message_bytes of 16,000 or more and digest_entries of 1 or more",
            )


class Version(Value, frozen=True):
    """Which view of a node somebody has."""

    node: str
    incarnation: int
    version: int


class AgedView(Value, frozen=True):
    """A view and how long ago it was true, in seconds."""

    view: NodeView
    age_s: float


class Heartbeat(Value, frozen=True):
    """How far an instance has counted in its present life."""

    instance: str
    incarnation: int
    beat: int


class Digest(Value, frozen=True, tag="digest"):
    """What the sender has of the nodes whose names are after `after` and up to `upto`; an empty `upto`: to the end."""

    sender: str
    after: str
    upto: str
    versions: tuple[Version, ...]
    heartbeats: tuple[Heartbeat, ...] = ()
    shards: ShardTable | None = None


class Updates(Value, frozen=True, tag="updates"):
    """Views that the receiver lacks, and names of nodes of which the sender lacks the receiver's view."""

    sender: str
    views: tuple[AgedView, ...] = ()
    wanted: tuple[str, ...] = ()
    heartbeats: tuple[Heartbeat, ...] = ()
    shards: ShardTable | None = None


Message = Digest | Updates


@dataclass(slots=True)
class _Entry:
    view: NodeView
    as_of_s: float


@dataclass(slots=True)
class _Peer:
    heartbeat: Heartbeat
    changed_s: float


class Gossip:
    """The part of one scheduler instance in the exchange.

    Args:
        instance: its id.
        incarnation: grows each time it starts.
        bits: random bits, for the choice of peers.
        policy: settings.
        shards: the table of shards that it begins with.
    """

    def __init__(
        self,
        instance: str,
        bits: RandomBits,
        *,
        incarnation: int = 1,
        policy: GossipPolicy | None = None,
        shards: ShardTable | None = None,
    ) -> None:
        self.instance = instance
        self.policy = policy or GossipPolicy()
        self.shards = shards
        self._bits = bits
        self._own = Heartbeat(instance=instance, incarnation=incarnation, beat=0)
        self._entries: dict[str, _Entry] = {}
        self._peers: dict[str, _Peer] = {}
        self._cursor = ""
        if shards is not None and len(msgspec.json.encode(shards)) > self.policy.message_bytes // 2:
            raise InvalidRequestError(
                f"a table of {len(shards.owners):,} shards fills more than half of a message",
                resolution="raise gossip's message_bytes, or have fewer shards",
            )

    def __len__(self) -> int:
        return len(self._entries)

    # What is known.

    def observe(self, view: NodeView, now_s: float, *, age_s: float = 0.0) -> bool:
        """Take a view from whatever source; return whether it is news."""
        if not 0.0 <= age_s < self.policy.forget_s:
            # Also true for what is no number: a peer's nonsense is not believed.
            return False
        known = self._entries.get(view.node)
        if known is not None and not is_newer(view, known.view):
            return False
        self._entries[view.node] = _Entry(view, now_s - age_s)
        return True

    def views(self, now_s: float) -> tuple[AgedView, ...]:
        """Return every view that is known, with its age, by the node's name."""
        return tuple(self._aged(node, now_s) for node in sorted(self._entries))

    def _aged(self, node: str, now_s: float) -> AgedView:
        entry = self._entries[node]
        return AgedView(view=entry.view, age_s=max(0.0, now_s - entry.as_of_s))

    def members(self, now_s: float) -> tuple[str, ...]:
        """Return the instances whose heartbeats are growing, this one included."""
        alive = [name for name, peer in self._peers.items() if now_s - peer.changed_s < self.policy.lost_s]
        return tuple(sorted({self.instance, *alive}))

    def take_over(self, now_s: float) -> ShardTable | None:
        """Share out the shards of owners that are lost, take some if this instance has none; return the table.

        Only the newcomer itself adds a newcomer: others, who hear of its loss sooner or later than this one, would
        add it back as often as this one takes it out.
        """
        if self.shards is not None:
            alive = set(self.members(now_s)) & set(self.shards.owners)
            self.shards = rebalanced(self.shards, alive | {self.instance})
        return self.shards

    # The exchange.

    def choose_peer(self, peers: Iterable[str]) -> str | None:
        """Return one of these instances at random, not this one; None if there is no other."""
        others = sorted(set(peers) - {self.instance})
        return others[draw_below(len(others), self._bits)] if others else None

    def begin(self, now_s: float) -> Digest:
        """Count on the heartbeat and return the first message of an exchange, for the next range of names."""
        self._forget(now_s)
        self._own = msgspec.structs.replace(self._own, beat=self._own.beat + 1)
        following = [name for name in sorted(self._entries) if name > self._cursor][: self.policy.digest_entries + 1]
        digest = Digest(
            sender=self.instance,
            after=self._cursor,
            upto="",
            versions=(),
            heartbeats=self._heartbeats(now_s),
            shards=self.shards,
        )
        versions = [_version(self._entries[name].view) for name in following[: self.policy.digest_entries]]
        room_bytes = self._room(digest) - _LONGEST_NAME_BYTES
        versions = versions[: len(_fitting(versions, room_bytes, until_full=True))]
        self._cursor = versions[-1].node if versions and len(versions) < len(following) else ""
        return msgspec.structs.replace(digest, upto=self._cursor, versions=tuple(versions))

    def _room(self, message: Message) -> int:
        return self.policy.message_bytes - len(msgspec.json.encode(message))

    def receive(self, message: Message, now_s: float) -> tuple[Updates | None, tuple[AgedView, ...]]:
        """Take a peer's message.

        Returns:
            What to answer (None: nothing, the exchange is over), and the views that were news, for the engine.
        """
        self._hear(message, now_s)
        if isinstance(message, Digest):
            return self._answer(message, now_s), ()
        news = tuple(aged for aged in message.views if self.observe(aged.view, now_s, age_s=aged.age_s))
        answer = self._updates(message.wanted, (), now_s) if message.wanted else None
        return answer, news

    def _answer(self, digest: Digest, now_s: float) -> Updates:
        theirs = {version.node: version for version in digest.versions}
        in_range = [name for name in self._entries if name > digest.after and (not digest.upto or name <= digest.upto)]
        newer = [name for name in in_range if _is_behind(theirs.get(name), self._entries[name].view)]
        wanted = [node for node, version in theirs.items() if self._lacks(version)]
        return self._updates(newer, wanted, now_s)

    def _lacks(self, version: Version) -> bool:
        entry = self._entries.get(version.node)
        return entry is None or _order(version) > _order(_version(entry.view))

    def _updates(self, nodes: Iterable[str], wanted: Iterable[str], now_s: float) -> Updates:
        """Fill a message, the youngest views first, so that it stays below the limit."""
        empty = Updates(sender=self.instance, heartbeats=self._heartbeats(now_s), shards=self.shards)
        names = _fitting(sorted(wanted)[: self.policy.digest_entries], self._room(empty) // 2)
        asking = msgspec.structs.replace(empty, wanted=tuple(names))
        known = [self._aged(node, now_s) for node in set(nodes) if node in self._entries]
        known.sort(key=lambda aged: (aged.age_s, aged.view.node))
        return msgspec.structs.replace(asking, views=tuple(_fitting(known, self._room(asking))))

    def _heartbeats(self, now_s: float) -> tuple[Heartbeat, ...]:
        """Return the heartbeats of those that live: one that is lost is passed on by nobody, and so stays lost."""
        alive = set(self.members(now_s))
        living = [peer for name, peer in sorted(self._peers.items()) if name in alive]
        living.sort(key=lambda peer: peer.changed_s, reverse=True)
        others = _fitting([peer.heartbeat for peer in living], self.policy.message_bytes // 4)
        return (self._own, *others)

    def _hear(self, message: Message, now_s: float) -> None:
        for heartbeat in message.heartbeats:
            if heartbeat.instance == self.instance:
                continue
            peer = self._peers.get(heartbeat.instance)
            if peer is None or _life(heartbeat) > _life(peer.heartbeat):
                self._peers[heartbeat.instance] = _Peer(heartbeat, now_s)
        if message.shards is not None:
            self.shards = message.shards if self.shards is None else newer_table(self.shards, message.shards)

    def _forget(self, now_s: float) -> None:
        limit_s = self.policy.forget_s
        for name in [name for name, entry in self._entries.items() if now_s - entry.as_of_s >= limit_s]:
            del self._entries[name]
        for name in [name for name, peer in self._peers.items() if now_s - peer.changed_s >= limit_s]:
            del self._peers[name]


def _fitting(items: Iterable[_Item], room_bytes: int, *, until_full: bool = False) -> list[_Item]:
    """Return the items that fit into so many bytes as a JSON list; one that does not fit ends it, or is passed over."""
    fitting = []
    for item in items:
        size_bytes = len(msgspec.json.encode(item)) + 1
        if size_bytes <= room_bytes:
            room_bytes -= size_bytes
            fitting.append(item)
        elif until_full:
            break
    return fitting


def _version(view: NodeView) -> Version:
    return Version(node=view.node, incarnation=view.incarnation, version=view.version)


def _order(version: Version) -> tuple[int, int]:
    return version.incarnation, version.version


def _life(heartbeat: Heartbeat) -> tuple[int, int]:
    return heartbeat.incarnation, heartbeat.beat


def _is_behind(version: Version | None, view: NodeView) -> bool:
    return version is None or _order(version) < (view.incarnation, view.version)
