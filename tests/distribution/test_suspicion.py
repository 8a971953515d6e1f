"""Peers that lie, nodes that lie about peers, and what each of them can do at most."""

from __future__ import annotations

from typing import Any

import pytest

from dsec.distribution.messages import FailureKind, VerdictKind
from dsec.distribution.policy import ChoicePolicy, SuspicionPolicy, TrackerPolicy

Swarm = Any
MakeSwarm = Any
EVERYBODY = TrackerPolicy(choice=ChoicePolicy(candidates=64, sampled=64, fair_share=1000.0))
CHUNKS = range(1, 8)


def kinds(verdicts: list[Any]) -> list[VerdictKind]:
    return [verdict.kind for verdict in verdicts]


def fleet(make_swarm: MakeSwarm, holders: int = 6, askers: int = 6, policy: TrackerPolicy = EVERYBODY) -> Swarm:
    swarm = make_swarm(policy)
    swarm.join(*(f"h{number}" for number in range(holders)), has=tuple(CHUNKS), slots=64)
    swarm.join(*(f"n{number}" for number in range(askers)))
    return swarm


def accuse(swarm: Swarm, reporter: str, peer: str, number: int) -> list[VerdictKind]:
    """Be sent there, and complain."""
    assert peer in [each.node for each in swarm.ask(reporter, number).peers]
    return kinds(swarm.accuse(reporter, peer, number))


def proposed(swarm: Swarm, asker: str, number: int) -> set[str]:
    return {peer.node for peer in swarm.ask(asker, number).peers}


def test_a_bad_block_is_taken_from_nobody_else_at_once(make_swarm: MakeSwarm) -> None:
    swarm = fleet(make_swarm)
    assert accuse(swarm, "n0", "h0", 1) == [VerdictKind.BLOCK_QUARANTINED]
    assert "h0" not in proposed(swarm, "n1", 1)
    assert "h0" in proposed(swarm, "n1", 2)


def test_a_peer_whose_blocks_are_bad_goes_into_quarantine_when_several_say_so(make_swarm: MakeSwarm) -> None:
    swarm = fleet(make_swarm)
    accuse(swarm, "n0", "h0", 1)
    accuse(swarm, "n0", "h0", 2)
    assert VerdictKind.PEER_QUARANTINED in accuse(swarm, "n1", "h0", 3)
    assert "h0" not in proposed(swarm, "n2", 7)


def test_one_accuser_alone_shuns_a_peer_for_itself_only(make_swarm: MakeSwarm) -> None:
    swarm = fleet(make_swarm)
    for number in (1, 2, 3):
        assert accuse(swarm, "n0", "h0", number) == [VerdictKind.BLOCK_QUARANTINED]
    assert "h0" not in proposed(swarm, "n0", 7)
    assert "h0" in proposed(swarm, "n1", 7)


def test_a_quarantine_ends_and_comes_back_at_the_first_new_fault_twice_as_long(make_swarm: MakeSwarm) -> None:
    swarm = fleet(make_swarm)
    accuse(swarm, "n0", "h0", 1)
    accuse(swarm, "n0", "h0", 2)
    accuse(swarm, "n1", "h0", 3)
    first_s = swarm.policy.suspicion.quarantine_s
    for _ in range(5):
        swarm.pass_time(first_s / 5 + 0.1)
    assert "h0" in proposed(swarm, "n2", 4)
    swarm.accuse("n2", "h0", 4)
    assert "h0" not in proposed(swarm, "n3", 5)
    for _ in range(5):
        swarm.pass_time(first_s / 5 + 0.1)
    assert "h0" not in proposed(swarm, "n3", 5)


def test_a_restart_absolves_nobody(make_swarm: MakeSwarm) -> None:
    swarm = fleet(make_swarm)
    accuse(swarm, "n0", "h0", 1)
    accuse(swarm, "n0", "h0", 2)
    accuse(swarm, "n1", "h0", 3)
    swarm.tracker.withdraw("h0")
    swarm.join("h0", has=tuple(CHUNKS), slots=64)
    assert "h0" not in proposed(swarm, "n2", 7)


def test_who_accuses_many_that_nobody_else_finds_fault_with_is_not_believed(make_swarm: MakeSwarm) -> None:
    swarm = fleet(make_swarm)
    verdicts = [accuse(swarm, "n0", f"h{number}", 1) for number in range(4)]
    assert verdicts[-1] == [VerdictKind.REPORTER_DISTRUSTED]
    # Also what it said before is struck out, for everybody but itself.
    assert proposed(swarm, "n1", 1) == {f"h{number}" for number in range(6)}
    assert proposed(swarm, "n0", 1) <= {"h4", "h5"}
    assert accuse(swarm, "n0", "h4", 2) == []


def test_what_a_liar_said_stays_struck_out_when_it_is_believed_again(make_swarm: MakeSwarm) -> None:
    suspicion = SuspicionPolicy(distrust_s=20.0)
    swarm = fleet(make_swarm, policy=TrackerPolicy(choice=EVERYBODY.choice, suspicion=suspicion))
    for number in range(4):
        accuse(swarm, "n0", f"h{number}", 1)
    for _ in range(3):
        swarm.pass_time(10.0)
    assert proposed(swarm, "n1", 1) == {f"h{number}" for number in range(6)}


def test_who_was_not_sent_there_accuses_for_itself_only(make_swarm: MakeSwarm) -> None:
    swarm = fleet(make_swarm)
    assert swarm.accuse("n0", "h0", 1) == []
    assert "h0" in proposed(swarm, "n1", 1)
    assert "h0" not in proposed(swarm, "n0", 1)


def test_an_accusation_counts_also_when_the_chunk_came_from_another_meanwhile(make_swarm: MakeSwarm) -> None:
    swarm = fleet(make_swarm)
    assert "h0" in proposed(swarm, "n0", 1)
    swarm.gain("n0", 1)
    assert kinds(swarm.accuse("n0", "h0", 1)) == [VerdictKind.BLOCK_QUARANTINED]


def test_a_stranger_who_accuses_everybody_changes_nothing(make_swarm: MakeSwarm) -> None:
    swarm = fleet(make_swarm)
    for holder in range(6):
        for number in CHUNKS:
            assert swarm.accuse("stranger", f"h{holder}", number) == []
    assert proposed(swarm, "n1", 1) == {f"h{number}" for number in range(6)}


def test_honest_accusers_of_many_bad_peers_are_believed(make_swarm: MakeSwarm) -> None:
    swarm = fleet(make_swarm, holders=12)
    for holder in range(5):
        for reporter in ("n0", "n1"):
            assert VerdictKind.REPORTER_DISTRUSTED not in accuse(swarm, reporter, f"h{holder}", 1 + (reporter == "n1"))
    assert "h0" not in proposed(swarm, "n2", 1)


def test_conspirators_cannot_take_everybody_out(make_swarm: MakeSwarm) -> None:
    swarm = fleet(make_swarm, holders=12, askers=4)
    for holder in range(12):
        for number in CHUNKS:
            for reporter in ("n0", "n1"):
                swarm.ask(reporter, number)
                swarm.accuse(reporter, f"h{holder}", number)
    seen = swarm.tracker.statistics(swarm.now_s)
    assert len(seen.quarantined) <= swarm.policy.suspicion.quarantined_share * 16


def test_a_peer_that_does_not_answer_is_left_alone_for_a_while(make_swarm: MakeSwarm) -> None:
    swarm = fleet(make_swarm)
    verdicts = []
    for number in range(1, 6):
        reporter = f"n{number % 2}"
        swarm.ask(reporter, number)
        verdicts += kinds(swarm.accuse(reporter, "h0", number, FailureKind.STALLED))
        swarm.pass_time(swarm.policy.suspicion.pause_s + 0.1)
    assert verdicts == [VerdictKind.PEER_QUARANTINED]
    swarm.pass_time(swarm.policy.suspicion.pause_s + 0.1)
    assert "h0" in proposed(swarm, "n2", 7)


@pytest.mark.parametrize("kind", [FailureKind.MISSING, FailureKind.BUSY, FailureKind.BROKEN])
def test_what_is_nobodys_fault_is_held_against_nobody(make_swarm: MakeSwarm, kind: FailureKind) -> None:
    swarm = fleet(make_swarm)
    for number in CHUNKS:
        for asker in range(6):
            swarm.ask(f"n{asker}", number)
            assert swarm.accuse(f"n{asker}", "h0", number, kind) == []
    assert "h0" in proposed(swarm, "n0", 7)


def test_nobody_accuses_itself_out_of_the_swarm(make_swarm: MakeSwarm) -> None:
    swarm = fleet(make_swarm)
    assert swarm.accuse("h0", "h0", 1) == []
    assert "h0" in proposed(swarm, "n0", 1)


def test_a_liar_whom_a_few_believe_for_a_while_is_forgotten_in_time(make_swarm: MakeSwarm) -> None:
    swarm = fleet(make_swarm, policy=TrackerPolicy(choice=EVERYBODY.choice, suspicion=SuspicionPolicy(window_s=30.0)))
    accuse(swarm, "n0", "h0", 1)
    for _ in range(100):
        swarm.pass_time(10.0)
    assert "h0" in proposed(swarm, "n1", 1)
