"""Enough is free, and still nothing fits: resources on the wrong nodes, and what moving one task changes.

A job asks for several resources on *one* node: accelerators of a kind, cores, memory. The pool as a whole may have
all of them free, and no node have all of them. That is fragmentation:

    fragmented   =   Σ over nodes of free(r) ≥ asked(r) for every r,   and   for every node some free(r) < asked(r)

Moving a task from a node to another takes what it uses from the second and gives it to the first.

A resource that a node does not name is not there: a node of other accelerators has none of the kind that is asked
for.

Source: the chapter, example 11-3, figures 11-24 and 11-25.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError, NotFoundError
from dsec.costs.checks import check_not_empty, check_not_negative

Amounts = Mapping[str, float]
"""How much of each resource, by its name, in whatever unit the reader counts it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Where a job fits.

    Attributes:
        fits: whether some node has all that is asked for.
        nodes: the nodes that do, in their order.
        pool_suffices: whether all nodes together have it.
        fragmented: whether the pool suffices and no node does.
        missing: for each node, what it lacks of each resource; only what it lacks.
    """

    fits: bool
    nodes: tuple[str, ...]
    pool_suffices: bool
    fragmented: bool
    missing: Mapping[str, Amounts]


def fit(*, free: Mapping[str, Amounts], asked: Amounts) -> Fit:
    """Return on which nodes a job fits, and what the others lack.

    Args:
        free: what is free on each node, by resource.
        asked: what the job needs on one node, by resource.

    Raises:
        InvalidRequestError: there are no nodes, nothing is asked for, or an amount is negative.

    Formula:
        fits on a node = free(r) ≥ asked(r) for every resource r

    Source:
        the chapter, example 11-3
    """
    check_not_empty("nodes", tuple(free))
    check_not_empty("resources that are asked for", tuple(asked))
    _check_amounts("asked", asked)
    for node, amounts in free.items():
        _check_amounts(f"free on {node}", amounts)
    missing = {node: _lacking(amounts, asked) for node, amounts in free.items()}
    fitting = tuple(node for node, lacking in missing.items() if not lacking)
    pooled = all(sum(amounts.get(name, 0.0) for amounts in free.values()) >= amount for name, amount in asked.items())
    return Fit(
        fits=bool(fitting),
        nodes=fitting,
        pool_suffices=pooled,
        fragmented=pooled and not fitting,
        missing=missing,
    )


def free_after_move(
    *, free: Mapping[str, Amounts], task: Amounts, source: str, target: str
) -> Mapping[str, Mapping[str, float]]:
    """Return what is free on each node after a task went from one to another.

    Args:
        free: what is free on each node before.
        task: what the task uses.
        source: the node that it leaves.
        target: the node that takes it in.

    Raises:
        NotFoundError: there is no such node.
        InvalidRequestError: the task does not fit on the target, or an amount is negative.

    Formula:
        free(source) + task,   free(target) - task

    Source:
        the chapter, figure 11-25
    """
    for node in (source, target):
        if node not in free:
            raise NotFoundError(f"there is no node {node!r}", resolution=f"name one of: {', '.join(free)}")
    _check_amounts("task", task)
    lacking = _lacking(free[target], task)
    if lacking:
        short = ", ".join(f"{amount:g} of {name}" for name, amount in lacking.items())
        raise InvalidRequestError(
            f"the task does not fit on {target}: it lacks {short}", resolution="move it to a node that has room"
        )
    after = {node: dict(amounts) for node, amounts in free.items()}
    for name, amount in task.items():
        after[target][name] = after[target].get(name, 0.0) - amount
        after[source][name] = after[source].get(name, 0.0) + amount
    return after


def _check_amounts(where: str, amounts: Amounts) -> None:
    for name, amount in amounts.items():
        check_not_negative(f"{name} of {where}", amount)


def _lacking(free: Amounts, asked: Amounts) -> dict[str, float]:
    short = {name: amount - free.get(name, 0.0) for name, amount in asked.items()}
    return {name: amount for name, amount in short.items() if amount > 0}
