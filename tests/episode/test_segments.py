"""Which events of a set of segments count."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import CapabilityMissingError, StateCorruptedError
from dsec.episode.frames import encode_frame
from dsec.episode.log_events import StateSaved, encode_log_event
from dsec.episode.segments import (
    LOG_VERSION,
    Segment,
    SegmentHead,
    encode_head,
    join_segments,
    line_checksum,
    parse_segment_name,
    read_segment,
    segment_name,
)
from dsec.testing.episodes import EPISODE, history, identity

EVENTS = [encode_log_event(event) for event in history(11)]
LINES = [encode_frame(document) for document in EVENTS]


def content(first: int, last: int, *, epoch: int = 1, lines: list[bytes] = LINES, events: int | None = None) -> bytes:
    """Return the bytes of a segment with the events `first` to `last`."""
    previous = line_checksum(lines[first - 2]) if first > 1 else ""
    head = SegmentHead(version=LOG_VERSION, episode=EPISODE, epoch=epoch, first=first, previous=previous, events=events)
    return encode_head(head) + b"".join(lines[first - 1 : last])


def segment(first: int, last: int, *, epoch: int = 1, lines: list[bytes] = LINES) -> Segment:
    data = content(first, last, epoch=epoch, lines=lines)
    return read_segment(segment_name(first, epoch), data, episode_id=EPISODE)


def test_names_sort_as_sequences_do_and_read_back() -> None:
    names = [segment_name(first, epoch) for first, epoch in ((1, 1), (2, 1), (10, 1), (10, 2), (1000, 1))]
    assert names == sorted(names)
    assert [parse_segment_name(name) for name in names] == [(1, 1), (2, 1), (10, 1), (10, 2), (1000, 1)]
    assert parse_segment_name(".0000000001-000001.tmp") is None


def test_segments_in_any_order_give_every_event_once() -> None:
    segments = [segment(1, 4), segment(5, 9), segment(10, 12)]
    for seed in range(6):
        random.Random(seed).shuffle(segments)
        joined = join_segments(segments)
        assert joined.documents == EVENTS
        assert (joined.first, joined.next_sequence, joined.problem) == (1, 13, "")
        assert joined.checksum == line_checksum(LINES[-1])


def test_a_missing_segment_makes_the_history_end_before_it() -> None:
    joined = join_segments([segment(1, 4), segment(8, 12)])
    assert joined.documents == EVENTS[:4]
    assert joined.problem == "events 5 to 7 are missing"


def test_without_its_beginning_a_history_proves_nothing() -> None:
    joined = join_segments([segment(5, 12)])
    assert not joined.documents
    assert "events 1 to 4 are missing" in joined.problem


def test_a_whole_state_stands_in_for_what_was_dropped() -> None:
    state = encode_frame(encode_log_event(StateSaved(number=4, identity=identity(), workspace="w4")))
    lines = [*LINES[:5], state, *LINES[5:]]
    joined = join_segments([segment(6, 9, lines=lines), segment(10, 13, lines=lines)])
    assert joined.is_complete
    assert joined.first == 6
    assert len(joined.documents) == 8
    everything = join_segments([segment(1, 5, lines=lines), segment(6, 9, lines=lines), segment(10, 13, lines=lines)])
    assert everything.is_complete
    assert everything.first == 1
    leftovers = join_segments([segment(3, 5, lines=lines), segment(6, 9, lines=lines), segment(10, 13, lines=lines)])
    assert leftovers.is_complete
    assert leftovers.first == 6


def test_between_two_gaps_the_newest_state_is_the_beginning_that_counts() -> None:
    """A copy under way: a state stands in for the first gap, and a watermark counts it; the second is filled later."""
    state = encode_frame(encode_log_event(StateSaved(number=4, identity=identity(), workspace="w4")))
    lines = [*LINES[:5], state, *LINES[5:]]
    joined = join_segments([segment(1, 3, lines=lines), segment(6, 9, lines=lines), segment(11, 13, lines=lines)])
    assert not joined.is_complete
    assert (joined.first, joined.next_sequence) == (6, 10)
    assert "10" in joined.problem


def test_a_newer_epoch_voids_what_an_older_writer_wrote_after_it_was_read() -> None:
    old = [*LINES[:6], *(encode_frame(encode_log_event(event)) for event in history(20)[15:18])]
    joined = join_segments([segment(1, 9, lines=old), segment(7, 12, epoch=2)])
    assert joined.documents == EVENTS
    assert joined.is_complete


def test_damage_behind_the_cut_of_a_newer_epoch_does_not_matter() -> None:
    torn = read_segment(segment_name(1, 1), content(1, 6) + LINES[6][:20], episode_id=EPISODE)
    for newer in (segment(7, 12, epoch=2), segment(1, 12, epoch=2)):
        joined = join_segments([torn, newer])
        assert joined.documents == EVENTS
        assert joined.is_complete
    assert not join_segments([torn, segment(7, 12, epoch=1)]).is_complete


def test_what_fills_a_gap_may_be_cut_otherwise_and_each_event_counts_once() -> None:
    damaged = read_segment(
        segment_name(5, 1), content(5, 9, events=5)[: -len(LINES[8]) - len(LINES[7])], episode_id=EPISODE
    )
    assert damaged.damage
    filled = [segment(1, 6), damaged, segment(8, 12), segment(9, 10), segment(11, 11)]
    joined = join_segments(filled)
    assert joined.documents == EVENTS
    assert joined.is_complete
    assert list(joined.last_lines) == LINES[10:]
    other = [encode_frame(encode_log_event(event)) for event in history(11, episode_id="ep-other")]
    assert not join_segments([segment(1, 6), segment(5, 12, lines=[*LINES[:5], *other[5:]])]).is_complete


def test_segments_that_do_not_belong_together_are_not_joined() -> None:
    other = [encode_frame(encode_log_event(event)) for event in history(11, episode_id="ep-other")]
    head = SegmentHead(version=1, episode=EPISODE, epoch=1, first=5, previous=line_checksum(other[3]))
    foreign = read_segment(segment_name(5, 1), encode_head(head) + b"".join(LINES[4:]), episode_id=EPISODE)
    joined = join_segments([segment(1, 4), foreign])
    assert joined.documents == EVENTS[:4]
    assert "does not follow" in joined.problem


@pytest.mark.parametrize("cut", range(len(LINES[-1])))
def test_every_beginning_of_the_last_line_is_a_torn_tail(cut: int) -> None:
    data = content(1, 11) + LINES[11][:cut]
    joined = join_segments([read_segment(segment_name(1, 1), data, episode_id=EPISODE)])
    assert joined.documents == EVENTS[:11]
    assert joined.is_complete
    assert joined.torn_bytes == cut


@given(place=st.integers(0, len(content(1, 12)) - 1), change=st.integers(1, 255))
def test_no_changed_byte_goes_unnoticed_and_none_before_the_last_line_is_a_tail(place: int, change: int) -> None:
    data = bytearray(content(1, 12))
    data[place] ^= change
    try:
        joined = join_segments([read_segment(segment_name(1, 1), bytes(data), episode_id=EPISODE)])
    except (StateCorruptedError, CapabilityMissingError):
        assert place < len(data) - len(b"".join(LINES))
        return
    assert joined.documents == EVENTS[: len(joined.documents)]
    in_last_line = place >= len(data) - len(LINES[-1])
    newline_before_it = place == len(data) - len(LINES[-1]) - 1
    assert len(joined.documents) < 12
    if not in_last_line and not newline_before_it:
        assert joined.problem


def test_a_finished_segment_that_lost_its_end_is_damaged_and_not_torn() -> None:
    whole = content(1, 12, events=12)
    assert join_segments([read_segment(segment_name(1, 1), whole, episode_id=EPISODE)]).is_complete
    short = read_segment(segment_name(1, 1), whole[: -len(LINES[-1])], episode_id=EPISODE)
    assert not join_segments([short]).is_complete
    assert "11 whole events of 12" in short.damage


def test_a_newer_version_is_refused() -> None:
    head = encode_frame(b'{"event":"segment","version":3,"something":"else"}')
    with pytest.raises(CapabilityMissingError, match="version 3"):
        read_segment(segment_name(1, 1), head, episode_id=EPISODE)


def test_an_older_version_is_read_as_it_was() -> None:
    head = encode_frame(b'{"event":"segment","version":1,"episode":"%s","epoch":1,"first":1}' % EPISODE.encode())
    assert read_segment(segment_name(1, 1), head + b"".join(LINES), episode_id=EPISODE).lines == tuple(LINES)


@pytest.mark.parametrize("data", [b"", b"\n", b"{}\n", LINES[0], encode_frame(b'{"version":1}')])
def test_what_has_no_head_is_no_segment(data: bytes) -> None:
    with pytest.raises(StateCorruptedError):
        read_segment(segment_name(1, 1), data, episode_id=EPISODE)


def test_a_segment_under_the_name_of_another_is_refused() -> None:
    with pytest.raises(StateCorruptedError, match="another place"):
        read_segment(segment_name(2, 1), content(1, 4), episode_id=EPISODE)
    with pytest.raises(StateCorruptedError, match="another place"):
        read_segment(segment_name(1, 1), content(1, 4), episode_id="ep-other")


def test_nothing_proves_nothing() -> None:
    assert join_segments([]).problem == "there is no segment"


@given(st.data())
def test_whatever_is_taken_away_what_remains_is_a_true_beginning_and_gaps_are_told(data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(2, 12), max_size=5)))
    bounds = list(zip([1, *cuts], [*(cut - 1 for cut in cuts), 12], strict=True))
    kept = [pair for pair in bounds if data.draw(st.booleans())]
    joined = join_segments([segment(first, last) for first, last in kept])
    expected = 0
    for first, last in kept:
        if first != expected + 1:
            break
        expected = last
    assert joined.documents == EVENTS[:expected]
    assert joined.is_complete == (expected == max((last for _, last in kept), default=-1))
