"""A small cluster, and an engine that carries out what the scheduler decides."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dsec.scheduling.job import Job, Member, Node, Running
from dsec.scheduling.projects import Project, ProjectLedger, ProjectTree
from dsec.scheduling.scheduler import ClusterState, Decision, Preempt, Rules, Start, decide


class Cluster:
    """A cluster in which jobs end when they are bound to and decisions are carried out at once."""

    def __init__(self, nodes: list[Node], projects: list[Project], rules: Rules) -> None:
        self.nodes, self.rules = tuple(nodes), rules
        self.projects = ProjectTree(projects)
        self.running: dict[str, Running] = {}
        self.waiting: dict[str, Job] = {}
        self.started_s: dict[str, float] = {}
        self.preempted: list[str] = []

    def submit(self, *jobs: Job) -> None:
        for job in jobs:
            self.waiting[job.job_id] = job

    def step(self, now_s: float) -> tuple[Decision, ...]:
        """End what is due, decide, carry out, and check that nothing is used twice."""
        for each in list(self.running.values()):
            if each.ends_by_s <= now_s:
                del self.running[each.job.job_id]
        state = ClusterState(
            nodes=self.nodes,
            running=tuple(self.running.values()),
            waiting=tuple(self.waiting.values()),
            projects=self.projects,
        )
        decisions = decide(state, self.rules, now_s=now_s)
        for decision in decisions:
            if isinstance(decision, Preempt):
                self._preempt(decision, now_s)
            elif isinstance(decision, Start):
                self._start(decision.job_id, decision.nodes, now_s, protected=decision.protected)
        self.check()
        return decisions

    def _preempt(self, decision: Preempt, now_s: float) -> None:
        for victim in decision.preemption.victims:
            gone = self.running.pop(victim.running.job.job_id)
            assert not gone.protected
            assert gone.job.priority < self.waiting[decision.job_id].priority
            self.waiting[gone.job.job_id] = gone.job
            self.preempted.append(gone.job.job_id)
        self._start(decision.job_id, decision.preemption.nodes, now_s, protected=False)

    def _start(self, job_id: str, nodes: tuple[str, ...], now_s: float, *, protected: bool) -> None:
        job = self.waiting.pop(job_id)
        assert len(nodes) == len(job.members), "a gang starts whole"
        self.running[job_id] = Running(job=job, nodes=nodes, started_s=now_s, protected=protected)
        self.started_s.setdefault(job_id, now_s)

    def check(self) -> None:
        """No node is overfull, no label is wrong, and no quota is exceeded at any level."""
        ledger = ProjectLedger(self.projects)
        for node in self.nodes:
            used: dict[str, int] = {}
            for each in self.running.values():
                for name, amount in each.amounts_on(node.node_id).items():
                    used[name] = used.get(name, 0) + amount
            assert all(amount <= node.capacity.get(name, 0) for name, amount in used.items()), (node, used)
        labels = {node.node_id: node.labels for node in self.nodes}
        for each in self.running.values():
            for member, place in zip(each.job.members, each.nodes, strict=True):
                assert member.labels <= labels[place]
                ledger.charge(each.job.project, member.amounts)
            for level in self.projects.path(each.job.project):
                quota = self.projects[level].quota
                assert all(ledger.used(level).get(name, 0) <= amount for name, amount in quota.items()), level


def make_job(
    job_id: str, cpus: int = 1, *, members: int = 1, project: str = "team", arrived_s: float = 0.0, **more: object
) -> Job:
    """A job of members that are alike."""
    part = Member(amounts={"cpu": cpus}, labels=frozenset(more.pop("labels", ())))  # type: ignore[arg-type]
    return Job(job_id=job_id, project=project, members=(part,) * members, arrived_s=arrived_s, **more)  # type: ignore[arg-type]


@pytest.fixture
def job() -> Callable[..., Job]:
    return make_job


@pytest.fixture
def cluster() -> Callable[..., Cluster]:
    """Make a cluster of nodes with `cpus` each."""

    def make(*cpus: int, projects: list[Project] | None = None, **rules: object) -> Cluster:
        nodes = [Node(node_id=f"node-{index}", capacity={"cpu": amount}) for index, amount in enumerate(cpus)]
        return Cluster(nodes, projects or [Project(name="team")], Rules(**rules))  # type: ignore[arg-type]

    return make
