"""`dsec sandbox checkpoint|checkpoints|fork|snapshot|pack|migrate|fingerprint`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from dsec.base.errors import StateMismatchError
from dsec.base.units import format_size
from dsec.cli.context import Options, pass_options
from dsec.cli.output import age, console, note, print_json, printable, working
from dsec.cli.parameters import duration, id_parameters, json_option, one_id, pairs_option
from dsec.model.state import (
    CheckpointInfo,
    CheckpointRequest,
    ForkRequest,
    MigrationRequest,
    PackRequest,
    ScrubRules,
    SnapshotRequest,
)
from dsec.sdk.state import state_of
from dsec.service.port import SandboxService

if TYPE_CHECKING:
    from rich.tree import Tree

_MOST_NAMED = 1000
"""A report of a pack names no more of what was left out."""


@click.command(name="checkpoint")
@id_parameters
@click.option("--name", default="", help="A name of your own for it, such as snap-001.")
@click.option("--no-hooks", is_flag=True, help="Do not call the image's export hook.")
@json_option
@pass_options
def checkpoint(
    options: Options, id_option: str | None, id_argument: str | None, name: str, no_hooks: bool, as_json: bool
) -> None:
    """Save the present state on the node, while commands run on, and print its id."""
    sandbox_id, request = one_id(id_option, id_argument), CheckpointRequest(name=name, hooks=not no_hooks)
    info = options.run(lambda service: state_of(service).checkpoint(sandbox_id, request))
    if as_json:
        print_json(info)
    else:
        click.echo(info.checkpoint_id)


@click.command(name="checkpoints")
@id_parameters
@click.option(
    "--remove", "removed", multiple=True, metavar="CHECKPOINT", help="Forget this one first, by id or name; repeatable."
)
@json_option
@pass_options
def checkpoints(
    options: Options, id_option: str | None, id_argument: str | None, removed: tuple[str, ...], as_json: bool
) -> None:
    """Draw the checkpoints of a sandbox as a tree; * marks the one that the present state began from."""
    sandbox_id = one_id(id_option, id_argument)

    async def act(service: SandboxService) -> Sequence[CheckpointInfo]:
        for checkpoint in removed:
            await state_of(service).remove_checkpoint(sandbox_id, checkpoint)
        return await state_of(service).list_checkpoints(sandbox_id)

    found = options.run(act)
    if as_json:
        print_json(list(found))
    else:
        console().print(_tree(sandbox_id, found))


def _tree(sandbox_id: str, found: Sequence[CheckpointInfo]) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    current = any(info.is_current for info in found)
    root = Tree(Text(f"{sandbox_id} (clean state){'' if current else ' *'}"))
    nodes: dict[str | None, Tree] = {None: root}
    for info in found:  # The oldest come first, so that a parent is there before its children.
        node = nodes.get(info.parent, root).add(Text(_label(info)))
        nodes[info.checkpoint_id] = node
        for branch in info.branches:
            node.add(Text(f"fork {branch}"))
    return root


def _label(info: CheckpointInfo) -> str:
    parts = [info.checkpoint_id, printable(info.name), f"{age(info.created_at_s)} ago", format_size(info.written_bytes)]
    parts += [f"frozen {info.frozen_s * 1000:.1f} ms", "*" if info.is_current else ""]
    return "  ".join(part for part in parts if part)


@click.command(name="fork")
@id_parameters
@click.option("-n", "--count", type=click.IntRange(min=1), default=1, show_default=True, help="How many children.")
@click.option("--checkpoint", "point", metavar="CHECKPOINT", help="Where they begin; the default is the present state.")
@click.option("--seed", "seeds", type=int, multiple=True, help="Seed of a child; once for each.  [derived]")
@pairs_option("-e", "--env", help="Variable of every child's commands; may be repeated.")
@pairs_option("-l", "--label", "labels", help="Metadata of every child; may be repeated.")
@click.option("--spread", is_flag=True, help="Spread them over this node and its peers.")
@json_option
@pass_options
def fork(
    options: Options,
    id_option: str | None,
    id_argument: str | None,
    count: int,
    point: str | None,
    seeds: tuple[int, ...],
    env: tuple[tuple[str, str], ...],
    labels: tuple[tuple[str, str], ...],
    spread: bool,
    as_json: bool,
) -> None:
    """Make children of a sandbox and print their ids: all of them, or none."""
    sandbox_id = one_id(id_option, id_argument)
    request = ForkRequest(
        count=count, checkpoint=point, seeds=seeds, env=dict(env), metadata=dict(labels), spread=spread
    )
    with working(f"forking {sandbox_id}"):
        children = options.run(lambda service: state_of(service).fork(sandbox_id, request))
    if spread:
        dealt = Counter(child.node for child in children)
        note(", ".join(f"{number} on {node}" for node, number in sorted(dealt.items())))
        for why, number in Counter(child.stays_because for child in children if child.stays_because).items():
            note(f"{number} not on a peer: {printable(why)}")
    if as_json:
        print_json(list(children))
    else:
        click.echo("".join(f"{child.sandbox_id}\n" for child in children), nl=False)


@click.command(name="snapshot")
@id_parameters
@click.option("--checkpoint", "point", metavar="CHECKPOINT", help="What to keep; the default is the present state.")
@click.option("--name", default="", help="A label to find it by.")
@pairs_option("-l", "--label", "labels", help="Metadata; may be repeated.")
@json_option
@pass_options
def snapshot(
    options: Options,
    id_option: str | None,
    id_argument: str | None,
    point: str | None,
    name: str,
    labels: tuple[tuple[str, str], ...],
    as_json: bool,
) -> None:
    """Make a state durable in the node's store and print the snapshot's id. Only what is not there yet travels."""
    sandbox_id = one_id(id_option, id_argument)
    request = SnapshotRequest(checkpoint=point, name=name, metadata=dict(labels))
    with working(f"saving {sandbox_id}"):
        info = options.run(lambda service: state_of(service).snapshot(sandbox_id, request))
    if as_json:
        print_json(info)
        return
    note(f"{info.files} files, {format_size(info.content_bytes)}; {format_size(info.stored_bytes)} were new")
    click.echo(info.snapshot_id)


@click.command(name="pack")
@id_parameters
@click.option("--as", "name", required=True, metavar="NAME", help="Name of the image to make.")
@click.option("--checkpoint", "point", metavar="CHECKPOINT", help="What to pack; the default is the present state.")
@click.option("--remove", multiple=True, metavar="PATTERN", help="Leave this out, as in a .gitignore; repeatable.")
@click.option("--keep", multiple=True, metavar="PATTERN", help="Keep this whatever the rules say; repeatable.")
@click.option("--no-default-rules", is_flag=True, help="Leave out only what --remove says.")
@click.option("--dry-run", is_flag=True, help="Say what would go in (+) or be left out (-), and make nothing.")
@json_option
@pass_options
def pack(
    options: Options,
    id_option: str | None,
    id_argument: str | None,
    name: str,
    point: str | None,
    remove: tuple[str, ...],
    keep: tuple[str, ...],
    no_default_rules: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make an image of a sandbox's layers and what its session changed, scrubbed of residue."""
    sandbox_id = one_id(id_option, id_argument)
    rules = ScrubRules(defaults=not no_default_rules, remove=remove, keep=keep)
    request = PackRequest(name=name, checkpoint=point, scrub=rules, dry_run=dry_run)
    with working(f"packing {sandbox_id}"):
        report = options.run(lambda service: state_of(service).pack(sandbox_id, request))
    if as_json:
        print_json(report)
        return
    note(f"{report.files} files, {format_size(report.content_bytes)}; {report.removed_files} left out")
    for pattern in _idle(remove, report.removed):
        note(f"nothing was left out by --remove {printable(pattern)}")
    lines = [*(f"+ {path}" for path in report.kept), *(f"- {line}" for line in report.removed)]
    click.echo("".join(f"{printable(line)}\n" for line in lines) if dry_run else f"{report.name}\n", nl=False)


def _idle(remove: Sequence[str], removed: Sequence[str]) -> list[str]:
    """Return the patterns by which nothing was left out: one that is misspelt keeps a secret in."""
    if len(removed) >= _MOST_NAMED:
        return []
    return [pattern for pattern in remove if not any(line.endswith(f": {pattern}") for line in removed)]


@click.command(name="migrate")
@id_parameters
@click.option("--to", "node", required=True, metavar="NODE", help="Id or URL of one of the node's peers.")
@click.option("--downtime", type=duration, default="200ms", show_default=True, help="Aim at standing still no longer.")
@click.option(
    "--rounds",
    type=click.IntRange(1, 100),
    default=MigrationRequest(node="").maximum_rounds,
    show_default=True,
    help="Copies at most while it runs.",
)
@json_option
@pass_options
def migrate(
    options: Options,
    id_option: str | None,
    id_argument: str | None,
    node: str,
    downtime: float,
    rounds: int,
    as_json: bool,
) -> None:
    """Move a sandbox to another node; on failure it goes on where it is.

    Its files and checkpoints are copied while it runs; then its processes end here and it begins anew there.
    """
    sandbox_id = one_id(id_option, id_argument)
    request = MigrationRequest(node=node, maximum_rounds=rounds, downtime_s=downtime)
    if not as_json:
        note(f"moving {sandbox_id} to {node}")
    with working(f"moving {sandbox_id}"):
        report = options.run(lambda service: state_of(service).migrate(sandbox_id, request))
    if as_json:
        print_json(report)
        return
    copied = " + ".join(format_size(size) for size in report.copied_bytes)
    note(f"{report.rounds} rounds in {report.duration_s:.2f} s: {copied}")
    note(f"{sandbox_id} is on {report.target}; it stood still for {report.downtime_s * 1000:.0f} ms")


@click.command(name="fingerprint")
@id_parameters
@json_option
@pass_options
def fingerprint(options: Options, id_option: str | None, id_argument: str | None, as_json: bool) -> None:
    """Compare a sandbox with its clean state; differences are printed, and the command then exits with 1."""
    sandbox_id = one_id(id_option, id_argument)
    report = options.run(lambda service: state_of(service).fingerprint(sandbox_id))
    if as_json:
        print_json(report)
    else:
        click.echo("".join(f"{printable(line)}\n" for line in (report.fingerprint, *report.differences)), nl=False)
    click.get_current_context().exit(0 if report.is_clean else StateMismatchError.exit_code)
