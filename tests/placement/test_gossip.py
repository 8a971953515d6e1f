"""Instances come to know the same views, whatever is lost, cut off, late or wrong about the time."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from itertools import chain

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.placement.gossip import AgedView, Gossip, GossipPolicy, Message, Updates
from dsec.placement.shards import ShardTable, first_table
from dsec.placement.view import Capacity, NodeView, Usage

CAPACITY = Capacity(cpu_millis=1000, memory_bytes=1000, disk_bytes=1000, sandboxes=10, creations=10)


def view(node: str, version: int, *, incarnation: int = 1, used: int = 0) -> NodeView:
    return NodeView(node=node, capacity=CAPACITY, used=Usage(sandboxes=used), incarnation=incarnation, version=version)


class Network:
    """Instances, each with a clock of its own, and messages that arrive at once or never."""

    def __init__(self, size: int, *, seed: int = 1, policy: GossipPolicy | None = None, shards: bool = False) -> None:
        self.random = random.Random(seed)
        names = [f"s{number}" for number in range(size)]
        table = first_table(names) if shards else None
        self.instances = {
            name: Gossip(name, random.Random(number).getrandbits, policy=policy, shards=table)
            for number, name in enumerate(names)
        }
        self.offset_s = {name: self.random.uniform(-3600.0, 3600.0) for name in names}
        self.now_s = 10_000.0
        self.largest_bytes = 0
        self.reachable: Callable[[str, str], bool] = lambda _one, _other: True

    def clock_s(self, name: str) -> float:
        return self.now_s + self.offset_s[name]

    def deliver(self, message: Message, to: str) -> None:
        self.largest_bytes = max(self.largest_bytes, len(msgspec.json.encode(message)))
        if self.reachable(message.sender, to):
            answer, _ = self.instances[to].receive(message, self.clock_s(to))
            if answer is not None:
                self.deliver(answer, message.sender)

    def round(self, names: Iterable[str] | None = None) -> None:
        self.now_s += 1.0
        for name in names or self.instances:
            peer = self.instances[name].choose_peer(self.instances)
            if peer is not None:
                self.deliver(self.instances[name].begin(self.clock_s(name)), peer)

    def known(self, name: str) -> dict[str, tuple[int, int]]:
        views = (aged.view for aged in self.instances[name].views(self.clock_s(name)))
        return {view.node: (view.incarnation, view.version) for view in views}

    def agree(self) -> bool:
        return len({tuple(sorted(self.known(name).items())) for name in self.instances}) == 1


VIEWS = st.builds(
    view,
    st.integers(0, 12).map(lambda number: f"n{number}"),
    st.integers(0, 9),
    incarnation=st.integers(1, 3),
)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 4), VIEWS), max_size=40), st.integers(0, 2**16))
def test_everybody_ends_up_with_the_newest_view_of_every_node(seen: list[tuple[int, NodeView]], seed: int) -> None:
    network = Network(5, seed=seed, policy=GossipPolicy(digest_entries=4))
    newest: dict[str, tuple[int, int]] = {}
    for number, one in seen:
        network.instances[f"s{number}"].observe(one, network.clock_s(f"s{number}"))
        newest[one.node] = max(newest.get(one.node, (0, 0)), (one.incarnation, one.version))
    for _ in range(40):
        network.round()
    assert all(network.known(name) == newest for name in network.instances)


@settings(max_examples=50)
@given(st.lists(VIEWS, max_size=12), st.randoms(use_true_random=False))
def test_the_order_and_number_of_deliveries_do_not_matter(seen: list[NodeView], source: random.Random) -> None:
    one, other = Gossip("a", source.getrandbits), Gossip("b", source.getrandbits)
    for each in seen:
        one.observe(each, 0.0)
    twice = [*seen, *seen]
    source.shuffle(twice)
    for each in twice:
        other.observe(each, 0.0)
    assert [aged.view.version for aged in one.views(0.0)] == [aged.view.version for aged in other.views(0.0)]


def test_two_sides_of_a_partition_become_equal_after_it_heals() -> None:
    network = Network(8)
    side = {name: number % 2 for number, name in enumerate(network.instances)}
    network.reachable = lambda one, other: side[one] == side[other]
    for number, name in enumerate(network.instances):
        network.instances[name].observe(view(f"n{number}", 1), network.clock_s(name))
        network.instances[name].observe(view("shared", number), network.clock_s(name))
    for _ in range(30):
        network.round()
    assert not network.agree()
    assert network.known("s0")["shared"] == (1, 6)
    network.reachable = lambda _one, _other: True
    for _ in range(12):
        network.round()
    assert network.agree()
    assert network.known("s0")["shared"] == (1, 7)
    assert len(network.known("s0")) == 9


def test_news_reach_sixteen_instances_in_a_few_rounds() -> None:
    network = Network(16)
    network.instances["s0"].observe(view("n", 1), network.clock_s("s0"))
    rounds = 0
    while not network.agree():
        network.round()
        rounds += 1
    # log2 16 + ln 16 is 6.8; an exchange goes both ways, so that fewer are usual.
    assert rounds <= 8


def test_losing_half_of_all_messages_only_delays() -> None:
    network = Network(6)
    network.reachable = lambda _one, _other: network.random.random() < 0.5
    for number, name in enumerate(network.instances):
        network.instances[name].observe(view(f"n{number}", 1), network.clock_s(name))
    for _ in range(40):
        network.round()
    assert network.agree()


def test_no_message_is_larger_than_the_bound_and_all_views_still_arrive() -> None:
    policy = GossipPolicy(message_bytes=16_000, digest_entries=100)
    network = Network(3, policy=policy, shards=True)
    features = frozenset(f"feature-{number}" for number in range(20))
    for number in range(400):
        one = msgspec.structs.replace(view(f"node-{number}", 1), features=features)
        network.instances["s0"].observe(one, network.clock_s("s0"))
    for _ in range(60):
        network.round()
    assert network.agree()
    assert len(network.known("s2")) == 400
    assert 12_000 < network.largest_bytes <= 16_000


def test_the_youngest_views_travel_first_when_not_all_fit() -> None:
    policy = GossipPolicy(message_bytes=16_000)
    giver, taker = Gossip("a", random.Random(1).getrandbits, policy=policy), Gossip("b", random.Random(2).getrandbits)
    for number in range(200):
        giver.observe(view(f"node-{number}", 1), 1000.0, age_s=float(number))
    answer, _ = giver.receive(taker.begin(0.0), 1000.0)
    assert answer is not None
    ages = [aged.age_s for aged in answer.views]
    assert ages == [float(number) for number in range(len(ages))]
    assert 10 < len(ages) < 200


@given(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6), st.floats(0, 100))
def test_ages_survive_clocks_that_are_hours_apart(one_s: float, other_s: float, age_s: float) -> None:
    giver, taker = Gossip("a", random.Random(1).getrandbits), Gossip("b", random.Random(2).getrandbits)
    giver.observe(view("n", 1), one_s, age_s=age_s)
    answer, _ = giver.receive(taker.begin(other_s), one_s)
    assert answer is not None
    _, news = taker.receive(answer, other_s)
    assert [aged.age_s for aged in news] == pytest.approx([age_s], abs=1e-3)
    assert [aged.age_s for aged in taker.views(other_s + 5.0)] == pytest.approx([age_s + 5.0], abs=1e-3)


@pytest.mark.parametrize("age_s", [-1.0, float("nan"), float("inf"), 1e9])
def test_a_senseless_age_is_not_believed(age_s: float) -> None:
    gossip = Gossip("a", random.Random(1).getrandbits)
    _, news = gossip.receive(Updates(sender="b", views=(AgedView(view=view("n", 1), age_s=age_s),)), 0.0)
    assert news == ()
    assert len(gossip) == 0


def test_a_view_that_nobody_renews_is_forgotten_everywhere_and_does_not_come_back() -> None:
    network = Network(4, policy=GossipPolicy(forget_s=100.0))
    network.instances["s0"].observe(view("gone", 1), network.clock_s("s0"))
    for _ in range(50):
        network.round()
    assert all("gone" in network.known(name) for name in network.instances)
    for _ in range(60):
        network.round()
    assert not any("gone" in network.known(name) for name in network.instances)


def members(network: Network, name: str) -> tuple[str, ...]:
    return network.instances[name].members(network.clock_s(name))


def test_an_instance_that_falls_silent_is_lost_to_all_and_its_shards_are_taken_over_once() -> None:
    network = Network(5, shards=True)
    for _ in range(15):
        network.round()
    assert all(len(members(network, name)) == 5 for name in network.instances)
    living = ["s0", "s1", "s2", "s3"]
    network.reachable = lambda one, other: "s4" not in (one, other)
    for _ in range(25):
        network.round(living)
        for name in living:
            network.instances[name].take_over(network.clock_s(name))
    assert all(members(network, name) == tuple(living) for name in living)
    tables = {network.instances[name].shards for name in living}
    assert len(tables) == 1
    (table,) = tables
    assert isinstance(table, ShardTable)
    assert [len(table.owned_by(name)) for name in living] == [5, 5, 5, 5]
    assert table.epoch == 2


def test_an_instance_that_comes_back_gets_shards_again() -> None:
    network = Network(3, shards=True)
    network.reachable = lambda one, other: "s2" not in (one, other)
    for _ in range(25):
        network.round()
        for name in network.instances:
            network.instances[name].take_over(network.clock_s(name))
    network.reachable = lambda _one, _other: True
    for _ in range(25):
        network.round()
        for name in network.instances:
            network.instances[name].take_over(network.clock_s(name))
    tables = {network.instances[name].shards for name in network.instances}
    assert len(tables) == 1
    owners = list(chain.from_iterable(table.owners for table in tables if table is not None))
    assert {owners.count(name) for name in network.instances} == {4}


def test_a_limit_that_could_not_carry_one_view_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        GossipPolicy(message_bytes=100)
    with pytest.raises(InvalidRequestError):
        Gossip("a", random.Random(1).getrandbits, shards=first_table(f"scheduler-{n}" for n in range(900)))


def test_no_peer_is_chosen_when_there_is_none() -> None:
    gossip = Gossip("a", random.Random(1).getrandbits)
    assert gossip.choose_peer(["a"]) is None
    assert gossip.choose_peer(["a", "b"]) == "b"
