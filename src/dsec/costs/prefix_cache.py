"""What a cached prefix saves, and from which use on.

A prefix is sent with each of n calls. Its first use writes it to the cache at p_w, each later one reads it at p_h;
without a cache each pays the ordinary p_u. The cache is cheaper when

    n p_u > p_w + (n - 1) p_h,      that is      n > (p_w - p_h) / (p_u - p_h).

Assumes that all later uses come while the entry lives. A hit weighs as much as the tokens it spares, so the share of
requests that hit says little by itself. Source: the chapter, section 11.4.2 and example 11-6.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError
from dsec.costs.checks import check_count, check_not_empty, check_not_negative

_TOKENS_PER_MTOKEN = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixCache:
    """Input cost of several uses of one prefix, with a cache and without.

    Attributes:
        uncached_use_usd: one use without a cache.
        first_use_usd: the use that writes the cache.
        later_use_usd: a use that reads it.
        uncached_usd: all uses without a cache.
        cached_usd: all uses with one.
        saved_usd: the difference; negative when the cache costs more.
        saved_share: saved over uncached; 0 when that costs nothing.
        premium_usd: what the first use costs more.
        saved_per_use_usd: what each later use costs less.
        break_even_uses: uses at which both cost the same; infinite when a read is no cheaper than ordinary input.
        cheaper_from_use: the first whole number of uses at which the cache is cheaper; 0 when there is none.
    """

    uncached_use_usd: float
    first_use_usd: float
    later_use_usd: float
    uncached_usd: float
    cached_usd: float
    saved_usd: float
    saved_share: float
    premium_usd: float
    saved_per_use_usd: float
    break_even_uses: float
    cheaper_from_use: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HitShares:
    """How much was found in the cache, by requests and by tokens.

    Attributes:
        request_share: share of requests whose prefix was found.
        token_share: share of prefix tokens that was found.
    """

    request_share: float
    token_share: float


def break_even_uses(
    *, input_usd_per_mtoken: float, cache_write_usd_per_mtoken: float, cache_read_usd_per_mtoken: float
) -> float:
    """Return the number of uses at which a cached prefix costs as much as an ordinary one; infinite if it never does.

    Raises:
        InvalidRequestError: a price is negative.

    Formula:
        n = (p_w - p_h) / (p_u - p_h)

    Source:
        the chapter, example 11-6
    """
    ordinary = check_not_negative("input_usd_per_mtoken", input_usd_per_mtoken, "USD/Mtoken")
    write = check_not_negative("cache_write_usd_per_mtoken", cache_write_usd_per_mtoken, "USD/Mtoken")
    read = check_not_negative("cache_read_usd_per_mtoken", cache_read_usd_per_mtoken, "USD/Mtoken")
    if ordinary <= read:
        return math.inf
    return (write - read) / (ordinary - read)


def _first_cheaper(uses: float) -> int:
    return 0 if math.isinf(uses) else max(1, math.floor(uses) + 1)


def prefix_cache(
    *,
    prefix_tokens: float,
    new_tokens: float,
    uses: int,
    input_usd_per_mtoken: float,
    cache_write_usd_per_mtoken: float,
    cache_read_usd_per_mtoken: float,
) -> PrefixCache:
    """Return the input cost of `uses` calls that share a prefix, with a cache and without.

    Args:
        prefix_tokens: tokens of the shared prefix.
        new_tokens: tokens that each call adds, which are never cached.
        uses: calls in all, the first of which writes the cache.
        input_usd_per_mtoken: price of ordinary input.
        cache_write_usd_per_mtoken: price of input written to the cache.
        cache_read_usd_per_mtoken: price of input read from it.

    Raises:
        InvalidRequestError: a number is negative, or there is no use.

    Formula:
        uncached = n (I · p_u + N · p_u),   cached = (I · p_w + N · p_u) + (n - 1) (I · p_h + N · p_u)

    Source:
        the chapter, example 11-6
    """
    check_not_negative("prefix_tokens", prefix_tokens, "token")
    check_not_negative("new_tokens", new_tokens, "token")
    check_count("uses", uses)
    even = break_even_uses(
        input_usd_per_mtoken=input_usd_per_mtoken,
        cache_write_usd_per_mtoken=cache_write_usd_per_mtoken,
        cache_read_usd_per_mtoken=cache_read_usd_per_mtoken,
    )
    new_usd = new_tokens * input_usd_per_mtoken / _TOKENS_PER_MTOKEN
    plain = prefix_tokens * input_usd_per_mtoken / _TOKENS_PER_MTOKEN + new_usd
    first = prefix_tokens * cache_write_usd_per_mtoken / _TOKENS_PER_MTOKEN + new_usd
    later = prefix_tokens * cache_read_usd_per_mtoken / _TOKENS_PER_MTOKEN + new_usd
    cached = first + (uses - 1) * later
    return PrefixCache(
        uncached_use_usd=plain,
        first_use_usd=first,
        later_use_usd=later,
        uncached_usd=uses * plain,
        cached_usd=cached,
        saved_usd=uses * plain - cached,
        saved_share=1 - cached / (uses * plain) if plain else 0.0,
        premium_usd=first - plain,
        saved_per_use_usd=plain - later,
        break_even_uses=even,
        cheaper_from_use=_first_cheaper(even),
    )


def hit_shares(*, prefix_tokens: Sequence[float], hit: Sequence[int]) -> HitShares:
    """Return how much was found in the cache, by requests and by tokens.

    Args:
        prefix_tokens: length of each request's prefix.
        hit: 1 for each request whose prefix was found, 0 for the others.

    Raises:
        InvalidRequestError: there is no request, the lists differ in length, or an element is out of range.

    Formula:
        requests = Σ hit_i / n,   tokens = Σ hit_i · l_i / Σ l_i

    Source:
        the chapter, section 11.4.2
    """
    check_not_empty("prefix_tokens", prefix_tokens)
    if len(prefix_tokens) != len(hit) or not set(hit) <= {0, 1}:
        raise InvalidRequestError(
            f"hit is {list(hit)} for {len(prefix_tokens)} prefixes", resolution="give a 0 or a 1 for each prefix"
        )
    lengths = [check_not_negative("prefix_tokens", length, "token") for length in prefix_tokens]
    found = math.fsum(length for length, is_hit in zip(lengths, hit, strict=True) if is_hit)
    total = math.fsum(lengths)
    return HitShares(request_share=sum(hit) / len(hit), token_share=found / total if total else 0.0)
