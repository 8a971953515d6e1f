"""What a scheduler keeps of one node: its last view, its own placements that the view does not show, and their sum.

The sum is what is compared in each decision, so that it is kept up to date: a placement adds its increment, a
rejection takes it away, and a new view starts it anew from the view and from those placements that the view cannot
have seen. The placements' own sum is kept apart, so that a view that ages, which happens far more often, costs the same
however many there are: whole numbers add up to the same in any order.
"""

from __future__ import annotations

import msgspec

from dsec.placement.decision import Reason
from dsec.placement.load import NOTHING, Increment, Shares, aged
from dsec.placement.request import PlacementRequest
from dsec.placement.trust import Trust
from dsec.placement.view import Health, NodeView

NO_TICKET = -1
_ACCEPTING = Health.ACCEPTING  # Looking up a member of an enumeration is a call in this version of Python.


class Proposal(msgspec.Struct, eq=False):
    """One sandbox that one node was asked for, and whether the node has answered. The node decides.

    A `msgspec.Struct`, because one is made in every decision and its constructor is not Python.

    Attributes:
        request: what was asked for.
        node: where it was sent.
        increment: what it is expected to add there.
        number: 1 for the first node.
        load: what the node's load was expected to become.
        reason: why that node.
        tried: nodes that rejected or failed it before.
        placed_at_s: on the scheduler's clock.
        ticket: the node's number for it; `NO_TICKET` until it answered, or if it does not number.
        accepted_at_s: when the node's answer came; None before.
    """

    request: PlacementRequest
    node: NodeState
    increment: Increment
    number: int
    load: float
    reason: Reason
    tried: tuple[str, ...]
    placed_at_s: float
    ticket: int = NO_TICKET
    accepted_at_s: float | None = None


class NodeState:
    """One node, as one scheduler sees it.

    Attributes:
        name: its id.
        rank: its place in the order in which the scheduler came to know the nodes.
        view: the last report.
        as_of_s: when the report was asked for, on the scheduler's clock.
        heard_s: when the node was last heard of, by a report or by an answer.
        recent: own placements that the view does not show; the keys of a dictionary, so that each is found at once.
        own_weight: what each of the recent placements counts for in the order among nodes.
        cpu_millis, memory_bytes, sandboxes, creating: of the view and the weighted recent placements together.
        own_cpu_millis, own_memory_bytes, own_sandboxes: of the recent placements, each counted once.
        view_weight: what the view still counts; see `dsec.placement.load`.
        mean: the fleet's shares that took the rest of its place.
        offered: whether it gets sandboxes; it may be closed, draining, failed, lost or suspended.
        trust: what experience says.
    """

    __slots__ = (
        "as_of_s", "cpu_capacity", "cpu_millis", "creating", "creations_capacity", "heard_s", "mean", "memory_bytes",
        "memory_capacity", "name", "offered", "overlay", "own_cpu_millis", "own_memory_bytes", "own_sandboxes",
        "own_weight", "rank", "recent", "sandboxes", "sandboxes_capacity", "trust", "view", "view_weight",
    )  # fmt: skip

    def __init__(self, view: NodeView, rank: int, as_of_s: float, *, overlay: bool = True, own_weight: int = 1) -> None:
        self.name, self.rank, self.overlay, self.own_weight = view.node, rank, overlay, own_weight
        self.recent: dict[Proposal, None] = {}
        self.trust = Trust()
        self.own_cpu_millis = self.own_memory_bytes = self.own_sandboxes = 0.0
        self.offered = False
        self.heard_s = as_of_s
        self.view = view
        self.take(view, as_of_s)

    def take(self, view: NodeView, as_of_s: float, view_weight: float = 1.0, mean: Shares = NOTHING) -> tuple[int, int]:
        """Replace the view and forget the placements that the new one shows.

        Args:
            view, as_of_s: the report, and when it was asked for.
            view_weight, mean: see `age`.

        Returns:
            How many creations the new view shows that the old one did not, and how many of them are known as own ones.
            Of a node in a new life nothing can be said: (0, 0).
        """
        before, last = self.recent, self.view
        same_life = view.incarnation == last.incarnation
        grown = view.creations_seen - last.creations_seen if same_life else 0
        # What a node invents must not count for more than it holds.
        grown = min(max(0, grown), view.capacity.sandboxes)
        if before:
            self.recent = {one: None for one in before if not shown_by(one, view, as_of_s)} if same_life else {}
        self.view, self.as_of_s = view, as_of_s
        self.view_weight, self.mean = view_weight, mean
        if as_of_s > self.heard_s:
            self.heard_s = as_of_s
        capacity = view.capacity
        if capacity is not last.capacity or view is last:
            self.cpu_capacity = float(capacity.cpu_millis)
            self.memory_capacity = float(capacity.memory_bytes)
            self.sandboxes_capacity = float(capacity.sandboxes)
            self.creations_capacity = float(capacity.creations)
        if before:
            self._sum_own()
        self._sum()
        return grown, len(before) - len(self.recent) if same_life else 0

    def age(self, view_weight: float, mean: Shares) -> None:
        """Let the view count `view_weight`, and the mean of the fleet take the rest of its place."""
        if view_weight != self.view_weight or (view_weight < 1.0 and mean != self.mean):
            self.view_weight, self.mean = view_weight, mean
            self._sum()

    def count_for(self, own_weight: int) -> None:
        """Let each own placement count for so many in the order among nodes; see `dsec.placement.others`."""
        if own_weight != self.own_weight:
            self.own_weight = own_weight
            self._sum()

    def _sum(self) -> None:
        used = self.view.used
        if self.view_weight < 1.0:
            used = aged(used, self.view.capacity, self.view_weight, self.mean)
        weight = self.own_weight
        own = weight * self.own_sandboxes
        self.cpu_millis = used.cpu_millis + weight * self.own_cpu_millis
        self.memory_bytes = used.memory_bytes + weight * self.own_memory_bytes
        self.sandboxes, self.creating = used.sandboxes + own, used.creating + own

    def _sum_own(self) -> None:
        cpu_millis = memory_bytes = 0.0
        recent = self.recent if self.overlay else {}
        for proposal in recent:
            increment = proposal.increment
            cpu_millis += increment.cpu_millis
            memory_bytes += increment.memory_bytes
        self.own_cpu_millis, self.own_memory_bytes, self.own_sandboxes = cpu_millis, memory_bytes, float(len(recent))

    def add(self, proposal: Proposal) -> None:
        """Count a placement."""
        self.recent[proposal] = None
        if self.overlay:
            increment, weight = proposal.increment, self.own_weight
            self.own_cpu_millis += increment.cpu_millis
            self.own_memory_bytes += increment.memory_bytes
            self.own_sandboxes += 1.0
            self.cpu_millis += weight * increment.cpu_millis
            self.memory_bytes += weight * increment.memory_bytes
            self.sandboxes += weight
            self.creating += weight

    def drop(self, proposal: Proposal) -> bool:
        """Count a placement no more; return False, with nothing done, if a view has taken its place."""
        if proposal not in self.recent:
            return False
        del self.recent[proposal]
        if self.overlay:
            increment, weight = proposal.increment, self.own_weight
            self.own_cpu_millis -= increment.cpu_millis
            self.own_memory_bytes -= increment.memory_bytes
            self.own_sandboxes -= 1.0
            self.cpu_millis -= weight * increment.cpu_millis
            self.memory_bytes -= weight * increment.memory_bytes
            self.sandboxes -= weight
            self.creating -= weight
        return True

    def rank_with(self, increment: Increment) -> float:
        """Return what nodes are compared by: the load after one more such sandbox, and after what others are doing."""
        load = (self.cpu_millis + increment.cpu_millis) / self.cpu_capacity
        share = (self.memory_bytes + increment.memory_bytes) / self.memory_capacity
        if share > load:
            load = share
        share = (self.sandboxes + 1.0) / self.sandboxes_capacity
        if share > load:
            load = share
        share = (self.creating + 1.0) / self.creations_capacity
        if share > load:
            load = share
        trust = self.trust.score
        return load if trust == 1.0 or load >= 1.0 else 1.0 - trust * (1.0 - load)

    def load_with(self, increment: Increment) -> float:
        """Return the load that the node is believed to have after one more such sandbox, as far as is known."""
        if self.own_weight == 1 or not self.recent:
            return self.rank_with(increment)
        load = max(self.shares_with(increment))
        return load if load >= 1.0 else 1.0 - self.trust.score * (1.0 - load)

    def shares_with(self, increment: Increment) -> Shares:
        """Return how full each resource would be after one more such sandbox, as far as is known."""
        guessed = self.own_weight - 1
        return Shares(
            (self.cpu_millis - guessed * self.own_cpu_millis + increment.cpu_millis) / self.cpu_capacity,
            (self.memory_bytes - guessed * self.own_memory_bytes + increment.memory_bytes) / self.memory_capacity,
            (self.sandboxes - guessed * self.own_sandboxes + 1.0) / self.sandboxes_capacity,
            (self.creating - guessed * self.own_sandboxes + 1.0) / self.creations_capacity,
        )

    def has_room(self, increment: Increment) -> bool:
        """Say whether one more such sandbox is expected to be admitted."""
        return self.load_with(increment) <= 1.0

    def wants_work(self) -> bool:
        """Say whether the node itself takes sandboxes."""
        return self.view.health is _ACCEPTING


def shown_by(proposal: Proposal, view: NodeView, as_of_s: float) -> bool:
    """Say whether a view of the same incarnation has this placement in it.

    By the ticket, where the node gave one. A node that numbers nothing is asked again: an answer that was there
    before the view was asked for is in the view. Both times are the scheduler's own. An unanswered placement is in no
    view for certain.
    """
    if proposal.ticket != NO_TICKET:
        return view.creations_seen >= proposal.ticket
    return proposal.accepted_at_s is not None and as_of_s > proposal.accepted_at_s
