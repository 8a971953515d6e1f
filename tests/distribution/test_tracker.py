"""A tracker, as traces: who is told what."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest

from dsec.distribution.messages import Announcement, FailureKind, LayerChange, Lookup
from dsec.distribution.policy import ChoicePolicy, TrackerPolicy

LAYER = "a" * 64
GIGABIT = 125_000_000
MakeSwarm = Any
Swarm = Any


def name_of(number: int) -> str:
    return f"{number:064x}"


def test_the_first_who_asks_gets_the_origin_and_the_others_are_told_to_wait_for_it(swarm: Swarm) -> None:
    swarm.join("a", "b", "c")
    assert swarm.ask("a").origin
    for name in ("b", "c"):
        answer = swarm.ask(name)
        assert not answer.origin
        assert answer.peers[0].pending
    assert swarm.ask("b").peers[0].node in ("a", "c")


def test_five_hundred_who_ask_at_once_load_the_origin_once(make_swarm: MakeSwarm) -> None:
    swarm = make_swarm()
    names = [f"n{number}" for number in range(500)]
    swarm.join(*names)
    answers = [swarm.ask(name) for name in names]
    assert sum(answer.origin for answer in answers) == 1
    assert all(answer.peers for answer in answers if not answer.origin)
    followers = Counter(answer.peers[0].node for answer in answers if answer.peers)
    assert max(followers.values()) <= swarm.policy.choice.fanout


def test_those_who_wait_form_no_circle(make_swarm: MakeSwarm) -> None:
    swarm = make_swarm()
    names = [f"n{number}" for number in range(40)]
    swarm.join(*names)
    parents: dict[str, str] = {}
    for turn in range(6):
        for name in names[turn:] + names[:turn]:
            failures = [(parents[name], FailureKind.BUSY)] if parents.get(name) else []
            answer = swarm.ask(name, 1, *failures)
            parents[name] = answer.peers[0].node if answer.peers else ""
            assert not any(peer.pending for peer in answer.peers[1:])
    for name in names:
        seen = set()
        while name and name not in seen:
            seen.add(name)
            name = parents[name]
        assert not name


def test_holders_that_send_at_once_are_proposed_before_those_who_are_fetching(swarm: Swarm) -> None:
    swarm.join("a", has=(1,))
    swarm.join("b", "c", "d")
    assert swarm.ask("b").peers[0].node == "a"
    swarm.gain("b", 1)
    assert {swarm.ask("c").peers[0].node, swarm.ask("d").peers[0].node} == {"a", "b"}


def test_behind_slow_links_a_chunk_comes_through_a_chain_and_behind_fast_ones_from_who_has_it(
    make_swarm: MakeSwarm,
) -> None:
    slow, fast = make_swarm(), make_swarm()
    slow.join("a", has=(1,), bandwidth=GIGABIT // 10)
    slow.join("b", "c", "d", bandwidth=GIGABIT // 10)
    assert [slow.ask(name).peers[0].node for name in ("b", "c", "d")] == ["a", "b", "c"]
    fast.join("a", has=(1,), bandwidth=100 * GIGABIT)
    fast.join("b", "c", "d", bandwidth=100 * GIGABIT)
    assert [fast.ask(name).peers[0].node for name in ("b", "c", "d")] == ["a", "a", "a"]


def test_a_burst_does_not_fall_on_the_best_peer_alone(make_swarm: MakeSwarm) -> None:
    swarm = make_swarm()
    swarm.join("fast", has=(1,), bandwidth=10**10)
    swarm.join(*(f"s{number}" for number in range(7)), has=(1,), bandwidth=10**9)
    swarm.join(*(f"n{number}" for number in range(16)))
    asked = Counter(swarm.ask(f"n{number}").peers[0].node for number in range(16))
    assert asked["fast"] <= swarm.members["fast"].slots
    assert len(asked) >= 5


def test_weights_say_whether_bandwidth_or_load_counts(make_swarm: MakeSwarm) -> None:
    for weights, expected in (((1.0, 0.0), "fast"), ((0.0, 1.0), "idle")):
        choice = ChoicePolicy(bandwidth_weight=weights[0], load_weight=weights[1])
        swarm = make_swarm(TrackerPolicy(choice=choice))
        swarm.join("fast", has=(1,), bandwidth=10**10, uploads=3)
        swarm.join("idle", has=(1,), bandwidth=10**9)
        swarm.join("n")
        assert swarm.ask("n").peers[0].node == expected


def test_a_dead_grantee_stalls_nobody(swarm: Swarm) -> None:
    swarm.join("a", "b", "c")
    assert swarm.ask("a").origin
    assert swarm.ask("b").peers[0].node == "a"
    again = swarm.ask("b", 1, ("a", FailureKind.UNREACHABLE))
    assert again.origin or again.peers[0].node == "c"
    assert swarm.ask("c").peers[0].node in ("a", "b")


def test_a_grant_that_nothing_came_of_ends(swarm: Swarm) -> None:
    swarm.join("a", "b")
    assert swarm.ask("a").origin
    swarm.pass_time(swarm.policy.flight_s + 1)
    assert swarm.ask("b").origin


def test_a_tree_whose_root_brings_nothing_is_left_for_another(swarm: Swarm) -> None:
    swarm.join("a", "b", "c", "d")
    assert swarm.ask("a").origin
    assert swarm.ask("b").peers[0].node == "a"
    swarm.pass_time(swarm.policy.overdue_s + 0.1)
    assert swarm.ask("b", 1, ("a", FailureKind.BUSY)).origin
    assert swarm.ask("c").peers[0].node == "b"
    assert swarm.ask("d").peers[0].node in ("b", "c")


def test_an_origin_that_is_slow_for_all_is_waited_for(swarm: Swarm) -> None:
    swarm.join("a", "b")
    for number in range(30):
        assert swarm.ask("a", number).origin
        swarm.pass_time(2.0)
        swarm.gain("a", number)
    assert swarm.ask("a", 99).origin
    swarm.pass_time(4.0)
    assert swarm.ask("b", 99).peers[0].node == "a"


def test_no_more_than_a_few_go_to_the_origin_however_many_complain(make_swarm: MakeSwarm) -> None:
    swarm = make_swarm()
    names = [f"n{number}" for number in range(100)]
    swarm.join("a", *names)
    assert swarm.ask("a").origin
    granted = 0
    for name in names:
        answer = swarm.ask(name)
        for _ in range(3):
            if not answer.peers:
                break
            answer = swarm.ask(name, 1, (answer.peers[0].node, FailureKind.MISSING))
        granted += answer.origin
    assert granted <= swarm.policy.extra_grants


def test_what_a_node_gained_is_proposed_and_what_it_lost_is_not(swarm: Swarm) -> None:
    swarm.join("a", "b")
    swarm.gain("a", 1, 2)
    assert swarm.ask("b", 2).peers[0].node == "a"
    swarm.members["a"].held[LAYER].discard(name_of(2))
    swarm.members["a"].announcer.lost(LAYER, [name_of(2)])
    swarm.announce("a")
    assert swarm.ask("b", 2).origin
    assert swarm.ask("b", 1).peers[0].node == "a"


def test_a_layer_that_is_all_there_needs_no_list(swarm: Swarm) -> None:
    swarm.join("a", has=(1,))
    swarm.join("b")
    swarm.members["a"].held[LAYER] = None
    swarm.members["a"].announcer.completed(LAYER)
    swarm.announce("a")
    assert swarm.ask("b", 77).peers[0].node == "a"
    assert swarm.tracker.statistics(swarm.now_s).entries == 0
    swarm.members["a"].held.clear()
    swarm.members["a"].announcer.removed(LAYER)
    swarm.announce("a")
    assert swarm.ask("b", 78).origin


def test_a_chunk_that_two_layers_have_goes_with_the_last(swarm: Swarm) -> None:
    other = "b" * 64
    swarm.join("a", "b")
    swarm.gain("a", 1)
    member = swarm.members["a"]
    member.held[other] = {name_of(1)}
    member.announcer.gained(other, [name_of(1)])
    swarm.announce("a")
    for layer, there in ((LAYER, True), (other, False)):
        member.held.pop(layer)
        member.announcer.removed(layer)
        swarm.announce("a")
        assert bool(swarm.ask("b").peers) == there


def test_what_is_asked_for_ahead_is_told_of_holders_only_and_nobody_waits_for_it(swarm: Swarm) -> None:
    swarm.join("a", has=(1, 2))
    swarm.join("b", "c")
    assert swarm.ask("c", 3).origin
    lookup = Lookup(node="b", layer=LAYER, chunks=(name_of(1),), ahead=(name_of(2), name_of(3), name_of(4)))
    reply = swarm.tracker.look_up(lookup, swarm.now_s)
    assert [(answer.chunk, answer.peers[0].node) for answer in reply.ahead] == [(name_of(2), "a")]
    assert swarm.ask("c", 4).origin
    assert {peer.node for peer in swarm.ask("c", 2).peers} == {"a"}


def test_the_more_nodes_there_are_the_longer_they_gather_news(swarm: Swarm) -> None:
    swarm.join("a")
    few_s = swarm.announce("a").news_s
    swarm.join(*(f"n{number}" for number in range(99)))
    assert swarm.announce("a").news_s == pytest.approx(100 * few_s)


def test_a_lost_announcement_is_noticed_and_everything_is_told_again(swarm: Swarm) -> None:
    swarm.join("a", "b")
    member = swarm.members["a"]
    member.held[LAYER] = {name_of(1), name_of(2)}
    member.announcer.gained(LAYER, [name_of(1)])
    lost = member.announcer.make({}, upload_bytes_per_s=1, upload_slots=4, uploads=0)
    member.announcer._sent = None  # It was lost on the way, and its sender believes otherwise.
    assert lost.sequence == 2
    member.announcer.gained(LAYER, [name_of(2)])
    assert swarm.announce("a").resend
    assert [swarm.ask("b", number).peers[0].node for number in (1, 2)] == ["a", "a"]


def test_an_announcement_that_comes_twice_counts_once(swarm: Swarm) -> None:
    change = (LayerChange(layer=LAYER, gained=(name_of(1),)),)
    message = Announcement(node="a", address="x", life="l", sequence=1, full=True, upload_slots=1, changes=change)
    for _ in range(2):
        assert not swarm.tracker.announce(message, swarm.now_s).resend
    assert swarm.tracker.statistics(swarm.now_s).entries == 1


def test_nodes_announce_themselves_to_a_tracker_that_began_anew(swarm: Swarm) -> None:
    swarm.join("a", has=(1,))
    swarm.join("b")
    swarm.restart_tracker()
    reply = swarm.tracker.look_up(Lookup(node="b", layer=LAYER, chunks=(name_of(1),)), swarm.now_s)
    assert reply.resend
    assert reply.answers[0].origin
    assert swarm.announce("a").resend
    swarm.announce("b")
    assert swarm.ask("b").peers[0].node == "a"


def test_a_tracker_that_began_anew_does_not_send_everybody_to_the_origin(swarm: Swarm) -> None:
    answers = [swarm.ask(f"unknown-{number}") for number in range(20)]
    assert sum(answer.origin for answer in answers) == 1
    assert all(answer.wait_s > 0 for answer in answers if not answer.origin)


def test_who_says_nothing_is_forgotten_with_all_that_it_had(swarm: Swarm) -> None:
    swarm.join("a", has=(1,))
    swarm.now_s += swarm.policy.lease_s + 1
    swarm.join("b")
    assert swarm.ask("b").origin
    swarm.tracker.expire(swarm.now_s)
    seen = swarm.tracker.statistics(swarm.now_s)
    assert (seen.nodes, seen.entries, seen.chunks) == (1, 0, 0)


def test_a_new_life_replaces_the_old_one(swarm: Swarm) -> None:
    swarm.join("a", has=(1,))
    swarm.join("b")
    fresh = Announcement(node="a", address="y", life="second", sequence=1, full=True, upload_slots=4)
    assert not swarm.tracker.announce(fresh, swarm.now_s).resend
    assert swarm.ask("b").origin


def test_who_sends_nothing_is_proposed_to_nobody(swarm: Swarm) -> None:
    swarm.join("a", has=(1,), slots=0)
    swarm.join("b", "c")
    assert swarm.ask("b").origin
    assert swarm.ask("c").peers[0].node == "b"


def test_when_all_are_full_one_waits_and_the_origin_is_left_alone(make_swarm: MakeSwarm) -> None:
    swarm = make_swarm(TrackerPolicy(waiting=0, choice=ChoicePolicy(fanout=1)))
    swarm.join("a", has=(1,), slots=1)
    swarm.join("b", "c", "d", slots=0)
    assert swarm.ask("b").peers[0].node == "a"
    told = swarm.ask("c")
    # Nobody fetches it from the origin yet, so that one may.
    assert told.origin or told.wait_s > 0


def test_a_tracker_keeps_no_more_than_its_bounds(make_swarm: MakeSwarm) -> None:
    swarm = make_swarm(TrackerPolicy(nodes=3, chunks_a_node=10, entries=25, layers_a_node=2))
    for number in range(5):
        change = (LayerChange(layer=LAYER, gained=tuple(name_of(each) for each in range(50))),)
        message = Announcement(
            node=f"n{number}", address="x", life="l", sequence=1, full=True, upload_slots=1, changes=change
        )
        answer = swarm.tracker.announce(message, swarm.now_s)
        assert answer.resend or answer.unlisted >= 40
    seen = swarm.tracker.statistics(swarm.now_s)
    assert (seen.nodes, seen.entries) == (3, 25)


@pytest.mark.parametrize("seed", range(5))
def test_no_node_is_sent_to_much_more_often_than_others(make_swarm: MakeSwarm, seed: int) -> None:
    swarm = make_swarm(seed=seed)
    names = [f"n{number}" for number in range(8)]
    swarm.join(*names)
    sent: Counter[str] = Counter()
    for number in range(60):
        for name in names[number % 8 :] + names[: number % 8]:
            answer = swarm.ask(name, number)
            if answer.peers:
                sent[answer.peers[0].node] += 1
        for name in names:
            swarm.gain(name, number)
    assert max(sent.values()) <= 2 * sum(sent.values()) / len(names)


@pytest.mark.parametrize("seed", range(3))
def test_who_has_each_chunk_first_does_not_send_to_all(make_swarm: MakeSwarm, seed: int) -> None:
    swarm = make_swarm(seed=seed)
    names = [f"n{number}" for number in range(8)]
    swarm.join(*names)
    sent: Counter[str] = Counter()
    for number in range(60):
        swarm.gain("n0", number)
        for name in names[1:]:
            sent[swarm.ask(name, number).peers[0].node] += 1
            swarm.gain(name, number)
    assert sent["n0"] <= 2 * sum(sent.values()) / len(names)


@pytest.mark.parametrize("seed", range(3))
def test_who_says_that_it_is_fast_is_not_followed_by_everybody_in_step(make_swarm: MakeSwarm, seed: int) -> None:
    """All want the same chunks in the same order; each chunk comes through a chain, whoever is ahead."""
    swarm = make_swarm(seed=seed)
    names = [f"n{number}" for number in range(8)]
    swarm.join(*names[1:], bandwidth=GIGABIT // 10)
    swarm.join(names[0], bandwidth=1 << 40)
    chance = random.Random(seed)
    sent: Counter[str] = Counter()
    for number in range(60):
        chance.shuffle(names)
        for name in names:
            answer = swarm.ask(name, number)
            sent.update(peer.node for peer in answer.peers[:1])
        for name in names:
            swarm.gain(name, number)
        swarm.pass_time(0.5)
    mean = sum(sent.values()) / len(names)
    assert sent["n0"] <= 1.6 * mean
    assert max(sent.values()) <= 1.6 * mean
    assert min(sent.values()) >= 0.5 * mean
