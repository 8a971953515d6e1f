"""Places: who is asked for the next chunk without asking the tracker, and what the tracker makes of it."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import pytest

from dsec.distribution.messages import Candidate, FailureKind, VerdictKind
from dsec.distribution.places import MOST_BETWEEN_TURNS, Places, is_turn, turns_every
from dsec.distribution.policy import TrackerPolicy

LAYER, OTHER = "a" * 64, "b" * 64
PARENT = Candidate(node="p", address="http://p", pending=True)
HOLDER = Candidate(node="h", address="http://h")
IN_STEP = TrackerPolicy(news_s=0.2)
"""Few nodes speak to the tracker as seldom as hundreds do."""
MakeSwarm = Any
Swarm = Any


def chunk(number: int) -> str:
    return f"{number:064x}"


@pytest.fixture
def places() -> Places:
    found = Places()
    found.heed(0.5)
    assert found.every == 8
    return found


@pytest.fixture
def swarm(make_swarm: MakeSwarm) -> Swarm:
    """`b` follows `a`, which fetches from the origin; and one chunk in eight is a turn."""
    swarm = make_swarm(IN_STEP)
    swarm.join("a", "b", "c", "d")
    assert swarm.ask("a", 1).origin
    assert swarm.ask("b", 1).peers[0].node == "a"
    return swarm


def sent_to(swarm: Swarm, name: str) -> float:
    return float(swarm.tracker._members[name].sent_to_at(swarm.now_s))


# At the node.


@pytest.mark.parametrize(
    ("news_s", "every"), [(0.0, 1), (0.05, 1), (0.12, 2), (0.5, 8), (1.0, 16), (-1.0, 1), (1e300, MOST_BETWEEN_TURNS)]
)
def test_the_more_nodes_there_are_the_less_often_each_asks(news_s: float, every: int) -> None:
    assert turns_every(news_s) == every
    assert turns_every(math.inf) == MOST_BETWEEN_TURNS, "whatever the tracker says"


def test_what_is_a_turn_for_who_asks_seldom_is_one_for_who_asks_often() -> None:
    turns = {every: {number for number in range(512) if is_turn(chunk(number), every)} for every in (1, 4, 16)}
    assert turns[16] < turns[4] < turns[1]
    assert [len(found) for found in turns.values()] == [512, 128, 32]


def test_who_waited_for_a_chunk_at_a_parent_asks_it_for_the_next_ones_until_a_turn(places: Places) -> None:
    places.came(LAYER, chunk(1), PARENT, 0.1, 0.1)
    for number in range(2, 8):
        assert places.take(LAYER, chunk(number)) == PARENT
        places.came(LAYER, chunk(number), PARENT, 0.1, 0.1)
    assert places.take(OTHER, chunk(9)) is None
    assert places.take(LAYER, chunk(8)) is None
    assert places.take(LAYER, chunk(9)) is None, "the place is given up at a turn"


def test_few_nodes_ask_the_tracker_for_each_chunk(places: Places) -> None:
    places.heed(0.008)
    places.came(LAYER, chunk(1), PARENT, 0.1, 0.1)
    assert places.take(LAYER, chunk(2)) is None


def test_a_place_serves_one_chunk_at_a_time_and_is_lost_when_it_does_not_come(places: Places) -> None:
    places.came(LAYER, chunk(1), PARENT, 0.1, 0.1)
    assert places.take(LAYER, chunk(2)) == PARENT
    assert places.take(LAYER, chunk(3)) is None
    places.came(LAYER, chunk(2), HOLDER, 0.1, 0.1)
    places.over(chunk(2))
    assert places.take(LAYER, chunk(4)) is None


def test_who_is_not_in_step_with_others_soon_keeps_no_places(places: Places) -> None:
    lost_at = []
    for number in range(1, 400):
        name = chunk(8 * number + 1)
        if places.take(LAYER, name) is not None:
            lost_at.append(number)
        places.came(LAYER, name, HOLDER if number in lost_at else PARENT, 0.1, 0.1)
    assert [after - before for before, after in pairwise(lost_at)] == [9, 17, 33, 65, 129, 129]


def test_who_has_a_chunk_already_is_followed_from_a_turn_only(places: Places) -> None:
    places.came(LAYER, chunk(1), HOLDER, 0.1, 0.1)
    assert places.take(LAYER, chunk(2)) is None
    places.came(LAYER, chunk(8), HOLDER, 0.1, 0.1)
    found = places.take(LAYER, chunk(9))
    assert found is not None
    assert (found.node, found.pending) == ("h", True), "it may be fetching the next one"


def test_a_parent_that_falls_behind_is_left(places: Places) -> None:
    places.came(LAYER, chunk(1), PARENT, 0.6, 0.25)
    assert places.take(LAYER, chunk(2)) is None
    places.came(LAYER, chunk(1), PARENT, 0.6, 0.5)
    assert places.take(LAYER, chunk(2)) == PARENT, "where all are slow it is not behind"


def test_a_parent_that_gave_wrong_bytes_is_left(places: Places) -> None:
    places.came(LAYER, chunk(1), PARENT, 0.1, 0.1)
    places.leave("p")
    assert places.take(LAYER, chunk(2)) is None


def test_a_place_ends_although_no_turn_comes_and_few_are_remembered(places: Places) -> None:
    places.came(LAYER, chunk(1), PARENT, 0.1, 0.1)
    served = 0
    while places.take(LAYER, chunk(1)) is not None:
        places.came(LAYER, chunk(1), PARENT, 0.1, 0.1)
        served += 1
    assert served == 16
    for number in range(1000):
        places.came(f"{number:064x}", chunk(1), PARENT, 0.1, 0.1)
    assert len(places._of_layer) <= 64


# At the tracker.


def test_what_comes_unseen_is_laid_to_the_parent_once(swarm: Swarm) -> None:
    laid = sent_to(swarm, "a")
    assert laid == 8, "in advance, so that the next tree can be fair"
    swarm.gain("b", 1, 2, 3, 4, 5, 6, 7)
    assert sent_to(swarm, "a") == laid
    assert swarm.ask("b", 8).origin, "a turn: the place was used to its end"
    assert sent_to(swarm, "a") == laid


def test_what_was_not_taken_of_a_parent_is_not_laid_to_it(swarm: Swarm) -> None:
    swarm.gain("b", 1, 2)
    swarm.ask("b", 5)
    assert sent_to(swarm, "a") == 2


def test_a_node_that_asks_for_each_chunk_counts_as_it_did(swarm: Swarm) -> None:
    for number in range(9, 15):
        swarm.ask("a", number)
        assert swarm.ask("b", number).peers[0].node == "a"
        swarm.gain("b", number)
    swarm.ask("b", 15)
    assert sent_to(swarm, "a") == 7, "one for each that it was sent to for, and none that it was not"


def test_who_sent_most_lets_others_go_before_it_at_a_turn_once(swarm: Swarm) -> None:
    swarm.gain("b", *range(1, 8))
    stood_back = swarm.ask("a", 8)
    assert stood_back.wait_s > 0
    assert swarm.ask("b", 8).origin, "another one becomes the root"
    assert swarm.ask("a", 8).peers[0].node == "b"


def test_between_two_turns_followers_are_proposed_in_place_of_who_sent_most(swarm: Swarm) -> None:
    assert swarm.ask("a", 2).origin
    answer = swarm.ask("c", 2)
    assert [(peer.node, peer.pending) for peer in answer.peers] == [("b", True)], "it follows `a` unseen"
    again = swarm.ask("c", 2, ("b", FailureKind.MISSING))
    assert again.peers[0].node == "a", "one that does not says so"


def test_nobody_stands_back_for_nobody(swarm: Swarm) -> None:
    assert swarm.ask("a", 8).wait_s > 0
    assert swarm.ask("a", 8).origin


def test_who_followed_unseen_is_believed_when_its_parent_gave_something_wrong(swarm: Swarm) -> None:
    verdicts = swarm.accuse("b", "a", 2)
    assert [(each.kind, each.node) for each in verdicts] == [(VerdictKind.BLOCK_QUARANTINED, "a")]
    assert not swarm.accuse("b", "c", 2), "it was never sent there"
    assert not swarm.accuse("c", "a", 2), "it was not, either"


def test_a_place_is_good_for_so_many_accusations(swarm: Swarm) -> None:
    believed = sum(bool(swarm.accuse("b", "a", number, FailureKind.WRONG)) for number in range(300))
    assert believed <= 1 + MOST_BETWEEN_TURNS


def test_who_says_that_it_gained_much_makes_its_parent_look_no_busier_than_a_place_is_good_for(swarm: Swarm) -> None:
    swarm.gain("b", *range(1, 1000))
    assert sent_to(swarm, "a") <= 8 + MOST_BETWEEN_TURNS


def test_who_asks_again_and_again_lays_nothing_more_to_whom_it_is_sent(swarm: Swarm) -> None:
    swarm.ask("b", 8)
    before = sent_to(swarm, "b")
    swarm.gain("b", 8)
    for _ in range(50):
        assert swarm.ask("c", 8).peers
    assert sent_to(swarm, "b") <= before + 50 + 8


def test_nodes_that_go_are_followed_by_nobody_and_follow_nobody(swarm: Swarm) -> None:
    assert swarm.tracker._followings.followers("a") == 1
    swarm.tracker.withdraw("b")
    assert swarm.tracker._followings.followers("a") == 0
    swarm.ask("c", 1)
    swarm.pass_time(31.0)
    assert not swarm.tracker._followings._of_node
