"""Reward files whose bytes a hostile guest chose."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.verification.reward import (
    MAXIMUM_REWARD_BYTES,
    RewardError,
    deciding_reward,
    parse_reward_json,
    parse_reward_text,
)


@pytest.mark.parametrize(
    ("data", "reward"), [(b"1\n", 1.0), (b" 0.5 ", 0.5), (b"0", 0.0), (b"1e0", 1.0), (b".25", 0.25), (b"-0", 0.0)]
)
def test_a_number_is_a_reward(data: bytes, reward: float) -> None:
    assert parse_reward_text(data) == {"reward": reward}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b"nan", "does not hold one number"),
        (b"inf", "does not hold one number"),
        (b"1e309", "not a finite number"),
        (b"1e400000000", "does not hold one number"),
        (b"-1", "negative"),
        (b"2e9", "larger"),
        (b"1 1", "does not hold one number"),
        (b"1_0", "does not hold one number"),
        (b"0x1", "does not hold one number"),
        (b"\xff\xfe1", "not text"),
        ("\u0661".encode(), "not text"),
        (b"9" * 100_000, "longer than"),
        (b"9" * 5_000, "does not hold one number"),
        (b"[1]", "does not hold one number"),
    ],
)
def test_anything_else_is_refused_with_its_reason(data: bytes, words: str) -> None:
    with pytest.raises(RewardError, match=words):
        parse_reward_text(data)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"{", "not JSON"),
        (b"NaN", "not a finite number"),
        (b"1e309", "not a finite number"),
        (b"-Infinity", "not a finite number"),
        (b"9" * 4_000, "not a finite number"),
        (b"9" * 5_000, "not JSON"),
        (b'"1"', "not a number"),
        (b"true", "not a number"),
        (b"null", "not a number"),
        (b"[1, 1]", "not a number"),
        (b"{}", "0 rewards"),
        (b'{"reward": -1}', "negative"),
        (b'{"reward": 1, "style": "NaN"}', "'style' is not a number"),
        (b'{"reward": {"a": 1}}', "not a number"),
        (b"[" * 60_000, "not JSON"),
    ],
)
def test_json_that_holds_no_rewards_is_refused_with_its_reason(data: bytes, words: str) -> None:
    with pytest.raises(RewardError, match=words):
        parse_reward_json(data)


def test_json_holds_a_number_or_numbers_by_name() -> None:
    assert parse_reward_json(b"1") == {"reward": 1.0}
    assert parse_reward_json(b'{"reward": 0.5, "style": 1}') == {"reward": 0.5, "style": 1.0}


def test_without_a_reward_by_that_name_the_lowest_decides() -> None:
    assert deciding_reward({"reward": 0.2, "style": 0.1}) == 0.2
    assert deciding_reward({"correct": 1.0, "style": 0.1}) == 0.1


@given(st.binary(max_size=MAXIMUM_REWARD_BYTES // 64))
def test_no_bytes_raise_anything_but_a_reward_error(data: bytes) -> None:
    for parse in (parse_reward_text, parse_reward_json):
        try:
            rewards = parse(data)
        except RewardError:
            continue
        assert all(0 <= value <= 1e9 for value in rewards.values())
