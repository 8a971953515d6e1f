"""`dsec gateway keys`: make, list and revoke the keys of projects."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsec.cli.gateway_config import config_option, load_config
from dsec.cli.lazy import HELP_OPTIONS, Lazy, LazyGroup
from dsec.cli.output import note, or_dash, print_json, print_table
from dsec.cli.parameters import duration

if TYPE_CHECKING:
    from dsec.gateway.keys import Key

_COMMANDS = {
    "create": Lazy("dsec.cli.gateway_keys:keys_create", "Make a key and print it, once."),
    "ls": Lazy("dsec.cli.gateway_keys:keys_ls", "List keys and what they may do."),
    "revoke": Lazy("dsec.cli.gateway_keys:keys_revoke", "Take a key back; it counts at once."),
}


@click.group(name="keys", cls=LazyGroup, lazy=_COMMANDS)
def gateway_keys() -> None:
    """Make, list and revoke the keys of projects. A running gateway takes changes in at once."""


def _file(config_file: Path) -> Path:
    from dsec.gateway.config import state_directory
    from dsec.gateway.keys import KEYS_FILE

    return state_directory(load_config(config_file), config_file) / KEYS_FILE


@click.command(name="create", context_settings=HELP_OPTIONS)
@click.argument("project")
@config_option
@click.option(
    "--model", "models", multiple=True, metavar="NAME", help="It may call this model only; patterns as in `claude-*`."
)
@click.option("--tokens", type=click.IntRange(min=0), help="Most tokens in all.")
@click.option("--usd", type=click.FloatRange(min=0), help="Most money in all.")
@click.option("--calls", type=click.IntRange(min=0), help="Most calls in all.")
@click.option("--thinking-per-call", type=click.IntRange(min=0), help="Most thinking tokens of a call.")
@click.option("--thinking-per-episode", type=click.IntRange(min=0), help="Most thinking tokens of an episode.")
@click.option("--expires-in", type=duration, metavar="TIME", help="It ends after this time, such as 12h.")
@click.option("--note", "remark", default="", help="For people.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def keys_create(
    project: str,
    config_file: Path,
    models: tuple[str, ...],
    tokens: int | None,
    usd: float | None,
    calls: int | None,
    thinking_per_call: int | None,
    thinking_per_episode: int | None,
    expires_in: float | None,
    remark: str,
    as_json: bool,
) -> None:
    """Make a key for PROJECT and print it. It is told this once: only its hash is kept."""
    from dsec.gateway.config import Budget, Thinking
    from dsec.gateway.config_rules import check_known_project
    from dsec.gateway.keys import add_key, make_key

    key, text = make_key(
        check_known_project(project),
        random_bytes=os.urandom,
        now_wall_s=time.time(),
        models=models,
        budget=Budget(tokens=tokens, usd=usd, calls=calls),
        thinking=Thinking(tokens_per_call=thinking_per_call, tokens_per_episode=thinking_per_episode),
        lifetime_s=expires_in,
        note=remark,
    )
    add_key(_file(config_file), key)
    if as_json:
        print_json({"key_id": key.key_id, "key": text})
    else:
        click.echo(text)
        note(f"{key.key_id} is the name of this key; it is not shown again")


@click.command(name="ls", context_settings=HELP_OPTIONS)
@config_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def keys_ls(config_file: Path, as_json: bool) -> None:
    """List keys and what they may do. Secrets are not known."""
    from dsec.gateway.keys import read_keys

    keys = read_keys(_file(config_file))
    if as_json:
        print_json([_shown(key) for key in keys])
        return
    print_table(("key", "project", "models", "tokens", "usd", "calls", "state", "note"), [_row(key) for key in keys])


def _state(key: Key) -> str:
    if key.revoked:
        return "revoked"
    if key.expires_wall_s is None:
        return "valid"
    left_s = key.expires_wall_s - time.time()
    if left_s <= 0:
        return "expired"
    from dsec.base.units import format_duration

    return f"valid for {format_duration(left_s)}"


def _row(key: Key) -> list[str]:
    budget = key.budget
    return [
        key.key_id,
        key.project,
        ", ".join(key.models) or "all",
        or_dash(budget.tokens),
        or_dash(budget.usd),
        or_dash(budget.calls),
        _state(key),
        key.note,
    ]


def _shown(key: Key) -> dict[str, object]:
    import msgspec

    fields = msgspec.to_builtins(key)
    del fields["secret_sha256"]
    return {**fields, "state": _state(key)}


@click.command(name="revoke", context_settings=HELP_OPTIONS)
@click.argument("key_id")
@config_option
def keys_revoke(key_id: str, config_file: Path) -> None:
    """Take the key KEY_ID back. It counts at once; calls under way go on."""
    from dsec.gateway.keys import revoke_key

    key = revoke_key(_file(config_file), key_id)
    note(f"{key.key_id} of {key.project} is revoked")
