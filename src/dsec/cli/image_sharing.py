"""`dsec image publish` and `pull`: images by way of the object store, without their bytes.

The commands work on the stores themselves, which is safe beside running nodes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

import click

from dsec.cli.context import Options, pass_options
from dsec.cli.image import opened_store, own_store_url, show_made, showing_progress, store_url
from dsec.cli.output import note, print_json, printable, resumable, said_after
from dsec.cli.parameters import json_option

if TYPE_CHECKING:
    from dsec.model.image import ImageInfo
    from dsec.stores.objects import ObjectStore

T = TypeVar("T")
_PATIENCE_S = 3.0
store_option = click.option(
    "--store",
    "url",
    metavar="URL",
    help="file:///path, or s3://bucket/prefix with the usual AWS_ variables.  [the node's setting `store`]",
)


@click.command(name="publish")
@click.argument("name", metavar="IMAGE")
@store_option
@click.option("--tag", metavar="NAME", help="What people may pull it by too; it moves if it is there.")
@click.option("--trace", "by_traces", is_flag=True, help="Lay its layers out by its traces: fewer chunks are read.")
@click.option("--resend", is_flag=True, help="Send what is there, too: mends what rotted in the store.")
@json_option
@pass_options
def publish(
    options: Options, name: str, url: str | None, tag: str | None, by_traces: bool, resend: bool, as_json: bool
) -> None:
    """Put IMAGE into the object store, in chunks, and print the reference by which other hosts pull it.

    Its traces (`dsec image trace`) go with it.
    """
    from dsec.base.units import format_number_of, format_size
    from dsec.images.lazy.publication.sharing import publish_image

    with resumable(), opened_store(options) as images, showing_progress() as progress:
        made = with_objects(
            options,
            url,
            lambda objects: publish_image(
                images, name, objects, tag=tag, say=progress, by_traces=by_traces, resend=resend
            ),
        )
    if as_json:
        print_json(made)
        return
    layers = format_number_of(made.layers, "layer")
    note(f"{layers}, {made.chunks} chunks; {made.new_chunks} new, {format_size(made.stored_bytes)}")
    if url in (None, "node") and store_url(options) == own_store_url(options):
        note(
            "it is in a folder of this host's own: set `store` to one that all hosts reach, here and there, or --store"
        )
    elif tag is not None:
        elsewhere = "" if url in (None, "node", store_url(options)) else f" --store {url}"
        note(f"on other hosts: dsec image pull {printable(tag)}{elsewhere}")
    click.echo(made.reference)


@click.command(name="pull")
@click.argument("reference")
@click.option(
    "--name", metavar="NAME", help="Its name here.  [REFERENCE; of a b3: reference the name it was published from]"
)
@click.option("--eager", is_flag=True, help="Fetch all of it now.")
@store_option
@json_option
@pass_options
def pull(options: Options, reference: str, name: str | None, eager: bool, url: str | None, as_json: bool) -> None:
    """Make a published image known here at once; what it consists of comes when it is touched.

    REFERENCE is what `dsec image publish` printed, or a tag, which is what its store says: the image comes from an
    object store. Or it is HOST[:PORT]/REPOSITORY:TAG, or @sha256:DIGEST in place of the tag: the image comes from a
    registry, either one of ours (`dsec image push`), or an ordinary one, all of which is fetched and converted.

    Store or registry must stay reachable as long as not all of an image is here. A layer that is here already stays as
    it is, but --eager makes one whole that was loaded when touched. When a pull is killed, the next goes on from there.
    """
    from dsec.images.lazy.publication.sharing import pull_image
    from dsec.images.registry.reference import names_registry

    if names_registry(reference):
        from dsec.cli.image_registry import pull_from_registry

        if url is not None:
            raise click.UsageError(f"--store is about object stores, and {printable(reference)} is in a registry.")
        _show_pulled(pull_from_registry(options, reference, name=name, eager=eager), as_json)
        return

    where = existing(options, url)
    with resumable(), opened_store(options) as images, bytes_shown("pulling") as progress:
        made = with_objects(
            options,
            where,
            lambda objects: pull_image(images, reference, objects, name=name, eager=eager, progress=progress),
        )
    _show_pulled(made, as_json)


def _show_pulled(made: ImageInfo, as_json: bool) -> None:
    from dsec.linux.userns import is_host_root
    from dsec.model.image import LayerFormat

    show_made(made, as_json)
    if as_json:
        return
    if not is_host_root() and any(layer.format is LayerFormat.LAZY for layer in made.layers):
        note("without root, sandboxes need all of it here: the same command with --eager fetches it")
    else:
        note(f"make a sandbox of it: dsec sandbox create {made.name}")


def existing(options: Options, url: str | None) -> str:
    """Return the URL of an object store that is there, for whoever reads: opening a folder would make it.

    Args:
        options: of this command.
        url: that was given; None or `node`: the one that this host's node uses.
    """
    from dsec.cli.store import require_folder

    where = store_url(options) if url in (None, "node") else url
    require_folder(where)
    return where


@contextmanager
def bytes_shown(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show on stderr how many bytes of how many have come: on a terminal as a bar, otherwise a line each tenth."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from dsec.base.units import format_size

    console = Console(stderr=True)
    if not console.is_terminal:
        told = -1

        def say(here_bytes: int, total_bytes: int) -> None:
            nonlocal told
            tenths = 10 * here_bytes // max(1, total_bytes)
            if tenths > told:
                told = tenths
                console.print(f"{what}: {format_size(here_bytes)} of {format_size(total_bytes)}", highlight=False)

        yield say
        return
    columns = (TextColumn(what), BarColumn(), DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(what, total=None, visible=False)
        yield lambda here, total: bar.update(task, completed=here, total=total, visible=True)


def with_objects(options: Options, url: str | None, act: Callable[[ObjectStore], Awaitable[T]]) -> T:
    """Do something with an object store, and say so at once where it does not answer: it is asked for a minute."""
    from dsec.base.errors import CallerError
    from dsec.images.lazy.collection.objects import FORMAT
    from dsec.stores.opening import open_store

    async def run() -> T:
        objects = open_store(store_url(options) if url in (None, "node") else url)
        try:
            async with said_after(_PATIENCE_S, f"{objects.url} does not answer; asking again for a minute"):
                with suppress(CallerError):  # Whether that may be read says nothing of what is to be done.
                    await objects.head(FORMAT)
            return await act(objects)
        finally:
            await objects.aclose()

    return options.run_alone(run)
