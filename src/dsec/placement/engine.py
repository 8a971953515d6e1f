"""The placement engine: choose a node for each sandbox, on views that are old, beside other engines that do the same.

Many schedulers that each take the least loaded node of the same old view all take the same node, and until the next
view go on doing so: the herd (Mitzenmacher, *How useful is old information?*, 2000). Three things together prevent it:

1. **k random choices.** Take the least loaded of k nodes drawn at random. With n sandboxes on n nodes the fullest has
   about ln n / ln ln n with one choice, and ln ln n / ln 2 with two (Azar, Broder, Karlin and Upfal, 1994;
   Mitzenmacher, 2001). Decisions made at the same moment are spread because the draws are. More choices help while
   views are fresh and harm when they are old.
2. **Overlay.** An engine counts its own placements on top of the view until a view shows them. What it did itself it
   knows, so that only the other engines' placements are unknown to it, and those are spread by their own draws.
3. **The node decides.** An engine's choice is a proposal. The node admits by measured pressure or rejects, and the
   engine takes another: late binding, as in Sparrow (Ousterhout and others, SOSP 2013), Borg's and Omega's optimistic
   schedulers, and DeepSeek Elastic Compute (arXiv 2609.22978, section 7). Old views cost a round trip and never too
   much load.

The engine is a state machine without I/O, clock or randomness of its own. Somebody feeds it views (`observe`), asks
it (`place`), carries its placements to nodes, and tells it what became of them (`admitted`, `created`, `rejected`,
`failed`). It is the same object in a live service and in the simulator, and its decisions are determined by what it
was told and by the bits it drew.

::

    place ──► Placement ──► the node is asked ──► created            the sandbox is there
                 ▲                           ├──► rejected ──┐       it refused; nothing was done there
                 └───── another node ────────┴──► failed ────┘       it tried, or did not answer

An engine holds nothing that must survive it. Killed and started anew it knows the fleet after one round of views;
what it forgets is its overlay (for the length of one round), its trust, and the homes of tasks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from dsec.base.errors import InvalidStateError
from dsec.placement.affinity import NO_AFFINITY, AffinityMode, AffinityPolicy, Group, Groups
from dsec.placement.choice import choose, least_of_few
from dsec.placement.decision import Orphan, Placement, Reason, Refusal
from dsec.placement.doubts import Doubts
from dsec.placement.duplicates import Holder, keep_one
from dsec.placement.engine_statistics import EngineStatistics
from dsec.placement.fleet import Fleet, ShapeIndex
from dsec.placement.node_state import NO_TICKET, NodeState, Proposal
from dsec.placement.policy import PlacementPolicy
from dsec.placement.refusals import exhausted, explain
from dsec.placement.request import PlacementRequest
from dsec.placement.sampling import RandomBits
from dsec.placement.trust import smoothed
from dsec.placement.view import NodeView

_MASK = 0xFFFFFFFF
_CHOICE, _SCAN = (
    Reason.CHOICE,
    Reason.SCAN,
)  # Looking up a member of an enumeration is a call in this version of Python.


class PlacementEngine:
    """Choose nodes.

    Args:
        policy: how to choose.
        bits: source of random bits, such as `random.Random(7).getrandbits`.
        affinity: how far tasks keep together.
    """

    def __init__(
        self, bits: RandomBits, *, policy: PlacementPolicy | None = None, affinity: AffinityPolicy = NO_AFFINITY
    ) -> None:
        self.policy = policy or PlacementPolicy()
        self.affinity = affinity
        self.fleet = Fleet(self.policy)
        self._bits = bits
        self._groups = Groups()
        self._has_affinity = affinity.mode is not AffinityMode.OFF
        self._proposals: dict[str, Proposal] = {}
        self._answered: deque[Proposal] = deque()
        self._doubts = Doubts(self.policy.remembered)
        self._next_tick_s = float("-inf")
        self._usual_creation_s: float | None = None
        self._placed = self._scanned = self._rejected = self._failed = self._refused = 0

    # What is known of the nodes.

    def observe(self, view: NodeView, now_s: float, *, age_s: float = 0.0) -> bool:
        """Take a node's report.

        Args:
            view: the report.
            now_s: the engine's own clock.
            age_s: how long ago it was asked for, as measured by whoever asked; never a difference of two hosts' clocks.

        Returns:
            False when it is no newer than what is known, and nothing changed.
        """
        return self.fleet.observe(view, now_s, age_s)

    def forget(self, node: str) -> None:
        """Take a node out for good. Placements that it has not answered must be told as `failed` by whoever waits for
        them.
        """
        self.fleet.forget(node)

    def tick(self, now_s: float) -> None:
        """Let views age and trust recover. `place` does it every `tick_s`; call it where nothing is placed."""
        self._next_tick_s = now_s + self.policy.tick_s
        self.fleet.tick(now_s)

    # Decisions.

    def place(self, request: PlacementRequest, now_s: float) -> Placement | Refusal:
        """Choose a node for a sandbox.

        A sandbox that is placed already gets the same answer again, marked as repeated, and nothing is counted twice.
        """
        if now_s >= self._next_tick_s:
            self.tick(now_s)
        known = self._proposals.get(request.sandbox_id)
        if known is not None:
            return _placement(known, repeated=True)
        index = self.fleet.index(request.shape)
        if self._has_affinity and (group := self.affinity.group(request)):
            return self._place_in_group(self._groups.get(group), index, request, now_s)
        nodes, increment = index.nodes, index.increment
        limit = len(nodes)
        if limit < 3:
            return self._place_by_choice(index, request, (), now_s)
        if self.policy.choices == 2:
            # The common case of `least_of_few`, written out: the same two nodes, drawn by the same bits.
            drawn = self._bits(64)
            first = ((drawn & _MASK) * limit) >> 32
            second = ((drawn >> 32) * (limit - 1)) >> 32
            node, other = nodes[first], nodes[second + (second >= first)]
            load, other_load = node.rank_with(increment), other.rank_with(increment)
            if other_load < load:
                node, load = other, other_load
            if node.own_weight != 1:
                load = node.load_with(increment)
        else:
            node = least_of_few(nodes, increment, self.policy.choices, self._bits)
            load = node.load_with(increment)
        if load > 1.0:
            return self._place_by_choice(index, request, (), now_s, draws=self.policy.draws - 1)
        return self._send(index, request, node, load, _CHOICE, (), now_s)

    def _place_by_choice(
        self,
        index: ShapeIndex,
        request: PlacementRequest,
        tried: tuple[str, ...],
        now_s: float,
        draws: int | None = None,
    ) -> Placement | Refusal:
        chosen = self._choose(index, tried, self.policy.draws if draws is None else draws)
        if chosen is None:
            return self._refuse(index, request, tried, now_s)
        node, reason = chosen
        return self._send(index, request, node, node.load_with(index.increment), reason, tried, now_s)

    def _choose(self, index: ShapeIndex, tried: tuple[str, ...], draws: int) -> tuple[NodeState, Reason] | None:
        if not tried and index.refusal is not None:
            return None
        nodes = [node for node in index.nodes if node.name not in tried] if tried else index.nodes
        return choose(nodes, index.increment, choices=self.policy.choices, draws=draws, bits=self._bits)

    def _place_in_group(
        self, group: Group, index: ShapeIndex, request: PlacementRequest, now_s: float, tried: tuple[str, ...] = ()
    ) -> Placement | Refusal:
        home = self._home(group, index, tried)
        if home is None:
            return self._settle_group(group, self._place_by_choice(index, request, tried, now_s))
        node, load = home
        if load > self.affinity.max_load_threshold and group.may_spill(self.affinity):
            chosen = self._choose(index, tried, self.policy.draws)
            other = chosen[0] if chosen is not None else node
            other_load = other.load_with(index.increment)
            if other_load < load and other.name not in group.homes:
                group.count(True)
                return self._send(index, request, other, other_load, Reason.SPILL, tried, now_s)
        group.count(False)
        return self._send(index, request, node, load, Reason.HOME, tried, now_s)

    def _home(self, group: Group, index: ShapeIndex, tried: tuple[str, ...]) -> tuple[NodeState, float] | None:
        """Return the least loaded home with room, and what its load becomes."""
        best: tuple[NodeState, float] | None = None
        for name in group.homes:
            state = self.fleet.get(name)
            if state is None or name in tried or not index.holds(state):
                continue
            load = state.load_with(index.increment)
            if load <= 1.0 and (best is None or load < best[1]):
                best = state, load
        return best

    def _settle_group(self, group: Group, outcome: Placement | Refusal) -> Placement | Refusal:
        if isinstance(outcome, Placement):
            group.count(False)
            if outcome.node not in group.homes:
                group.homes.append(outcome.node)
        return outcome

    def _send(
        self,
        index: ShapeIndex,
        request: PlacementRequest,
        node: NodeState,
        load: float,
        reason: Reason,
        tried: tuple[str, ...],
        now_s: float,
    ) -> Placement:
        proposal = Proposal(request, node, index.increment, len(tried) + 1, load, reason, tried, now_s)
        node.add(proposal)
        self._proposals[request.sandbox_id] = proposal
        if self._doubts:
            self._doubts.settle(request.sandbox_id, node.name)
        self._placed += 1
        if reason is _SCAN:
            self._scanned += 1
        return Placement(
            sandbox_id=request.sandbox_id, node=node.name, number=proposal.number, load=load, reason=reason
        )

    def _refuse(self, index: ShapeIndex, request: PlacementRequest, tried: tuple[str, ...], now_s: float) -> Refusal:
        self._refused += 1
        if not tried and (known := index.refusal) is not None:
            return Refusal(sandbox_id=request.sandbox_id, why=known.why, brief=known.brief, detail=known.detail)
        refusal = explain(self.fleet, index, request, tried, now_s)
        if not tried:
            self.fleet.refuse(index, refusal)
        return refusal

    # What nodes answered.

    def admitted(self, sandbox_id: str, node: str, ticket: int, now_s: float) -> None:
        """Note that a node took the creation and gave it a number; the sandbox is not there yet."""
        proposal = self._proposals.get(sandbox_id)
        if proposal is not None and proposal.node.name == node:
            proposal.ticket = ticket
            self.fleet.heard(proposal.node, now_s)
            if ticket <= proposal.node.view.creations_seen:
                self._forget_if_shown(proposal)

    def created(
        self,
        sandbox_id: str,
        node: str,
        now_s: float,
        *,
        ticket: int | None = None,
        view: NodeView | None = None,
    ) -> Orphan | None:
        """Note that the sandbox is there.

        Args:
            sandbox_id, node: what was created where.
            now_s: the engine's clock.
            ticket: the node's number for the creation, if it gives one.
            view: the node's report, if it sent one with its answer.

        Returns:
            What to remove, when the answer came too late and the sandbox has gone elsewhere or is not wanted any more.
        """
        state = self.fleet.get(node)
        if state is not None:
            self.fleet.heard(state, now_s)
        proposal = self._proposals.get(sandbox_id)
        if proposal is None or proposal.node.name != node:
            proposal = None
            orphan = self._doubts.late(sandbox_id, node, now_s)
        else:
            orphan = None
            self._succeeded(proposal, now_s, ticket)
        if view is not None:
            self.fleet.observe(view, now_s, 0.0)
        if proposal is not None and proposal.ticket <= proposal.node.view.creations_seen:
            self._forget_if_shown(proposal)
        return orphan

    def _succeeded(self, proposal: Proposal, now_s: float, ticket: int | None) -> None:
        if ticket is not None:
            proposal.ticket = ticket
        if proposal.accepted_at_s is not None:
            return
        proposal.accepted_at_s = now_s
        took_s = max(0.0, now_s - proposal.placed_at_s)
        node, usual_s, policy = proposal.node, self._usual_creation_s, self.policy.trust
        before = node.trust.score
        node.trust.succeeded(took_s, usual_s, policy)
        # A slow node may be a large part of the fleet: bounded, it moves the usual time little.
        most_s = max(2.0 * (usual_s or 0.0), policy.slow_least_s)
        self._usual_creation_s = smoothed(usual_s, took_s if took_s < most_s else most_s)
        if node.trust.score != before or not node.offered:
            self.fleet.reconsider(node, now_s)
        answered = self._answered
        answered.append(proposal)
        while len(answered) > self.policy.remembered:
            oldest = answered.popleft()
            sandbox_id = oldest.request.sandbox_id
            if self._proposals.get(sandbox_id) is oldest:  # Its id may be in use again.
                del self._proposals[sandbox_id]

    def _forget_if_shown(self, proposal: Proposal) -> None:
        shown = proposal.ticket != NO_TICKET and proposal.node.view.creations_seen >= proposal.ticket
        if shown and self._lighten(proposal):
            self.fleet.learn(0, 1)

    def _lighten(self, proposal: Proposal) -> bool:
        dropped = proposal.node.drop(proposal)
        if dropped:
            self.fleet.lightened(proposal.node)
        return dropped

    def rejected(
        self, sandbox_id: str, node: str, now_s: float, *, view: NodeView | None = None
    ) -> Placement | Refusal:
        """Take another node, because this one refused and did nothing; never one that was tried for this sandbox.

        Raises:
            InvalidStateError: the sandbox was not sent to this node, or the node has taken it.
        """
        proposal = self._waiting(sandbox_id, node)
        self._rejected += 1
        proposal.node.trust.rejected(proposal.load, self.policy.trust)
        self.fleet.heard(proposal.node, now_s)
        self._withdraw(proposal, now_s)
        if view is not None:
            self.fleet.observe(view, now_s, 0.0)
        return self._elsewhere(proposal, now_s)

    def failed(
        self,
        sandbox_id: str,
        node: str,
        now_s: float,
        *,
        elsewhere: bool = True,
        may_exist: bool = True,
        blame: bool = True,
    ) -> Placement | Refusal:
        """Try again, because this node failed or did not answer.

        Args:
            sandbox_id, node: what failed where.
            now_s: the engine's clock.
            elsewhere: take a node that was not tried; otherwise the same one again, if it still takes sandboxes.
            may_exist: whether the sandbox may be there all the same; it is removed when the node is heard of again.
            blame: whether it is the node's fault.

        Raises:
            InvalidStateError: the sandbox was not sent to this node, or the node has taken it.
        """
        proposal = self._waiting(sandbox_id, node)
        self._failed += 1
        if blame:
            proposal.node.trust.failed(now_s, self.policy.trust)
        self._withdraw(proposal, now_s)
        if not elsewhere and proposal.node.offered:
            return self._same_again(proposal, now_s)
        if may_exist:
            reason = "the creation was not answered, and the sandbox was placed elsewhere"
            self._doubts.note(sandbox_id, node, reason, now_s)
        return self._elsewhere(proposal, now_s)

    def _same_again(self, proposal: Proposal, now_s: float) -> Placement:
        index = self.fleet.index(proposal.request.shape)
        reason = Reason.SPILL if proposal.reason is Reason.SPILL else Reason.AGAIN
        if group := self.affinity.group(proposal.request):
            self._groups.get(group).count(reason is Reason.SPILL)
        load = proposal.node.load_with(index.increment)
        return self._send(index, proposal.request, proposal.node, load, reason, proposal.tried, now_s)

    def _elsewhere(self, proposal: Proposal, now_s: float) -> Placement | Refusal:
        tried = (*proposal.tried, proposal.node.name)
        if len(tried) >= self.policy.rejections:
            self._refused += 1
            return exhausted(proposal.request, tried)
        index = self.fleet.index(proposal.request.shape)
        group = self.affinity.group(proposal.request)
        if group:
            return self._place_in_group(self._groups.get(group), index, proposal.request, now_s, tried)
        return self._place_by_choice(index, proposal.request, tried, now_s)

    def _withdraw(self, proposal: Proposal, now_s: float) -> None:
        self._proposals.pop(proposal.request.sandbox_id, None)
        if group := self.affinity.group(proposal.request):
            self._groups.get(group).uncount(proposal.reason is Reason.SPILL)
        proposal.node.drop(proposal)
        self.fleet.reconsider(proposal.node, now_s)

    def withdraw(self, sandbox_id: str, now_s: float, *, blame: bool = False) -> Orphan | None:
        """Forget a placement that nobody wants any more, or whose failure is reported.

        Args:
            sandbox_id: whose placement.
            now_s: the engine's clock.
            blame: whether it is withdrawn because its node failed.

        Returns:
            What to remove, as the node may have it; the same is remembered for when the node is heard of again.
        """
        proposal = self._proposals.get(sandbox_id)
        if proposal is None:
            return None
        if blame:
            self._failed += 1
            proposal.node.trust.failed(now_s, self.policy.trust)
        self._withdraw(proposal, now_s)
        reason = "its failure was reported" if blame else "the request was withdrawn"
        self._doubts.note(sandbox_id, proposal.node.name, reason, now_s)
        return Orphan(sandbox_id=sandbox_id, node=proposal.node.name, reason=reason)

    def ended(self, sandbox_id: str) -> None:
        """Forget a sandbox that is gone, so that its id may be used anew."""
        proposal = self._proposals.pop(sandbox_id, None)
        if proposal is not None and proposal in proposal.node.recent:
            self._lighten(proposal)

    # What is left over.

    def reconcile(self, node: str, held: frozenset[str], now_s: float) -> tuple[Orphan, ...]:
        """Return which claims to withdraw from a node that reports to hold these sandboxes.

        Only what this engine itself sent there and then gave up. A sandbox that it knows nothing of may be another
        engine's, or its own from before it was started anew, and is left alone. One that it placed elsewhere, and that
        another engine has here, is a duplicate on which the owner of the shard rules (`rule_on`).
        """
        return self._doubts.seen(node, held, now_s)

    def rule_on(self, sandbox_id: str, holders: Iterable[Holder]) -> tuple[Orphan, ...]:
        """Return what to remove, whoever claims it, when several nodes hold one sandbox.

        What this engine told its caller is kept. Call it only for sandboxes whose shard this engine's instance owns
        and which several reports in a row have shown twice: a duplicate is often about to be cleared up by itself.
        """
        proposal = self._proposals.get(sandbox_id)
        known = proposal.node.name if proposal is not None and proposal.accepted_at_s is not None else None
        verdict = [
            msgspec.structs.replace(holder, handed_out=holder.handed_out or holder.node == known) for holder in holders
        ]
        _, orphans = keep_one(sandbox_id, verdict)
        return orphans

    def _current(self, sandbox_id: str, node: str) -> Proposal | None:
        proposal = self._proposals.get(sandbox_id)
        return proposal if proposal is not None and proposal.node.name == node else None

    def _waiting(self, sandbox_id: str, node: str) -> Proposal:
        proposal = self._current(sandbox_id, node)
        if proposal is None or proposal.accepted_at_s is not None:
            raise InvalidStateError(
                f"{sandbox_id} is not being created on {node}",
                detail="it was not sent there, was answered already, or has gone elsewhere",
                resolution="tell each answer once, and ignore those of nodes that were given up",
            )
        return proposal

    def statistics(self) -> EngineStatistics:
        """Return what the engine did so far."""
        return EngineStatistics(
            nodes=len(self.fleet),
            offered=sum(state.offered for state in self.fleet),
            open=sum(proposal.accepted_at_s is None for proposal in self._proposals.values()),
            placed=self._placed,
            scanned=self._scanned,
            rejected=self._rejected,
            failed=self._failed,
            refused=self._refused,
            own_weight=self.fleet.others.weight,
            usual_creation_s=self._usual_creation_s,
        )


def _placement(proposal: Proposal, *, repeated: bool) -> Placement:
    return Placement(
        sandbox_id=proposal.request.sandbox_id,
        node=proposal.node.name,
        number=proposal.number,
        load=proposal.load,
        reason=proposal.reason,
        repeated=repeated,
    )
