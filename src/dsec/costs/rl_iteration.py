"""One synchronous iteration of reinforcement learning: generate, verify, update, publish.

    T = Q / r_g + T_verify + T_update + T_publish

where Q are the useful tokens to generate and r_g the rate of the generating pool. More accelerators for generation
shorten the first term alone, so the gain is bounded by the other three. Where verification of early samples runs
beside the generation of later ones, only the part of it that does not fit remains in the sum:

    T = max(T_generate, hidden) + (T_verify - hidden) + T_update + T_publish.

Assumes that phases do not share resources. Source: the chapter, section 11.3.3 and figure 11-31.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError
from dsec.costs.checks import check_not_negative, check_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class RlIteration:
    """The phases of one iteration.

    Attributes:
        generate_s, verify_s, update_s, publish_s: what each phase adds to the iteration.
        rest_s: everything but generation.
        total_s: the whole iteration.
        generate_share: generation's share of the whole.
        rest_share: the share that generation cannot shorten.
        speedup_limit: total over rest: what an infinitely fast generation would gain; infinite when there is no rest.
    """

    generate_s: float
    verify_s: float
    update_s: float
    publish_s: float
    rest_s: float
    total_s: float
    generate_share: float
    rest_share: float
    speedup_limit: float


def generation_s(*, useful_tokens: float, rate_tokens_per_s: float) -> float:
    """Return the seconds in which a pool of this rate generates this many useful tokens.

    Raises:
        InvalidRequestError: the work is negative or the rate not above 0.

    Formula:
        T = Q / r

    Source:
        the chapter, section 11.3.3
    """
    tokens = check_not_negative("useful_tokens", useful_tokens, "token")
    return tokens / check_positive("rate_tokens_per_s", rate_tokens_per_s, "token/s")


def rl_iteration(
    *,
    generate_s: float,
    verify_s: float,
    update_s: float,
    publish_s: float,
    generate_speedup: float = 1.0,
    hidden_verify_s: float = 0.0,
) -> RlIteration:
    """Return the phases of an iteration whose generation runs `generate_speedup` times as fast.

    Args:
        generate_s: time of generation at speed-up 1.
        verify_s: time of verification.
        update_s: time of the training step.
        publish_s: time to publish the new weights.
        generate_speedup: factor on the rate of the generating pool.
        hidden_verify_s: how much of verification runs while generation runs.

    Raises:
        InvalidRequestError: a time is negative, all are 0, the speed-up is not above 0, or more verification is hidden
            than there is.

    Formula:
        T = max(generate / s, hidden) + (verify - hidden) + update + publish

    Source:
        the chapter, section 11.3.3
    """
    for name, value in (("generate_s", generate_s), ("verify_s", verify_s), ("update_s", update_s)):
        check_not_negative(name, value, "s")
    check_not_negative("publish_s", publish_s, "s")
    if not 0 <= hidden_verify_s <= verify_s:
        raise InvalidRequestError(
            f"hidden_verify_s is {hidden_verify_s:g}, but verification takes {verify_s:g} s",
            resolution="hide at most the whole of verification behind generation",
        )
    generated_s = generate_s / check_positive("generate_speedup", generate_speedup)
    # Verification that runs longer than generation ends the overlapped phase itself.
    overlapped_s = max(generated_s, hidden_verify_s)
    rest_s = verify_s - hidden_verify_s + update_s + publish_s
    total_s = check_positive("the whole iteration", overlapped_s + rest_s, "s")
    return RlIteration(
        generate_s=overlapped_s,
        verify_s=verify_s - hidden_verify_s,
        update_s=update_s,
        publish_s=publish_s,
        rest_s=rest_s,
        total_s=total_s,
        generate_share=overlapped_s / total_s,
        rest_share=rest_s / total_s,
        speedup_limit=total_s / (rest_s + hidden_verify_s) if rest_s + hidden_verify_s else math.inf,
    )
