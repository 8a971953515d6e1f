"""`dsec gateway usage`: what was used and spent, from the ledger."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsec.cli.gateway_config import config_option, load_config
from dsec.cli.lazy import HELP_OPTIONS
from dsec.cli.output import or_dash, print_json, print_table
from dsec.cli.parameters import duration

if TYPE_CHECKING:
    from dsec.gateway.ledger_record import Attempt
    from dsec.gateway.spending import Spent
    from dsec.gateway.thinking_report import ThinkingEffect

_BY = ("attempt", "call", "episode", "task", "project", "key", "model", "backend")
_COLUMNS = (
    "name", "calls", "attempts", "answered", "failed", "input", "written", "read", "thinking", "visible",
    "usd", "estimated", "lost",
)  # fmt: skip


@click.command(name="usage", context_settings=HELP_OPTIONS)
@config_option
@click.option("--by", type=click.Choice(_BY), default="project", show_default=True, help="What sums are made for.")
@click.option("--project", help="Of this project only.")
@click.option("--episode", help="Of this episode only.")
@click.option("--call", help="Of this call only.")
@click.option("--since", type=duration, metavar="TIME", help="Of attempts begun in this last time, such as 24h.")
@click.option("--thinking", is_flag=True, help="Say what thinking budgets saved, and what they caused.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def gateway_usage(
    config_file: Path,
    by: str,
    project: str | None,
    episode: str | None,
    call: str | None,
    since: float | None,
    thinking: bool,
    as_json: bool,
) -> None:
    """Say what was used and spent. Every attempt counts once, whatever became of it.

    `estimated` is the part of the money that rests on estimates, `lost` what went into attempts without a whole answer.
    """
    from dsec.gateway.config import state_directory
    from dsec.gateway.ledger import read_attempts
    from dsec.gateway.spending import By, spending, total_spending
    from dsec.gateway.thinking_report import thinking_effects

    directory = state_directory(load_config(config_file), config_file)
    wanted = {"project": project, "episode": episode, "call": call}
    found = list(_chosen(read_attempts(directory), wanted, None if since is None else time.time() - since))
    if thinking:
        effects = thinking_effects(found)
        print_json(effects) if as_json else _print_effects(effects)
        return
    rows, total = spending(found, By(by)), total_spending(found)
    if as_json:
        print_json({"by": by, "rows": rows, "total": total})
        return
    print_table(_COLUMNS, [_row(one) for one in [*rows, total]])


def _chosen(attempts: Iterator[Attempt], wanted: dict[str, str | None], since_s: float | None) -> Iterator[Attempt]:
    for attempt in attempts:
        if since_s is not None and attempt.began.wall_s < since_s:
            continue
        if all(value is None or getattr(attempt.began, name) == value for name, value in wanted.items()):
            yield attempt


def _row(spent: Spent) -> list[str]:
    counts = (spent.calls, spent.attempts, spent.answered, spent.attempts - spent.answered)
    tokens = (spent.plain_input, spent.cache_write, spent.cache_read, spent.thinking, spent.visible)
    money = (spent.usd, spent.estimated_usd, spent.lost_usd)
    return [or_dash(spent.name), *(str(count) for count in (*counts, *tokens)), *(f"{usd:.6f}" for usd in money)]


def _print_effects(effects: list[ThinkingEffect]) -> None:
    columns = (
        "model",
        "limited",
        "free",
        "thinking",
        "free thinking",
        "cut",
        "repeated",
        "saved usd",
        "repeats usd",
        "net usd",
    )
    print_table(columns, [_effect_row(one) for one in effects])


def _effect_row(one: ThinkingEffect) -> list[str]:
    balance = one.balance
    return [
        one.model,
        str(one.limited_calls),
        str(one.free_calls),
        f"{one.limited_thinking_tokens:.0f}",
        f"{one.free_thinking_tokens:.0f}",
        str(one.cut_calls),
        str(one.repeated_calls),
        *(
            ("-", "-", "-")
            if balance is None
            else (f"{balance.saved_usd:.6f}", f"{balance.retried_usd:.6f}", f"{balance.net_usd:.6f}")
        ),
    ]
