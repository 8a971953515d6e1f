"""A value says its unit, and the key of its field leaves it out."""

from __future__ import annotations

import pytest

from dsec.base.errors import InvalidRequestError
from dsec.model.unit_names import UnitName, file_key, parse_by, unit_of

RATE = UnitName(end="_per_s", parse=parse_by({"/s": 1.0, "/min": 1 / 60}), how="write a rate")
TIME = UnitName(end="_s", parse=parse_by({"s": 1.0, "min": 60.0}), how="write a time")
SHARE = UnitName(end="_share", parse=parse_by({"%": 0.01, "": 1.0}), how="write a share", plain=True, kept=True)
UNITS = (TIME, RATE, SHARE)


@pytest.mark.parametrize(
    ("field", "unit", "key"),
    [
        ("stall_s", TIME, "stall"),
        ("calls_per_s", RATE, "calls"),
        ("lost_share", SHARE, "lost_share"),
        ("count", None, "count"),
    ],
)
def test_the_longest_end_says_the_unit_and_the_key_leaves_it_out(field: str, unit: UnitName | None, key: str) -> None:
    assert (unit_of(field, UNITS), file_key(field, UNITS)) == (unit, key)


@pytest.mark.parametrize(
    ("unit", "value", "number"),
    [
        (TIME, "1.5 min", 90.0),
        (TIME, " 1_500s ", 1500.0),
        (TIME, "1,234,567.5 s", 1_234_567.5),
        (TIME, "2e3 s", 2000.0),
        (SHARE, "85 %", 0.85),
        (SHARE, 1, 1.0),
        (SHARE, "0.5", 0.5),
    ],
)
def test_a_number_and_a_unit_are_read(unit: UnitName, value: object, number: float) -> None:
    assert unit.read(value) == pytest.approx(number)


@pytest.mark.parametrize(
    ("unit", "value"),
    [
        (TIME, 5),
        (TIME, True),
        (TIME, "5"),
        (TIME, "5 m"),
        (TIME, "-5 s"),
        (TIME, "1,5 s"),
        (SHARE, True),
        (SHARE, None),
    ],
)
def test_no_unit_another_unit_and_a_decimal_comma_are_refused(unit: UnitName, value: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        unit.read(value)
    assert repr(value) in caught.value.brief
    assert caught.value.resolution
