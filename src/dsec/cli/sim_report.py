"""`dsec sim report`: all tables and pictures of the shipped scenarios, made again."""

from __future__ import annotations

from pathlib import Path

import click

from dsec.cli.lazy import HELP_OPTIONS


@click.command(name="report", context_settings=HELP_OPTIONS)
@click.argument("directory", type=click.Path(path_type=Path, file_okay=False), default=Path("docs/simulation"))
@click.option("--only", "names", multiple=True, help="This scenario only; may be given several times.")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of all randomness.  [each scenario's]")
def sim_report(directory: Path, names: tuple[str, ...], seed: int | None) -> None:
    """Run every shipped scenario and write its page and pictures into DIRECTORY (docs/simulation)."""
    from dsec.cli.output import note
    from dsec.cli.sim_running import plot, run_with_progress
    from dsec.sim.numbers import hold_claims
    from dsec.sim.pages import markdown
    from dsec.sim.shipped import find_scenario, shipped_names

    directory.mkdir(parents=True, exist_ok=True)
    for name in names or shipped_names():
        file = find_scenario(name)
        results = run_with_progress(file, seed)
        pictures = plot(file, results, directory)
        page = directory / f"{file.name}.md"
        page.write_text(markdown(file, results, hold_claims(file.claims, results), pictures), encoding="utf8")
        note(f"wrote {page}")
