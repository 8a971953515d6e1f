"""`dsec store`: look after the object store of snapshots: what it holds, whether it is whole, what can go.

The commands work on the store itself, which is safe beside nodes that use it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from dsec.base.errors import NotFoundError, StateCorruptedError
from dsec.base.units import format_size
from dsec.cli.context import Options, pass_options
from dsec.cli.lazy import HELP_OPTIONS
from dsec.cli.output import note, print_fields, print_json, printable
from dsec.cli.parameters import json_option

if TYPE_CHECKING:
    from dsec.state.store_care import StoreCare, StoreProblem

T = TypeVar("T")
_url_option = click.option(
    "--store", "url", metavar="URL", help="file:///path or s3://bucket/prefix.  [the node's setting `store`]"
)


@click.group(name="store", context_settings=HELP_OPTIONS)
def store() -> None:
    """Look after the store of snapshots; nodes may go on using it meanwhile."""


@store.command(name="check")
@_url_option
@click.option("--quick", is_flag=True, help="Do not read contents: only what names them, and that they are there.")
@json_option
@pass_options
def check(options: Options, url: str | None, quick: bool, as_json: bool) -> None:
    """Verify every snapshot and every chunk, and name what is bad; the command then exits with 70."""
    found = _with_care(options, url, lambda care: care.check(contents=not quick))
    if as_json:
        print_json(found)
    else:
        _print_problems(found.problems)
        read = "" if quick else f", chunks: {found.chunks}, packs: {found.packs} ({format_size(found.read_bytes)})"
        note(f"snapshots: {found.snapshots}{read}, problems: {len(found.problems)}")
    click.get_current_context().exit(StateCorruptedError.exit_code if found.problems else 0)


def _print_problems(problems: tuple[StoreProblem, ...]) -> None:
    for problem in problems:
        click.echo(printable(problem.what))
        for snapshot in problem.snapshots:
            click.echo(f"  lost for {snapshot}")
        if problem.affected > len(problem.snapshots):
            click.echo(f"  and for {problem.affected - len(problem.snapshots)} more")


@store.command(name="stat")
@_url_option
@json_option
@pass_options
def stat(options: Options, url: str | None, as_json: bool) -> None:
    """Say what the store holds, and what sharing saves."""
    found = _with_care(options, url, lambda care: care.statistics())
    if as_json:
        print_json(found)
        return
    print_fields(
        [
            ("snapshots", str(found.snapshots)),
            ("one by one", format_size(found.content_bytes)),
            ("stored", format_size(found.stored_bytes)),
            ("manifests", f"{found.manifests}, {format_size(found.manifest_bytes)}"),
            ("packs", f"{found.packs}, {format_size(found.pack_bytes)}; {found.doomed} wait for their deletion"),
            ("chunks", f"{found.chunks}, {format_size(found.chunk_bytes)} uncompressed"),
        ]
    )


@store.command(name="gc")
@_url_option
@click.option("--dry-run", is_flag=True, help="Say what would be done and do nothing.")
@json_option
@pass_options
def gc(options: Options, url: str | None, dry_run: bool, as_json: bool) -> None:
    """Delete what no snapshot needs, a grace period after it was found so; run it daily."""
    done = _with_care(options, url, lambda care: care.collect(dry_run=dry_run))
    if as_json:
        print_json(done)
        return
    would = "would be " if dry_run else ""
    click.echo(
        f"packs {would}deleted: {done.deleted} ({format_size(done.freed_bytes)}); "
        f"{would}marked for a later run: {done.doomed}; waiting for the end of the grace period: {done.waiting}"
    )
    for pack in done.damaged:
        note(f"{pack} holds chunks that are needed and do not verify; it stays. See `dsec store check`.")


def _with_care(options: Options, url: str | None, act: Callable[[StoreCare], Awaitable[T]]) -> T:
    from dsec.cli.settings import load_beside_node
    from dsec.state.store_care import StoreCare
    from dsec.stores.chunks import open_chunks
    from dsec.stores.opening import open_store

    where = url or load_beside_node(options).settings.store or (options.state_dir / "store").as_uri()
    require_folder(where)
    if url is None:
        note(f"store: {printable(where)}")

    async def run() -> T:
        opened = open_store(where)
        try:
            # An index of our own, in memory: the node's is the node's.
            async with open_chunks(opened) as chunks:
                with _spinner() as say:
                    return await act(StoreCare(opened, chunks, say))
        finally:
            await opened.aclose()

    return options.run_alone(run)


def require_folder(url: str) -> None:
    """Refuse a folder that is not there: opening it would make it."""
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(url)
    if parts.scheme == "file" and not Path(unquote(parts.path)).is_dir():
        raise NotFoundError(
            f"{printable(url)} is not there",
            resolution="give --store the URL that nodes have as `store`; `dsec config show` tells this host's",
        )


@contextmanager
def _spinner() -> Iterator[Callable[[str], None]]:
    """Show what is being done, on a terminal."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda line: None
        return
    with console.status("") as status:
        yield status.update
