"""The progress of a rollout on stderr: a bar on a terminal, a line now and then in a log."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as Remaining

from dsec.cli.output import note
from dsec.verification.attempt_result import AttemptResult
from dsec.verification.outcome import Outcome

_COLOURS = {
    Outcome.PASSED: "green",
    Outcome.FAILED: "red",
    Outcome.TIMED_OUT: "yellow",
    Outcome.INFRASTRUCTURE_ERROR: "magenta",
    Outcome.UNKNOWN: "bright_black",
}
_LINES = 10
"""How many lines a log gets in all."""


def _words(counts: Counter[Outcome], *, colour: bool) -> str:
    parts = []
    for outcome in Outcome:
        if counts[outcome]:
            words = f"{counts[outcome]} {outcome.value.replace('_', ' ')}"
            parts.append(f"[{_COLOURS[outcome]}]{words}[/]" if colour else words)
    return "  ".join(parts)


class ProgressObserver:
    """Shows how many attempts are finished, how they came out and when the rest will be; a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("[dim]left[/]"),
            Remaining(),
            TextColumn("{task.fields[counts]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._counts: Counter[Outcome] = Counter()
        self._task: TaskID | None = None
        self._planned = 0

    def __enter__(self) -> ProgressObserver:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def rollout_began(self, *, planned: int, finished: Sequence[AttemptResult]) -> None:
        self._planned = planned
        self._counts.update(result.outcome for result in finished)
        if finished:
            note(f"going on: {len(finished)} of {planned} attempts are finished already")
        self._task = self._bar.add_task("attempts", total=planned, completed=len(finished), counts="")

    def attempt_began(self, task: str, attempt: int) -> None:
        del task, attempt

    def attempt_ended(self, result: AttemptResult) -> None:
        self._counts[result.outcome] += 1
        if self._task is not None:
            self._bar.update(self._task, advance=1, counts=_words(self._counts, colour=True))
        done = sum(self._counts.values())
        if not self._console.is_terminal and done * _LINES // self._planned > (done - 1) * _LINES // self._planned:
            note(f"{done} of {self._planned} attempts: {_words(self._counts, colour=False)}")
