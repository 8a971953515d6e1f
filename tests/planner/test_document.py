"""Strict reading with positions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsec.base.errors import InvalidRequestError
from dsec.base.toml_lines import find_lines, line_of
from dsec.planner.dimension import TIME
from dsec.planner.document import parse_document

_TEXT = '''\
title = """
[not.a.table]
key = 1
"""
[a]           # a comment = with = signs
one = "x # y"
two.three = 3
list = [
  { k = 1 },
  { k = 2 },
]
[[b.c]]
first = 1
[[b.c]]
second = 2
'''


def test_every_key_is_found_on_its_line() -> None:
    lines = find_lines(_TEXT)
    assert line_of(lines, ("title",)) == 1
    assert line_of(lines, ("a", "one")) == 6
    assert line_of(lines, ("a", "two", "three")) == 7
    assert line_of(lines, ("a", "list", 1, "k")) == 10
    assert line_of(lines, ("b", "c", 1, "second")) == 15
    assert line_of(lines, ("b", "c", 0, "nothing")) == 12


@given(st.text(max_size=200))
def test_no_text_stops_the_search_for_lines(text: str) -> None:
    assert all(number >= 1 for number in find_lines(text).values())


def test_unknown_key_is_refused_with_its_line_and_a_guess() -> None:
    table = parse_document("[a]\nrate = 1\nratr = 2\n", name="f.toml").root().needed_table("a")
    table.raw("rate")
    with pytest.raises(InvalidRequestError, match=r"f.toml:3: a.ratr: .*did you mean 'rate'"):
        table.finish()


def test_missing_unit_says_what_was_expected() -> None:
    root = parse_document("a = 5\n", name="f.toml").root()
    with pytest.raises(InvalidRequestError, match=r"f.toml:1: a: '5' has no unit, expected s"):
        root.quantity("a", TIME)


def test_contradictory_unit_says_both() -> None:
    root = parse_document('a = "5 GiB"\n', name="f.toml").root()
    with pytest.raises(InvalidRequestError, match=r"'5 GiB' is in B, expected s"):
        root.quantity("a", TIME)


def test_text_that_would_steer_a_terminal_is_refused() -> None:
    table = parse_document('a = "red \\u001b[31m"\nb = "two\\nlines"', name="f.toml").root()
    assert table.text("b") == "two\nlines"
    with pytest.raises(InvalidRequestError, match="control characters"):
        table.text("a")


def test_text_that_is_not_toml_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="is not TOML"):
        parse_document("a = = 1", name="f.toml")
    with pytest.raises(InvalidRequestError, match="is not TOML"):
        parse_document("a = " + "9" * 5_000, name="f.toml")
