"""What a scheduler knows of all nodes, and for each shape of request the nodes that it may be sent to.

The index of a shape is a list of nodes in the order in which they became known. It is made when a shape is first seen
and changed only when a node's features, capacity or standing change, so that a decision among 1,024 nodes looks at k
of them and not at all. Loads change with every decision and are no part of it.

A node is left out while it says so itself (closed, draining, failed), while it is suspended for failing, and when
nothing was heard of it for `Ageing.lost_s`. The last rule has an exception: when fewer than `Ageing.panic_share` of
the nodes are heard of, it is the watcher that is silent and not the nodes, and age is no reason to leave one out (the
"panic threshold" of Envoy's load balancer). What is then known of the nodes is their last views, the placements made
since, and their answers, each of which can carry a new view.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from dsec.placement.decision import Refusal
from dsec.placement.filter import capable
from dsec.placement.load import NOTHING, Increment, mean_of, shares, weight_of_age
from dsec.placement.node_state import NodeState
from dsec.placement.others import Others
from dsec.placement.policy import PlacementPolicy
from dsec.placement.request import Shape
from dsec.placement.view import NodeView, is_newer

_SHAPES_LIMIT = 512
"""So many shapes are indexed at once; the one that was indexed first makes room. Shapes come from callers, who may
make up any.
"""


def rank_of(state: NodeState) -> int:
    """Return the node's place in the order of the fleet."""
    return state.rank


class ShapeIndex:
    """The nodes that may hold a shape.

    Attributes:
        shape: the shape.
        increment: what one such sandbox is expected to add.
        nodes: capable and offered, by rank.
        refusal: why none of them takes one, as long as that holds; None when one may have room.
    """

    __slots__ = ("increment", "nodes", "refusal", "shape")

    def __init__(self, shape: Shape, increment: Increment, nodes: list[NodeState]) -> None:
        self.shape, self.increment, self.nodes = shape, increment, nodes
        self.refusal: Refusal | None = None

    def holds(self, state: NodeState) -> bool:
        """Say whether the node may hold the shape."""
        at = bisect_left(self.nodes, state.rank, key=rank_of)
        return at < len(self.nodes) and self.nodes[at] is state

    def include(self, state: NodeState, wanted: bool) -> None:
        """Make the list hold the node, or not."""
        present = self.holds(state)
        if wanted and not present:
            insort(self.nodes, state, key=rank_of)
        elif present and not wanted:
            del self.nodes[bisect_left(self.nodes, state.rank, key=rank_of)]


class Fleet:
    """All nodes that a scheduler knows.

    Args:
        policy: settings of placement.

    Attributes:
        panic: whether too few nodes are heard of to leave the others out.
        others: how much the other schedulers place.
        mean: the mean shares of the nodes whose views are fresh; the last ones when no view is.
    """

    def __init__(self, policy: PlacementPolicy) -> None:
        self._policy = policy
        self._states: dict[str, NodeState] = {}
        self._indexes: dict[Shape, ShapeIndex] = {}
        self._ranks = 0
        self._refusing: list[ShapeIndex] = []
        self.panic = False
        self.mean = NOTHING
        self.others = Others(policy.schedulers)
        self._ticked_s: float | None = None

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[NodeState]:
        return iter(self._states.values())

    def get(self, node: str) -> NodeState | None:
        """Return what is known of a node; None if nothing is."""
        return self._states.get(node)

    def observe(self, view: NodeView, now_s: float, age_s: float) -> bool:
        """Take a view that is `age_s` old; return False for one that is no newer than what is known."""
        as_of_s = now_s - max(0.0, age_s)
        state = self._states.get(view.node)
        if state is None:
            overlay, own_weight = self._policy.overlay, self.others.weight
            state = NodeState(view, self._ranks, as_of_s, overlay=overlay, own_weight=own_weight)
            self._ranks += 1
            self._states[view.node] = state
            self._review(state, now_s, reindex=True)
        else:
            before = state.view
            if not is_newer(view, before):
                return False
            weight = weight_of_age(now_s - as_of_s, self._policy.ageing)
            self.learn(*state.take(view, as_of_s, weight, self.mean))
            changed = view.features != before.features or (
                view.capacity is not before.capacity and view.capacity != before.capacity
            )
            self._offer_or_not(state, now_s, reindex=changed)
            if self._refusing:
                self.lightened(state)
        return True

    def learn(self, everybody: int, own: int) -> None:
        """Learn from creations that a view shows how much others place."""
        if self._policy.learn and self.others.note(everybody, own):
            for state in self._states.values():
                state.count_for(self.others.weight)

    def heard(self, state: NodeState, now_s: float) -> None:
        """Note a sign of life."""
        if now_s > state.heard_s:
            state.heard_s = now_s
        if not state.offered:
            self.reconsider(state, now_s)

    def forget(self, node: str) -> NodeState | None:
        """Take a node out for good; return what was known of it."""
        state = self._states.pop(node, None)
        if state is not None:
            state.offered = False
            self._reindex(state)
        return state

    def index(self, shape: Shape) -> ShapeIndex:
        """Return the index of a shape, made now if it is new."""
        index = self._indexes.get(shape)
        if index is None:
            if len(self._indexes) >= _SHAPES_LIMIT:
                del self._indexes[next(iter(self._indexes))]
                self._accept_all()
            nodes = [state for state in self._states.values() if state.offered and capable(shape, state.view)]
            index = ShapeIndex(shape, Increment(shape, self._policy.expectation), nodes)
            self._indexes[shape] = index
        return index

    def tick(self, now_s: float) -> None:
        """Let views age, trust recover and suspensions end."""
        passed_s = 0.0 if self._ticked_s is None else max(0.0, now_s - self._ticked_s)
        self._ticked_s = now_s
        ageing, states = self._policy.ageing, self._states.values()
        heard = sum(now_s - state.heard_s < ageing.lost_s for state in states)
        self.panic = heard < ageing.panic_share * len(self._states)
        self._measure(now_s)
        for state in states:
            if state.trust.score < 1.0:
                state.trust.recover(passed_s, self._policy.trust)
            self._review(state, now_s)
        self._accept_all()

    def _measure(self, now_s: float) -> None:
        views = [state.view for state in self if now_s - state.as_of_s <= self._policy.ageing.fresh_s]
        if views:
            self.mean = mean_of([shares(view.used, view.capacity) for view in views])

    def reconsider(self, state: NodeState, now_s: float) -> None:
        """Look at one node again, after something was learnt of it; nothing happens to one that was forgotten."""
        if self._states.get(state.name) is state:
            self._review(state, now_s)
            self.lightened(state)

    def _review(self, state: NodeState, now_s: float, *, reindex: bool = False) -> None:
        state.age(weight_of_age(now_s - state.as_of_s, self._policy.ageing), self.mean)
        self._offer_or_not(state, now_s, reindex=reindex)

    def _offer_or_not(self, state: NodeState, now_s: float, *, reindex: bool) -> None:
        """Offer the node or leave it out, by what is known of it now."""
        offered = self.why_not(state, now_s) == ""
        if reindex or offered != state.offered:
            state.offered = offered
            self._reindex(state)

    def _reindex(self, state: NodeState) -> None:
        for index in self._indexes.values():
            index.include(state, state.offered and capable(index.shape, state.view))
        self._accept_all()

    # Refusals hold until a node has room: a fleet that is full is asked often, and looking at every node takes long.

    def refuse(self, index: ShapeIndex, refusal: Refusal) -> None:
        """Answer requests of this shape so until something changes that matters to it."""
        index.refusal = refusal
        self._refusing.append(index)

    def lightened(self, state: NodeState) -> None:
        """Look whether a node that may have become less loaded has room for what was refused."""
        if self._refusing:
            for index in self._refusing:
                if index.holds(state) and state.has_room(index.increment):
                    index.refusal = None
            self._refusing = [index for index in self._refusing if index.refusal is not None]

    def _accept_all(self) -> None:
        for index in self._refusing:
            index.refusal = None
        self._refusing.clear()

    def why_not(self, state: NodeState, now_s: float) -> str:
        """Return why a node gets no sandboxes, in a word or two; empty if it does."""
        if not state.wants_work():
            return state.view.health.value
        if now_s < state.trust.suspended_until_s:
            return "suspended"
        if not self.panic and now_s - state.heard_s >= self._policy.ageing.lost_s:
            return "lost"
        return ""
