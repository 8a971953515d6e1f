"""Running scenarios for a person who watches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dsec.cli.output import note
from dsec.sim.pictures import draw
from dsec.sim.result import Result
from dsec.sim.running import run_cases
from dsec.sim.scenario_file import ScenarioFile


def run_with_progress(file: ScenarioFile, seed: int | None = None) -> list[Result]:
    """Run every case, with a bar for each on a terminal's stderr."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:

        def bar(case: str) -> Callable[[float], None]:
            task = bars.add_task(f"{file.name} {case}".strip(), total=1.0)
            return lambda share: bars.update(task, completed=share)

        return run_cases(file, seed=seed, progress=bar)


def plot(file: ScenarioFile, results: Sequence[Result], directory: Path) -> list[str]:
    """Draw all pictures of a scenario and name the files on stderr; return the pictures' names."""
    cases = [case for case, _ in file.cases]
    for picture in file.pictures:
        for path in draw(picture, cases, results, directory):
            note(f"wrote {path}")
    return [picture.name for picture in file.pictures]
