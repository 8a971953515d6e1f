"""`dsec gateway up`: serve a gateway in the foreground."""

from __future__ import annotations

import os
import resource
import signal
from pathlib import Path

import anyio
import click
import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.cli.context import Options, pass_options
from dsec.cli.gateway_config import check_library, config_option, load_config
from dsec.cli.lazy import HELP_OPTIONS
from dsec.cli.output import note, print_fields, print_json_line


def _allow_many_files() -> None:
    """Take as many open files as the host allows: every stream is two, and the usual limit is 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@click.command(name="up", context_settings=HELP_OPTIONS)
@config_option
@click.option("--host", help="Address to listen on.  [the configuration's]")
@click.option("--port", type=click.IntRange(0, 65_535), help="Port; 0: any free one.  [the configuration's]")
@click.option(
    "--record", "record_to", type=click.Path(path_type=Path, file_okay=False), help="Record every answer there."
)
@click.option(
    "--replay",
    "replay_from",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Answer from what was recorded there, and from nothing else.",
)
@click.option(
    "--replay-speed",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    help="How many times faster than recorded; inf: at once.",
)
@click.option("--json", "as_json", is_flag=True, help="Print where it is heard as one line of JSON.")
@pass_options
def gateway_up(
    options: Options,
    config_file: Path,
    host: str | None,
    port: int | None,
    record_to: Path | None,
    replay_from: Path | None,
    replay_speed: float,
    as_json: bool,
) -> None:
    """Serve a gateway until SIGTERM or SIGINT.

    Keys that are made or revoked meanwhile count at once; everything else in the configuration needs a restart.
    """
    check_library()
    from dsec.gateway.config_rules import check_door
    from dsec.gateway.replay import replayed
    from dsec.gateway.server import serve

    config = load_config(config_file)
    _allow_many_files()
    door = config.gateway
    door = msgspec.structs.replace(
        door,
        host=host or door.host,
        port=door.port if port is None else port,
        record_to=str(record_to.absolute()) if record_to is not None else door.record_to,
    )
    config = msgspec.structs.replace(config, gateway=door)
    if replay_from is not None:
        if record_to is not None:
            raise InvalidRequestError("--record stands beside --replay", resolution="give one of them")
        config = replayed(config, replay_from.absolute(), replay_speed)
    check_door(door)

    async def run() -> None:
        async with serve(config, config_file.absolute().parent) as serving:
            where = {"url": serving.url, "models": ", ".join(serving.proxy.models), "pid": str(os.getpid())}
            # Whoever reads where it is may end it at once.
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                if as_json:
                    print_json_line(where)
                else:
                    print_fields(where.items())
                async for number in signals:
                    note(f"{signal.Signals(number).name}: shutting down; open calls have {door.grace_s:g} s to end")
                    break

    options.run_alone(run, fast=True)
