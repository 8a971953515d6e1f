"""`dsec sandbox rollback|pause|resume|extend|stop|rm`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import click

from dsec.base.errors import DsecError, InvalidRequestError
from dsec.cli.context import Options, pass_options
from dsec.cli.failures import show
from dsec.cli.output import note, print_json
from dsec.cli.parameters import (
    all_ids,
    duration_or_none,
    id_parameters,
    ids_parameters,
    json_option,
    keep_memory_option,
    one_id,
    pairs_option,
)
from dsec.cli.sandbox.create import lifetime
from dsec.model.sandbox import ExpiryAction, SandboxFilter, SandboxInfo, SandboxState
from dsec.service.port import SandboxService


def _say(info: SandboxInfo, *, as_json: bool) -> None:
    if as_json:
        print_json(info)
    else:
        note(f"{info.sandbox_id} is {info.state.value}")


@click.command(name="rollback")
@id_parameters
@click.option(
    "--snapshot",
    "--checkpoint",
    "snapshot",
    metavar="CHECKPOINT",
    help="Checkpoint to return to, by id or name; the default is the clean state.",
)
@json_option
@pass_options
def rollback(
    options: Options, id_option: str | None, id_argument: str | None, snapshot: str | None, as_json: bool
) -> None:
    """Return a sandbox to its clean state, or to a checkpoint. All its processes end."""
    sandbox_id = one_id(id_option, id_argument)
    info = options.run(lambda service: service.rollback(sandbox_id, snapshot=snapshot))
    _say(info, as_json=as_json)


@click.command(name="pause")
@id_parameters
@keep_memory_option
@json_option
@pass_options
def pause(options: Options, id_option: str | None, id_argument: str | None, keep_memory: bool, as_json: bool) -> None:
    """Freeze every process of a sandbox and give its memory back; the next operation on it lets it go on."""
    sandbox_id = one_id(id_option, id_argument)
    _say(options.run(lambda service: service.pause(sandbox_id, keep_memory=keep_memory)), as_json=as_json)


@click.command(name="resume")
@id_parameters
@json_option
@pass_options
def resume(options: Options, id_option: str | None, id_argument: str | None, as_json: bool) -> None:
    """Let a paused sandbox go on."""
    sandbox_id = one_id(id_option, id_argument)
    _say(options.run(lambda service: service.resume(sandbox_id)), as_json=as_json)


@click.command(name="extend")
@id_parameters
@click.option("--idle-timeout", type=duration_or_none, help="Time without an operation before it ends, or none.")
@click.option("--max-lifetime", type=duration_or_none, help="Time from now after which it ends, or none.")
@click.option("--on-expiry", type=click.Choice([item.value for item in ExpiryAction]), help="What ending means.")
@json_option
@pass_options
def extend(
    options: Options,
    id_option: str | None,
    id_argument: str | None,
    idle_timeout: float | None,
    max_lifetime: float | None,
    on_expiry: str | None,
    as_json: bool,
) -> None:
    """Start a sandbox's lifetime again from now, with what is given changed."""
    sandbox_id = one_id(id_option, id_argument)

    async def replace(service: SandboxService) -> SandboxInfo:
        before = (await service.inspect(sandbox_id)).spec.lifetime
        return await service.extend(sandbox_id, lifetime(before, idle_timeout, max_lifetime, on_expiry))

    _say(options.run(replace), as_json=as_json)


async def _selected(
    service: SandboxService, ids: tuple[str, ...], labels: dict[str, str], *, stopped_too: bool
) -> tuple[str, ...]:
    """Return the named sandboxes, or those that a label or --all selects."""
    if ids:
        return ids
    states = tuple(SandboxState) if stopped_too else ()
    return tuple(info.sandbox_id for info in await service.list(SandboxFilter(metadata=labels, states=states)))


async def _for_each(ids: tuple[str, ...], act: Callable[[str], Awaitable[object]]) -> DsecError | None:
    """Act on every sandbox, print the id of each that went well, and return the last error.

    One that fails must not keep the others.
    """
    failed: DsecError | None = None
    for sandbox_id in ids:
        try:
            await act(sandbox_id)
        except DsecError as error:
            show(error)
            failed = error
        else:
            click.echo(sandbox_id)
    return failed


def _check_selection(ids: tuple[str, ...], labels: dict[str, str], *, everything: bool) -> None:
    if ids and (labels or everything):
        raise InvalidRequestError("ids were named together with --all or --label", resolution="use one or the other")
    if not (ids or labels or everything):
        raise InvalidRequestError("no sandbox was named", resolution="name one, or use --label or --all")


_LABEL = pairs_option("-l", "--label", "labels", help="All with this metadata.")


@click.command(name="stop")
@ids_parameters
@_LABEL
@click.option("-a", "--all", "everything", is_flag=True, help="All that are not stopped.")
@click.pass_context
@pass_options
def stop(
    options: Options,
    ctx: click.Context,
    id_options: tuple[str, ...],
    id_arguments: tuple[str, ...],
    labels: tuple[tuple[str, str], ...],
    everything: bool,
) -> None:
    """Destroy sandboxes. Their records stay until `rm`."""
    ids, wanted = all_ids(id_options, id_arguments), dict(labels)
    _check_selection(ids, wanted, everything=everything)

    async def act(service: SandboxService) -> DsecError | None:
        return await _for_each(await _selected(service, ids, wanted, stopped_too=False), service.stop)

    failed = options.run(act)
    ctx.exit(failed.exit_code if failed else 0)


@click.command(name="rm")
@ids_parameters
@_LABEL
@click.option("-a", "--all", "everything", is_flag=True, help="All, stopped or not.")
@click.pass_context
@pass_options
def rm(
    options: Options,
    ctx: click.Context,
    id_options: tuple[str, ...],
    id_arguments: tuple[str, ...],
    labels: tuple[tuple[str, str], ...],
    everything: bool,
) -> None:
    """Destroy sandboxes and forget them."""
    ids, wanted = all_ids(id_options, id_arguments), dict(labels)
    _check_selection(ids, wanted, everything=everything)

    async def act(service: SandboxService) -> DsecError | None:
        return await _for_each(await _selected(service, ids, wanted, stopped_too=True), service.remove)

    failed = options.run(act)
    ctx.exit(failed.exit_code if failed else 0)
