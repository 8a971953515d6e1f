"""The shipped worksheets, made once for all tests."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from dsec.planner.making import make_plan
from dsec.planner.plan import Plan

EXAMPLES = Path(__file__).parents[2] / "examples" / "planner"


@pytest.fixture(scope="session")
def example() -> Callable[..., Plan]:
    """Make the plan of a shipped worksheet, with one piece of its text in another form if that is given."""

    @functools.cache
    def make(name: str, old: str = "", new: str = "") -> Plan:
        text = (EXAMPLES / f"{name}.toml").read_text()
        assert old in text
        return make_plan(text.replace(old, new) if old else text, name=f"{name}.toml")

    return make
