"""Hand a plan to what draws it.

`dsec.planner.pictures` has two functions: ``write_pictures(pictures, directory)`` returns the paths that it wrote, and
``write_page(plan, path)`` writes one self-contained page.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dsec.base.errors import CapabilityMissingError
from dsec.planner.plan import Plan


def _drawing(function: str) -> Any:
    try:
        return getattr(importlib.import_module("dsec.planner.pictures"), function)
    except ModuleNotFoundError as error:
        raise CapabilityMissingError(
            "this installation cannot draw", detail=str(error), resolution="pip install 'dsec[planning]'"
        ) from error


def write_pictures(plan: Plan, directory: Path) -> Iterable[Path]:
    """Write the plan's pictures as SVG and PNG; return where.

    Raises:
        CapabilityMissingError: the libraries that draw are not installed.
    """
    written: Iterable[Path] = _drawing("write_pictures")(plan.pictures, directory)
    return written


def write_page(plan: Plan, path: Path) -> None:
    """Write the report as one page; errors as `write_pictures`."""
    _drawing("write_page")(plan, path)
