"""Fingerprints of prompts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dsec.routing.blocks import BLOCK_BYTES, prefix_blocks


def test_what_is_appended_leaves_earlier_fingerprints_as_they_are() -> None:
    short = prefix_blocks([b"s" * 3000, b"first"])
    longer = prefix_blocks([b"s" * 3000, b"first", b"second" * 1000])
    assert len(short) == 2
    assert longer[: len(short)] == short


def test_a_difference_changes_all_fingerprints_from_its_block_on() -> None:
    text = bytes(10 * BLOCK_BYTES)
    other = text[: 4 * BLOCK_BYTES + 7] + b"!" + text[4 * BLOCK_BYTES + 8 :]
    first, second = prefix_blocks([text]), prefix_blocks([other])
    assert first[:4] == second[:4]
    assert not set(first[4:]) & set(second[4:])


def test_where_a_part_ends_counts() -> None:
    assert prefix_blocks([b"a" * 2048, b"b"]) != prefix_blocks([b"a" * 2047, b"ab"])


def test_prompts_of_different_salts_share_nothing() -> None:
    first, second = (prefix_blocks([b"x" * 5000], salt=salt) for salt in (b"one", b"two"))
    assert not set(first) & set(second)


def test_equal_blocks_at_different_places_differ() -> None:
    assert len(set(prefix_blocks([b"x" * 64 * BLOCK_BYTES]))) == 64


@given(st.binary(max_size=200), st.binary(max_size=200))
def test_fingerprints_are_equal_exactly_as_far_as_the_bytes_are(first: bytes, second: bytes) -> None:
    one, two = (prefix_blocks([text], block_bytes=8) for text in (first, second))
    assert len(one) == len(first) // 8
    for at, (left, right) in enumerate(zip(one, two, strict=False), 1):
        assert (left == right) is (first[: 8 * at] == second[: 8 * at])
