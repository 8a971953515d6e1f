"""`dsec snapshot`: what the node's store holds, whichever node put it there."""

from __future__ import annotations

import click

from dsec.base.units import format_size
from dsec.cli.context import Options, pass_options
from dsec.cli.output import age, note, print_json, print_table, printable, working
from dsec.cli.parameters import duration, json_option, pairs_option
from dsec.model.state import RestoreRequest
from dsec.sdk.state import state_of
from dsec.service.port import SandboxService

_COLUMNS = ("SNAPSHOT", "NAME", "IMAGE", "SANDBOX", "AGE", "FILES", "CONTENT", "ADDED")


@click.group(name="snapshot")
def snapshot() -> None:
    """Durable snapshots of sandboxes; `dsec sandbox snapshot` makes one."""


@snapshot.command(name="ls")
@json_option
@pass_options
def ls(options: Options, as_json: bool) -> None:
    """List the snapshots, the oldest first."""
    found = options.run(lambda service: state_of(service).list_snapshots())
    if as_json:
        print_json(list(found))
        return
    rows = (
        (
            info.snapshot_id,
            printable(info.name),
            printable(info.image),
            info.sandbox_id,
            age(info.created_at_s),
            str(info.files),
            format_size(info.content_bytes),
            format_size(info.stored_bytes),
        )
        for info in found
    )
    print_table(_COLUMNS, rows)


@snapshot.command(name="restore")
@click.argument("name", metavar="SNAPSHOT")
@click.option("--id", "sandbox_id", help="Id to give the sandbox; asking twice with one id makes one sandbox.")
@click.option("--seed", type=int, help="Another seed than the saved one.")
@pairs_option("-e", "--env", help="Variable of every command, added; may be repeated.")
@pairs_option("-l", "--label", "labels", help="Metadata, added; may be repeated.")
@click.option("--timeout", type=duration, default=f"{RestoreRequest().timeout_s:g}", help="Give up after this time.")
@json_option
@pass_options
def restore(
    options: Options,
    name: str,
    sandbox_id: str | None,
    seed: int | None,
    env: tuple[tuple[str, str], ...],
    labels: tuple[tuple[str, str], ...],
    timeout: float,
    as_json: bool,
) -> None:
    """Make a sandbox from a snapshot, given by id or name, and print the sandbox's id."""
    request = RestoreRequest(sandbox_id=sandbox_id, seed=seed, env=dict(env), metadata=dict(labels), timeout_s=timeout)
    with working(f"restoring {name}"):
        info = options.run(lambda service: state_of(service).restore(name, request))
    if as_json:
        print_json(info)
    else:
        click.echo(info.sandbox_id)


@snapshot.command(name="rm")
@click.argument("names", metavar="SNAPSHOT...", nargs=-1, required=True)
@pass_options
def rm(options: Options, names: tuple[str, ...]) -> None:
    """Forget snapshots and print their ids, of several with one name the newest; those made upon them stay readable."""

    async def act(service: SandboxService) -> None:
        for name in names:
            snapshot_id = await _newest(service, name)
            await state_of(service).remove_snapshot(snapshot_id)
            click.echo(snapshot_id)

    options.run(act)


async def _newest(service: SandboxService, name: str) -> str:
    """Return the id that a name stands for, and say how many others bear it; anything else is the node's to judge."""
    if name.startswith("snp-"):
        return name
    bearing = [info.snapshot_id for info in await state_of(service).list_snapshots() if info.name == name]
    if len(bearing) > 1:
        note(f"{len(bearing)} snapshots bear the name {printable(name)}; the newest goes")
    return bearing[-1] if bearing else name
