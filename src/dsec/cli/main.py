"""The `dsec` command: global options and the table of commands."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from pathlib import Path
from typing import NoReturn

import click

from dsec import __version__
from dsec.cli.context import Options
from dsec.cli.lazy import Lazy, LazyGroup

_COMMANDS = {
    "doctor": Lazy("dsec.cli.doctor:doctor", "Say what this host has, what it enables, and how to get the rest."),
    "up": Lazy("dsec.cli.up:up", "Run the node of this host and serve its API."),
    "down": Lazy("dsec.cli.up:down", "Stop the node of this host; sandboxes stay unless told otherwise."),
    "node": Lazy("dsec.cli.node:node", "Show a node and its peers, and empty it."),
    "config": Lazy("dsec.cli.config:config", "Show the settings and where each value came from."),
    "image": Lazy("dsec.cli.image:image", "Make images, share them, look at and look after them."),
    "sandbox": Lazy("dsec.cli.sandbox:sandbox", "Create and operate sandboxes."),
    "snapshot": Lazy("dsec.cli.snapshot:snapshot", "List, restore and remove durable snapshots."),
    "store": Lazy("dsec.cli.store:store", "Check the store of snapshots, and free what nothing needs."),
    "job": Lazy("dsec.cli.job:job", "Pause and resume all sandboxes of a job."),
    "pool": Lazy("dsec.cli.pool:pool", "Keep sandboxes ready for creations that match."),
    "diagnose": Lazy("dsec.cli.diagnose:diagnose", "Say why something is slow, and what would help."),
    "task": Lazy("dsec.cli.task:task", "Check task folders and import data sets as tasks."),
    "rollout": Lazy("dsec.cli.rollout:rollout", "Run a batch of tasks and report."),
    "cost": Lazy("dsec.cli.cost:cost", "Say what a run cost, and where the money went."),
    "worker": Lazy("dsec.cli.worker:worker", "Run the worker of this host, which drives episodes."),
    "episode": Lazy("dsec.cli.episode:episode", "Start, watch, steer and settle episodes."),
    "recovery": Lazy("dsec.cli.recovery:recovery", "Say what helped episodes that failed, and what would be tried."),
    "plan": Lazy("dsec.cli.plan:plan", "Say what a workload needs, what it costs, and why."),
    "gateway": Lazy("dsec.cli.gateway:gateway", "One door to many model services: routes, limits, keys and prices."),
    "model": Lazy("dsec.cli.model:model", "Record what a chat model answers, and answer in its place."),
    "bench": Lazy("dsec.bench.command:bench", "Measure this host, beside what else is on it."),
    "sim": Lazy("dsec.cli.sim:sim", "Simulate nodes, schedulers and pools: the same policies, no machines."),
    "completion": Lazy("dsec.cli.completion:completion", "Print the completion script of a shell."),
}

_USUAL = frozenset({"DSEC_URL", "DSEC_TOKEN", "DSEC_STATE_DIR", "DSEC_CONFIG", "DSEC_WORKER_URL", "DSEC_WORKER_TOKEN"})
"""Variables that need no look at the table of settings."""


@click.group(name="dsec", cls=LazyGroup, lazy=_COMMANDS)
@click.option("--url", envvar="DSEC_URL", metavar="URL", help="Server to talk to.  [DSEC_URL; none: this host's node]")
@click.option("--token", envvar="DSEC_TOKEN", metavar="TOKEN", help="Bearer token of the server.  [DSEC_TOKEN]")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="State directory of this host's node.  [DSEC_STATE_DIR]",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Settings file.  [DSEC_CONFIG]",
)
@click.option("--set", "overrides", multiple=True, metavar="NAME=VALUE", help="Set a setting of the node.")
@click.option("-v", "--verbose", count=True, help="Log more to stderr (twice: everything).")
@click.option("--log-format", type=click.Choice(["console", "json"]), default="console", help="How logs are written.")
@click.option("--error-format", type=click.Choice(["text", "json"]), default="text", help="How errors are written.")
@click.version_option(__version__, prog_name="dsec")
@click.pass_context
def cli(
    ctx: click.Context,
    url: str | None,
    token: str | None,
    state_dir: Path | None,
    config_file: Path | None,
    overrides: tuple[str, ...],
    verbose: int,
    log_format: str,
    error_format: str,
) -> None:
    """Isolated, stateful sandboxes for training and evaluating agents.

    Without --url, commands talk to this host's node and start one in the background when there is none.
    """
    _check_environment()
    options = ctx.ensure_object(Options)
    options.url = url
    options.token = token
    options.state_dir_option = state_dir
    options.config_file = config_file
    options.overrides = overrides
    options.verbose = verbose
    options.log_format = log_format
    options.json_errors = error_format == "json"


def _check_environment() -> None:
    """Refuse misspelt variables, and mention those that mean nothing to us.

    Raises:
        InvalidRequestError: one looks like a variable of ours and is none.
    """
    if all(name in _USUAL for name in os.environ if name.startswith("DSEC_")):
        return
    from dsec.cli.output import note
    from dsec.node.settings import environment_values, unknown_variables

    environment_values(os.environ)
    for name in unknown_variables(os.environ):
        note(f"warning: the environment sets {name}, which means nothing to dsec")


def main() -> None:
    """Run the command line."""
    try:
        cli.main(prog_name="dsec")
    except SystemExit as ended:
        if "obstore" in sys.modules and isinstance(ended.code, int):
            _end(ended.code)
        raise


def _end(code: int) -> NoReturn:
    """End with everything that is said and registered, and without taking the interpreter apart.

    A thread of obstore's lets go of an error some time after it was raised. When that meets the interpreter's end, Rust
    aborts the process (pyo3-async-runtimes, issue 40): nine of twelve refusals by an S3 store ended with SIGABRT.
    """
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # Whoever read it has left.
            stream.flush()
    os._exit(code)
