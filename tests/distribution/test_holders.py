"""A node's side: what it announces, whom it asks, and what it sends."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.distribution.acquisition import Acquisition, Ask, LookUp, Pause, TakeOrigin
from dsec.distribution.announcer import Announcer
from dsec.distribution.choice import Offer, has_room, rank, score
from dsec.distribution.messages import Answer, Candidate, FailureKind
from dsec.distribution.policy import AcquisitionPolicy, ChoicePolicy, TrackerPolicy, UploadPolicy
from dsec.distribution.random_set import RandomSet
from dsec.distribution.tracker import Tracker
from dsec.distribution.uploads import Refused, Upload, Uploads

LAYER, OTHER = "a" * 64, "b" * 64
names = st.integers(0, 6).map(lambda number: f"{number:064x}")


def started(upload: Upload | Refused) -> Upload:
    assert isinstance(upload, Upload)
    return upload


# Choice.


def test_the_score_is_that_of_the_source() -> None:
    policy = ChoicePolicy()
    assert score(1.0, 0.0, policy) == pytest.approx(1.0)
    assert score(0.5, 0.25, policy) == pytest.approx(0.6 * 0.5 + 0.4 * 0.75)


offers = st.lists(
    st.builds(
        Offer,
        peer=st.integers(0, 99),
        bandwidth_bytes_per_s=st.sampled_from([0.0, 1e9, 3e9]),
        slots=st.integers(1, 4),
        transfers=st.integers(0, 8),
        sent_to=st.sampled_from([0.0, 1.0, 100.0]),
        depth=st.integers(0, 3),
    ),
    max_size=8,
)


@given(offers, st.integers(0, 2**32))
def test_ranking_loses_nobody_and_a_better_equal_comes_first(offers: list[Offer[int]], seed: int) -> None:
    ranked = rank(offers, ChoicePolicy(), random.Random(seed).getrandbits)
    assert sorted(map(id, ranked)) == sorted(map(id, offers))
    roomy = [offer for offer in ranked if has_room(offer) and not offer.sent_to]
    known = [offer.bandwidth_bytes_per_s for offer in offers if offer.bandwidth_bytes_per_s] or [1.0]

    def value(offer: Offer[int]) -> float:
        bandwidth = offer.bandwidth_bytes_per_s or sum(known) / len(known)
        return score(bandwidth / max(known), offer.transfers / offer.slots, ChoicePolicy())

    assert roomy == sorted(roomy, key=value, reverse=True)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9))), st.integers(1, 12), st.integers(0, 2**32))
@settings(max_examples=30)
def test_a_random_set_is_a_set(operations: list[tuple[bool, int]], count: int, seed: int) -> None:
    model: set[int] = set()
    tested: RandomSet[int] = RandomSet()
    for add, number in operations:
        (model.add if add else model.discard)(number)
        (tested.add if add else tested.discard)(number)
    assert set(tested) == model
    assert len(tested) == len(model)
    drawn = tested.draw(count, random.Random(seed).getrandbits) if model else []
    assert len(set(drawn)) == len(drawn) == min(count, len(model))


# Announcing.

steps = st.lists(
    st.tuples(st.sampled_from(["gain", "lose", "complete", "remove", "send", "lose-answer", "restart"]), names,
              st.sampled_from([LAYER, OTHER])),
    max_size=25,
)  # fmt: skip


@given(steps)
def test_a_tracker_knows_what_a_node_holds_whatever_was_lost_on_the_way(steps: list[tuple[str, str, str]]) -> None:
    """Also when answers are lost, and the tracker begins anew."""
    announcer = Announcer("a", "http://a", "life")
    tracker = Tracker(TrackerPolicy(), random.Random(1).getrandbits)
    held: dict[str, set[str] | None] = {}

    def send(*, answered: bool = True) -> None:
        message = announcer.make(held, upload_bytes_per_s=1, upload_slots=1, uploads=0)
        answer = tracker.announce(message, 0.0)
        if answered:
            announcer.acknowledged(message, answer)

    for what, chunk, layer in steps:
        if what == "gain" and held.get(layer, set()) is not None:
            held.setdefault(layer, set()).add(chunk)  # type: ignore[union-attr]
            announcer.gained(layer, [chunk])
        elif what == "lose" and held.get(layer):
            held[layer].discard(chunk)  # type: ignore[union-attr]
            announcer.lost(layer, [chunk])
        elif what == "complete":
            held[layer] = None
            announcer.completed(layer)
        elif what == "remove":
            held.pop(layer, None)
            announcer.removed(layer)
        elif what in ("send", "lose-answer"):
            send(answered=what == "send")
        elif what == "restart":
            tracker = Tracker(TrackerPolicy(), random.Random(1).getrandbits)
    for _ in range(4):
        send()
    for layer in (LAYER, OTHER):
        chunks = held.get(layer, set())
        for number in range(7):
            chunk = f"{number:064x}"
            elsewhere = any(chunk in (other or ()) for other in held.values())
            assert tracker._holdings.has("a", layer, chunk) == (chunks is None or chunk in chunks or elsewhere)
    assert not announcer.has_news


# Acquiring.


def answer(*peers: str, origin: bool = False, wait_s: float = 0.0) -> Answer:
    candidates = tuple(Candidate(node=peer, address="") for peer in peers)
    return Answer(chunk="c", peers=candidates, origin=origin, wait_s=wait_s)


def test_peers_are_asked_one_after_the_other_then_the_tracker_hears_of_it() -> None:
    chunk = Acquisition("c", AcquisitionPolicy(), 0.0)
    assert chunk.next(0.0) == LookUp(())
    chunk.answered(answer("a", "b"))
    for peer in ("a", "b"):
        step = chunk.next(0.0)
        assert isinstance(step, Ask)
        assert step.peer.node == peer
        chunk.failed(peer, FailureKind.STALLED)
    step = chunk.next(0.0)
    assert isinstance(step, LookUp)
    assert [failure.peer for failure in step.failures] == ["a", "b"]
    chunk.answered(answer(origin=True))
    assert chunk.next(0.0) == TakeOrigin((), granted=True)


def test_who_failed_is_not_asked_again_though_the_tracker_insists() -> None:
    chunk = Acquisition("c", AcquisitionPolicy(), 0.0)
    chunk.next(0.0)
    chunk.answered(answer("a"))
    chunk.next(0.0)
    chunk.failed("a", FailureKind.WRONG)
    chunk.next(0.0)
    chunk.answered(answer("a"))
    assert isinstance(chunk.next(0.0), Pause)


def test_a_silent_tracker_means_the_origin() -> None:
    chunk = Acquisition("c", AcquisitionPolicy(), 0.0)
    chunk.next(0.0)
    chunk.answered(None)
    assert chunk.next(0.0) == TakeOrigin((), granted=False)


@given(st.lists(st.sampled_from(["peers", "wait", "nothing", "long"]), min_size=60, max_size=60))
@settings(max_examples=30)
def test_whatever_a_tracker_says_it_ends_at_the_origin_in_time(said: list[str]) -> None:
    policy = AcquisitionPolicy()
    chunk, now_s, asked = Acquisition("c", policy, 0.0), 0.0, 0
    for number, each in enumerate(said):
        step = chunk.next(now_s)
        if isinstance(step, TakeOrigin):
            break
        if isinstance(step, LookUp):
            replies = {
                "peers": answer(*(f"p{number}-{at}" for at in range(5))),
                "wait": answer(wait_s=0.001),
                "long": answer(wait_s=1e9),
                "nothing": answer(),
            }
            chunk.answered(replies[each])
        elif isinstance(step, Pause):
            assert 0 < step.wait_s <= policy.wait_limit_s
            now_s += step.wait_s
        else:
            asked += 1
            assert step.timeout_s <= policy.patience_s - now_s
            chunk.failed(step.peer.node, FailureKind.BUSY)
    else:
        pytest.fail("it never came to the origin")
    assert asked <= policy.attempts
    assert now_s <= policy.patience_s


def test_one_that_is_only_fetching_is_left_sooner() -> None:
    policy = AcquisitionPolicy()
    chunk = Acquisition("c", policy, 0.0)
    chunk.next(0.0)
    chunk.answered(Answer(chunk="c", peers=(Candidate(node="a", address="", pending=True),)))
    step = chunk.next(0.0)
    assert isinstance(step, Ask)
    assert step.hold_s == policy.hold_s < step.timeout_s == policy.patience_s


# Uploads.


def test_a_node_sends_to_few_at_a_time_and_to_one_peer_less() -> None:
    uploads = Uploads(UploadPolicy(slots=3, slots_a_peer=2))
    first = [uploads.begin("a"), uploads.begin("a")]
    assert isinstance(uploads.begin("a"), Refused)
    started(uploads.begin("b"))
    assert isinstance(uploads.begin("c"), Refused)
    uploads.end(started(first[0]))
    uploads.end(started(first[0]))
    assert uploads.sending == 2
    started(uploads.begin("c"))


def test_waiting_takes_no_slot_until_the_chunk_is_there() -> None:
    uploads = Uploads(UploadPolicy(slots=1, holds=2))
    held = [started(uploads.hold("a")), started(uploads.hold("b"))]
    assert isinstance(uploads.hold("c"), Refused)
    assert uploads.sending == 0
    assert uploads.advance(held[0]) is None
    assert isinstance(uploads.advance(held[1]), Refused)
    assert uploads.held == 1
    uploads.end(held[0])
    assert uploads.advance(held[1]) is None
    for upload in held:
        uploads.end(upload)
    assert (uploads.sending, uploads.held) == (0, 0)


def test_who_sends_nothing_refuses_everybody() -> None:
    uploads = Uploads(UploadPolicy(slots=0))
    assert isinstance(uploads.begin("a"), Refused)
    assert isinstance(uploads.hold("a"), Refused)


@given(st.lists(st.tuples(st.integers(1, 5000), st.floats(0, 3)), min_size=1, max_size=40))
def test_no_more_is_sent_in_any_time_than_the_rate_allows(spent: list[tuple[int, float]]) -> None:
    policy = UploadPolicy(bytes_per_s=1000, burst_bytes=2000)
    uploads, now_s, total = Uploads(policy), 0.0, 0
    for size_bytes, idle_s in spent:
        now_s += idle_s
        wait_s = uploads.spend(size_bytes, now_s)
        total += size_bytes
        now_s += wait_s
        assert total <= policy.burst_bytes + policy.bytes_per_s * now_s + 1e-6
