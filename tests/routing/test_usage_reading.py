"""Usage is split in the same way whatever shape it is reported in; what is missing or cannot be is estimated."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.costs.token_prices import TokenPrices, call_cost
from dsec.routing.usage import Count, Source, Usage
from dsec.routing.usage_reading import Seen, merge_reports, read_usage

SEEN = Seen(
    input_tokens=900,
    thinking_tokens=300,
    visible_tokens=100,
    input_bytes=40_000,
    output_pieces=50,
    output_limit_tokens=2_000,
)


def tokens(usage: Usage) -> tuple[int, int, int, int, int]:
    """Plain input, cache write, cache read, thinking, visible."""
    parts = (usage.plain_input, usage.cache_write, usage.cache_read, usage.thinking, usage.visible)
    return tuple(part.tokens for part in parts)  # type: ignore[return-value]


SHAPES: dict[str, dict[str, Any]] = {
    "chat completions": {
        "prompt_tokens": 1_000,
        "completion_tokens": 500,
        "total_tokens": 1_500,
        "prompt_tokens_details": {"cached_tokens": 600, "cache_write_tokens": 100},
        "completion_tokens_details": {"reasoning_tokens": 300},
    },
    "responses": {
        "input_tokens": 1_000,
        "input_tokens_details": {"cached_tokens": 600, "cache_write_tokens": 100},
        "output_tokens": 500,
        "output_tokens_details": {"reasoning_tokens": 300},
    },
    "messages": {
        "input_tokens": 300,
        "cache_creation_input_tokens": 100,
        "cache_read_input_tokens": 600,
        "output_tokens": 500,
        "output_tokens_details": {"thinking_tokens": 300},
    },
    "messages, by lifetime": {
        "input_tokens": 300,
        "cache_creation": {"ephemeral_5m_input_tokens": 60, "ephemeral_1h_input_tokens": 40},
        "cache_read_input_tokens": 600,
        "output_tokens": 500,
        "output_tokens_details": {"thinking_tokens": 300},
    },
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_says_the_same(shape: str) -> None:
    usage = read_usage(SHAPES[shape], SEEN)
    assert tokens(usage) == (300, 100, 600, 300, 200)
    assert not usage.is_estimated
    assert not usage.doubts


def test_a_service_that_counts_hits_and_misses_is_understood() -> None:
    report = {
        "prompt_tokens": 1_000,
        "prompt_cache_hit_tokens": 640,
        "prompt_cache_miss_tokens": 360,
        "completion_tokens": 70,
    }
    usage = read_usage(report, Seen())
    assert tokens(usage) == (360, 0, 640, 0, 70)


def test_where_nothing_is_said_of_a_cache_its_zero_is_an_estimate() -> None:
    usage = read_usage({"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": None}, Seen())
    assert tokens(usage) == (10, 0, 0, 0, 5)
    assert usage.cache_read == Count(tokens=0, source=Source.ESTIMATED)
    assert usage.plain_input.source is Source.REPORTED


def test_without_a_report_everything_is_estimated_from_what_was_seen() -> None:
    for report in (None, {}):
        usage = read_usage(report, SEEN)
        assert tokens(usage) == (900, 0, 0, 300, 100)
        assert usage.is_estimated
        assert not usage.doubts


def test_output_of_which_only_the_whole_is_reported_is_divided_as_it_was_seen() -> None:
    usage = read_usage({"input_tokens": 900, "output_tokens": 800}, SEEN)
    assert (usage.thinking.tokens, usage.visible.tokens) == (600, 200)
    assert usage.thinking.source is usage.visible.source is Source.ESTIMATED


@pytest.mark.parametrize(
    ("change", "doubt"),
    [
        ({"prompt_tokens": -5}, "prompt_tokens is -5"),
        ({"prompt_tokens": "many"}, "prompt_tokens is 'many'"),
        ({"prompt_tokens": True}, "prompt_tokens is True"),
        ({"completion_tokens": 1e300}, "completion_tokens is 1e+300"),
        ({"completion_tokens": 3}, "fewer than the 50 pieces"),
        ({"prompt_tokens": 10_000_000}, "more than the 40000 bytes"),
        ({"completion_tokens": 10**9}, "more than the 2000 that were allowed"),
        ({"prompt_tokens_details": {"cached_tokens": 5_000}}, "more than all 1000"),
        ({"completion_tokens_details": {"reasoning_tokens": 501}}, "more than all 500"),
    ],
)
def test_a_report_that_cannot_be_is_doubted_and_that_part_estimated(change: dict[str, Any], doubt: str) -> None:
    usage = read_usage({**SHAPES["chat completions"], **change}, SEEN)
    assert len(usage.doubts) == 1
    assert doubt in usage.doubts[0]
    assert usage.is_estimated


def test_a_stream_reports_its_input_first_and_its_output_last() -> None:
    report = merge_reports(
        {"input_tokens": 25, "cache_read_input_tokens": 10, "output_tokens": 1},
        {"output_tokens": 80, "input_tokens": None},
    )
    assert tokens(read_usage(report, Seen())) == (25, 0, 10, 0, 80)


def test_whole_numbers_written_as_fractions_are_numbers() -> None:
    assert read_usage({"prompt_tokens": 12.0, "completion_tokens": 3.0}, Seen()).input_tokens == 12


class TestTheChaptersExamples:
    PRICES = TokenPrices(
        input_usd_per_mtoken=2, output_usd_per_mtoken=10, cache_write_usd_per_mtoken=2.5, cache_read_usd_per_mtoken=0.2
    )

    def usd(self, report: dict[str, Any]) -> float:
        usage = read_usage(report, Seen())
        return call_cost(
            prices=self.PRICES,
            input_tokens=usage.plain_input.tokens,
            cache_write_tokens=usage.cache_write.tokens,
            cache_read_tokens=usage.cache_read.tokens,
            thinking_tokens=usage.thinking.tokens,
            visible_tokens=usage.visible.tokens,
        ).total_usd

    def test_thinking_a_tenth_saves_28_percent(self) -> None:
        """Example 11-5."""
        much, little = (
            self.usd(
                {
                    "input_tokens": 10_000,
                    "output_tokens": thinking + 200,
                    "output_tokens_details": {"thinking_tokens": thinking},
                }
            )
            for thinking in (1_000, 100)
        )
        assert (much, little) == pytest.approx((0.032, 0.023))
        assert 1 - little / much == pytest.approx(0.28, abs=0.005)

    def test_ten_rounds_with_a_cached_prefix_cost_0_0744(self) -> None:
        """Example 11-6."""
        first = self.usd({"input_tokens": 2_000, "cache_creation_input_tokens": 8_000, "output_tokens": 0})
        later = self.usd({"input_tokens": 2_000, "cache_read_input_tokens": 8_000, "output_tokens": 0})
        assert first + 9 * later == pytest.approx(0.0744)
        assert 10 * self.usd({"input_tokens": 10_000, "output_tokens": 0}) == pytest.approx(0.20)


leaves = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.floats() | st.text(max_size=3)
names = st.sampled_from(
    [
        "prompt_tokens", "input_tokens", "output_tokens", "completion_tokens", "cached_tokens", "cache_creation",
        "cache_read_input_tokens", "cache_creation_input_tokens", "prompt_cache_hit_tokens", "reasoning_tokens",
    ]
)  # fmt: skip
details = st.sampled_from(
    [
        "prompt_tokens_details",
        "input_tokens_details",
        "output_tokens_details",
        "completion_tokens_details",
        "cache_creation",
    ]
)
inner = st.dictionaries(
    st.sampled_from(["cached_tokens", "cache_write_tokens", "reasoning_tokens", "thinking_tokens"]), leaves
)


@given(
    plain=st.dictionaries(names, leaves),
    nested=st.dictionaries(details, inner | leaves),
    seen=st.builds(
        Seen, input_tokens=st.integers(0, 10**5), visible_tokens=st.integers(0, 100), input_bytes=st.integers(0, 10**5)
    ),
)
def test_whatever_is_reported_counts_are_whole_and_not_negative(
    plain: dict[str, Any], nested: dict[str, Any], seen: Seen
) -> None:
    usage = read_usage({**plain, **nested}, seen)
    assert all(isinstance(part, int) and part >= 0 for part in tokens(usage))
    if seen.input_bytes and usage.plain_input.source is Source.REPORTED:
        assert usage.input_tokens <= seen.input_bytes + 4096
