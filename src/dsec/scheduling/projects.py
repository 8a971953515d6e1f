"""Projects nested in projects, what each may use at most, and what each uses.

A quota binds at every level: what a project uses counts for all projects above it, and a start is refused by the first
level, from the root down, that has no room. Because charging and checking walk the same path, no interleaving of
starts and ends can exceed a quota anywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from dsec.base.errors import InvalidRequestError, NotFoundError
from dsec.scheduling.amounts import Amounts, describe, minus, plus, require_amounts, shortfall

ROOT = ""
"""The name of the whole; every project without a parent stands below it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """One project.

    Attributes:
        name: unique in the tree.
        parent: the project it is part of; None: it stands at the top.
        weight: its claim against its siblings.
        quota: the most it and all below it may use; a resource that is not named is not bounded here.
    """

    name: str
    parent: str | None = None
    weight: float = 1.0
    quota: Amounts = field(default_factory=dict)


class ProjectTree:
    """The projects, checked.

    Raises:
        InvalidRequestError: two of one name, an unknown parent, a cycle, or a weight that is not positive.
    """

    def __init__(self, projects: Iterable[Project]) -> None:
        self._projects: dict[str, Project] = {}
        self._children: dict[str, list[str]] = {ROOT: []}
        for project in projects:
            self._add(project)
        self._paths = {name: self._find_path(name) for name in self._projects}
        for project in self._projects.values():
            self._children[project.parent or ROOT].append(project.name)

    def _add(self, project: Project) -> None:
        if not project.name or project.name in self._projects:
            raise InvalidRequestError(f"project {project.name!r} is named twice or not at all")
        if not project.weight > 0:
            raise InvalidRequestError(f"project {project.name!r} has weight {project.weight}: it must be above 0")
        require_amounts(project.quota, f"the quota of project {project.name!r}")
        self._projects[project.name] = project
        self._children[project.name] = []

    def _find_path(self, name: str) -> tuple[str, ...]:
        path = [name]
        while (parent := self._projects[path[-1]].parent) is not None:
            if parent not in self._projects:
                raise InvalidRequestError(f"project {path[-1]!r} has parent {parent!r}, which is not there")
            if parent in path:
                raise InvalidRequestError(f"projects {' -> '.join([*path, parent])} are each other's parents")
            path.append(parent)
        return tuple(reversed(path))

    def __getitem__(self, name: str) -> Project:
        """Return the project of this name.

        Raises:
            NotFoundError: there is none.
        """
        try:
            return self._projects[name]
        except KeyError:
            known = ", ".join(sorted(self._projects)[:8]) or "none"
            raise NotFoundError(f"there is no project {name!r}", detail=f"known: {known}") from None

    def children(self, name: str) -> tuple[str, ...]:
        """Return the names of the projects directly below one, or below `ROOT`."""
        return tuple(self._children[name])

    def path(self, name: str) -> tuple[str, ...]:
        """Return the project and all above it, from the top down."""
        _ = self[name]
        return self._paths[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRefusal:
    """Why a start would exceed a quota.

    Attributes:
        project: the level that has no room.
        missing: how much too much it is, by resource.
    """

    project: str
    missing: Amounts

    @property
    def reason(self) -> str:
        return f"project {self.project!r} is at its quota: {describe(self.missing)} too much"


class ProjectLedger:
    """What every project uses, in step at every level."""

    def __init__(self, tree: ProjectTree) -> None:
        self.tree = tree
        self._used: dict[str, dict[str, int]] = {}

    def copy(self) -> ProjectLedger:
        """Return a ledger that can be charged without changing this one."""
        other = ProjectLedger(self.tree)
        other._used = {name: dict(used) for name, used in self._used.items()}
        return other

    def used(self, project: str) -> Mapping[str, int]:
        """Return what a project and all below it use."""
        return self._used.get(project, {})

    def refusal(self, project: str, amounts: Amounts) -> QuotaRefusal | None:
        """Return the first level, from the top, that has no room for this; None when all have."""
        for level in self.tree.path(project):
            quota = self.tree[level].quota
            bounded = {name: amount for name, amount in amounts.items() if name in quota}
            missing = shortfall(bounded, minus(quota, self.used(level)))
            if missing:
                return QuotaRefusal(project=level, missing=missing)
        return None

    def charge(self, project: str, amounts: Amounts) -> None:
        """Count a start, at every level."""
        for level in self.tree.path(project):
            self._used[level] = plus(self.used(level), amounts)

    def release(self, project: str, amounts: Amounts) -> None:
        """Count an end, at every level."""
        for level in self.tree.path(project):
            self._used[level] = minus(self.used(level), amounts)
