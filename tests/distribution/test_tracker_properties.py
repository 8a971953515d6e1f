"""Whatever nodes say in whatever order, honest or not, what a tracker answers is of use and its memory is bounded."""

from __future__ import annotations

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dsec.distribution.messages import (
    Announcement,
    Answer,
    Failure,
    FailureKind,
    LayerChange,
    Lookup,
    Report,
)
from dsec.distribution.policy import ChoicePolicy, TrackerPolicy
from dsec.distribution.tracker import Tracker

LAYERS = ["a" * 64, "b" * 64]
CHUNKS = [f"{number:064x}" for number in range(5)]
NODES = [f"n{number}" for number in range(6)]
POLICY = TrackerPolicy(
    choice=ChoicePolicy(sampled=3, depth=4),
    nodes=5,
    chunks_a_node=4,
    entries=12,
    layers_a_node=2,
    flights_a_node=3,
    waiting=2,
    news_s=0.1,  # With one node each chunk is asked for, with five one in eight is a turn.
)

nodes = st.sampled_from(NODES)
chunks = st.sampled_from(CHUNKS)
layers = st.sampled_from(LAYERS)
some_chunks = st.lists(chunks, max_size=3, unique=True).map(tuple)
changes = st.lists(
    st.builds(LayerChange, layer=layers, complete=st.booleans(), gone=st.booleans(), gained=some_chunks,
              lost=some_chunks),
    max_size=2,
).map(tuple)  # fmt: skip
failures = st.lists(
    st.builds(Failure, peer=nodes, chunk=chunks, kind=st.sampled_from(FailureKind)), max_size=3
).map(tuple)  # fmt: skip


class AnyTracker(RuleBasedStateMachine):
    """Nodes that say anything; beside the tracker a plain record of what each has said."""

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.tracker = Tracker(POLICY, random.Random(seed).getrandbits)
        self.now_s = 0.0
        self.lives: dict[str, int] = {}
        self.sequences: dict[str, int] = {}
        self.slots: dict[str, int] = {}
        self.heard_s: dict[str, float] = {}

    @rule(node=nodes, full=st.booleans(), slots=st.integers(0, 2), gap=st.integers(0, 2), changes=changes)
    def announce(self, node: str, full: bool, slots: int, gap: int, changes: tuple[LayerChange, ...]) -> None:
        sequence = self.sequences.get(node, 0) + gap
        message = Announcement(
            node=node,
            address=f"http://{node}",
            life=str(self.lives.get(node, 0)),
            sequence=max(1, sequence),
            full=full,
            upload_bytes_per_s=1000,
            upload_slots=slots,
            changes=changes,
        )
        before = self.tracker.statistics(self.now_s)
        answer = self.tracker.announce(message, self.now_s)
        if answer.resend:
            assert self.tracker.statistics(self.now_s).entries <= before.entries
            return
        self.sequences[node] = max(message.sequence, self.sequences.get(node, 0))
        self.slots[node], self.heard_s[node] = slots, self.now_s
        again = self.tracker.announce(message, self.now_s)
        assert not again.resend

    @rule(node=nodes)
    def restart(self, node: str) -> None:
        self.lives[node] = self.lives.get(node, 0) + 1
        self.sequences[node] = 0

    @rule(node=nodes)
    def leave(self, node: str) -> None:
        self.tracker.withdraw(node)
        self.heard_s.pop(node, None)

    @rule(node=nodes, layer=layers, chunks=some_chunks, failures=failures)
    def look_up(self, node: str, layer: str, chunks: tuple[str, ...], failures: tuple[Failure, ...]) -> None:
        lookup = Lookup(node=node, layer=layer, chunks=chunks, failures=failures)
        reply = self.tracker.look_up(lookup, self.now_s)
        assert [answer.chunk for answer in reply.answers] == list(chunks)
        for answer in reply.answers:
            self._check(node, answer, {failure.peer for failure in failures if failure.chunk == answer.chunk})

    def _check(self, asker: str, answer: Answer, failed: set[str]) -> None:
        assert [bool(answer.peers), answer.origin, answer.wait_s > 0].count(True) == 1
        names = [peer.node for peer in answer.peers]
        assert len(set(names)) == len(names) <= POLICY.choice.candidates
        assert not any(peer.pending for peer in answer.peers[1:])
        for name in names:
            assert name != asker
            assert name not in failed
            assert self.slots[name] > 0
            assert self.now_s - self.heard_s[name] < POLICY.lease_s
            assert not self.tracker._suspicion.shuns(asker, name, answer.chunk, self.now_s)

    @rule(node=nodes, failures=failures)
    def report(self, node: str, failures: tuple[Failure, ...]) -> None:
        self.tracker.report(Report(node=node, failures=failures), self.now_s)
        for verdict in self.tracker.take_verdicts():
            assert verdict.until_s > self.now_s

    @rule(seconds=st.sampled_from([0.01, 1.0, 6.0, 20.0, 1000.0]), tick=st.booleans())
    def pass_time(self, seconds: float, tick: bool) -> None:
        self.now_s += seconds
        if tick:
            self.tracker.expire(self.now_s)

    @invariant()
    def memory_is_bounded_and_adds_up(self) -> None:
        if not hasattr(self, "tracker"):
            return
        seen = self.tracker.statistics(self.now_s)
        assert seen.nodes <= POLICY.nodes
        assert seen.entries <= POLICY.entries
        assert seen.flights <= POLICY.flights_a_node * len(NODES)
        holdings, flights = self.tracker._holdings, self.tracker._flights
        listed = [
            (node, layer, chunk)
            for node, layers in holdings._layers.items()
            for layer, chunks in layers.items()
            for chunk in chunks or ()
        ]
        assert len(listed) == seen.entries
        assert {(node, chunk) for node, _, chunk in listed} == {
            (node, chunk) for chunk, holders in holdings._of_chunk.items() for node in holders
        }
        followings = self.tracker._followings
        followed = [
            (following.parent, (node, layer))
            for node, mine in followings._of_node.items()
            for layer, following in mine.items()
            if not following.is_over
        ]
        assert sorted(followed) == sorted(
            (parent, each) for parent, followers in followings._followers.items() for each in followers
        )
        assert {node for _, (node, _) in followed} <= {member.name for member in self.tracker._members}
        assert all(member.sent_to >= 0 for member in self.tracker._members)
        all_flights = [flight for mine in flights._of_node.values() for flight in mine.values()]
        assert len(all_flights) == flights.count
        assert sum(flights._towards.values()) == sum(bool(flight.parent) for flight in all_flights)
        for flight in all_flights:
            assert flight.depth <= POLICY.choice.depth

    @invariant()
    def nobody_waits_in_a_circle(self) -> None:
        if not hasattr(self, "tracker"):
            return
        flights = self.tracker._flights
        for chunk in CHUNKS:
            for node in NODES:
                at, steps = flights.of(chunk, node), 0
                while at is not None and at.parent:
                    assert steps < len(NODES)
                    at, steps = flights.of(chunk, at.parent), steps + 1


TestAnyTracker = AnyTracker.TestCase
TestAnyTracker.settings = settings(max_examples=20, stateful_step_count=30, deadline=None)
