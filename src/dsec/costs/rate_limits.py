"""Which limit of a pay-by-use service is reached first: requests, tokens or calls in progress.

A service that limits requests and tokens a minute and calls side by side holds the demand when all three ratios are
at most 1; the largest says which limit binds, and its inverse by how much the demand may still grow. Longer inputs
reach the limit of tokens before that of requests. Source: the chapter, section 11.4.3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError
from dsec.costs.checks import check_not_negative, check_positive

_S_PER_MINUTE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RateLimits:
    """A demand against a service's limits.

    Attributes:
        request_share: requests over their limit; 0 where there is none.
        token_share: tokens over theirs.
        concurrency_share: calls in progress over theirs.
        binding: the limit that is reached first: "requests", "tokens" or "concurrency".
        is_within: whether the demand is within all limits.
        growth: by what factor the demand may grow until the first limit; below 1 it is too large.
    """

    request_share: float
    token_share: float
    concurrency_share: float
    binding: str
    is_within: bool
    growth: float


def _share(name: str, demand: float, limit: float | None) -> float:
    return 0.0 if limit is None else demand / check_positive(name, limit)


def rate_limits(
    *,
    requests_per_s: float,
    tokens_per_request: float,
    request_s: float,
    request_limit_per_minutes: float | None = None,
    token_limit_tokens_per_minutes: float | None = None,
    concurrency_limit: float | None = None,
) -> RateLimits:
    """Return which limit a demand reaches first.

    Args:
        requests_per_s: requests that arrive.
        tokens_per_request: input and output of one, counted as the service counts them.
        request_s: time of one.
        request_limit_per_minutes: requests a minute that the service takes; absent where it does not limit them.
        token_limit_tokens_per_minutes: tokens a minute.
        concurrency_limit: requests in progress.

    Raises:
        InvalidRequestError: a number is out of range, or the service limits nothing.

    Formula:
        shares = (60 λ / R, 60 λ n / K, λ T / C); the largest binds

    Source:
        the chapter, section 11.4.3
    """
    check_not_negative("requests_per_s", requests_per_s, "1/s")
    check_not_negative("tokens_per_request", tokens_per_request, "token")
    check_not_negative("request_s", request_s, "s")
    if request_limit_per_minutes is None and token_limit_tokens_per_minutes is None and concurrency_limit is None:
        raise InvalidRequestError("the service has no limit", resolution="give at least one of its limits")
    per_minute = requests_per_s * _S_PER_MINUTE
    shares = {
        "requests": _share("request_limit_per_minutes", per_minute, request_limit_per_minutes),
        "tokens": _share(
            "token_limit_tokens_per_minutes", per_minute * tokens_per_request, token_limit_tokens_per_minutes
        ),
        "concurrency": _share("concurrency_limit", requests_per_s * request_s, concurrency_limit),
    }
    binding = max(shares, key=lambda name: shares[name])
    return RateLimits(
        request_share=shares["requests"],
        token_share=shares["tokens"],
        concurrency_share=shares["concurrency"],
        binding=binding,
        is_within=shares[binding] <= 1,
        growth=1 / shares[binding] if shares[binding] else math.inf,
    )
