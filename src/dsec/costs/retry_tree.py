"""What a policy of attempts, repairs and upgrades costs, how often it succeeds, and how often in time.

A policy is a graph of nodes without cycles. Each node takes time and money and ends in one of its branches, whose
probabilities hold *given that the node was reached*: two kinds of failure that do not recover equally well are two
branches, to two nodes. With the paths π from the start to an end,

    E[C] = Σ p_π c_π,   success = Σ p_π over paths that pass,   timely = Σ p_π over those that pass by the deadline.

A deadline means one of two things. To *evaluate* it changes what is counted and nothing that is done: late successes
have been paid for. To *enforce* it ends a path before a node that could not be over in time: money is saved, and what
that node would have made good too late is not made good. A path that ends exactly at the deadline is in time.

Assumes that a node always takes its time, and that branches depend on the path only through the node. Source: the
chapter, section 11.5.2, example 11-8, figures 11-45 to 11-47, exercise 11-9.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError
from dsec.costs.checks import check_distribution, check_not_empty, check_not_negative, check_positive

MAXIMUM_PATHS = 100_000
"""A graph of n nodes can hold 2^n paths; what people draw has dozens."""

_TIME_TOLERANCE_S = 1e-9
"""Sums of times that were written in decimals meet a deadline in spite of binary rounding."""


class Deadline(enum.Enum):
    """What passing the deadline does."""

    EVALUATE = "evaluate"
    ENFORCE = "enforce"


class Ending(enum.Enum):
    """How a path ends."""

    PASSED = "passed"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One outcome of a node.

    Attributes:
        probability: of this outcome, given that the node was reached.
        to: the node that follows; empty: the task ends here.
        passes: whether the task ends here with success.
    """

    probability: float
    to: str = ""
    passes: bool = False

    @property
    def ending(self) -> Ending | None:
        """How the task ends here; None: it goes on."""
        if self.to:
            return None
        return Ending.PASSED if self.passes else Ending.FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One attempt.

    Attributes:
        cost_usd: its whole price.
        time_s: its duration.
        branches: its outcomes; their probabilities sum to 1.
        work_cpu_s: processor time; counted beside the cost, which already holds its price.
    """

    cost_usd: float
    time_s: float
    branches: tuple[Branch, ...]
    work_cpu_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPath:
    """One way through the policy.

    Attributes:
        nodes: the nodes passed, joined by " > ".
        ending: "passed", "failed" or "stopped" (by an enforced deadline).
        probability: of the whole path.
        cost_usd: of all its nodes.
        time_s: of all its nodes.
        work_cpu_s: of all its nodes.
        timely: whether it passes by the deadline.
    """

    nodes: str
    ending: str
    probability: float
    cost_usd: float
    time_s: float
    work_cpu_s: float
    timely: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeVisits:
    """How often a node is reached.

    Attributes:
        node: its name.
        share: share of submitted tasks that reach it.
        cost_usd: what it adds to the mean cost of a submitted task.
    """

    node: str
    share: float
    cost_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryOutcome:
    """What a policy does to one submitted task, on average.

    Attributes:
        paths: every way through, in the order of the branches.
        visits: every node, in the order given.
        success_share: share that passes at any time.
        timely_share: share that passes by the deadline.
        late_share: share that passes after it.
        stopped_share: share that an enforced deadline ends.
        failed_share: share that ends without success by itself.
        cost_usd: mean cost of a submitted task.
        time_s: mean time of a submitted task.
        work_cpu_s: mean processor time.
        resident_gib_s: mean memory over time, for a memory held from start to end.
        success_cost_usd: cost of one that passes; infinite when none does.
        timely_success_cost_usd: cost of one that passes in time; infinite when none does.
    """

    paths: tuple[RetryPath, ...]
    visits: tuple[NodeVisits, ...]
    success_share: float
    timely_share: float
    late_share: float
    stopped_share: float
    failed_share: float
    cost_usd: float
    time_s: float
    work_cpu_s: float
    resident_gib_s: float
    success_cost_usd: float
    timely_success_cost_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Walk:
    """A path that has not ended: `node` is the next one."""

    node: str
    passed: tuple[str, ...] = ()
    probability: float = 1.0
    cost_usd: float = 0.0
    time_s: float = 0.0
    work_cpu_s: float = 0.0

    def through(self, node: Node, branch: Branch) -> _Walk:
        return _Walk(
            node=branch.to,
            passed=(*self.passed, self.node),
            probability=self.probability * branch.probability,
            cost_usd=self.cost_usd + node.cost_usd,
            time_s=self.time_s + node.time_s,
            work_cpu_s=self.work_cpu_s + node.work_cpu_s,
        )

    def ended(self, ending: Ending, deadline_s: float) -> RetryPath:
        in_time = self.time_s <= deadline_s + _TIME_TOLERANCE_S
        return RetryPath(
            nodes=" > ".join(self.passed),
            ending=ending.value,
            probability=self.probability,
            cost_usd=self.cost_usd,
            time_s=self.time_s,
            work_cpu_s=self.work_cpu_s,
            timely=ending is Ending.PASSED and in_time,
        )


def _check_node(name: str, node: Node, nodes: Mapping[str, Node]) -> None:
    check_not_negative(f"cost_usd of {name!r}", node.cost_usd, "USD")
    check_not_negative(f"time_s of {name!r}", node.time_s, "s")
    check_not_negative(f"work_cpu_s of {name!r}", node.work_cpu_s, "CPU*s")
    check_not_empty(f"branches of {name!r}", node.branches)
    check_distribution(f"the branches of {name!r}", [branch.probability for branch in node.branches])
    for branch in node.branches:
        if branch.to and branch.passes:
            raise InvalidRequestError(
                f"a branch of {name!r} passes and goes on to {branch.to!r}",
                resolution="let it pass, or go on, but not both",
            )
        if branch.to and branch.to not in nodes:
            raise InvalidRequestError(
                f"a branch of {name!r} goes to {branch.to!r}, which is no node",
                detail=f"nodes: {', '.join(nodes)}",
                resolution="name one of the nodes, or leave `to` out where the task ends",
            )


def _follow(nodes: Mapping[str, Node], start: str) -> list[str]:
    """Return the nodes that are reached from `start`, each after all that it leads to.

    Raises:
        InvalidRequestError: the graph has a cycle; the error names its nodes.
    """
    done: dict[str, None] = {}
    open_nodes: dict[str, Iterator[Branch]] = {start: iter(nodes[start].branches)}
    while open_nodes:
        name = next(reversed(open_nodes))
        branch = next((each for each in open_nodes[name] if each.to and each.to not in done), None)
        if branch is None:
            del open_nodes[name]
            done[name] = None
        elif branch.to in open_nodes:
            along = list(open_nodes)
            cycle = [*along[along.index(branch.to) :], branch.to]
            raise InvalidRequestError(
                f"the retry tree has a cycle: {' > '.join(cycle)}",
                resolution="repeat a node under a second name as often as it may be tried; a tree of retries is finite",
            )
        else:
            open_nodes[branch.to] = iter(nodes[branch.to].branches)
    return list(done)


def _check_tree(nodes: Mapping[str, Node], start: str) -> None:
    if start not in nodes:
        raise InvalidRequestError(
            f"the start {start!r} is no node", detail=f"nodes: {', '.join(nodes)}", resolution="name one of the nodes"
        )
    for name, node in nodes.items():
        _check_node(name, node, nodes)
    order = _follow(nodes, start)
    unreached = sorted(set(nodes) - set(order))
    if unreached:
        raise InvalidRequestError(
            f"no branch leads to {', '.join(map(repr, unreached))}",
            resolution="lead a branch there, or remove what is never tried",
        )
    paths: dict[str, int] = {}
    for name in order:
        paths[name] = sum(paths[branch.to] if branch.to else 1 for branch in nodes[name].branches)
    if paths[start] > MAXIMUM_PATHS:
        raise InvalidRequestError(
            f"the retry tree has {paths[start]} paths, more than {MAXIMUM_PATHS}",
            resolution="join nodes that behave alike, or try fewer times",
        )


def _paths(nodes: Mapping[str, Node], start: str, deadline_s: float, mode: Deadline) -> Iterator[RetryPath]:
    walks: list[tuple[_Walk, Ending | None]] = [(_Walk(node=start), None)]
    while walks:
        walk, ending = walks.pop()
        if ending is not None:
            yield walk.ended(ending, deadline_s)
            continue
        node = nodes[walk.node]
        if mode is Deadline.ENFORCE and walk.time_s + node.time_s > deadline_s + _TIME_TOLERANCE_S:
            yield walk.ended(Ending.STOPPED, deadline_s)
        else:
            # The last one put down is followed first: the order of the branches becomes that of the paths.
            walks += [(walk.through(node, branch), branch.ending) for branch in reversed(node.branches)]


def _visits(nodes: Mapping[str, Node], paths: tuple[RetryPath, ...]) -> tuple[NodeVisits, ...]:
    reached = dict.fromkeys(nodes, 0.0)
    for path in paths:
        for name in path.nodes.split(" > "):
            reached[name] += path.probability
    return tuple(
        NodeVisits(node=name, share=share, cost_usd=share * nodes[name].cost_usd) for name, share in reached.items()
    )


def _sum(paths: tuple[RetryPath, ...], ending: Ending, *, timely: bool | None = None) -> float:
    return math.fsum(
        path.probability for path in paths if path.ending == ending.value and (timely is None or path.timely is timely)
    )


def evaluate_retries(
    *,
    nodes: Mapping[str, Node],
    start: str,
    deadline_s: float | None = None,
    mode: Deadline = Deadline.EVALUATE,
    memory_gib: float = 0.0,
) -> RetryOutcome:
    """Return cost, success and timeliness of a policy of attempts.

    Args:
        nodes: attempts by name.
        start: the first of them.
        deadline_s: until when a task has to pass; absent: any time.
        mode: whether the deadline is only counted by, or ends what cannot be over in time.
        memory_gib: memory that a task holds from its start to its end.

    Raises:
        InvalidRequestError: probabilities do not sum to 1, a number is out of range, the graph has a cycle, a node that
            is not there or is never reached, or more than `MAXIMUM_PATHS` paths; or the deadline is shorter than the
            first attempt, so that nothing can be in time.

    Formula:
        E[C] = Σ p · c,   timely = Σ p over paths that pass by the deadline

    Source:
        the chapter, section 11.5.2 and example 11-8
    """
    _check_tree(nodes, start)
    check_not_negative("memory_gib", memory_gib, "GiB")
    limit_s = math.inf if deadline_s is None else check_positive("deadline_s", deadline_s, "s")
    if limit_s + _TIME_TOLERANCE_S < nodes[start].time_s:
        raise InvalidRequestError(
            f"the deadline of {limit_s:g} s is shorter than the first attempt, which takes {nodes[start].time_s:g} s",
            resolution="allow at least one attempt, or make it faster",
        )
    paths = tuple(_paths(nodes, start, limit_s, mode))
    return _outcome(nodes, paths, memory_gib)


def _outcome(nodes: Mapping[str, Node], paths: tuple[RetryPath, ...], memory_gib: float) -> RetryOutcome:
    timely = _sum(paths, Ending.PASSED, timely=True)
    late = _sum(paths, Ending.PASSED, timely=False)
    cost_usd = math.fsum(path.probability * path.cost_usd for path in paths)
    time_s = math.fsum(path.probability * path.time_s for path in paths)
    success = timely + late
    return RetryOutcome(
        paths=paths,
        visits=_visits(nodes, paths),
        success_share=success,
        timely_share=timely,
        late_share=late,
        stopped_share=_sum(paths, Ending.STOPPED),
        failed_share=_sum(paths, Ending.FAILED),
        cost_usd=cost_usd,
        time_s=time_s,
        work_cpu_s=math.fsum(path.probability * path.work_cpu_s for path in paths),
        resident_gib_s=memory_gib * time_s,
        success_cost_usd=cost_usd / success if success else math.inf,
        timely_success_cost_usd=cost_usd / timely if timely else math.inf,
    )
