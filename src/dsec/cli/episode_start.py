"""`dsec episode start`: from a file, or from a few options, to a running episode."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.cli.context import Options, pass_options
from dsec.cli.episode_acting import tell
from dsec.cli.episode_specs import read_specs
from dsec.cli.episode_watch import follow, show_event
from dsec.cli.output import note, print_json, print_json_line
from dsec.cli.parameters import duration, json_option, pairs_option
from dsec.cli.worker_connection import run_episodes
from dsec.episode.spec import (
    AgentPolicy,
    EnvironmentMode,
    EpisodeEnvironment,
    EpisodeInfo,
    EpisodeLimits,
    EpisodeSpec,
    ModelEndpoint,
)
from dsec.model.sandbox import SandboxSpec
from dsec.sdk.episode_jobs import DEFAULT_AT_ONCE, EpisodesProgress, start_many
from dsec.service.episodes import EpisodeService


@click.command(name="start")
@click.argument("file", metavar="[SPEC]", type=click.Path(path_type=Path, dir_okay=False), required=False)
@click.option("--task", metavar="NAME", help="The task's name, instead of SPEC.")
@click.option("--instruction", metavar="TEXT", help="What is to be done; @FILE reads it from there.")
@click.option(
    "--model", "url", metavar="URL", help="OpenAI-compatible endpoint that decides, such as http://m:8000/v1."
)
@click.option("--model-name", default="", metavar="NAME", help="Model there.  [the first it lists]")
@click.option("--key-variable", default="", metavar="NAME", help="Variable of the worker with the endpoint's key.")
@click.option("--image", default="python", show_default=True, help="Image of its sandbox.")
@click.option("--cwd", default="", metavar="DIRECTORY", help="Where commands run.  [the image's]")
@click.option(
    "--environment",
    "mode",
    type=click.Choice([mode.value for mode in EnvironmentMode]),
    default=EnvironmentMode.RESIDENT.value,
    show_default=True,
    help="Where its sandbox is while the model thinks (docs/environments.md).",
)
@click.option("--rounds", type=click.IntRange(min=1), help="Most rounds it may have.")
@click.option("--deadline", type=duration, help="Time after which it ends, such as 30m.")
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
    file: Path | None,
    task: str | None,
    instruction: str | None,
    url: str | None,
    model_name: str,
    key_variable: str,
    image: str,
    cwd: str,
    mode: str,
    rounds: int | None,
    deadline: float | None,
    job: str,
    labels: tuple[tuple[str, str], ...],
    attempts: int,
    episode_id: str | None,
    at_once: int,
    watch: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Begin an episode, or a batch, and return once its beginning is saved. It goes on whoever leaves.

    SPEC is a JSON, TOML or YAML file with the fields of an episode's spec, or with a list `episodes` of such; - is JSON
    from standard input. docs/episodes.md has all fields. Without SPEC, a chat model works by tools on a task that
    --task, --instruction and --model give.

    Episodes of a job have ids made of their content: what was started already is not started again.
    """
    if (file is None) == (task is None):
        raise click.UsageError("Give a SPEC, or --task with --instruction and --model.")
    if file is not None:
        if url is not None or instruction is not None:
            raise click.UsageError("--instruction and --model belong to --task; SPEC has its own.")
        specs = read_specs(file)
    else:
        made = EpisodeEnvironment(sandbox=SandboxSpec(image=image), cwd=cwd, mode=EnvironmentMode(mode))
        specs = [_asked(task or "", _text(instruction), url, model_name, key_variable, made, rounds, deadline)]
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


def _text(given: str | None) -> str:
    """Return a text, or what the file holds that ``@FILE`` names.

    Raises:
        InvalidRequestError: the file cannot be read.
    """
    if given is None or not given.startswith("@"):
        return given or ""
    try:
        return Path(given[1:]).read_text(encoding="utf8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"{given[1:]} cannot be read", detail=str(error)) from error


def _asked(
    task: str,
    instruction: str,
    url: str | None,
    model_name: str,
    key_variable: str,
    environment: EpisodeEnvironment,
    rounds: int | None,
    deadline: float | None,
) -> EpisodeSpec:
    if url is None or not instruction:
        raise click.UsageError("--task needs --instruction and --model.")
    limits = EpisodeLimits(deadline_s=deadline)
    return EpisodeSpec(
        task=task,
        instruction=instruction,
        policy=AgentPolicy(model=ModelEndpoint(url=url, name=model_name, key_variable=key_variable)),
        environment=environment,
        limits=limits if rounds is None else msgspec.structs.replace(limits, rounds=rounds),
    )


def _labelled(spec: EpisodeSpec, job: str, labels: tuple[tuple[str, str], ...]) -> EpisodeSpec:
    return msgspec.structs.replace(spec, job=spec.job or job, metadata={**spec.metadata, **dict(labels)})


def _attempts(spec: EpisodeSpec, count: int) -> list[EpisodeSpec]:
    return [msgspec.structs.replace(spec, attempt=spec.attempt + number) for number in range(count)]
