"""`dsec worker`: the process that drives episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from dsec.base.errors import NodeUnavailableError
from dsec.cli.context import Options, pass_options
from dsec.cli.lazy import Lazy, LazyGroup
from dsec.cli.output import note, print_fields, print_json
from dsec.cli.parameters import json_option
from dsec.cli.serving import end_process, holder
from dsec.sdk.background import WORKER, is_held
from dsec.sdk.episodes import HttpEpisodes
from dsec.sdk.keepalive import Endpoint
from dsec.sdk.workers import worker_state_dir

_COMMANDS = {"up": Lazy("dsec.cli.worker_up:up", "Run the worker of this host and serve its API.")}

worker_dir_option = click.option(
    "--state-dir", "worker_dir", type=click.Path(path_type=Path, file_okay=False),
    help="State directory of the worker.  [DSEC_WORKER_STATE_DIR; none: worker in the node's]",
)  # fmt: skip


@click.group(name="worker", cls=LazyGroup, lazy=_COMMANDS)
def worker() -> None:
    """The process that drives episodes: their loops go on while whoever started them comes and goes.

    `dsec episode` starts it in the background when none runs.
    """


def directory_of(options: Options, worker_dir: Path | None) -> Path:
    """Return the worker's state directory."""
    return worker_dir.absolute() if worker_dir is not None else worker_state_dir(options.state_dir)


@worker.command(name="down")
@worker_dir_option
@pass_options
def down(options: Options, worker_dir: Path | None) -> None:
    """Stop the worker of this host. Episodes stand still, and the next worker goes on with them."""
    directory = directory_of(options, worker_dir)
    if not is_held(directory, WORKER):
        note(f"no worker runs in {directory}")
        return
    pid = holder(directory, WORKER)
    options.run_alone(lambda: end_process(pid))
    note(f"the worker in {directory} (process {pid}) has ended")


@worker.command(name="status")
@worker_dir_option
@json_option
@pass_options
def status(options: Options, worker_dir: Path | None, as_json: bool) -> None:
    """Say whether a worker runs on this host, and where its episodes are. Starts none."""
    directory = directory_of(options, worker_dir)
    running = is_held(directory, WORKER)
    told: dict[str, object] = {"state_dir": str(directory), "running": running}
    if running:
        told["pid"] = int((directory / WORKER.lock).read_text() or 0)
        told["socket"] = str(directory / WORKER.socket)
        told |= options.run_alone(lambda: answer(directory))
    if as_json:
        print_json(told)
    else:
        print_fields((name.replace("_", " "), _words(value)) for name, value in told.items())


async def answer(directory: Path) -> dict[str, Any]:
    """Return what a worker says of its episodes; one that starts just now says nothing yet."""
    episodes = HttpEpisodes(Endpoint(url=f"unix:{directory / WORKER.socket}"))
    try:
        infos = await episodes.list()
    except NodeUnavailableError:
        return {"answers": False}
    finally:
        await episodes.aclose()
    return {
        "answers": True,
        "episodes": dict(Counter(info.state.value for info in infos)),
        "unsaved_rounds": sum(info.unsaved.rounds for info in infos),
    }


def states(value: Mapping[str, int]) -> str:
    """Return in words how many episodes are where."""
    return ", ".join(f"{count} {state}" for state, count in sorted(value.items())) or "none"


def _words(value: object) -> str:
    if isinstance(value, dict):
        return states(value)
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
