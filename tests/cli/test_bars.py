"""Bars show what they stand for, also where it rounds to nothing or to all."""

from __future__ import annotations

import pytest

from dsec.cli.bars import WIDTH, bar


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
    assert bar(size, largest, *zip("█▒", parts, strict=False)) == expected
