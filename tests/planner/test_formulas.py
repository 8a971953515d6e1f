"""The table of formulas: every one is readable by worksheets and says where it stands."""

from __future__ import annotations

import pytest

from dsec.base.errors import NotFoundError
from dsec.planner.formula import Formula
from dsec.planner.registry import all_formulas, find_formula


@pytest.mark.parametrize("formula", all_formulas().values(), ids=lambda formula: formula.name)
def test_a_formula_has_a_source_and_says_what_it_returns(formula: Formula) -> None:
    assert formula.source, f"{formula.name} has no `Source:`, nor has its module"
    assert formula.summary.endswith(".")
    assert formula.hint is not None
    assert all(parameter.hint is not None for parameter in formula.parameters.values())


def test_a_name_that_is_not_there_is_answered_with_those_close_to_it() -> None:
    with pytest.raises(NotFoundError) as caught:
        find_formula("amdahl.overal_speedup")
    assert "amdahl.overall_speedup" in caught.value.detail
