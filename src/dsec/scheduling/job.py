"""What waits and what runs, as the scheduler sees it."""

from __future__ import annotations

from dataclasses import dataclass, field

from dsec.scheduling.amounts import Amounts, total


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One of the parts of a job that start together.

    Attributes:
        amounts: what it needs on one node.
        labels: what its node must have, such as ``h100`` or ``zone-a``.
    """

    amounts: Amounts
    labels: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Work that waits: all its members start at once or none does.

    Attributes:
        job_id: unique; also the last tie-break of every order.
        project: the project that is charged.
        members: its parts.
        arrived_s: when it was asked for. A job that was preempted keeps its first arrival.
        priority: higher goes first and may preempt lower.
        maximum_s: the longest it can run; every sandbox's lifetime has one.
        bursts: it may run in the cloud, its image being there.
    """

    job_id: str
    project: str
    members: tuple[Member, ...]
    arrived_s: float
    priority: int = 0
    maximum_s: float = 86_400.0
    bursts: bool = False

    @property
    def demand(self) -> dict[str, int]:
        """What it needs in all."""
        return total(member.amounts for member in self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A job that runs.

    Attributes:
        job: the job.
        nodes: the node of each member, in the order of the members.
        started_s: when it started or was last resumed.
        saved_s: when its state was last saved; None: never, so that all since its start would be lost.
        save_s: seconds to save it now; None: it cannot be saved.
        restore_s: seconds to get going again from what was saved.
        protected: it was started because it had waited too long, and is not preempted.
    """

    job: Job
    nodes: tuple[str, ...]
    started_s: float
    saved_s: float | None = None
    save_s: float | None = None
    restore_s: float = 0.0
    protected: bool = False

    def amounts_on(self, node: str) -> dict[str, int]:
        """Return what it holds on one node."""
        held: dict[str, int] = {}
        for member, place in zip(self.job.members, self.nodes, strict=True):
            if place == node:
                for name, amount in member.amounts.items():
                    held[name] = held.get(name, 0) + amount
        return held

    @property
    def ends_by_s(self) -> float:
        """The latest moment at which it ends by itself."""
        return self.started_s + self.job.maximum_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node as the scheduler sees it.

    Attributes:
        node_id: its id.
        capacity: all it has.
        labels: what it is.
    """

    node_id: str
    capacity: Amounts
    labels: frozenset[str] = field(default_factory=frozenset)
