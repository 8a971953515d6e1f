"""What `dsec plan` prints."""

from __future__ import annotations

from typing import Any

import click

from dsec.cli.output import or_dash, print_json, print_table
from dsec.planner.expectation import Check
from dsec.planner.figure import Figure, explain
from dsec.planner.plan import Plan, figure_record
from dsec.planner.registry import all_formulas


def print_plan(plan: Plan, *, as_json: bool) -> None:
    """Print a plan."""
    if as_json:
        print_json(plan_record(plan))
        return
    _print_heading(plan)
    if plan.decision is not None:
        from dsec.cli.plan_decision import print_decision

        print_decision(plan.decision)
    _print_checks(plan.checks)
    _print_others(plan)


def _print_heading(plan: Plan) -> None:
    heading = plan.heading
    click.echo(f"{heading.title} ({heading.where})" if heading.where else heading.title)
    if heading.assumed:
        click.echo(f"assumed: {heading.assumed}")
    click.echo()


def _print_checks(checks: tuple[Check, ...]) -> None:
    if not checks:
        return
    rows = [
        ("yes" if check.holds else "NO", check.name, check.expected, check.computed, _off(check), check.where)
        for check in checks
    ]
    print_table(("holds", "figure", "expected", "computed", "off by", "where"), rows)
    for check in checks:
        if check.assumed:
            click.echo(f"assumed for {check.name}: {check.assumed}")
    failed = sum(not check.holds for check in checks)
    click.echo(f"\n{len(checks) - failed} of {len(checks)} expected numbers hold")


def _off(check: Check) -> str:
    return "-" if check.off_by is None else f"{check.off_by:+.2%}"


def _print_others(plan: Plan) -> None:
    figures = list(plan.printed())
    if not figures:
        return
    click.echo()
    print_table(("figure", "value", "formula"), [(item.name, str(item), item.formula) for item in figures])


def print_explanation(plan: Plan, name: str, *, as_json: bool) -> None:
    """Print where a figure comes from; `all` prints every figure's name and value."""
    if name == "all":
        if as_json:
            print_json({key: figure_record(figure) for key, figure in plan.figures.items()})
            return
        print_table(("figure", "value"), [(key, str(figure)) for key, figure in plan.figures.items()])
        return
    figure = plan.figure(name)
    if as_json:
        print_json(_explained(figure))
        return
    for line in explain(figure):
        click.echo(line)


def _explained(figure: Figure) -> dict[str, Any]:
    inner = {name: _explained(part) for name, part in figure.inputs.items()}
    return {"name": figure.name, **figure_record(figure), "inputs": inner}


def plan_record(plan: Plan) -> dict[str, Any]:
    """Return a plan as a JSON object."""
    record: dict[str, Any] = {
        **plan.extra,
        "heading": plan.heading,
        "holds": plan.holds,
        "checks": plan.checks,
        "figures": {name: figure_record(figure) for name, figure in plan.figures.items()},
    }
    if plan.decision is not None:
        from dsec.cli.plan_decision import decision_record

        record["decision"] = decision_record(plan.decision)
    return record


def print_formulas(*, as_json: bool) -> None:
    """List the formulas with their inputs."""
    rows: list[dict[str, Any]] = [
        {
            "name": formula.name,
            "inputs": {
                key: f"{parameter.unit.dimension}{'' if parameter.required else ' (optional)'}"
                for key, parameter in formula.parameters.items()
            },
            "formula": formula.text,
            "summary": formula.summary,
            "source": formula.source,
        }
        for formula in all_formulas().values()
    ]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        click.echo(f"{row['name']}\n    {row['summary']}\n    {or_dash(row['formula'])}")
        for key, unit in row["inputs"].items():
            click.echo(f"    {key}: {unit}")
