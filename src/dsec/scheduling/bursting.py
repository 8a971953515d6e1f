"""When work goes to the cloud.

Bursting begins when the own cluster is used above a threshold and ends some way below it, so that a load that
hovers there does not switch it on and off. Only jobs whose image the cloud has may go; they go in the order in which
they would have been served, as long as the cloud has room. What the cloud holds is not called back: it ends there.

Source: DeepSeek Elastic Compute (arXiv 2609.22978), section 3.4: above 80 % utilisation; images of 70 % of the
container tasks were in the cloud, and 200 machines took about 30 % of the overflow at peak.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError
from dsec.scheduling.amounts import Amounts, fits, minus, shortfall
from dsec.scheduling.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstRules:
    """When to burst.

    Attributes:
        above: utilisation of any resource from which bursting begins, 0 to 1.
        until: utilisation of all resources below which it ends.
    """

    above: float = 0.8
    until: float = 0.7

    def __post_init__(self) -> None:
        if not 0 <= self.until <= self.above <= 1:
            raise InvalidRequestError(f"bursting above {self.above} until {self.until}: need 0 <= until <= above <= 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstPlan:
    """What goes.

    Attributes:
        bursting: whether bursting is on; pass it to the next call.
        jobs: ids of the jobs to send, in order.
        stays: why each other waiting job stays, by id.
        reason: why bursting is on or off.
    """

    bursting: bool
    jobs: tuple[str, ...]
    stays: Mapping[str, str]
    reason: str


def plan_burst(
    waiting: Sequence[Job],
    *,
    used: Amounts,
    capacity: Amounts,
    cloud_free: Amounts,
    rules: BurstRules,
    bursting: bool = False,
) -> BurstPlan:
    """Choose which waiting jobs go to the cloud.

    Args:
        waiting: in the order in which they would be served.
        used: of the own cluster.
        capacity: of the own cluster.
        cloud_free: what the cloud can still take.
        rules: the thresholds.
        bursting: what the last plan said.
    """
    shares = {name: used.get(name, 0) / amount for name, amount in capacity.items() if amount}
    tightest = max(shares, key=lambda name: (shares[name], name), default="")
    utilisation = shares.get(tightest, 0.0)
    on = utilisation >= rules.until if bursting else utilisation > rules.above
    reason = f"{tightest or 'nothing'} is used to {utilisation:.0%}; bursting begins above {rules.above:.0%}"
    if not on:
        return BurstPlan(bursting=False, jobs=(), stays={job.job_id: reason for job in waiting}, reason=reason)
    sent, stays, free = [], {}, dict(cloud_free)
    for job in waiting:
        demand = job.demand
        if not job.bursts:
            stays[job.job_id] = "the cloud does not have its image"
        elif not fits(demand, free):
            missing = shortfall(demand, free)
            stays[job.job_id] = f"the cloud lacks {', '.join(f'{n} {name}' for name, n in sorted(missing.items()))}"
        else:
            sent.append(job.job_id)
            free = minus(free, demand)
    return BurstPlan(bursting=True, jobs=tuple(sent), stays=stays, reason=reason)
