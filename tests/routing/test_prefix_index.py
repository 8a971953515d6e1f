"""The index says who holds what: never more than was sent, never more than is allowed."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dsec.routing.prefix_index import Blocks, PrefixIndex, _Node


def index(*capacities: int, lifetimes_s: tuple[float | None, ...] | None = None) -> PrefixIndex:
    return PrefixIndex(capacities or (100, 100), lifetimes_s)


def test_says_for_all_backends_at_once_how_much_of_a_prompt_they_hold() -> None:
    tree = index(100, 100, 100)
    tree.insert((1, 2, 3, 4), 0, 0.0)
    tree.insert((1, 2, 7), 1, 0.0)
    assert tree.match((1, 2, 3, 9), 0.0) == [(3, 0b001), (2, 0b011)]
    assert tree.match((1, 2, 7, 8), 0.0) == [(3, 0b010), (2, 0b011)]
    assert tree.match((5, 1, 2), 0.0) == []
    assert tree.match((), 0.0) == []


def test_a_growing_conversation_stays_one_run() -> None:
    tree = index()
    for length in range(1, 60):
        tree.insert(tuple(range(length)), 0, float(length))
    assert len(list(nodes(tree))) == 1
    assert tree.held(tuple(range(100)), 0, 60.0) == 59


def test_what_was_used_longest_ago_goes_first_from_the_end_of_its_prompt() -> None:
    tree = index(6)
    tree.insert((1, 2, 3, 4), 0, 0.0)
    tree.insert((1, 2, 5, 6, 7), 0, 1.0)
    assert tree.blocks(0) == 6
    assert tree.held((1, 2, 5, 6, 7), 0, 1.0) == 5
    assert tree.held((1, 2, 3, 4), 0, 1.0) == 3
    tree.insert((1, 2, 3, 4), 0, 2.0)
    assert tree.held((1, 2, 3, 4), 0, 2.0) == 4
    assert tree.held((1, 2, 5, 6, 7), 0, 2.0) == 4


def test_a_prompt_longer_than_the_cache_is_held_in_part() -> None:
    tree = index(3)
    tree.insert(tuple(range(10)), 0, 0.0)
    assert tree.held(tuple(range(10)), 0, 0.0) == 3
    assert index(0).match((1,), 0.0) == []


def test_a_lifetime_counts_from_the_last_use() -> None:
    tree = index(100, 100, lifetimes_s=(300.0, None))
    for backend in (0, 1):
        tree.insert((1, 2, 3), backend, 0.0)
    tree.insert((1, 2), 0, 200.0)
    assert tree.match((1, 2, 3), 299.0) == [(3, 0b11)]
    assert tree.match((1, 2, 3), 301.0) == [(3, 0b10), (2, 0b11)]
    assert tree.match((1, 2, 3), 501.0) == [(3, 0b10)]
    assert tree.blocks(0) == 0


def test_a_report_of_less_takes_away_all_that_hung_on_it() -> None:
    tree = index()
    tree.insert((1, 2, 3, 4), 0, 0.0)
    tree.insert((1, 2, 3, 8, 9), 0, 1.0)
    tree.insert((1, 2, 3, 8, 9), 1, 1.0)
    tree.correct((1, 2, 3, 4), 0, 2)
    assert tree.match((1, 2, 3, 8, 9), 2.0) == [(5, 0b10), (2, 0b11)]
    assert tree.blocks(0) == 2
    tree.correct((1, 2), 0, 0)
    assert tree.blocks(0) == 0
    assert tree.blocks(1) == 5


def test_a_restarted_backend_holds_nothing() -> None:
    tree = index()
    for blocks in ((1, 2), (1, 3), (4,)):
        tree.insert(blocks, 0, 0.0)
        tree.insert(blocks, 1, 0.0)
    tree.drop(0)
    assert tree.blocks(0) == 0
    assert tree.match((1, 3), 0.0) == [(2, 0b10)]
    tree.drop(1)
    assert not list(nodes(tree))


def test_places_of_what_is_gone_do_not_pile_up() -> None:
    tree = index(50)
    for turn in range(2_000):
        tree.insert((1, 2, turn), 0, float(turn))
        tree.correct((1, 2, turn), 0, 0)
    assert len(tree._holders[0].queue) < 100


def nodes(tree: PrefixIndex) -> Iterator[_Node]:
    todo = list(tree._root.children.values())
    while todo:
        node = todo.pop()
        yield node
        todo += node.children.values()


def common(first: Blocks, second: Blocks) -> int:
    return next(
        (at for at, (one, two) in enumerate(zip(first, second, strict=False)) if one != two), len(first[: len(second)])
    )


prompts = st.lists(st.integers(0, 2), min_size=1, max_size=8).map(tuple)
BACKENDS = 3


class IndexMachine(RuleBasedStateMachine):
    """An index, and all that was ever sent to each backend since it last held nothing."""

    @initialize(
        capacities=st.lists(st.integers(0, 12), min_size=BACKENDS, max_size=BACKENDS),
        lifetimes=st.lists(st.none() | st.floats(1, 20), min_size=BACKENDS, max_size=BACKENDS),
    )
    def begin(self, capacities: list[int], lifetimes: list[float | None]) -> None:
        self.index = PrefixIndex(capacities, lifetimes)
        self.capacities, self.lifetimes = capacities, lifetimes
        self.sent: list[dict[Blocks, float]] = [{} for _ in range(BACKENDS)]
        self.now_s = 0.0

    @rule(blocks=prompts, backend=st.integers(0, BACKENDS - 1), pause_s=st.floats(0, 5))
    def insert(self, blocks: Blocks, backend: int, pause_s: float) -> None:
        self.now_s += pause_s
        self.index.match((), self.now_s)
        self.index.insert(blocks, backend, self.now_s)
        self.sent[backend][blocks] = self.now_s
        assert self.index.held(blocks, backend, self.now_s) >= min(len(blocks), self.capacities[backend])

    @rule(blocks=prompts, backend=st.integers(0, BACKENDS - 1), held=st.integers(0, 8))
    def correct(self, blocks: Blocks, backend: int, held: int) -> None:
        before = self.index.held(blocks, backend, self.now_s)
        self.index.correct(blocks, backend, held)
        assert self.index.held(blocks, backend, self.now_s) == min(before, held)

    @rule(backend=st.integers(0, BACKENDS - 1))
    def drop(self, backend: int) -> None:
        self.index.drop(backend)
        self.sent[backend].clear()
        assert self.index.blocks(backend) == 0

    @rule(blocks=prompts, pause_s=st.floats(0, 30))
    def look(self, blocks: Blocks, pause_s: float) -> None:
        """What is said to be held was sent, and not longer ago than it is kept."""
        self.now_s += pause_s
        levels = self.index.match(blocks, self.now_s)
        assert [length for length, _ in levels] == sorted({length for length, _ in levels}, reverse=True)
        for (_, deeper), (_, holders) in itertools.pairwise(levels):
            assert deeper & holders == deeper != holders
        for backend in range(BACKENDS):
            lifetime_s = self.lifetimes[backend] or 1e9
            kept = [common(blocks, sent) for sent, at_s in self.sent[backend].items() if at_s + lifetime_s > self.now_s]
            assert self.index.held(blocks, backend, self.now_s) <= max(kept, default=0)

    @invariant()
    def is_bounded_and_whole(self) -> None:
        if not hasattr(self, "index"):
            return
        held = [0] * BACKENDS
        for node in nodes(self.index):
            assert node.label
            assert node.claims, "a node that nobody holds"
            assert node.holders == sum(1 << backend for backend in node.claims)
            assert node.parent is not None
            assert node.parent.children[node.label[0]] is node
            if node.parent.parent is not None:
                assert node.claims.keys() <= node.parent.claims.keys()
            for backend, claim in node.claims.items():
                held[backend] += len(node.label)
                assert claim.below == sum(backend in child.claims for child in node.children.values())
                assert claim.queued or claim.below
        for backend in range(BACKENDS):
            assert held[backend] == self.index.blocks(backend) <= self.capacities[backend]
            assert len(self.index._holders[backend].queue) <= 64 + 2 * held[backend] + 2


TestIndex = IndexMachine.TestCase
TestIndex.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
