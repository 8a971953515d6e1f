"""Bars of block characters, for tables: their length is a size, and their parts are shares of it.

A bar draws itself as wide as its column is, so that a narrow terminal shortens bars before it breaks words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.measure import Measurement
    from rich.text import Text

WIDTH = 24
"""Characters of the longest bar of a table, where there is room."""
_LEAST_WIDTH = 6
_REST = "░"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar, to be a cell of a table.

    Attributes:
        size: what it stands for.
        largest: the largest size of the table, as long as a bar can be.
        parts: characters, and how much of the size each stands for; together no more than the size.
    """

    size: int
    largest: int
    parts: tuple[tuple[str, int], ...]

    def drawn(self, width: int = WIDTH) -> str:
        """Draw it: first its parts, then the rest; never nothing. The largest of its table has this width.

        A part that is something shows where there is room, and what is not all of the bar never fills it.
        """
        length = max(1, round(width * self.size / self.largest)) if self.largest else 1
        done, line = 0, ""
        for character, part in self.parts:
            done += part
            end = round(length * done / self.size) if self.size else length
            if part:
                end = max(end, len(line) + 1)
            if done < self.size and length > 1:
                end = min(end, length - 1)
            line = line.ljust(min(end, length), character)
        return line.ljust(length, _REST)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        return Measurement(_LEAST_WIDTH, WIDTH).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        yield Text(self.drawn(min(options.max_width, WIDTH)), no_wrap=True)
