"""The table of formulas that a worksheet may name."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from difflib import get_close_matches

from dsec.base.errors import NotFoundError
from dsec.planner.formula import Formula


@functools.cache
def all_formulas() -> Mapping[str, Formula]:
    """Return every formula by its name."""
    from dsec.planner import environment_formulas, service_formulas

    listed = (*environment_formulas.FORMULAS, *service_formulas.FORMULAS)
    by_name = {formula.name: formula for formula in listed}
    if len(by_name) != len(listed):
        raise ValueError("two formulas have the same name")
    return dict(sorted(by_name.items()))


def find_formula(name: str) -> Formula:
    """Return a formula.

    Raises:
        NotFoundError: there is none of that name.
    """
    found = all_formulas().get(name)
    if found is None:
        close = get_close_matches(name, all_formulas(), n=3, cutoff=0.5)
        raise NotFoundError(
            f"there is no formula {name!r}",
            detail=f"close to it: {', '.join(close)}" if close else "",
            resolution="`dsec plan --formulas` lists them",
        )
    return found
