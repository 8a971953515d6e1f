"""`dsec gateway fake`: serve a simulated backend in the foreground."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import anyio
import click

from dsec.base.errors import InvalidRequestError
from dsec.base.units import parse_duration
from dsec.cli.context import Options, pass_options
from dsec.cli.gateway_config import check_library
from dsec.cli.lazy import HELP_OPTIONS
from dsec.cli.output import note, print_fields, print_json_line
from dsec.cli.parameters import duration

if TYPE_CHECKING:
    from dsec.gateway.fake.settings import Trouble
    from dsec.routing.backend import Pace

_COUNT = click.IntRange(min=1)


@click.command(name="fake", context_settings=HELP_OPTIONS)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65_535), default=8650, show_default=True, help="Port; 0: any free one.")
@click.option("--model", default="fake", show_default=True, help="Its model in the list of models.")
@click.option("--slots", type=_COUNT, help="Calls served side by side.  [all]")
@click.option("--waiting", type=click.IntRange(min=0), default=256, show_default=True, help="Calls that may wait.")
@click.option(
    "--pace",
    default="",
    metavar="CALLS:TIME,...",
    help="Time of a token by calls side by side: 16:16.9ms,32:25.3ms.  [none]",
)
@click.option("--prefill", type=click.FloatRange(min=0, min_open=True), help="New input tokens a second.  [any]")
@click.option("--cached", type=click.FloatRange(min=0, min_open=True), help="Cached input tokens a second.  [any]")
@click.option("--context-tokens", type=_COUNT, help="Longest input.  [any]")
@click.option("--requests-per-minute", type=_COUNT, help="More are answered by 429.")
@click.option("--tokens-per-minute", type=_COUNT, help="More are answered by 429.")
@click.option("--no-retry-after", is_flag=True, help="Those 429 do not say when to come back.")
@click.option("--visible-tokens", type=click.IntRange(min=0), default=100, show_default=True, help="Of an answer.")
@click.option("--thinking-tokens", type=click.IntRange(min=0), default=0, show_default=True, help="Before it.")
@click.option(
    "--cache-tokens", type=click.IntRange(min=0), default=4_000_000, show_default=True, help="Size of the prefix cache."
)
@click.option("--cache-lifetime", type=duration, help="After its last use, such as 5m.  [until pushed out]")
@click.option("--cache-minimum", type=click.IntRange(min=0), default=0, show_default=True, help="Shortest prefix kept.")
@click.option("--cache-block", type=_COUNT, default=16, show_default=True, help="Tokens of a block of the cache.")
@click.option("--event-tokens", type=_COUNT, default=1, show_default=True, help="Tokens in one event of a stream.")
@click.option(
    "--speed", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True, help="inf: no waits."
)
@click.option(
    "--trouble",
    "troubles",
    multiple=True,
    metavar="NAME=SHARE",
    help="So many calls go wrong in this way, such as stalled=0.01; a wrong name lists all.",
)
@click.option("--seed", type=int, default=1, show_default=True, help="Equal seeds answer equal calls equally.")
@click.option("--json", "as_json", is_flag=True, help="Print where it is heard as one line of JSON.")
@pass_options
def gateway_fake(
    options: Options,
    host: str,
    port: int,
    model: str,
    slots: int | None,
    waiting: int,
    pace: str,
    prefill: float | None,
    cached: float | None,
    context_tokens: int | None,
    requests_per_minute: int | None,
    tokens_per_minute: int | None,
    no_retry_after: bool,
    visible_tokens: int,
    thinking_tokens: int,
    cache_tokens: int,
    cache_lifetime: float | None,
    cache_minimum: int,
    cache_block: int,
    event_tokens: int,
    speed: float,
    troubles: tuple[str, ...],
    seed: int,
    as_json: bool,
) -> None:
    """Serve a simulated backend until SIGTERM or SIGINT: chat completions, responses and messages on one port.

    A call may say how it is answered in a member `dsec_fake` of its body, such as
    {"visible_tokens": 200, "thinking_tokens": 1000, "trouble": "stalled", "tool": "name"}.
    """
    check_library()
    from dsec.gateway.fake.server import serve_fake
    from dsec.gateway.fake.settings import FakeSettings

    settings = FakeSettings(
        model=model,
        slots=slots,
        waiting=waiting,
        pace=read_pace(pace),
        prefill_tokens_per_s=prefill,
        cached_tokens_per_s=cached,
        context_tokens=context_tokens,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        tells_when=not no_retry_after,
        visible_tokens=visible_tokens,
        thinking_tokens=thinking_tokens,
        cache_tokens=cache_tokens,
        cache_lifetime_s=cache_lifetime,
        cache_minimum_tokens=cache_minimum,
        cache_block_tokens=cache_block,
        event_tokens=event_tokens,
        speed=speed,
        troubles=dict(read_trouble(text) for text in troubles),
        seed=seed,
    )

    async def run() -> None:
        async with serve_fake(settings, host=host, port=port) as serving:
            where = {"url": serving.url, "model": model, "pid": str(os.getpid())}
            # Whoever reads where it is may end it at once.
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                if as_json:
                    print_json_line(where)
                else:
                    print_fields(where.items())
                async for number in signals:
                    note(f"{signal.Signals(number).name}: shutting down")
                    break

    options.run_alone(run, fast=True)


def read_pace(text: str) -> tuple[Pace, ...]:
    """Return the times of a token that a text names.

    Raises:
        InvalidRequestError: it is wrong.
    """
    from dsec.routing.backend import Pace

    paces = []
    for step in filter(None, text.split(",")):
        calls, _, time = step.partition(":")
        if not calls.strip().isdigit() or not time:
            raise InvalidRequestError(f"--pace: {step!r} is wrong", resolution="write CALLS:TIME, such as 16:16.9ms")
        paces.append(Pace(calls=int(calls), s_per_token=parse_duration(time)))
    return tuple(paces)


def read_trouble(text: str) -> tuple[Trouble, float]:
    """Return a trouble and its share.

    Raises:
        InvalidRequestError: there is no such trouble, or that is no share.
    """
    from dsec.gateway.fake.settings import Trouble

    name, _, share = text.partition("=")
    try:
        return Trouble(name), float(share)
    except ValueError as error:
        known = ", ".join(trouble.value for trouble in Trouble)
        raise InvalidRequestError(
            f"--trouble: {text!r} is wrong", resolution=f"write NAME=SHARE, such as stalled=0.01; names are: {known}"
        ) from error
