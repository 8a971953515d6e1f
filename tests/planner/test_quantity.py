"""Quantities and dimensions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.planner.dimension import BYTES, CPU, GPU, MONEY, PURE, TIME, TOKEN, split_name
from dsec.planner.quantity import EXAMPLES, parse_quantity, show, unit_scale


@pytest.mark.parametrize(
    ("text", "value", "dimension"),
    [
        ("5 s", 5.0, TIME),
        ("25.3 ms/token", 0.0253, TIME / TOKEN),
        ("2 GiB", 2 * 1024**3, BYTES),
        ("384 GB", 384e9, BYTES),
        ("200 Gbit/s", 25e9, BYTES / TIME),
        ("10 /s", 10.0, PURE / TIME),
        ("18 GiB*s", 18 * 1024**3, BYTES * TIME),
        ("18 GiB·s", 18 * 1024**3, BYTES * TIME),
        ("3 CPU*s", 3.0, CPU * TIME),
        ("6.79 USD/GPU/h", 6.79 / 3600, MONEY / GPU / TIME),
        ("10 USD/Mtoken", 1e-5, MONEY / TOKEN),
        ("95 %", 0.95, PURE),
        ("19_555.2 USD", 19555.2, MONEY),
        ("0.95", 0.95, PURE),
        ("3 task", 3.0, PURE),
        ("2 CPU^2", 2.0, CPU.to_the(2)),
    ],
)
def test_a_quantity_becomes_a_float_in_base_units(text: str, value: float, dimension: object) -> None:
    found = parse_quantity(text)
    assert found.value == pytest.approx(value)
    assert found.dimension == dimension


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "five s",
        "5 furlong",
        "5 s +",
        "5 s; 3",
        "5 __import__",
        "1e999 s",
        "5 GB/",
        "5 s**9",
        "5 " + "*".join(["s"] * 2_000),
    ],
)
def test_what_is_no_quantity_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequestError):
        parse_quantity(text)


def test_the_last_digit_says_how_exact_a_quantity_is() -> None:
    assert parse_quantity("2.16 s").step == pytest.approx(0.005)
    assert parse_quantity("168 %").step == pytest.approx(0.005)
    assert parse_quantity("1.6e10 B").step == pytest.approx(0.05e10)


def test_every_example_that_errors_show_is_a_quantity_of_its_dimension() -> None:
    for dimension, text in EXAMPLES.items():
        written = text.split(" or ")[0].strip('"')
        assert str(parse_quantity(written).dimension) == dimension


@given(
    value=st.floats(1e-6, 1e12), unit=st.sampled_from(["s", "ms", "GiB", "GiB*s", "USD/GPU/h", "token", "/s", "CPU*s"])
)
def test_the_unit_that_is_chosen_changes_nothing_but_the_number(value: float, unit: str) -> None:
    parsed = parse_quantity(f"{value!r} {unit}")
    assert parsed.value == pytest.approx(value * unit_scale(unit)[0])
    again = parse_quantity(show(parsed.value, parsed.dimension, unit, digits=15).replace(",", ""))
    assert again.dimension == parsed.dimension
    assert again.value == pytest.approx(parsed.value)


@pytest.mark.parametrize(
    ("name", "key", "text"),
    [
        ("tool_s", "tool", "s"),
        ("task_memory_gib_s", "task_memory", "GiB*s"),
        ("price_usd_per_gpu_h", "price", "USD/GPU/h"),
        ("pace_ms_per_token", "pace", "ms/token"),
        ("cost_usd_per_thousand", "cost", "USD/thousand"),
        ("creations_per_task", "creations_per_task", ""),
        ("tokens", "tokens", "token"),
        ("hit_probability", "hit_probability", ""),
        ("rate_per_s", "rate", "1/s"),
    ],
)
def test_a_name_ends_in_its_unit(name: str, key: str, text: str) -> None:
    found, unit = split_name(name)
    assert (found, unit.text) == (key, text)


def test_a_single_letter_that_is_a_unit_is_no_name() -> None:
    with pytest.raises(InvalidRequestError, match="is a unit"):
        split_name("s")
