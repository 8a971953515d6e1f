"""`dsec episode jobs` and `collect`: the episodes of a job as one."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path

import click

from dsec.base.errors import InvalidRequestError
from dsec.cli.context import Options, pass_options
from dsec.cli.episode_acting import tell
from dsec.cli.episode_listing import cost
from dsec.cli.output import note, print_json, print_json_line, print_table
from dsec.cli.parameters import json_option
from dsec.cli.worker_connection import run_episodes
from dsec.episode.spec import EpisodeInfo, EpisodeState
from dsec.episode.totals import add_usage
from dsec.model.value import Value
from dsec.sdk.episode_jobs import ENDED, EpisodesProgress, collect
from dsec.service.episodes import EpisodeService

_COLUMNS = ("job", "episodes", "where", "passed", "rounds", "tokens", "cost")
_HALTED = frozenset({EpisodeState.STOPPED, EpisodeState.WAITING})


class JobSummary(Value, frozen=True):
    """A job's episodes: how many there are, where they are, how many were graded how, and what their models used."""

    job: str
    episodes: int
    states: dict[str, int]
    passed: int
    failed: int
    rounds: int
    tokens: int
    cost_usd: float | None


@click.command(name="jobs")
@json_option
@pass_options
def jobs(options: Options, as_json: bool) -> None:
    """List the jobs of episodes: how many are where, what passed, and what was used."""
    found = summaries(run_episodes(options, lambda episodes: episodes.list()))
    if as_json:
        print_json(found)
    else:
        print_table(_COLUMNS, (_row(summary) for summary in found))


def summaries(infos: Iterable[EpisodeInfo]) -> list[JobSummary]:
    """Return a summary for each job, in the order of their names."""
    by_job: dict[str, list[EpisodeInfo]] = defaultdict(list)
    for info in infos:
        by_job[info.job].append(info)
    return [_summary(job, found) for job, found in sorted(by_job.items())]


def _summary(job: str, infos: list[EpisodeInfo]) -> JobSummary:
    grades = [info.grade.passed for info in infos if info.grade is not None]
    used = infos[0].usage
    for info in infos[1:]:
        used = add_usage(used, info.usage)
    return JobSummary(
        job=job,
        episodes=len(infos),
        states=dict(Counter(info.state.value for info in infos)),
        passed=sum(grades),
        failed=len(grades) - sum(grades),
        rounds=sum(info.rounds for info in infos),
        tokens=used.input_tokens + used.output_tokens,
        cost_usd=used.cost_usd,
    )


def _row(summary: JobSummary) -> tuple[str, ...]:
    where = ", ".join(f"{count} {state}" for state, count in sorted(summary.states.items()))
    graded = summary.passed + summary.failed
    return (
        summary.job or "(none)",
        str(summary.episodes),
        where,
        f"{summary.passed} of {graded}" if graded else "-",
        f"{summary.rounds:,}",
        f"{summary.tokens:,}" if summary.tokens else "-",
        cost(summary.cost_usd),
    )


@click.command(name="collect")
@click.argument("job")
@click.option(
    "--known", "known_file", type=click.Path(path_type=Path, dir_okay=False),
    help="File with the ids that were printed before: they are left out, and new ones added to it.",
)  # fmt: skip
@click.option("--halted", is_flag=True, help="Print those that need somebody too (stopped, waiting), and go on.")
@click.option("--json", "as_json", is_flag=True, help="Print one line of JSON for each.")
@pass_options
def collect_job(options: Options, job: str, known_file: Path | None, halted: bool, as_json: bool) -> None:
    """Print the episodes of a JOB as they end, until all have.

    Interrupt it and ask again: with --known, none is printed twice.
    """
    known = _known(known_file)
    final = ENDED | _HALTED if halted else ENDED
    tenths = -1

    def tell_progress(progress: EpisodesProgress) -> None:
        nonlocal tenths
        reached = progress.done * 10 // progress.total if progress.total else 10
        if reached > tenths:  # At most a few lines, however many there are.
            tenths = reached
            states = ", ".join(f"{count} {state.value}" for state, count in progress.states.items())
            note(f"{progress.done} of {progress.total}: {states or 'no episodes'}")

    async def follow(episodes: EpisodeService) -> None:
        async for info in collect(episodes, job, known=known, final=final, on_progress=tell_progress):
            if as_json:
                print_json_line(info)
            else:
                tell([info], as_json=False)
            _add(known_file, info.episode_id)

    run_episodes(options, follow)


def _known(file: Path | None) -> set[str]:
    """Return the ids that a file holds; none, where there is no file yet.

    Raises:
        InvalidRequestError: it cannot be read.
    """
    if file is None:
        return set()
    try:
        text = file.read_text(encoding="ascii")
    except FileNotFoundError:
        return set()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{file} cannot be read", detail=str(error)) from error
    return {line for line in text.split("\n")[:-1] if line}  # A line that was cut off is printed again.


def _add(file: Path | None, episode_id: str) -> None:
    if file is None:
        return
    torn = file.exists() and not file.read_bytes().endswith(b"\n") and file.stat().st_size > 0
    with file.open("a", encoding="ascii") as opened:
        opened.write(("\n" if torn else "") + episode_id + "\n")
        opened.flush()
        os.fsync(opened.fileno())
