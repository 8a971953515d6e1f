"""What a benchmark says while it runs: on stderr, so that stdout holds its result and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bars


class Progress:
    """Notes and bars on stderr; bars on a terminal only."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)

    def say(self, text: str) -> None:
        """Write a line."""
        self._console.print(text, markup=False, soft_wrap=True)

    @contextmanager
    def counting(self, what: str, total: int) -> Iterator[Callable[[], None]]:
        """Show how many of `total` are done; the block calls what it is given once for each."""
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        times = (TimeElapsedColumn(), TimeRemainingColumn())
        with Bars(*columns, *times, console=self._console, disable=not self._console.is_terminal) as bars:
            task = bars.add_task(what, total=total)
            yield lambda: bars.advance(task)
