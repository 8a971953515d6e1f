"""Gangs: members that start together or not at all.

Placing a gang is vector bin packing, which is NP-hard; `place` puts the largest members first, each on the node that it
fills most, and steps back a bounded number of times. When it says no, a placement may exist that it did not find; what
it returns always fits.

Reserving is the other half. Nodes admit on their own, so a gang must collect its nodes' consent one after another, and
two gangs that each hold what the other wants would wait for ever. `Reservation` makes that impossible in two
independent ways: nodes are asked in the order of their ids, so that no circle of waiting can close (Havender, 1968),
and a gang that is refused gives everything back before it tries again, so that none holds while it waits. A node frees
what it promised by itself when the promise is older than its time to live: a scheduler that dies in between locks
nothing up.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsec.base.errors import InvalidStateError
from dsec.scheduling.amounts import Amounts, fits, minus, total
from dsec.scheduling.job import Member, Node

_STEPS_BACK = 256
"""Bound on undone choices for one gang."""


def place(
    members: Sequence[Member], nodes: Sequence[Node], free: Mapping[str, Amounts], *, steps_back: int = _STEPS_BACK
) -> tuple[str, ...] | None:
    """Find a node for every member.

    Args:
        members: the gang.
        nodes: the candidates.
        free: what is free on each, by node id.
        steps_back: how many choices may be undone.

    Returns:
        The node of each member, in their order, such that all fit together; None when none was found.
    """
    order = sorted(range(len(members)), key=lambda index: (-_size(members[index].amounts, nodes), index))
    search = _Search(
        members, order, nodes, {node.node_id: dict(free.get(node.node_id, {})) for node in nodes}, steps_back
    )
    return search.run()


def _size(amounts: Amounts, nodes: Sequence[Node]) -> float:
    """The largest share of any node's capacity: what makes a member hard to place."""
    return max(
        (amount / node.capacity[name] for node in nodes for name, amount in amounts.items() if node.capacity.get(name)),
        default=0.0,
    )


class _Search:
    def __init__(
        self,
        members: Sequence[Member],
        order: Sequence[int],
        nodes: Sequence[Node],
        free: dict[str, dict[str, int]],
        steps: int,
    ) -> None:
        self.members, self.order, self.nodes, self.free, self.steps = members, order, nodes, free, steps
        self.chosen: dict[int, str] = {}

    def run(self) -> tuple[str, ...] | None:
        """Search depth first without recursion, since a gang may have thousands of members."""
        options: list[list[str]] = []
        while len(self.chosen) < len(self.order):
            depth = len(self.chosen)
            if depth == len(options):
                options.append(self._options(self.members[self.order[depth]]))
            if options[depth]:
                self._take(self.order[depth], options[depth].pop(0))
                continue
            options.pop()
            if not options or self.steps == 0:
                return None
            self.steps -= 1
            self._undo(self.order[depth - 1])
        return tuple(self.chosen[index] for index in range(len(self.members)))

    def _options(self, member: Member) -> list[str]:
        """Nodes that can take the member, fullest first; of nodes that are alike only the first."""
        seen: dict[tuple[object, ...], tuple[float, str]] = {}
        for node in self.nodes:
            free = self.free[node.node_id]
            if member.labels <= node.labels and fits(member.amounts, free):
                alike = (node.labels, tuple(sorted(free.items())), tuple(sorted(node.capacity.items())))
                seen.setdefault(alike, (_left_over(member.amounts, free, node.capacity), node.node_id))
        return [node_id for _, node_id in sorted(seen.values())]

    def _take(self, index: int, node_id: str) -> None:
        self.chosen[index] = node_id
        self.free[node_id] = minus(self.free[node_id], self.members[index].amounts)

    def _undo(self, index: int) -> None:
        node_id = self.chosen.pop(index)
        self.free[node_id] = total((self.free[node_id], self.members[index].amounts))


def _left_over(amounts: Amounts, free: Amounts, capacity: Amounts) -> float:
    left = minus(free, amounts)
    return sum(left[name] / capacity[name] for name in left if capacity.get(name))


class Phase(enum.Enum):
    """Where a reservation stands."""

    ASKING = "asking"
    RELEASING = "releasing"
    HELD = "held"
    GIVEN_UP = "given_up"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """Ask a node to promise these amounts to the gang for `ttl_s` seconds."""

    node: str
    amounts: Amounts
    ttl_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Give back what a node promised, or may have promised."""

    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAll:
    """Every node promised: start the members."""

    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TryAgain:
    """Nothing is held: choose other nodes, or wait, and begin anew."""

    refused_by: str
    reason: str


Action = Ask | Release | StartAll | TryAgain


class Reservation:
    """Collect the consent of all nodes of one gang, or of none.

    The caller carries out the actions and reports what came back; one node is asked at a time, in the order of ids.

    Args:
        placement: amounts that each node is asked for, by node id.
        now_s: the time, of the caller's own monotonic clock.
        ttl_s: how long a node keeps a promise; the whole round must end within half of it.
    """

    def __init__(self, placement: Mapping[str, Amounts], *, now_s: float, ttl_s: float = 10.0) -> None:
        self._placement = dict(sorted(placement.items()))
        self._order = list(self._placement)
        self._asked = 0
        self._released: set[str] = set()
        self._ttl_s, self._until_s = ttl_s, now_s + ttl_s / 2
        self._ending = TryAgain(refused_by="", reason="")
        self.phase = Phase.ASKING

    def begin(self) -> tuple[Action, ...]:
        """Return the first question."""
        self._require(Phase.ASKING)
        return (self._next(),) if self._order else self._hold()

    def promised(self, node: str, *, now_s: float) -> tuple[Action, ...]:
        """Go on after a node promised."""
        if self.phase is not Phase.ASKING or node != self._order[self._asked - 1]:
            return (Release(node=node),)  # A late answer: what it promised is not wanted any more.
        if now_s >= self._until_s:
            return self._give_back(node, "the round took so long that the first promises may lapse before the start")
        return self._hold() if self._asked == len(self._order) else (self._next(),)

    def refused(self, node: str, reason: str) -> tuple[Action, ...]:
        """Give everything back after a node refused, failed, or did not answer (it may have promised)."""
        self._require(Phase.ASKING)
        return self._give_back(node, reason)

    def released(self, node: str) -> tuple[Action, ...]:
        """Note that a node gave its part free; when all have, the gang may try again."""
        self._released.add(node)
        if self.phase is Phase.RELEASING and self._released >= set(self._order[: self._asked]):
            self.phase = Phase.GIVEN_UP
            return (self._ending,)
        return ()

    def _next(self) -> Ask:
        node = self._order[self._asked]
        self._asked += 1
        return Ask(node=node, amounts=self._placement[node], ttl_s=self._ttl_s)

    def _hold(self) -> tuple[Action, ...]:
        self.phase = Phase.HELD
        return (StartAll(nodes=tuple(self._order)),)

    def _give_back(self, node: str, reason: str) -> tuple[Action, ...]:
        self.phase = Phase.RELEASING
        self._ending = TryAgain(refused_by=node, reason=reason)
        return tuple(Release(node=asked) for asked in self._order[: self._asked])

    def _require(self, phase: Phase) -> None:
        if self.phase is not phase:
            raise InvalidStateError(f"the reservation is {self.phase.value}, not {phase.value}")
