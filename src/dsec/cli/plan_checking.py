"""`dsec plan --check`: the same workload by formula and by simulation."""

from __future__ import annotations

import click

from dsec.base.errors import InvalidRequestError
from dsec.cli.output import print_json, print_table
from dsec.planner.document import parse_document
from dsec.planner.from_scenario import is_scenario, scenario_workload
from dsec.planner.making import plan_document
from dsec.planner.simulated import Check, check


def run_check(text: str, *, name: str, combination: str | None, seed: int, as_json: bool) -> bool:
    """Compare and print; return whether formulas and simulation agree.

    Raises:
        InvalidRequestError: the file is a worksheet, which has nothing to simulate.
    """
    document = parse_document(text, name=name)
    as_it_is = is_scenario(document)
    if as_it_is:
        document, combination = scenario_workload(text, name=name, case=combination), None
    decision = plan_document(document).decision
    if decision is None:
        raise InvalidRequestError(
            f"{name} is a worksheet: there is nothing to simulate",
            resolution="check a workload or a scenario of rounds",
        )
    if as_it_is:  # A scenario says what there is; nothing is added to it.
        combination = decision.combinations[0].name
    found = check(decision, combination, seed=seed)
    if as_json:
        print_json({"agrees": found.agrees, "check": found})
    else:
        _print(found)
    return found.agrees


def _print(found: Check) -> None:
    item = found.combination
    click.echo(
        f"{item.name}, replicas: {item.units}, hosts: {item.hosts}; {found.tasks:,} tasks, "
        f"{found.simulated_s:,.0f} simulated seconds\n"
    )
    rows = [
        (
            row.name,
            f"{row.formula:.5g} {row.unit}",
            f"{row.simulated:.5g} {row.unit}",
            f"{row.off_by:+.2%}",
            _verdict(row.agrees),
        )
        for row in found.rows
    ]
    print_table(("figure", "formula", "simulated", "off by", "within 2 %"), rows)
    for row in found.rows:
        if row.why:
            click.echo(f"warning: {row.name}: {row.why}")
    for line in found.assumptions:
        click.echo(f"assumed: {line}")


def _verdict(agrees: bool) -> str:
    return "yes" if agrees else "NO"
