"""What one call of a model costs, by the token.

Each input token of a call is exactly one of ordinary, written to the cache or read from it; thinking is paid as
output:

    C = (I_u p_u + I_w p_w + I_h p_h + O p_o) + C_storage + C_tool,      O = thinking + visible.

A kind of token that is used but has no price is an error, never free of charge. Source: the chapter, section 11.4.2
and examples 11-5, 11-6 and 11-7.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError
from dsec.costs.checks import check_not_negative

_TOKENS_PER_MTOKEN = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrices:
    """Prices of a model service; one that is absent is not sold.

    Attributes:
        input_usd_per_mtoken: ordinary input.
        output_usd_per_mtoken: output, thinking among it.
        cache_write_usd_per_mtoken: input that is put into the cache.
        cache_read_usd_per_mtoken: input that is found in the cache.
    """

    input_usd_per_mtoken: float | None = None
    output_usd_per_mtoken: float | None = None
    cache_write_usd_per_mtoken: float | None = None
    cache_read_usd_per_mtoken: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CallCost:
    """One call, by what was paid for.

    Attributes:
        input_usd: ordinary input.
        cache_write_usd: input put into the cache.
        cache_read_usd: input found in the cache.
        thinking_usd: thinking tokens.
        visible_usd: visible output.
        all_input_usd: the three kinds of input together.
        extra_usd: storage and tools.
        total_usd: everything.
        input_share: all input over the total; 0 for a call that costs nothing.
        thinking_share: thinking over the total.
    """

    input_usd: float
    cache_write_usd: float
    cache_read_usd: float
    thinking_usd: float
    visible_usd: float
    all_input_usd: float
    extra_usd: float
    total_usd: float
    input_share: float
    thinking_share: float


def _charge(name: str, tokens: float, price_usd_per_mtoken: float | None, what: str) -> float:
    check_not_negative(name, tokens, "token")
    if tokens == 0:
        return 0.0
    if price_usd_per_mtoken is None:
        raise InvalidRequestError(
            f"the service has no price for {what}",
            detail=f"{tokens:g} tokens of {what} are used",
            resolution=f"give its price in USD/Mtoken, or use no {what}",
        )
    return tokens * check_not_negative(f"price of {what}", price_usd_per_mtoken, "USD/Mtoken") / _TOKENS_PER_MTOKEN


def call_cost(
    *,
    prices: TokenPrices,
    input_tokens: float = 0.0,
    cache_write_tokens: float = 0.0,
    cache_read_tokens: float = 0.0,
    thinking_tokens: float = 0.0,
    visible_tokens: float = 0.0,
    storage_usd: float = 0.0,
    tool_usd: float = 0.0,
) -> CallCost:
    """Return what one call costs, by what is paid for.

    Args:
        prices: the service's prices.
        input_tokens: ordinary input, neither written to the cache nor read from it.
        cache_write_tokens: input put into the cache.
        cache_read_tokens: input found in the cache.
        thinking_tokens: thinking really used, not what was allowed.
        visible_tokens: the answer.
        storage_usd: keeping the cache.
        tool_usd: tools that the service charges for.

    Raises:
        InvalidRequestError: a number is negative, or a kind of token is used that has no price.

    Formula:
        C = I_u · p_u + I_w · p_w + I_h · p_h + (thinking + visible) · p_o + storage + tool

    Source:
        the chapter, section 11.4.2
    """
    ordinary = _charge("input_tokens", input_tokens, prices.input_usd_per_mtoken, "ordinary input")
    written = _charge("cache_write_tokens", cache_write_tokens, prices.cache_write_usd_per_mtoken, "cache writes")
    read = _charge("cache_read_tokens", cache_read_tokens, prices.cache_read_usd_per_mtoken, "cache reads")
    thinking = _charge("thinking_tokens", thinking_tokens, prices.output_usd_per_mtoken, "output")
    visible = _charge("visible_tokens", visible_tokens, prices.output_usd_per_mtoken, "output")
    extra = check_not_negative("storage_usd", storage_usd, "USD") + check_not_negative("tool_usd", tool_usd, "USD")
    total = ordinary + written + read + thinking + visible + extra
    return CallCost(
        input_usd=ordinary,
        cache_write_usd=written,
        cache_read_usd=read,
        thinking_usd=thinking,
        visible_usd=visible,
        all_input_usd=ordinary + written + read,
        extra_usd=extra,
        total_usd=total,
        input_share=(ordinary + written + read) / total if total else 0.0,
        thinking_share=thinking / total if total else 0.0,
    )
