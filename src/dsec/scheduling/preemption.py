"""Whom to preempt, if anyone.

A victim's price is what it loses, weighted by how much of the cluster it holds:

    killed:  (now - last save) + restore       what was done since the last save is done again
    saved:   save + restore                    nothing is done again, but the capacity comes back only after `save`
    price  = that time x dominant share        in seconds of the whole cluster

The cheaper way that is in time is taken. A set of victims is found best first, in order of price, so that the first
set that makes room is the cheapest; after a bounded number of sets a greedy one is taken, without what it does not
need, and its reason says that it is not proved to be the cheapest.

Preempting must pay: the price is weighed against the time that the new job gains, unless it has a deadline to meet.
Source: the chapter, section 11.3.2 (a preemption loses what was done since the last checkpoint).
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from dsec.costs.preemption import preemption_loss
from dsec.scheduling.amounts import Amounts, bounded, dominant_share, fits, minus, plus, total
from dsec.scheduling.gangs import place
from dsec.scheduling.job import Job, Node, Running

_SETS_TRIED = 512
"""Sets of victims that are tried in order of price; each try is one placement."""


class Manner(enum.Enum):
    """How a victim is ended."""

    KILL = "kill"
    SAVE = "save"


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A job that would give way.

    Attributes:
        running: the job.
        manner: saved first, or killed as it is.
        frees_after_s: seconds until what it holds is free.
        loses_s: seconds by which it ends later, besides the time it now waits.
        price_s: that, weighted by its dominant share: seconds of the whole cluster.
    """

    running: Running
    manner: Manner
    frees_after_s: float
    loses_s: float
    price_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """Victims, and where the new job goes.

    Attributes:
        victims: whom to end.
        nodes: the node of each member of the new job.
        price_s: seconds of the whole cluster that are lost.
        reason: in words.
    """

    victims: tuple[Victim, ...]
    nodes: tuple[str, ...]
    price_s: float
    reason: str


def appraise(running: Running, *, now_s: float, within_s: float, capacity: Amounts) -> Victim:
    """Say how a job would best give way, and at what price.

    Args:
        running: the job.
        now_s: the time.
        within_s: seconds within which its capacity is needed.
        capacity: of the whole cluster.
    """
    done_s = max(now_s - running.started_s, 0.0)
    since_s = done_s if running.saved_s is None else max(min(now_s - running.saved_s, done_s), 0.0)
    restore_s = running.restore_s if running.saved_s is not None else 0.0
    killed = preemption_loss(done_s=done_s, since_checkpoint_s=since_s, restore_s=restore_s)
    ways = [(killed.from_checkpoint_s, 0.0, Manner.KILL)]
    if running.save_s is not None and running.save_s <= within_s:
        ways.append((running.save_s + running.restore_s, running.save_s, Manner.SAVE))
    loses_s, frees_after_s, manner = min(ways, key=lambda way: way[0])
    share = dominant_share(running.job.demand, capacity)
    return Victim(running=running, manner=manner, frees_after_s=frees_after_s, loses_s=loses_s, price_s=loses_s * share)


def choose_victims(
    job: Job,
    running: Collection[Running],
    nodes: Sequence[Node],
    free: Mapping[str, Amounts],
    *,
    now_s: float,
    within_s: float,
    gains_s: float | None,
    at_most: Mapping[str, Amounts] | None = None,
    keep_free: Amounts | None = None,
) -> Preemption | None:
    """Choose whom to preempt for a job that does not fit.

    Args:
        job: the job that wants to start.
        running: all that runs; only lower priorities that are not protected are considered.
        nodes: the nodes.
        free: what is free on each.
        now_s: the time.
        within_s: seconds within which the job must have its room.
        gains_s: how much earlier it would start than without; None: it has a deadline, so that it must.
        at_most: the most that it may take of single nodes, whatever is freed there.
        keep_free: what must stay free in all.

    Returns:
        The preemption, or None when no set of victims makes room or none is worth its price.
    """
    capacity = total(node.capacity for node in nodes)
    victims = sorted(
        (
            appraise(each, now_s=now_s, within_s=within_s, capacity=capacity)
            for each in running
            if each.job.priority < job.priority and not each.protected
        ),
        key=lambda victim: (victim.price_s, victim.running.job.job_id),
    )
    room = _Room(job, nodes, free, at_most or {}, keep_free or {})
    found = _cheapest(victims, room) or _greedy(victims, room)
    if found is None:
        return None
    gain_s = None if gains_s is None else gains_s * dominant_share(job.demand, capacity)
    return found if gain_s is None or found.price_s < gain_s else None


@dataclass(frozen=True, slots=True)
class _Room:
    """Whether a job fits when some victims are gone."""

    job: Job
    nodes: Sequence[Node]
    free: Mapping[str, Amounts]
    at_most: Mapping[str, Amounts]
    keep_free: Amounts

    def without(self, victims: Sequence[Victim], why: str) -> Preemption | None:
        freed = dict(self.free)
        for victim in victims:
            for node in set(victim.running.nodes):
                freed[node] = plus(freed.get(node, {}), victim.running.amounts_on(node))
        left = minus(total(freed.values()), self.job.demand)
        places = (
            place(self.job.members, self.nodes, bounded(freed, self.at_most)) if fits(self.keep_free, left) else None
        )
        if places is None:
            return None
        price_s = sum(victim.price_s for victim in victims)
        names = ", ".join(f"{victim.running.job.job_id} ({victim.manner.value})" for victim in victims)
        return Preemption(
            victims=tuple(victims),
            nodes=places,
            price_s=price_s,
            reason=f"{names} give way to {self.job.job_id}: {why}, at {price_s:.3g} s of the whole cluster",
        )


def _cheapest(victims: Sequence[Victim], room: _Room) -> Preemption | None:
    """Try sets in order of price: each set is extended by the next victim, or has its last one replaced by it."""
    heap: list[tuple[float, tuple[int, ...]]] = [(victims[0].price_s, (0,))] if victims else []
    for _ in range(_SETS_TRIED):
        if not heap:
            return None
        price_s, chosen = heapq.heappop(heap)
        if (found := room.without([victims[index] for index in chosen], "the cheapest set")) is not None:
            return found
        following = chosen[-1] + 1
        if following < len(victims):
            heapq.heappush(heap, (price_s + victims[following].price_s, (*chosen, following)))
            replaced = price_s - victims[chosen[-1]].price_s + victims[following].price_s
            heapq.heappush(heap, (replaced, (*chosen[:-1], following)))
    return None


def _greedy(victims: Sequence[Victim], room: _Room) -> Preemption | None:
    """Take victims from the cheapest on until there is room, then spare the dearest that are not needed."""
    why = "a small set, not proved to be the cheapest"
    enough = next((n for n in range(1, len(victims) + 1) if room.without(victims[:n], why)), None)
    if enough is None:
        return None
    kept = list(victims[:enough])
    for victim in sorted(kept, key=lambda each: -each.price_s):
        fewer = [each for each in kept if each is not victim]
        if fewer and room.without(fewer, why):
            kept = fewer
    return room.without(kept, why)
