"""`dsec rollout rounds`: what the episodes of a rollout have done so far, from their logs, whoever drives them."""

from __future__ import annotations

from pathlib import Path

import click

from dsec.cli.lazy import HELP_OPTIONS
from dsec.cli.parameters import json_option


@click.command(name="rounds", context_settings=HELP_OPTIONS)
@click.argument("out", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("task", required=False)
@click.option("--whole", is_flag=True, help="Show all that was said and printed.")
@json_option
def rounds(out: Path, task: str | None, whole: bool, as_json: bool) -> None:
    """Show the rounds of the episodes of a rollout, finished or under way, of all tasks or of one.

    The logs are read as they lie on the disk: no runner has to be alive.
    """
    from dsec.base.errors import DsecError, NotFoundError
    from dsec.cli.episode_picture import lines_of
    from dsec.cli.output import note, print_json, printable
    from dsec.stores.episode_log_reading import read_episode_log
    from dsec.worker.layout import WORKER_NAME

    folder = out / WORKER_NAME / "episodes"
    found: list[dict[str, object]] = []
    for directory in sorted(folder.glob("ep-*")):
        if not directory.is_dir():
            continue
        try:
            content = read_episode_log(directory)
        except DsecError as error:
            note(f"{directory.name}: {error.brief}")
            continue
        identity = content.progress.identity
        if identity is None or (task is not None and identity.task != task):
            continue
        found.append({"episode_id": directory.name, "events": content.events, "problem": content.problem})
        if not as_json:
            click.echo(f"{directory.name}  {printable(identity.task)}, attempt {identity.attempt}")
            for event in content.events:
                for line in lines_of(event, whole=whole):
                    click.echo(f"  {line}")
            if content.problem:
                note(f"{directory.name}: its log is not whole: {content.problem}")
    if not found:
        raise NotFoundError(
            f"there is no episode in {out}" + (f" of task {task!r}" if task else ""),
            resolution="name the --out of `dsec rollout run --policy agent`",
        )
    if as_json:
        print_json(found)
