"""What an attempt used and what that costs: as its backend reported, and where it did not, as far as was seen."""

from __future__ import annotations

from dsec.costs.token_prices import TokenPrices, call_cost
from dsec.gateway.fronts.observation import Observation
from dsec.gateway.ledger_record import Cost
from dsec.routing.usage import Count, Source, Usage
from dsec.routing.usage_reading import Seen, read_usage

_TOKENS_PER_MTOKEN = 1e6
_S_PER_H = 3600.0


class Tariff:
    """The prices of one backend.

    Args:
        prices: by the token; None: not sold by the token.
        reserved_usd_per_h: of the whole backend.
        slots: calls that share it, when it is paid by time.
        source: where the prices come from, with their day.
    """

    def __init__(
        self, prices: TokenPrices | None, reserved_usd_per_h: float | None, slots: int | None, source: str = ""
    ) -> None:
        self.source = source
        self._prices = prices or TokenPrices()
        self._sold = prices is not None
        self._usd_per_slot_s = (reserved_usd_per_h or 0.0) / _S_PER_H / (slots or 1)
        self.usd_per_input_token = (self._prices.input_usd_per_mtoken or 0.0) / _TOKENS_PER_MTOKEN
        self.usd_per_output_token = (self._prices.output_usd_per_mtoken or 0.0) / _TOKENS_PER_MTOKEN

    def cost(self, usage: Usage, duration_s: float) -> Cost:
        """Return what an attempt costs.

        Args:
            usage: what it used.
            duration_s: how long it held a slot, for a backend that is paid by time.
        """
        reserved = self._usd_per_slot_s * duration_s
        if not self._sold:
            return Cost(reserved=reserved, estimated=rests_on_estimates(usage))
        parts = (
            ("input", usage.plain_input.tokens, self._prices.input_usd_per_mtoken),
            ("cache_write", usage.cache_write.tokens, self._prices.cache_write_usd_per_mtoken),
            ("cache_read", usage.cache_read.tokens, self._prices.cache_read_usd_per_mtoken),
            ("output", usage.output_tokens, self._prices.output_usd_per_mtoken),
        )
        missing = tuple(name for name, tokens, price in parts if tokens and price is None)
        paid = call_cost(
            prices=self._prices,
            input_tokens=0 if "input" in missing else usage.plain_input.tokens,
            cache_write_tokens=0 if "cache_write" in missing else usage.cache_write.tokens,
            cache_read_tokens=0 if "cache_read" in missing else usage.cache_read.tokens,
            thinking_tokens=0 if "output" in missing else usage.thinking.tokens,
            visible_tokens=0 if "output" in missing else usage.visible.tokens,
        )
        return Cost(
            input=paid.input_usd,
            cache_write=paid.cache_write_usd,
            cache_read=paid.cache_read_usd,
            thinking=paid.thinking_usd,
            visible=paid.visible_usd,
            reserved=reserved,
            estimated=rests_on_estimates(usage),
            missing=missing,
        )


def rests_on_estimates(usage: Usage) -> bool:
    """Say whether any tokens that are charged were estimated; of what there was nothing, nothing is charged."""
    parts = (usage.plain_input, usage.cache_write, usage.cache_read, usage.thinking, usage.visible)
    return any(part.tokens and part.source is Source.ESTIMATED for part in parts)


def expected_usage(input_tokens: int, output_tokens: int) -> Usage:
    """Return what a call is expected to use before anything is known of it."""
    return Usage(
        plain_input=Count(tokens=input_tokens, source=Source.ESTIMATED),
        visible=Count(tokens=output_tokens, source=Source.ESTIMATED),
    )


def usage_of(seen: Observation, input_tokens: int, input_bytes: int) -> Usage:
    """Return what an answer used, as reported, and estimated from what was seen where nothing was."""
    return read_usage(
        seen.report or None,
        Seen(
            input_tokens=input_tokens,
            thinking_tokens=seen.thinking_tokens,
            visible_tokens=seen.visible_tokens,
            input_bytes=input_bytes,
            output_pieces=seen.thinking_pieces + seen.visible_pieces,
        ),
    )
