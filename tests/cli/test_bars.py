"""Bars show what they stand for, also where it rounds to nothing or to all."""

from __future__ import annotations

import sys
from io import StringIO

import pytest
from rich.console import Console

from dsec.cli.bars import WIDTH, Bar
from dsec.cli.output import table


@pytest.mark.parametrize(
    ("size", "largest", "parts", "expected"),
    [
        (0, 0, (0,), "█"),
        (1, 1000, (1,), "█"),
        (1, 1000, (0,), "░"),
        (1000, 1000, (1000,), "█" * WIDTH),
        (1000, 1000, (1,), "█" + "░" * (WIDTH - 1)),
        (1000, 1000, (999,), "█" * (WIDTH - 1) + "░"),
        (500, 1000, (250,), "█" * (WIDTH // 4) + "░" * (WIDTH // 4)),
        (1000, 1000, (500, 500), "█" * (WIDTH // 2) + "▒" * (WIDTH // 2)),
        (1000, 1000, (0, 500), "▒" * (WIDTH // 2) + "░" * (WIDTH // 2)),
        (1000, 1000, (1, 1), "█▒" + "░" * (WIDTH - 2)),
    ],
)
def test_a_bar_shows_its_parts(size: int, largest: int, parts: tuple[int, ...], expected: str) -> None:
    assert Bar(size=size, largest=largest, parts=tuple(zip("█▒", parts, strict=False))).drawn() == expected


@pytest.mark.parametrize(("columns", "longest"), [(80, WIDTH), (16, 10)])
def test_bars_give_way_before_words_do(columns: int, longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    shown = StringIO()
    console = Console(width=columns, file=shown)
    rows = [("one", Bar(size=100, largest=100, parts=(("█", 50),))), ("two", Bar(size=50, largest=100, parts=()))]
    console.print(table(["name", ""], rows))
    _, first, second = shown.getvalue().splitlines()
    assert first.split() == ["one", "█" * (longest // 2) + "░" * (longest // 2)]
    assert second.split() == ["two", "░" * (longest // 2)]
