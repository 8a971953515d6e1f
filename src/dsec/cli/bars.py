"""Bars of block characters, for tables: their length is a size, and their parts are shares of it."""

from __future__ import annotations

WIDTH = 24
"""Characters of the longest bar of a table."""
REST = "░"


def bar(size: int, largest: int, *parts: tuple[str, int]) -> str:
    """Draw a size as a bar: first its parts, each of its own character, then the rest. Never nothing.

    A part that is something shows at least once where there is room, and what is not all of a bar never fills it.

    Args:
        size: what the bar stands for.
        largest: the largest size of the table, as long as a bar can be.
        parts: the characters, and how much of the size each stands for; together no more than the size.
    """
    width = max(1, round(WIDTH * size / largest)) if largest else 1
    drawn = ""
    done = 0
    for character, part in parts:
        done += part
        end = round(width * done / size) if size else width
        if part:
            end = max(end, len(drawn) + 1)
        if done < size and end >= width > 1:
            end = width - 1
        drawn = drawn.ljust(min(end, width), character)
    return drawn.ljust(width, REST)
