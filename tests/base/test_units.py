"""Units as people read them."""

from __future__ import annotations

import pytest

from dsec.base.units import format_count, format_number_of, format_usd


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "$0.00"),
        (0.0007, "$0.00070"),
        (0.00123, "$0.0012"),
        (0.25, "$0.25"),
        (12.3, "$12.30"),
        (1234.5, "$1,234.50"),
    ],
)
def test_money_is_shown_with_as_many_digits_as_say_something(amount: float, text: str) -> None:
    assert format_usd(amount) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (999, "999"), (12_345, "12.3k"), (4_000_000, "4.0M"), (2 * 10**9, "2.0G")]
)
def test_counts_are_shown_short(number: int, text: str) -> None:
    assert format_count(number) == text


def test_one_of_a_kind_is_no_plural() -> None:
    assert [format_number_of(number, "layer") for number in (0, 1, 2)] == ["0 layers", "1 layer", "2 layers"]
