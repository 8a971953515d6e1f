"""What `dsec plan` prints of a workload's decision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from dsec.cli.output import print_table
from dsec.planner.combination import Combination
from dsec.planner.decision import Decision, Option

_MOST_LINES = 40
_MOST_LACKING = 10
_MOST_REASONS = 10
_COLUMNS = (
    "combination", "replicas", "hosts", "time", "wait", "CPU*s", "GiB*s", "mean GiB", "peak GiB", "cores", "calls",
    "USD/1000", "USD/1000 in time", "in time", "feasible", "lacks",
)  # fmt: skip


def print_decision(decision: Decision) -> None:
    """Print the table, what is lacking, the recommendation and what would change it."""
    _print_table(decision)
    _print_lacks(decision.options)
    click.echo("\nrecommendation")
    for reason in decision.reasons[:_MOST_REASONS]:
        click.echo(f"  {reason}")
    _print_front(decision)
    _print_levers(decision)
    if decision.break_evens:
        click.echo("\nequal costs")
    for line in decision.break_evens:
        click.echo(f"  {line}")
    if decision.warnings:
        click.echo("\nassumed")
    for line in decision.warnings:
        click.echo(f"  {line}")
    click.echo()


def _print_table(decision: Decision) -> None:
    lines: Sequence[Combination] = [option.combination for option in decision.options]
    if len(decision.combinations) <= _MOST_LINES:
        best = {item.name for item in lines}
        lines = [*lines, *(item for item in decision.combinations if item.name not in best)]
    else:
        lines = lines[:_MOST_LINES]
        click.echo(
            f"{decision.size.combinations:,} combinations; the best of each service, policy and host "
            f"({len(lines)} of {len(decision.options)}):"
        )
    print_table(_COLUMNS, [_cells(item) for item in lines])


def _cells(item: Combination) -> tuple[str, ...]:
    in_time = item.usd_per_thousand_in_time
    return (
        item.name,
        str(item.units),
        str(item.hosts),
        f"{item.completion_s:.5g} s",
        f"{item.wait_s:.3g} s",
        f"{item.cpu_s:.4g}",
        f"{item.memory_gib_s:.4g}",
        f"{item.memory_mean_gib:.4g}",
        f"{item.memory_peak_gib:.4g}",
        f"{item.cores_mean:.4g}",
        f"{item.slots_mean:.4g}",
        f"{item.usd_per_thousand:.4g}",
        "-" if in_time is None else f"{in_time:.4g}",
        f"{item.share_in_time:.2%}",
        "yes" if item.feasible else "no",
        item.binding or "-",
    )


def _print_lacks(options: Sequence[Option]) -> None:
    lacking = [option for option in options if option.shortfalls]
    if lacking:
        click.echo("\nwhat is lacking")
    for option in lacking[:_MOST_LACKING]:
        click.echo(f"  {option.combination.name}")
        for shortfall in option.shortfalls:
            click.echo(f"    {shortfall.text}")
        if option.addition is not None:
            click.echo(f"    enough: {option.addition.text}")
        elif not option.is_possible:
            click.echo("    nothing that could be added makes it enough")
    if len(lacking) > _MOST_LACKING:
        click.echo(f"  and {len(lacking) - _MOST_LACKING} more; --json has all")


def _print_front(decision: Decision) -> None:
    if len(decision.front) < 2:
        return
    exact = "of all combinations" if decision.front_is_exact else "of the cheapest for each number of hosts"
    click.echo(f"\ncheaper or faster, {exact}")
    rows = [(item.name, f"{item.completion_s:.7g} s", f"{item.usd_per_thousand:.5g}") for item in decision.front[:20]]
    print_table(("combination", "time", "USD/1000"), rows)


def _print_levers(decision: Decision) -> None:
    levers = [lever for lever in decision.levers if lever.down or lever.up or lever.usd_per_ten_percent]
    if not levers:
        return
    click.echo("\nwhat would change the answer, each alone")
    rows = [
        (item.name, item.value, item.down or "-", item.up or "-", f"{item.usd_per_ten_percent:+.3g}") for item in levers
    ]
    print_table(("input", "now", "down to", "up to", "USD/1000 for +10 %"), rows)


def decision_record(decision: Decision) -> dict[str, Any]:
    """Return a decision as a JSON object."""
    return {
        "combinations": {"count": decision.size.combinations, "listed": decision.combinations},
        "options": [_option_record(option) for option in decision.options],
        "chosen": None if decision.chosen is None else _option_record(decision.chosen),
        "reasons": decision.reasons,
        "front": {"exact": decision.front_is_exact, "combinations": decision.front},
        "levers": decision.levers,
        "break_evens": decision.break_evens,
        "warnings": decision.warnings,
    }


def _option_record(option: Option) -> dict[str, Any]:
    return {
        "combination": option.combination,
        "possible": option.is_possible,
        "lacks": option.shortfalls,
        "add": option.addition,
        "with_addition": option.extended,
    }
