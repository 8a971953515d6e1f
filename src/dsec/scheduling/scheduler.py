"""Whose turn it is: one pure decision over all that waits and runs.

The order is: jobs that have waited too long, by arrival; then by priority; within a priority the project that is
served least (`fairness`), and of its jobs the one that came first. A job that does not fit is passed over and later
ones may start (backfilling), with these exceptions:

- *Headroom* stays free for jobs of urgent priority. An overdue job may use it: the bound on waiting comes first.
- *A bound on the longest wait.* A job that waited longer than `maximum_wait_s` and does not fit gets a hold: the
  earliest time at which it will fit by the ends that running jobs are bound to, and the nodes. From then on a job
  starts only if it ends before that time or leaves those amounts alone (EASY backfilling, Lifka 1995), whatever its
  priority; and a job that started overdue is not preempted. Hence a job that fits into the empty cluster and its quota
  starts at the latest after

      maximum_wait_s + 2 n x R,   n: jobs that became overdue before it, itself included;  R: longest `maximum_s`

  plus the interval between two decisions, as long as nodes stay and jobs end when they are bound to: n x R until its
  quota has room for it and n x R until nodes have.
- *Quotas* bind at every level. A hold of a job that its quota refuses keeps of that quota alone, never of nodes, so
  that nobody is held up for what a project may not use.
- *Preemption* is tried for a job that does not fit and has lower priorities below it, and must pay (`preemption`). It
  may not touch what a hold counts on.

Sources: the chapter, section 11.3.2; DRF (NSDI 2011); EASY backfilling.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from dsec.base.errors import InvalidRequestError
from dsec.scheduling.amounts import Amounts, describe, require_amounts, shortfall, total
from dsec.scheduling.fairness import DominantResource, Measure, next_project
from dsec.scheduling.gangs import place
from dsec.scheduling.job import Job, Node, Running
from dsec.scheduling.preemption import Preemption, choose_victims
from dsec.scheduling.projects import ProjectLedger, ProjectTree
from dsec.scheduling.room import Room, leaves


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How the scheduler decides.

    Attributes:
        maximum_wait_s: after which a job goes before all that came later.
        urgent_priority: from which a job may use the headroom.
        urgent_deadline_s: within which an urgent job must have its room; it preempts if need be.
        headroom: kept free in all, for urgent jobs; see `headroom.headroom`.
        measure: what fair means between projects.
    """

    maximum_wait_s: float = 600.0
    urgent_priority: int = 100
    urgent_deadline_s: float = 2.0
    headroom: Amounts = field(default_factory=dict)
    measure: Measure = field(default_factory=DominantResource)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """All that the decision rests on."""

    nodes: tuple[Node, ...]
    running: tuple[Running, ...]
    waiting: tuple[Job, ...]
    projects: ProjectTree


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start all members, each on its node. `protected`: it had waited too long, and is not preempted."""

    job_id: str
    nodes: tuple[str, ...]
    protected: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Preempt:
    """End the victims for the sake of a job, which starts on these nodes when they are gone."""

    job_id: str
    preemption: Preemption

    @property
    def reason(self) -> str:
        return self.preemption.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Keep room for an overdue job until `at_s`, when it can start; no nodes: it is its quota that keeps it waiting."""

    job_id: str
    nodes: tuple[str, ...]
    at_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """Nothing happens to a job now."""

    job_id: str
    reason: str


Decision = Start | Preempt | Hold | Wait

_NEVER = "it does not fit into the empty cluster and its quota, and never will"
_KEPT = "what is free is kept for jobs that have waited longer"


def decide(state: ClusterState, rules: Rules, *, now_s: float) -> tuple[Decision, ...]:
    """Decide for every waiting job; the decisions fit together and hold at once.

    Args:
        state: nodes, what runs, what waits.
        rules: how.
        now_s: the time, on the clock of `arrived_s` and `started_s`.

    Raises:
        InvalidRequestError: a job without members, with amounts that are no amounts, or in a project that has
            projects below it.
    """
    for job in state.waiting:
        _require_sound(job, state.projects)
    round_ = _Round(state, rules, now_s)
    overdue = [job for job in state.waiting if now_s - job.arrived_s >= rules.maximum_wait_s]
    for job in sorted(overdue, key=lambda job: (job.arrived_s, job.job_id)):
        round_.consider(job, overdue=True, why=f"it has waited {now_s - job.arrived_s:g} s, beyond the bound")
    later = [job for job in state.waiting if now_s - job.arrived_s < rules.maximum_wait_s]
    for priority in sorted({job.priority for job in later}, reverse=True):
        round_.consider_fairly([job for job in later if job.priority == priority], priority)
    return tuple(round_.decisions)


class _Round:
    """One decision as it is made, job by job."""

    def __init__(self, state: ClusterState, rules: Rules, now_s: float) -> None:
        self.rules, self.now_s = rules, now_s
        self.room = Room(state.nodes, state.projects, state.running, now_s=now_s)
        self.capacity = total(node.capacity for node in state.nodes)
        self.ledger = ProjectLedger(state.projects)
        self.decisions: list[Decision] = []
        for each in state.running:
            self.ledger.charge(each.job.project, each.job.demand)

    def consider_fairly(self, jobs: Iterable[Job], priority: int) -> None:
        """Consider jobs of one priority, the least served project's first."""
        queues: dict[str, list[Job]] = {}
        for job in sorted(jobs, key=lambda job: (job.arrived_s, job.job_id), reverse=True):
            queues.setdefault(job.project, []).append(job)
        while (turn := next_project(self.rules.measure, self.ledger, self.capacity, list(queues))) is not None:
            project, why = turn
            self.consider(queues[project].pop(), overdue=False, why=f"priority {priority}; {why}")
            if not queues[project]:
                del queues[project]

    def consider(self, job: Job, *, overdue: bool, why: str) -> None:
        """Decide about one job and take what it gets."""
        free = self.room.free_for(job)
        refusal = self.room.quota_refusal(job, free)
        if refusal is not None:
            plain = self.room.quota_refusal(job, self.room.free)
            self._wait(job, plain.reason if plain else _KEPT, overdue=overdue, nodes_too=False)
            return
        nodes = place(job.members, self.room.nodes, free)
        if nodes is not None and (overdue or leaves(self.room.free_in_all, job, self._headroom_for(job))):
            self._take(job, nodes)
            self.decisions.append(Start(job_id=job.job_id, nodes=nodes, protected=overdue, reason=why))
        elif (preemption := self._preemption(job)) is not None:
            self._preempt(job, preemption)
        else:
            self._wait(job, self._why_not(job, nodes), overdue=overdue, nodes_too=True)

    def _take(self, job: Job, nodes: tuple[str, ...]) -> None:
        # Nothing that starts in this round is a victim of it, hence `protected`; the decision says what holds later.
        self.room.take(Running(job=job, nodes=nodes, started_s=self.now_s, protected=True))
        self.ledger.charge(job.project, job.demand)

    def _preempt(self, job: Job, preemption: Preemption) -> None:
        for victim in preemption.victims:
            gone = self.room.give_back(victim.running.job.job_id)
            self.ledger.release(gone.job.project, gone.job.demand)
        self._take(job, preemption.nodes)
        self.decisions.append(Preempt(job_id=job.job_id, preemption=preemption))

    def _wait(self, job: Job, reason: str, *, overdue: bool, nodes_too: bool) -> None:
        if not self.room.fits_empty(job):
            self.decisions.append(Wait(job_id=job.job_id, reason=_NEVER))
        elif overdue and (held := self.room.hold(job, nodes_too=nodes_too)) is not None:
            nodes, at_s = held
            self.decisions.append(Hold(job_id=job.job_id, nodes=nodes, at_s=at_s, reason=reason))
        else:
            self.decisions.append(Wait(job_id=job.job_id, reason=reason))

    def _headroom_for(self, job: Job) -> Amounts:
        return {} if job.priority >= self.rules.urgent_priority else self.rules.headroom

    def _preemption(self, job: Job) -> Preemption | None:
        urgent = job.priority >= self.rules.urgent_priority
        return choose_victims(
            job,
            self.room.running.values(),
            self.room.nodes,
            self.room.free,
            now_s=self.now_s,
            within_s=self.rules.urgent_deadline_s if urgent else math.inf,
            gains_s=None if urgent else self._starts_s(job) - self.now_s,
            at_most=self.room.at_most(job),
            keep_free=self._headroom_for(job),
        )

    def _starts_s(self, job: Job) -> float:
        """When the job would start if nothing were preempted; for ever late when it never fits."""
        ends = sorted({each.ends_by_s for each in self.room.running.values()})
        return next((at for at in ends if place(job.members, self.room.nodes, self.room.free_at(at))), math.inf)

    def _why_not(self, job: Job, nodes: tuple[str, ...] | None) -> str:
        if nodes is not None:
            return f"{describe(self.rules.headroom)} are kept free for urgent work"
        missing = shortfall(job.demand, self.room.free_in_all)
        if missing:
            return f"the cluster lacks {describe(missing)}"
        if place(job.members, self.room.nodes, self.room.free) is not None:
            return _KEPT
        return "enough is free in all, but not together on nodes that suit it"


def _require_sound(job: Job, projects: ProjectTree) -> None:
    if not job.members:
        raise InvalidRequestError(f"job {job.job_id} has no members")
    if projects.children(projects[job.project].name):
        raise InvalidRequestError(
            f"job {job.job_id} is in project {job.project!r}, which has projects below it",
            resolution=f"give it to one of {', '.join(projects.children(job.project))}",
        )
    for member in job.members:
        require_amounts(member.amounts, f"job {job.job_id}")
