"""`dsec sim`: run the policies without machines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsec.base.errors import CapabilityMissingError
from dsec.cli.lazy import HELP_OPTIONS, Lazy, LazyGroup

if TYPE_CHECKING:
    from dsec.sim.numbers import Finding
    from dsec.sim.result import Result
    from dsec.sim.scenario_file import ScenarioFile

_COMMANDS = {
    "ls": Lazy("dsec.cli.sim:sim_ls", "List the scenarios that come with dsec."),
    "show": Lazy("dsec.cli.sim:sim_show", "Print the text of a shipped scenario, to be changed and run."),
    "run": Lazy("dsec.cli.sim:sim_run", "Run a scenario and compare its cases."),
    "report": Lazy("dsec.cli.sim_report:sim_report", "Run every shipped scenario and write its page and pictures."),
    "validate": Lazy(
        "dsec.bench.validate_command:sim_validate", "Run one small scenario live on this host and simulated."
    ),
}


class _SimGroup(LazyGroup):
    """Commands that need more than the base package has."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as error:
            raise CapabilityMissingError(
                f"the simulator needs {error.name}", resolution="pip install 'dsec[planning]'"
            ) from error


@click.group(name="sim", cls=_SimGroup, lazy=_COMMANDS)
def sim() -> None:
    """Simulate nodes, schedulers and pools by discrete events: the same policies, no machines."""


@click.command(name="ls", context_settings=HELP_OPTIONS)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def sim_ls(as_json: bool) -> None:
    """List the scenarios that come with dsec."""
    from dsec.cli.output import print_json, print_table
    from dsec.sim.shipped import find_scenario, shipped_names

    found = [find_scenario(name) for name in shipped_names()]
    if as_json:
        print_json(
            [
                {"name": one.name, "title": one.base.title, "cases": [case.name for case, _ in one.cases]}
                for one in found
            ]
        )
        return
    print_table(("name", "cases", "title"), [(one.name, str(len(one.cases)), one.base.title) for one in found])


@click.command(name="show", context_settings=HELP_OPTIONS)
@click.argument("name")
def sim_show(name: str) -> None:
    """Print the text of a shipped scenario, to be changed and run."""
    from dsec.sim.shipped import shipped_text

    click.echo(shipped_text(name), nl=False)


@click.command(name="run", context_settings=HELP_OPTIONS)
@click.argument("scenario")
@click.option("--seed", type=click.IntRange(min=0), help="Seed of all randomness.  [the scenario's]")
@click.option("--case", "cases", multiple=True, help="Run this case only; may be given several times.")
@click.option("--json", "as_json", is_flag=True, help="Print results and claims as JSON.")
@click.option(
    "--plot", "directory", type=click.Path(path_type=Path, file_okay=False), help="Draw the scenario's pictures there."
)
def sim_run(scenario: str, seed: int | None, cases: tuple[str, ...], as_json: bool, directory: Path | None) -> None:
    """Run a scenario: a shipped one by its name, or a TOML file.

    The same scenario and seed give the same results.
    """
    from dsec.cli.output import print_json
    from dsec.cli.sim_running import plot, run_with_progress
    from dsec.sim.numbers import hold_claims
    from dsec.sim.shipped import find_scenario

    file = find_scenario(scenario)
    if cases:
        file = file.only(cases)
    results = run_with_progress(file, seed)
    findings = hold_claims(file.claims, results)
    if directory is not None:
        plot(file, results, directory)
    if as_json:
        print_json({"results": results, "claims": findings})
    else:
        _print(file, results, findings)


def _print(file: ScenarioFile, results: list[Result], findings: list[Finding]) -> None:
    from dsec.cli.output import print_table
    from dsec.sim.pages import columns_of, heading, shown, table_rows

    print_table(["case", *map(heading, columns_of(file))], table_rows(file, results))
    if findings:
        click.echo()
        rows = [
            [
                "holds" if finding.holds else "differs",
                shown(finding.measured),
                "-" if finding.claim.published is None else shown(finding.claim.published),
                f"{finding.claim.text} ({finding.claim.source})",
            ]
            for finding in findings
        ]
        print_table(("verdict", "here", "published", "claim"), rows)
