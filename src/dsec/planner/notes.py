"""What a reader of a plan should know besides its numbers: where two ways cost the same, what the formulas assume."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsec.base.units import GIB
from dsec.costs.rebuild import break_even_gap_s
from dsec.planner.additions import lift_limits
from dsec.planner.combination import THOUSAND, Combination, one
from dsec.planner.decision import Option
from dsec.planner.outer import Key, make_outer, unit_usd_per_s
from dsec.planner.table import evaluate
from dsec.planner.workload import Billing, Pattern, PolicyKind, Workload

_NEARLY_FULL = 0.95
MOST_COMPARED = 6


def break_evens(workload: Workload, options: Sequence[Option]) -> Iterator[str]:
    """Say where two ways cost the same: keeping and rebuilding over the gap, two options over the load."""
    yield from _equal_gaps(workload)
    yield from _equal_rates(workload, options)


def _equal_rates(workload: Workload, options: Sequence[Option]) -> Iterator[str]:
    """Say at which load the chosen option and another cost the same, with the replicas and hosts that they have.

    What is paid for being there is shared by the tasks of a second, what is paid by use is not: F / λ + v. Two such
    costs are equal at λ = (F_a - F_b) / (v_b - v_a). Source: the chapter, section 11.4.4.
    """
    possible = [option.best for option in options if option.is_possible]
    for other in possible[1:MOST_COMPARED]:
        fixed, used = _costs_of(workload, possible[0])
        other_fixed, other_used = _costs_of(workload, other)
        if (fixed - other_fixed) * (other_used - used) <= 0:
            continue
        rate = (fixed - other_fixed) / (other_used - used)
        if rate >= min(_sustained_per_s(workload, item) for item in (possible[0], other)):
            continue  # One of them could not work that much off.
        low, high = (possible[0], other) if fixed < other_fixed else (other, possible[0])
        yield (
            f"{possible[0].name} and {other.name} cost the same at {rate:.4g} tasks/s with what they have: "
            f"{low.name} is cheaper below, {high.name} above"
        )


def _sustained_per_s(workload: Workload, item: Combination) -> float:
    """Return how many tasks a combination works off in a second."""
    outer = make_outer(workload, [Key(policy=item.policy, service=item.service, sessions=item.sessions)])
    host = list(workload.hosts).index(item.host)
    return float(
        evaluate(workload, lift_limits(workload, outer), one(0, host, item.units, item.hosts)).sustained_per_s[0]
    )


def _costs_of(workload: Workload, item: Combination) -> tuple[float, float]:
    """Return what a combination costs by the second, and by the task."""
    service, host = workload.services[item.service], workload.hosts[item.host]
    fixed = item.units * unit_usd_per_s(service) + item.hosts * (host.price.value if host.price is not None else 0.0)
    return fixed, item.usd_per_thousand / THOUSAND - fixed / workload.arrivals.rate.value


def _equal_gaps(workload: Workload) -> Iterator[str]:
    rebuilt = [policy for policy in workload.policies.values() if policy.kind is PolicyKind.REBUILT]
    for host in workload.hosts.values():
        if host.memory_price is None or not host.memory_price.value:
            continue
        for item in workload.classes.values():
            for policy in rebuilt:
                gap_s = break_even_gap_s(
                    memory_gib=item.memory.value / GIB,
                    prepare_s=policy.prepare.value,
                    work_cpu_s=policy.prepare_cpu.value,
                    memory_price_usd_per_gib_s=host.memory_price.value * GIB,
                    cpu_price_usd_per_cpu_s=host.cpu_price.value if host.cpu_price else 0.0,
                )
                yield (
                    f"{item.name} on {host.name}: keeping an environment and rebuilding it ({policy.name}) cost the "
                    f"same at a wait of {gap_s:.4g} s between tools; rebuilding is cheaper beyond"
                )


def warnings(workload: Workload, options: Sequence[Option]) -> Iterator[str]:
    """Say what the formulas assume that may not hold here."""
    pattern = workload.arrivals.pattern
    if pattern is Pattern.UNIFORM:
        yield (
            "arrivals are evenly spaced: nothing waits as long as no resource is overloaded; write "
            'pattern = "poisson" to see what random arrivals do'
        )
    if pattern is Pattern.POISSON:
        yield (
            "waits are those of calls that come back in rounds (G/G/c with the index of dispersion of the rounds), and "
            "a task's rounds wait alike; memory and cores are sized for 99.9 % of the time"
        )
    if pattern is Pattern.BURST:
        yield "every round is taken as waiting like the first one of its burst, which never promises too much"
    if len(workload.classes) > 1:
        yield "all classes share one queue for the model and one for cores, first come, first served"
    if any(service.billing is Billing.SUBSCRIPTION for service in workload.services.values()):
        yield "a subscription's seats are taken as interchangeable, each with its number of sessions"
    if options and options[0].is_possible and options[0].best.load > _NEARLY_FULL:
        yield (
            f"{options[0].best.name} uses {options[0].best.load:.1%} of its scarcest resource: small errors in the "
            "inputs decide whether it is enough"
        )
