"""What an instance that is taken away soon produces.

An instance is held for L seconds, of which T0 go into preparing it (transfer, loading, recovery). The rest works:

    window = max(L - T0, 0),      yield = rate x window,      working share = window / L.

Assumes a constant rate from the end of preparation on. Source: the chapter, section 11.3.3 and exercise 11-5.
"""

from __future__ import annotations

from dataclasses import dataclass

from dsec.costs.checks import check_not_negative, check_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class UsefulYield:
    """What one instance brings.

    Attributes:
        window_s: the time in which it works.
        working_share: the window's share of the time held.
        yielded_tokens: useful tokens in the window.
    """

    window_s: float
    working_share: float
    yielded_tokens: float


def useful_yield(*, available_s: float, preparation_s: float, rate_tokens_per_s: float = 1.0) -> UsefulYield:
    """Return what an instance brings that is held for `available_s`.

    Args:
        available_s: from the start of the instance until it is taken away.
        preparation_s: from the start until it works.
        rate_tokens_per_s: useful tokens a second while it works.

    Raises:
        InvalidRequestError: the time held or the rate is not above 0, or the preparation is negative.

    Formula:
        window = max(L - T0, 0),   yield = rate · window,   share = window / L

    Source:
        the chapter, section 11.3.3 and exercise 11-5
    """
    check_positive("available_s", available_s, "s")
    check_not_negative("preparation_s", preparation_s, "s")
    check_positive("rate_tokens_per_s", rate_tokens_per_s, "token/s")
    window_s = max(available_s - preparation_s, 0.0)
    return UsefulYield(
        window_s=window_s, working_share=window_s / available_s, yielded_tokens=rate_tokens_per_s * window_s
    )
