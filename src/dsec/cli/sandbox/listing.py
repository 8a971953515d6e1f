"""`dsec sandbox ls` and `dsec sandbox inspect`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from dsec.base.units import format_duration, format_size
from dsec.cli.context import Options, pass_options
from dsec.cli.output import age, or_dash, print_fields, print_json, print_table, size_or_dash
from dsec.cli.parameters import id_parameters, json_option, one_id, pairs_option
from dsec.model.sandbox import Lifetime, SandboxFilter, SandboxInfo, SandboxState, WritableUsage
from dsec.service.port import SandboxService

_STATES = click.Choice([state.value for state in SandboxState])


@click.command(name="ls")
@pairs_option("-l", "--label", "labels", help="Only those with this metadata; may be repeated.")
@click.option("--state", "states", type=_STATES, multiple=True, help="Only those in this state; may be repeated.")
@click.option("-a", "--all", "everything", is_flag=True, help="Stopped ones too.")
@click.option("-q", "--quiet", is_flag=True, help="Print ids only.")
@json_option
@pass_options
def ls(
    options: Options,
    labels: tuple[tuple[str, str], ...],
    states: tuple[str, ...],
    everything: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """List sandboxes; without --state or --all, those that are not stopped."""
    wanted = tuple(SandboxState) if everything else tuple(SandboxState(state) for state in states)
    query = SandboxFilter(metadata=dict(labels), states=wanted)
    found = options.run(lambda service: service.list(query))
    if as_json:
        print_json(list(found))
    elif quiet:
        click.echo("".join(f"{info.sandbox_id}\n" for info in found), nl=False)
    else:
        print_table(("id", "state", "image", "age", "expires", "labels"), (_row(info) for info in found))


def _row(info: SandboxInfo) -> tuple[str, ...]:
    labels = ",".join(f"{key}={value}" for key, value in sorted(info.spec.metadata.items()))
    expires = None if info.expires_in_s is None else f"in {format_duration(info.expires_in_s)}"
    return info.sandbox_id, info.state.value, info.spec.image, age(info.created_at_s), or_dash(expires), or_dash(labels)


@click.command(name="inspect")
@id_parameters
@click.option("--show-cow-usage", is_flag=True, help="Show the bytes in its writable (copy-on-write) layer.")
@json_option
@pass_options
def inspect(
    options: Options, id_option: str | None, id_argument: str | None, show_cow_usage: bool, as_json: bool
) -> None:
    """Show what a sandbox is: its state, limits, lifetime and origin."""
    sandbox_id = one_id(id_option, id_argument)
    info, usage = options.run(lambda service: _look(service, sandbox_id, with_usage=show_cow_usage))
    if as_json:
        print_json(_as_json(info, usage, with_usage=show_cow_usage))
        return
    print_fields(_fields(info))
    if show_cow_usage:
        print_fields(_usage_fields(usage))


async def _look(
    service: SandboxService, sandbox_id: str, *, with_usage: bool
) -> tuple[SandboxInfo, WritableUsage | None]:
    info = await service.inspect(sandbox_id)
    if not with_usage:
        return info, None
    return info, (await service.statistics(sandbox_id)).writable


def _as_json(info: SandboxInfo, usage: WritableUsage | None, *, with_usage: bool) -> Any:
    fields = msgspec.to_builtins(info)
    return {**fields, "cow_usage": msgspec.to_builtins(usage)} if with_usage else fields


def _fields(info: SandboxInfo) -> Iterator[tuple[str, str]]:
    spec = info.spec
    yield "id", info.sandbox_id
    yield "state", info.state.value
    if info.cause:
        yield "cause", info.cause
    yield "image", " + ".join((spec.image, *spec.layers))
    yield "created", f"{datetime.fromtimestamp(info.created_at_s, UTC):%Y-%m-%d %H:%M:%S} UTC"
    yield "expires in", "never" if info.expires_in_s is None else format_duration(info.expires_in_s)
    yield "generation", str(info.generation)
    yield "node", or_dash(info.node)
    yield "runtime", or_dash(info.runtime)
    yield from _limit_fields(info)
    yield "class", spec.qos.value
    yield "network", ", ".join(spec.network.rules) or "loopback only"
    yield "lifetime", _lifetime(spec.lifetime)
    for key, value in sorted(spec.metadata.items()):
        yield f"label {key}", value


def _limit_fields(info: SandboxInfo) -> Iterator[tuple[str, str]]:
    limits = info.spec.resources
    yield "cpu", "-" if limits.cpu_millis is None else f"{limits.cpu_millis / 1000:g} cores"
    yield "memory", size_or_dash(limits.memory_bytes)
    yield "swap", size_or_dash(limits.swap_bytes)
    yield "disk", size_or_dash(limits.disk_bytes)
    yield "processes", or_dash(limits.pids)


def _lifetime(value: Lifetime) -> str:
    idle = "never" if value.idle_timeout_s is None else f"after {format_duration(value.idle_timeout_s)} idle"
    maximum = "never" if value.maximum_s is None else f"after {format_duration(value.maximum_s)}"
    return f"{idle}, at the latest {maximum}; then {value.on_expiry.value}"


def _usage_fields(usage: WritableUsage | None) -> Iterator[tuple[str, str]]:
    if usage is None:
        yield "cow usage", "not known on this host"
        return
    quota = "no quota" if usage.quota_bytes is None else f"of {format_size(usage.quota_bytes)}"
    yield "cow usage", f"{format_size(usage.used_bytes)} {quota} ({usage.driver}, {usage.used_bytes} bytes)"
