"""What is free, on nodes and within quotas, now and at a later time, and what holds keep of it.

Nodes and the quotas of projects are both *places* from which a job takes its amounts: each member takes them from its
node, and the whole job takes them from every level of its project that has a quota. One mapping holds both, so that
whatever is true of a full node is true of a full quota.

A hold counts on a place being as free as it will be at its time, and leaves the rest as *spare*. A job that would still
run at that time may take no more of a place than the spare; a job that has ended by then may take anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError
from dsec.scheduling.amounts import Amounts, bounded, fits, minus, plus, shortfall, total
from dsec.scheduling.gangs import place
from dsec.scheduling.job import Job, Node, Running
from dsec.scheduling.projects import ProjectTree, QuotaRefusal

_LEVEL = "project:"
"""Marks the place of a project's quota; no node id may begin so."""

Places = Mapping[str, Amounts]


@dataclass(slots=True)
class Kept:
    """What one hold leaves to jobs that would still run at its time.

    Attributes:
        at_s: the time of the hold.
        spare: by place; a place that is not named is not bounded.
    """

    at_s: float
    spare: Places


class Room:
    """The free places of one decision, which takes from them and keeps of them as it goes."""

    def __init__(
        self, nodes: Sequence[Node], projects: ProjectTree, running: Iterable[Running], *, now_s: float
    ) -> None:
        self.nodes, self.now_s, self._projects = nodes, now_s, projects
        self._whole: dict[str, Amounts] = {node.node_id: node.capacity for node in nodes}
        if any(name.startswith(_LEVEL) for name in self._whole):
            raise InvalidRequestError(f"a node id may not begin with {_LEVEL!r}")
        self.free: dict[str, Amounts] = dict(self._whole)
        self.running: dict[str, Running] = {}
        self.kept: list[Kept] = []
        for each in running:
            self.take(each)

    def take(self, running: Running) -> None:
        """Count a job that runs from now on, or did already."""
        self.running[running.job.job_id] = running
        taken = self._taken_by(running.job, running.nodes)
        self.free = _less(self.free, taken)
        for kept in self.kept:
            if running.ends_by_s > kept.at_s:
                kept.spare = _less(kept.spare, {name: taken[name] for name in taken if name in kept.spare})

    def give_back(self, job_id: str) -> Running:
        """Count the end of a job."""
        gone = self.running.pop(job_id)
        self.free = _more(self.free, self._taken_by(gone.job, gone.nodes))
        return gone

    def at_most(self, job: Job) -> Places:
        """Return the most that a job may take of single places, for the sake of the holds whose time it would see."""
        return _least(kept.spare for kept in self.kept if self.now_s + job.maximum_s > kept.at_s)

    def free_for(self, job: Job) -> Places:
        """Return what a job may take now."""
        return bounded(self.free, self.at_most(job))

    def free_at(self, at_s: float) -> Places:
        """Return what will be free then: all that ends by then, within what earlier holds leave."""
        free: Places = dict(self.free)
        for each in self.running.values():
            if each.ends_by_s <= at_s:
                free = _more(free, self._taken_by(each.job, each.nodes))
        # An earlier hold's job may still run then: what that hold leaves bounds what later ones may count on.
        return bounded(free, _least(kept.spare for kept in self.kept))

    @property
    def free_in_all(self) -> dict[str, int]:
        """What is free on all nodes together."""
        return total(self.free.get(node.node_id, {}) for node in self.nodes)

    def quota_refusal(self, job: Job, free: Places) -> QuotaRefusal | None:
        """Return the first level of the job's project, from the top, whose quota has no room."""
        for level in self._projects.path(job.project):
            missing = shortfall(self._bounded_demand(level, job), free.get(_LEVEL + level, self._projects[level].quota))
            if missing:
                return QuotaRefusal(project=level, missing=missing)
        return None

    def hold(self, job: Job, *, nodes_too: bool) -> tuple[tuple[str, ...], float] | None:
        """Keep the earliest room that the job will have.

        Args:
            job: an overdue job that has no room now.
            nodes_too: whether nodes are kept; a job that its quota refuses keeps of the quota alone, so that a project
                cannot hold up others with what it may not use.

        Returns:
            The nodes that are kept and when; None when no end of a running job makes room.
        """
        for at_s in sorted({each.ends_by_s for each in self.running.values()} | {kept.at_s for kept in self.kept}):
            free = self.free_at(at_s)
            if self.quota_refusal(job, free) is not None:
                continue
            nodes = place(job.members, self.nodes, free) if nodes_too else ()
            if nodes is not None:
                self._keep(job, nodes, free, at_s)
                return nodes, max(at_s, self.now_s)
        return None

    def fits_empty(self, job: Job) -> bool:
        """Tell whether the job would have room if nothing ran."""
        return self.quota_refusal(job, {}) is None and place(job.members, self.nodes, self._whole) is not None

    def _keep(self, job: Job, nodes: tuple[str, ...], free: Places, at_s: float) -> None:
        left = _less(free, self._taken_by(job, nodes))
        places = set(self._levels(job)) | ({node.node_id for node in self.nodes} if nodes else set())
        self.kept.append(Kept(at_s, {name: left[name] for name in left if name in places}))

    def _taken_by(self, job: Job, nodes: Sequence[str]) -> dict[str, Amounts]:
        taken: dict[str, Amounts] = {}
        for member, node in zip(job.members, nodes, strict=False):
            taken[node] = plus(taken.get(node, {}), member.amounts)
        for level in self._projects.path(job.project):
            if self._projects[level].quota:
                self.free.setdefault(_LEVEL + level, self._projects[level].quota)
                taken[_LEVEL + level] = self._bounded_demand(level, job)
        return taken

    def _levels(self, job: Job) -> tuple[str, ...]:
        return tuple(_LEVEL + level for level in self._projects.path(job.project))

    def _bounded_demand(self, level: str, job: Job) -> dict[str, int]:
        quota = self._projects[level].quota
        return {name: amount for name, amount in job.demand.items() if name in quota}


def leaves(free: Amounts, job: Job, keep_free: Amounts) -> bool:
    """Tell whether something stays free in all after a job took its part."""
    return fits(keep_free, minus(free, job.demand))


def _less(places: Places, taken: Places) -> dict[str, Amounts]:
    left = dict(places)
    for name, amounts in taken.items():
        left[name] = minus(left.get(name, {}), amounts)
    return left


def _more(places: Places, given: Places) -> dict[str, Amounts]:
    more = dict(places)
    for name, amounts in given.items():
        more[name] = plus(more.get(name, {}), amounts)
    return more


def _least(bounds: Iterable[Places]) -> dict[str, Amounts]:
    """The least of several bounds, by place and resource."""
    least: dict[str, Amounts] = {}
    for bound in bounds:
        for name, amounts in bound.items():
            before = least.get(name, amounts)
            least[name] = {resource: min(amount, before.get(resource, 0)) for resource, amount in amounts.items()}
    return least
