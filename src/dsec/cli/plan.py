"""`dsec plan`: what a workload needs, what it costs, and why."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsec.cli.parameters import json_option

if TYPE_CHECKING:
    from dsec.planner.plan import Plan

_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command(name="plan")
@click.argument("file", type=_FILE, required=False)
@json_option
@click.option("--explain", metavar="FIGURE", help="Print where a figure comes from (`all` lists the figures).")
@click.option("--plot", type=click.Path(path_type=Path, file_okay=False), metavar="DIR", help="Write pictures to DIR.")
@click.option("--html", type=_FILE, metavar="FILE", help="Write a report in one page.")
@click.option("--check", is_flag=True, help="Simulate the recommended combination and compare.")
@click.option("--combination", metavar="NAME", help="With --check: simulate this one; of a scenario, this case.")
@click.option("--seed", type=int, default=0, show_default=True, help="With --check: of the simulation.")
@click.option(
    "--from-run",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Fit the tasks to a rollout's results; FILE then says what is offered.",
)
@click.option("--times", type=float, default=10.0, show_default=True, help="With --from-run: how many times its load.")
@click.option("--formulas", is_flag=True, help="List the formulas that a worksheet may name.")
@click.pass_context
def plan(
    ctx: click.Context,
    file: Path | None,
    as_json: bool,
    explain: str | None,
    plot: Path | None,
    html: Path | None,
    check: bool,
    combination: str | None,
    seed: int,
    from_run: Path | None,
    times: float,
    formulas: bool,
) -> None:
    """Say what the workload in FILE needs and costs, and why.

    FILE is a workload or a worksheet of calculations (docs/planner.md); with --check also a scenario of the simulator.
    When expected numbers do not come out, or formulas and simulation part, the exit status is 1.
    """
    from dsec.cli.plan_output import print_explanation, print_formulas, print_plan

    if formulas:
        print_formulas(as_json=as_json)
        return
    if check:
        ctx.exit(0 if _check(file, combination, seed, as_json=as_json) else 1)
    if from_run is not None:
        made = _fit(file, from_run, times, quiet=as_json or explain is not None)
    else:
        made = _make(file)
    if explain is not None:
        print_explanation(made, explain, as_json=as_json)
    else:
        print_plan(made, as_json=as_json)
    _draw(made, plot, html)
    if not made.holds:
        ctx.exit(1)


def _check(file: Path | None, combination: str | None, seed: int, *, as_json: bool) -> bool:
    from dsec.cli.plan_reading import read_text
    from dsec.planner.outer import numeric

    numeric()  # Says what to install, before the simulator is imported, which needs it to begin with.
    from dsec.cli.plan_checking import run_check

    if file is None:
        raise click.UsageError("Name the workload or scenario to check.")
    return run_check(read_text(file), name=str(file), combination=combination, seed=seed, as_json=as_json)


def _fit(file: Path | None, directory: Path, times: float, *, quiet: bool) -> Plan:
    from dsec.cli.plan_fitting import make_run_plan, print_fit

    found = make_run_plan(file, directory, times)
    if not quiet:
        print_fit(found)
    return dataclasses.replace(found.plan, extra={"fit": found.fit, "times": found.times, "cases": found.cases})


def _make(file: Path | None) -> Plan:
    from dsec.cli.plan_reading import read_text
    from dsec.planner.making import make_plan

    if file is None:
        raise click.UsageError("Name the workload or worksheet to plan.")
    return make_plan(read_text(file), name=str(file))


def _draw(made: Plan, plot: Path | None, html: Path | None) -> None:
    if plot is None and html is None:
        return
    from dsec.cli.output import note
    from dsec.cli.plan_drawing import write_page, write_pictures

    if plot is not None:
        for path in write_pictures(made, plot):
            note(f"wrote {path}")
    if html is not None:
        write_page(made, html)
        note(f"wrote {html}")
