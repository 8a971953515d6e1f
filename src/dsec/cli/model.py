"""`dsec model`: a local endpoint in the place of a real model, for tests, demos and runs that are repeated."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import click

from dsec.cli.context import Options, pass_options
from dsec.cli.gateway_config import check_library
from dsec.cli.lazy import HELP_OPTIONS
from dsec.cli.output import note, print_fields, print_json_line

if TYPE_CHECKING:
    from dsec.gateway.config import GatewayConfig

_PORT = click.option("--port", type=click.IntRange(0, 65_535), default=0, help="Port on 127.0.0.1.  [any free one]")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print where it is heard as one line of JSON.")


@click.group(name="model", context_settings=HELP_OPTIONS)
def model() -> None:
    """Answer in the place of a chat model, from what one answered before."""


@model.command(name="replay")
@click.argument("recordings", type=click.Path(path_type=Path, exists=True))
@_PORT
@click.option("--name", "names", multiple=True, help="A further name that the model answers to.")
@click.option(
    "--speed", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True, help="inf: at once."
)
@_JSON
@pass_options
def replay(options: Options, recordings: Path, port: int, names: tuple[str, ...], speed: float, as_json: bool) -> None:
    """Serve recorded answers until SIGTERM or SIGINT, to any client of chat completions.

    RECORDINGS is a directory made by `dsec model record`, or a file of one conversation, a chat message a line. An
    answer is found by what the model was asked first and has answered since: the same question always gets the same
    answer.
    """
    check_library()
    from dsec.gateway.endpoint import replaying

    _serve(
        options,
        lambda state: replaying(recordings, names=names, speed=speed, port=port, state=state),
        as_json=as_json,
    )


@model.command(name="record")
@click.argument("recordings", type=click.Path(path_type=Path, file_okay=False))
@click.option("--from", "url", required=True, metavar="URL", help="Endpoint, such as https://api.example.com/v1.")
@click.option("--name", "names", multiple=True, required=True, help="A model there.")
@click.option(
    "--key-variable", default="", metavar="NAME", help="Environment variable with the endpoint's key.  [none]"
)
@_PORT
@_JSON
@pass_options
def record(
    options: Options, recordings: Path, url: str, names: tuple[str, ...], key_variable: str, port: int, as_json: bool
) -> None:
    """Stand before an endpoint until SIGTERM or SIGINT, and record in RECORDINGS what it answers."""
    check_library()
    from dsec.gateway.endpoint import recorded

    _serve(
        options,
        lambda state: recorded(url, recordings, names=names, key_variable=key_variable, port=port, state=state),
        as_json=as_json,
    )


def _asked(state: Path) -> str:
    """Say how often the model was asked, from the gateway's ledger."""
    from dsec.gateway.ledger import pair_attempts, read_records
    from dsec.gateway.ledger_record import Outcome

    outcomes = [attempt.ended.outcome for attempt in pair_attempts(read_records(state))]
    answered = sum(outcome is Outcome.ANSWERED for outcome in outcomes)
    return f"asked {len(outcomes)} times, answered {answered} times to the end"


def _serve(options: Options, configure: Callable[[Path], GatewayConfig], *, as_json: bool) -> None:
    from dsec.gateway.server import serve

    async def run(state: Path) -> None:
        config = configure(state)
        async with serve(config, state) as serving:
            where = {"url": f"{serving.url}/v1", "models": ", ".join(serving.proxy.models), "pid": str(os.getpid())}
            # Whoever reads where it is may end it at once.
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                if as_json:
                    print_json_line(where)
                else:
                    print_fields(where.items())
                async for number in signals:
                    note(f"{signal.Signals(number).name}: shutting down")
                    break
        note(_asked(state))

    with contextlib.ExitStack() as stack:
        state = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dsec-model-")))
        options.run_alone(lambda: run(state), fast=True)
