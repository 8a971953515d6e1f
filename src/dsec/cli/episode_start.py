"""`dsec episode start`: from a file, or from a few options, to a running episode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import msgspec

from dsec.cli.context import Options, pass_options
from dsec.cli.episode_acting import tell
from dsec.cli.episode_asked import Asked, asked_options, asked_spec, not_heard, refuse_beside_spec
from dsec.cli.episode_specs import read_specs
from dsec.cli.episode_watch import follow, show_event
from dsec.cli.output import note, print_json, print_json_line
from dsec.cli.parameters import json_option, pairs_option
from dsec.cli.worker_connection import run_episodes
from dsec.episode.spec import EpisodeInfo, EpisodeSpec
from dsec.sdk.episode_jobs import DEFAULT_AT_ONCE, EpisodesProgress, start_many
from dsec.service.episodes import EpisodeService


@click.command(name="start")
@click.argument("file", metavar="[SPEC]", type=click.Path(path_type=Path, dir_okay=False), required=False)
@asked_options
@click.option("--job", default="", metavar="JOB", help="Job that it belongs to; in SPEC, where none is named.")
@pairs_option("-l", "--label", "labels", help="Metadata of it; may be repeated.")
@click.option("--attempts", type=click.IntRange(min=1), default=1, show_default=True, help="So many of each.")
@click.option("--id", "episode_id", metavar="ID", help="Its id: the same one starts it once.  [a fresh one]")
@click.option(
    "--at-once", type=click.IntRange(min=1), default=DEFAULT_AT_ONCE, show_default=True, help="Requests under way."
)
@click.option(
    "--watch", is_flag=True, help="Show it as it goes, until it has ended; whoever interrupts that leaves it."
)
@click.option("-q", "--quiet", is_flag=True, help="Print ids only.")
@json_option
@pass_options
def start(
    options: Options,
    /,
    file: Path | None,
    job: str,
    labels: tuple[tuple[str, str], ...],
    attempts: int,
    episode_id: str | None,
    at_once: int,
    watch: bool,
    quiet: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Begin an episode, or a batch, and return once its beginning is saved. It goes on whoever leaves.

    SPEC is a JSON, TOML or YAML file with the fields of an episode's spec, or with a list `episodes` of such; - is JSON
    from standard input. docs/episodes.md has all fields. Without SPEC, a chat model works by tools on a task that
    --task, --instruction and --model give.

    Episodes of a job have ids made of their content: what was started already is not started again.
    """
    asked = Asked(**given)
    if (file is None) == (asked.task is None):
        raise click.UsageError("Give a SPEC, or --task with --instruction and --model.")
    if file is not None:
        refuse_beside_spec(click.get_current_context())
    specs = [asked_spec(asked)] if file is None else read_specs(file)
    # Another host's worker sees another network.
    if asked.model is not None and options.worker_url is None and (trouble := not_heard(asked.model)):
        note(f"no model is heard at {asked.model}: {trouble}; it is tried for a minute or two, then the episode stops")
    specs = [each for spec in specs for each in _attempts(_labelled(spec, job, labels), attempts)]
    if (episode_id is not None or watch) and len(specs) > 1:
        raise click.UsageError("--id and --watch are for one episode.")
    ids = None if episode_id is None else [episode_id]
    infos = run_episodes(options, lambda episodes: _start(episodes, specs, ids, at_once))
    if as_json:
        print_json(infos)
    elif quiet:
        click.echo("".join(f"{info.episode_id}\n" for info in infos), nl=False)
    else:
        tell(infos, as_json=False)
        if len(infos) == 1 and not watch:
            note(f"watch it with: dsec episode watch {infos[0].episode_id}")
    if watch:
        follow(options, infos[0].episode_id, print_json_line if as_json else show_event)


async def _start(
    episodes: EpisodeService, specs: list[EpisodeSpec], ids: list[str] | None, at_once: int
) -> list[EpisodeInfo]:
    tenths = 0

    def tell_progress(progress: EpisodesProgress) -> None:
        nonlocal tenths
        reached = progress.done * 10 // progress.total
        if progress.total > 10 and reached > tenths:  # At most ten lines, however many there are.
            tenths = reached
            note(f"{progress.done} of {progress.total} started")

    return await start_many(episodes, specs, ids=ids, at_once=at_once, on_progress=tell_progress)


def _labelled(spec: EpisodeSpec, job: str, labels: tuple[tuple[str, str], ...]) -> EpisodeSpec:
    return msgspec.structs.replace(spec, job=spec.job or job, metadata={**spec.metadata, **dict(labels)})


def _attempts(spec: EpisodeSpec, count: int) -> list[EpisodeSpec]:
    return [msgspec.structs.replace(spec, attempt=spec.attempt + number) for number in range(count)]
