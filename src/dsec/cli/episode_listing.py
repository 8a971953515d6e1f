"""`dsec episode ls`."""

from __future__ import annotations

import click

from dsec.cli.context import Options, pass_options
from dsec.cli.output import age, or_dash, print_json, print_table
from dsec.cli.parameters import json_option, pairs_option
from dsec.cli.worker_connection import run_episodes
from dsec.episode.spec import EpisodeFilter, EpisodeInfo, EpisodeState

_STATES = click.Choice([state.value for state in EpisodeState])
_WHY_CHARACTERS = 160
"""Of how an episode ended; `show` has all of it."""
_COLUMNS = ("episode", "state", "task", "job", "rounds", "tokens", "cost", "age", "why")


@click.command(name="ls")
@click.option("--job", default="", metavar="JOB", help="Only those of this job.")
@click.option("--task", default="", metavar="TASK", help="Only those at this task.")
@click.option("--state", "states", type=_STATES, multiple=True, help="Only those in this state; may be repeated.")
@pairs_option("-l", "--label", "labels", help="Only those with this metadata; may be repeated.")
@click.option("-n", "--limit", type=click.IntRange(min=1), help="Only so many, the newest.")
@click.option("-q", "--quiet", is_flag=True, help="Print ids only.")
@json_option
@pass_options
def ls(
    options: Options,
    job: str,
    task: str,
    states: tuple[str, ...],
    labels: tuple[tuple[str, str], ...],
    limit: int | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """List episodes, the newest first."""
    query = EpisodeFilter(
        job=job, task=task, states=tuple(EpisodeState(state) for state in states), metadata=dict(labels)
    )
    found = run_episodes(options, lambda episodes: episodes.list(query))[:limit]
    if as_json:
        print_json(list(found))
    elif quiet:
        click.echo("".join(f"{info.episode_id}\n" for info in found), nl=False)
    else:
        print_table(_COLUMNS, (_row(info) for info in found))


def _row(info: EpisodeInfo) -> tuple[str, ...]:
    tokens = info.usage.input_tokens + info.usage.output_tokens
    task = info.task if info.attempt == 1 else f"{info.task} #{info.attempt}"
    return (
        info.episode_id,
        info.state.value,
        task,
        or_dash(info.job),
        str(info.rounds),
        f"{tokens:,}" if tokens else "-",
        cost(info.usage.cost_usd),
        age(info.created_at_s) if info.created_at_s else "-",
        why(info),
    )


def cost(usd: float | None) -> str:
    """Return an amount of money, or a dash where nobody knows."""
    return "-" if usd is None else f"${usd:.4f}"


def why(info: EpisodeInfo) -> str:
    """Say in a line why an episode is where it is, what its grade is, and whether it needs somebody."""
    if info.unknown:
        return f"{len(info.unknown)} to decide"
    said = [] if info.grade is None else ["passed" if info.grade.passed else "failed"]
    how = ": ".join(word for word in (info.error_code, " ".join(info.reason.split())) if word)
    if how:
        said.append(how if len(how) <= _WHY_CHARACTERS else f"{how[:_WHY_CHARACTERS]}...")
    return "; ".join(said) or "-"
