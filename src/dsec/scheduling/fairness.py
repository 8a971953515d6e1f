"""Which project is served next.

Two measures of how well a project is served, both in shares of the whole and both divided by the project's weight; the
least served goes first, at each level of the tree on its own.

*Dominant resource* (Ghodsi et al., NSDI 2011): a project's share is the largest of its shares of the single resources.
In a tree, adding up the children's use and taking the largest share can starve a leaf whose siblings use the other
resource. Bhattacharya et al. (Hierarchical Scheduling for Diverse Datacenter Workloads, SoCC 2013) therefore scale
each child's use down to the least served child that has anything before adding, and leave out children that wait for
nothing. So does this.

*Progress* (Gavel, OSDI 2020; Pollux, OSDI 2021): where accelerators differ, two of a slow kind are not two of a fast
kind. A project's share is the work it gets done with what it holds, as a part of what it would get done with
everything there is. Work adds up, so a parent's share is the sum of its children's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from dsec.base.errors import InvalidRequestError
from dsec.scheduling.amounts import Amounts, dominant_share
from dsec.scheduling.projects import ROOT, ProjectLedger, ProjectTree


class Measure(Protocol):
    """How well projects are served."""

    def shares(self, ledger: ProjectLedger, capacity: Amounts, waiting: Collection[str]) -> Mapping[str, float]:
        """Return the share of each project that waits or has one below it that does, not divided by weights.

        Args:
            ledger: what each uses.
            capacity: all there is.
            waiting: projects that have work waiting.
        """
        ...


@dataclass(frozen=True, slots=True)
class DominantResource:
    """Fairness by the dominant resource, for a tree of projects."""

    def shares(self, ledger: ProjectLedger, capacity: Amounts, waiting: Collection[str]) -> Mapping[str, float]:
        """Return dominant shares; see the theory at the top of the module."""
        shares: dict[str, float] = {}
        _scaled_use(ROOT, ledger, capacity, _with_ancestors(ledger.tree, waiting), shares)
        return shares


@dataclass(frozen=True, slots=True)
class Progress:
    """Fairness by work done.

    Attributes:
        speeds: work per second that one unit of a resource does for a project, by project and resource; a project
            that is not named uses the entry of `ROOT`.
    """

    speeds: Mapping[str, Mapping[str, float]]

    def shares(self, ledger: ProjectLedger, capacity: Amounts, waiting: Collection[str]) -> Mapping[str, float]:
        """Return shares of the work that the whole would do."""
        return {name: self._share(name, ledger, capacity) for name in _with_ancestors(ledger.tree, waiting)}

    def _share(self, name: str, ledger: ProjectLedger, capacity: Amounts) -> float:
        children = ledger.tree.children(name)
        if children:
            return sum(self._share(child, ledger, capacity) for child in children)
        speeds = self.speeds.get(name, self.speeds.get(ROOT, {}))
        whole = sum(capacity.get(resource, 0) * speed for resource, speed in speeds.items())
        if whole <= 0:
            raise InvalidRequestError(
                f"project {name!r} gets no work done on anything there is",
                detail=f"speeds: {dict(speeds)}; capacity: {dict(capacity)}",
                resolution="give the speed of at least one resource of this cluster",
            )
        return sum(ledger.used(name).get(resource, 0) * speed for resource, speed in speeds.items()) / whole


def next_project(
    measure: Measure, ledger: ProjectLedger, capacity: Amounts, waiting: Collection[str]
) -> tuple[str, str] | None:
    """Return the project to serve next and why; None when none waits.

    Args:
        measure: how service is measured.
        ledger: what each project uses.
        capacity: all there is.
        waiting: projects that have work waiting; a project with children may have work of its own.
    """
    if not waiting:
        return None
    tree, shares = ledger.tree, measure.shares(ledger, capacity, waiting)
    at = ROOT
    reasons: list[str] = []
    while True:
        candidates = [name for name in tree.children(at) if name in shares]
        if not candidates or at in waiting:
            return at, "; ".join(reasons)
        chosen = min(candidates, key=lambda name: (shares[name] / tree[name].weight, name))
        reasons.append(
            f"{chosen} has the least share, {shares[chosen] / tree[chosen].weight:.3f}, of {len(candidates)}"
        )
        at = chosen


def _with_ancestors(tree: ProjectTree, waiting: Collection[str]) -> set[str]:
    return {level for name in waiting for level in tree.path(name)}


def _scaled_use(
    name: str, ledger: ProjectLedger, capacity: Amounts, active: Collection[str], shares: dict[str, float]
) -> dict[str, float]:
    """Fill in the shares below `name` and return its use with its children scaled to the least served of them."""
    children = [child for child in ledger.tree.children(name) if child in active]
    if not children:
        use = {resource: float(amount) for resource, amount in ledger.used(name).items()}
    else:
        uses = {child: _scaled_use(child, ledger, capacity, active, shares) for child in children}
        weighted = {child: dominant_share(use, capacity) / ledger.tree[child].weight for child, use in uses.items()}
        # A child that has nothing yet says nothing about how well its siblings' parent is served.
        least = min((share for share in weighted.values() if share > 0), default=0.0)
        use = {}
        for child, child_use in uses.items():
            scale = least / weighted[child] if weighted[child] > 0 else 0.0
            for resource, amount in child_use.items():
                use[resource] = use.get(resource, 0.0) + amount * scale
    if name != ROOT:
        shares[name] = dominant_share(use, capacity)
    return use
