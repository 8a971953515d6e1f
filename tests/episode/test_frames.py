"""Framed lines: torn tails are cut, damage is an error."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import StateCorruptedError
from dsec.episode.content import Content
from dsec.episode.frames import decode_frame, encode_frame, scan_frames
from dsec.episode.retry import next_delay_s
from dsec.episode.round import Decision, Round
from dsec.episode.tools import CommandOutput, Run, ToolFailed, UploadArchive
from dsec.episode.trajectory import (
    RoundCommitted,
    TrajectoryEvent,
    TryBegan,
    TryEnded,
    decode_events,
    encode_event,
    last_try,
)

DOCUMENTS = [b'{"a":1}', b'{"b":"\\n"}', b'{"c":{"d":[]}}']
LOG = b"".join(map(encode_frame, DOCUMENTS))


def test_a_line_is_plain_json() -> None:
    assert json.loads(encode_frame(b'{"a":1}')) == {"a": 1, "crc32": json.loads(encode_frame(b'{"a":1}'))["crc32"]}


@given(st.integers(min_value=0, max_value=len(LOG)))
def test_a_log_cut_anywhere_keeps_its_whole_lines(length: int) -> None:
    scan = scan_frames(LOG[:length], name="log")
    assert list(scan.documents) == DOCUMENTS[: len(scan.documents)]
    assert scan.good_bytes + scan.torn_bytes == length
    assert length != len(LOG) or scan.torn_bytes == 0


@given(st.integers(min_value=0, max_value=len(LOG) - 1), st.integers(min_value=1, max_value=255))
def test_a_changed_byte_is_a_torn_tail_or_an_error_and_never_a_document(position: int, change: int) -> None:
    damaged = bytearray(LOG)
    damaged[position] ^= change
    try:
        scan = scan_frames(bytes(damaged), name="log")
    except StateCorruptedError:
        return
    assert list(scan.documents) == DOCUMENTS[: len(scan.documents)]
    assert len(scan.documents) < len(DOCUMENTS)


def test_damage_in_the_middle_names_the_line() -> None:
    with pytest.raises(StateCorruptedError, match="log: line 2"):
        scan_frames(LOG.replace(b'"b"', b'"x"'), name="log")


def test_a_line_that_is_no_frame_does_not_verify() -> None:
    assert decode_frame(b'{"a":1}') is None
    assert decode_frame(b"") is None


@given(st.binary(max_size=64))
def test_content_keeps_every_byte(data: bytes) -> None:
    assert Content.of(data).data == data


def _events() -> list[TrajectoryEvent]:
    began = TryBegan(task="t", attempt=1, number=1, policy="p", sandbox_id="sbx-1", started_at_s=1.0)
    first = Round(
        index=0,
        decision=Decision(calls=(Run(script="true"), UploadArchive(path="/", archive=b"\0\xff"))),
        results=(CommandOutput(exit_code=0, stdout=Content.of(b"\xff")), ToolFailed(code="x", brief="y")),
    )
    return [began, RoundCommitted(round=first), TryEnded(reason="again"), began, RoundCommitted(round=first)]


def test_events_survive_the_journey() -> None:
    events = _events()
    assert list(decode_events(map(encode_event, events), name="log")) == events


def test_the_last_try_counts() -> None:
    assert len(last_try(_events())) == 1
    assert last_try(_events()[:4]) == ()


def test_an_event_of_another_version_is_an_error() -> None:
    with pytest.raises(StateCorruptedError, match="not a trajectory"):
        decode_events([b'{"event":"dreamt"}'], name="log")


def test_tries_are_repeated_after_1_3_and_9_seconds_and_no_more() -> None:
    assert [next_delay_s(tries) for tries in range(1, 6)] == [1.0, 3.0, 9.0, None, None]
