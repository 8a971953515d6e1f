"""`dsec gateway explain`: where a call went, or would go, and why."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import click

from dsec.base.errors import InvalidRequestError, NodeUnavailableError, NotFoundError
from dsec.cli.context import Options, pass_options
from dsec.cli.gateway_config import check_library, config_option, load_config
from dsec.cli.lazy import HELP_OPTIONS
from dsec.cli.output import or_dash, print_json, print_table

if TYPE_CHECKING:
    from dsec.gateway.explain import Explanation
    from dsec.gateway.ledger_record import Attempt, Considered

_PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


@click.command(name="explain", context_settings=HELP_OPTIONS)
@click.argument("request_", metavar="REQUEST")
@config_option
@click.option("--api", type=click.Choice(tuple(_PATHS)), default="chat", show_default=True, help="Protocol of a file.")
@click.option("--url", envvar="DSEC_GATEWAY_URL", help="Ask this running gateway, which knows queues and caches.")
@click.option("--key", envvar="DSEC_GATEWAY_KEY", help="A project's key there.  [DSEC_GATEWAY_KEY]")
@click.option("--episode", default="", help="As a call of this episode.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@pass_options
def gateway_explain(
    options: Options,
    request_: str,
    config_file: Path,
    api: str,
    url: str | None,
    key: str | None,
    episode: str,
    as_json: bool,
) -> None:
    """Say where a call went, or where it would go, with every candidate and why.

    REQUEST is the id of a call that was made (`call-...`, from an answer's header x-request-id), or a file with the
    body of a call ("-": stdin). A file is decided on by the running gateway at --url, or without one as by a gateway
    that was just started. Nothing is sent to any backend.
    """
    if request_.startswith("call-") and not Path(request_).exists():
        _explain_made(config_file, request_, as_json=as_json)
        return
    check_library()
    body = _read(request_)
    headers = {"X-DSec-Episode": episode} if episode else {}
    if url is not None:
        if key:
            headers["Authorization"] = f"Bearer {key}"
        found = options.run_alone(lambda: _ask(url, api, headers, body))
    else:
        found = options.run_alone(lambda: _cold(config_file, api, headers, body))
    if as_json:
        print_json(found)
        return
    click.echo(found.why)
    print_table(_COLUMNS, [_row(one) for one in found.candidates])


def _read(name: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise InvalidRequestError(
            f"{name} cannot be read: {error.strerror}", resolution="give a call's id, or a file with a call's body"
        ) from error


async def _cold(config_file: Path, api: str, headers: dict[str, str], body: bytes) -> Explanation:
    from dsec.gateway.explain import explain_cold
    from dsec.gateway.server import FRONTS

    config = load_config(config_file)
    return await explain_cold(config, config_file.absolute().parent, FRONTS[_PATHS[api]], headers, body)


async def _ask(url: str, api: str, headers: dict[str, str], body: bytes) -> Explanation:
    import aiohttp
    import msgspec

    from dsec.gateway.explain import Explanation

    target = f"{url.rstrip('/').removesuffix('/v1')}/dsec/explain{_PATHS[api]}"
    try:
        with anyio.fail_after(30):
            async with aiohttp.ClientSession() as session, session.post(target, data=body, headers=headers) as answer:
                data = await answer.read()
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        raise NodeUnavailableError(f"the gateway at {url} does not answer: {error}") from error
    if answer.status != 200:
        raise InvalidRequestError(f"the gateway at {url} refused: HTTP {answer.status}", detail=_message(data))
    return msgspec.json.decode(data, type=Explanation)


def _message(data: bytes) -> str:
    try:
        return str(json.loads(data)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return data[:300].decode(errors="replace")


_COLUMNS = ("backend", "verdict", "first token", "queue", "ends", "cached", "usd", "why")


def _row(one: Considered) -> list[str]:
    usd = "-" if one.success_usd is None else f"{one.success_usd:.6f}"
    times = [f"{value * 1e3:.0f} ms" for value in (one.first_token_s, one.queue_s, one.completion_s)]
    return [one.backend, one.verdict, *times, str(one.hit_tokens), usd, one.why]


def _explain_made(config_file: Path, call: str, *, as_json: bool) -> None:
    from dsec.gateway.config import state_directory
    from dsec.gateway.ledger import read_attempts

    directory = state_directory(load_config(config_file), config_file)
    attempts = [attempt for attempt in read_attempts(directory) if attempt.began.call == call]
    if not attempts:
        raise NotFoundError(
            f"the ledger in {directory} has no call {call!r}", resolution="`dsec gateway usage --by call`"
        )
    if as_json:
        print_json(attempts)
        return
    for attempt in attempts:
        _print_attempt(attempt)


def _print_attempt(attempt: Attempt) -> None:
    began, ended = attempt.began, attempt.ended
    first = "-" if ended.first_byte_s is None else f"{ended.first_byte_s * 1e3:.0f} ms"
    click.echo(f"attempt {began.number} ({began.attempt}): {began.reason}")
    click.echo(
        f"  {ended.outcome.value}{f', {ended.brief}' if ended.brief else ''}: waited {ended.queue_s * 1e3:.0f} ms,"
        f" first byte after {first}, {ended.duration_s:.3f} s in all, {ended.cost.total:.6f} USD"
        f"{' (estimated)' if ended.cost.estimated else ''}; key {or_dash(began.key)}"
    )
    if began.considered:
        print_table(_COLUMNS, [_row(one) for one in began.considered])
