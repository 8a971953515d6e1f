"""Expressions with dimensions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.planner.dimension import BYTES, PURE, TIME
from dsec.planner.expression import evaluate
from dsec.planner.figure import Figure

_VALUES = {
    "model": Figure(name="model", value=9.0, dimension=TIME),
    "memory": Figure(name="memory", value=2.0, dimension=BYTES),
    "waits": tuple(Figure(name=f"waits.{n}", value=float(n), dimension=TIME) for n in range(3)),
}


def test_dimensions_follow_the_arithmetic() -> None:
    found = evaluate("$memory * ($model + '1 s') / 2", _VALUES.__getitem__)
    assert (found.value, found.dimension) == (10.0, BYTES * TIME)
    assert evaluate("sum($waits) / max($waits)", _VALUES.__getitem__).value == 1.5
    assert evaluate("ceil(180 / 15)", _VALUES.__getitem__).value == 12
    assert evaluate("$model ** 2 / $model", _VALUES.__getitem__).dimension == TIME


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("$model + $memory", "combines s and B"),
        ("min($model, 3)", "combines s and a pure number"),
        ("ceil($model)", "for pure numbers"),
        ("1 / 0", "cannot be computed"),
        ("$waits + '1 s'", "a list where one value is needed"),
        ("__import__('os')", "is not"),
        ("(1).real", "not understood"),
        ("[1, 2]", "not understood"),
        ("1 if 2 else 3", "not understood"),
        ("2 ** $model", "a power is a pure number"),
        ("1 +", "is not an expression"),
        ("(-8) ** 0.5", "negative number"),
        ("9 ** 9 ** 9 ** 9", "cannot be computed"),
        ("1e308 * 10", "too large"),
        ("1e308 * 10 - 1e308 * 10", "too large"),
        ("$model ** 0.3333", "no unit has such a power"),
        ("$model ** 12", "no unit has such a power"),
        ("1 // 2", "operator"),
        ("min()", "needs something"),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, says: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        evaluate(text, _VALUES.__getitem__)
    assert says in f"{caught.value.brief} {caught.value.detail}"


@given(scale=st.floats(1e-3, 1e3), number=st.floats(1e-3, 1e3))
def test_a_change_of_units_scales_the_result_by_its_dimension(scale: float, number: float) -> None:
    """Seconds that are `scale` times as long make a rate `1 / scale` as large, whatever the expression."""

    def at(by: float) -> float:
        values = {"time": Figure(name="time", value=number * by, dimension=TIME)}
        found = evaluate("3 / ($time + 2 * $time) * ($time ** 2 / $time ** 2)", values.__getitem__)
        assert found.dimension == PURE / TIME
        return found.value

    assert at(scale) == pytest.approx(at(1.0) / scale)
