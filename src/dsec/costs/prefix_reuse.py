"""What saved prefixes of interrupted generations are worth.

Requests that share sampling parameters may be resumed as a group. To keep them in step each answer is cut to the
shortest saved length m, so that n answers reuse n m tokens and the rest is generated again.

Reusing r tokens saves r times the time of a token, and costs the rebuilding of the prefix (prefill, cache) and
another wait in the queue. Both are measured on the whole path, because the second can exceed the first. Source: the
chapter, section 11.3.3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dsec.costs.checks import check_not_empty, check_not_negative


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupResumption:
    """What a group of answers keeps when all are cut to the shortest.

    Attributes:
        kept_each_tokens: the shortest saved length.
        reused_tokens: kept tokens of all answers.
        regenerated_tokens: saved tokens that are generated again all the same.
        reused_share: reused over saved; 0 when nothing was saved.
    """

    kept_each_tokens: float
    reused_tokens: float
    regenerated_tokens: float
    reused_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumptionBalance:
    """Resuming against starting again, from two measured times.

    Attributes:
        difference_s: resumed minus restarted; positive when resuming was slower.
        resuming_is_faster: whether resuming took less time.
        break_even_s_per_token: time of one token above which resuming would have paid, given the same overhead and a
            restart that is longer by the tokens reused; infinite when no token was reused.
    """

    difference_s: float
    resuming_is_faster: bool
    break_even_s_per_token: float


def resume_group(*, saved_tokens: Sequence[float]) -> GroupResumption:
    """Return what answers with these saved lengths keep when they resume in step.

    Raises:
        InvalidRequestError: there is no answer, or a length is negative.

    Formula:
        reused = n · min(saved),   generated again = Σ saved - reused

    Source:
        the chapter, section 11.3.3
    """
    check_not_empty("saved_tokens", saved_tokens)
    lengths = [check_not_negative("saved_tokens", length, "token") for length in saved_tokens]
    reused = min(lengths) * len(lengths)
    total = sum(lengths)
    return GroupResumption(
        kept_each_tokens=min(lengths),
        reused_tokens=reused,
        regenerated_tokens=total - reused,
        reused_share=reused / total if total else 0.0,
    )


def resumption_balance(
    *, resumed_s: float, restarted_s: float, reused_tokens: float, decode_s_per_token: float = 0.0
) -> ResumptionBalance:
    """Return whether resuming paid, from the two measured times of a request.

    Args:
        resumed_s: the whole request when its prefix was kept.
        restarted_s: the whole request when it began again.
        reused_tokens: tokens that were not sampled a second time.
        decode_s_per_token: time of one token in the measurement, where known.

    Raises:
        InvalidRequestError: a time or count is negative.

    Formula:
        difference = resumed - restarted,   break-even = token + difference / reused

    Source:
        the chapter, section 11.3.3
    """
    check_not_negative("resumed_s", resumed_s, "s")
    check_not_negative("restarted_s", restarted_s, "s")
    check_not_negative("decode_s_per_token", decode_s_per_token, "s/token")
    check_not_negative("reused_tokens", reused_tokens, "token")
    difference_s = resumed_s - restarted_s
    # Each reused token would have to be slower by its share of the difference before both ways take as long.
    extra_s = difference_s / reused_tokens if reused_tokens else math.inf
    return ResumptionBalance(
        difference_s=difference_s,
        resuming_is_faster=difference_s < 0,
        break_even_s_per_token=decode_s_per_token + extra_s,
    )
