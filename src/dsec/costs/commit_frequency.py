"""How often to commit: each commit costs time, and what is not committed is done again after a failure.

n requests of t seconds run one after the other; each group of k is committed, which takes a fixed part a and a part b
for each record:

    commits      C(k) = ceil(n / k) a + n b
    time         T(k) = n t + C(k)
    at risk      R(k) = k t          (a failure just before a commit)

With failures at the rate λ, half a group is lost on average each time, so that a request costs t + b + a / k + λ k t²
/ 2, which is least at k* = sqrt(2 a / λ) / t. (J. W. Young, "A first order approximation to the optimum checkpoint
interval", CACM 1974.) Assumes that nothing else runs during a commit, that a commit happens as a whole or not at all,
and that requests can be repeated safely. Source: the chapter, section 11.5.1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dsec.costs.checks import check_count, check_not_negative, check_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitCost:
    """Committing every group of requests.

    Attributes:
        commits: how many commits are made.
        commit_s: all commits together.
        total_s: requests and commits, without a failure.
        overhead_share: commits over the requests' own time.
        at_risk_s: computation done again after a failure just before a commit.
        at_risk_requests: requests done again then.
    """

    commits: int
    commit_s: float
    total_s: float
    overhead_share: float
    at_risk_s: float
    at_risk_requests: int


def commit_cost(
    *, requests: int, request_s: float, requests_per_commit: int, fixed_s: float, record_s: float
) -> CommitCost:
    """Return what it costs to commit every `requests_per_commit` requests, and what a failure then costs.

    Args:
        requests: requests in all.
        request_s: time of one.
        requests_per_commit: how many are committed together; the last group may be smaller.
        fixed_s: time of a commit whatever it holds.
        record_s: added time for each request's record.

    Raises:
        InvalidRequestError: a number is out of range.

    Formula:
        commits = ceil(n / k) · a + n · b,   at risk = k · t

    Source:
        the chapter, section 11.5.1
    """
    check_count("requests", requests)
    check_positive("request_s", request_s, "s")
    check_count("requests_per_commit", requests_per_commit)
    check_not_negative("fixed_s", fixed_s, "s")
    check_not_negative("record_s", record_s, "s")
    commits = math.ceil(requests / requests_per_commit)
    commit_s = commits * fixed_s + requests * record_s
    at_risk = min(requests_per_commit, requests)
    return CommitCost(
        commits=commits,
        commit_s=commit_s,
        total_s=requests * request_s + commit_s,
        overhead_share=commit_s / (requests * request_s),
        at_risk_s=at_risk * request_s,
        at_risk_requests=at_risk,
    )


def best_requests_per_commit(*, request_s: float, fixed_s: float, failures_per_s: float) -> int:
    """Return the size of a group with which commits and repeated work cost least together.

    Raises:
        InvalidRequestError: a time or rate is not above 0.

    Formula:
        k = sqrt(2 · a / λ) / t, rounded to the better neighbour, at least 1

    Source:
        Young's optimum checkpoint interval; the chapter, section 11.5.1
    """
    check_positive("request_s", request_s, "s")
    check_positive("fixed_s", fixed_s, "s")
    check_positive("failures_per_s", failures_per_s, "1/s")

    def cost_s(size: int) -> float:
        return fixed_s / size + failures_per_s * size * request_s**2 / 2

    below = max(1, math.floor(math.sqrt(2 * fixed_s / failures_per_s) / request_s))
    return min((below, below + 1), key=cost_s)
