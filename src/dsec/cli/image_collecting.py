"""`dsec image unpublish`, `gc` and `ls --store`: what an object store has of images, and what can go."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from dsec.cli.context import Options, pass_options
from dsec.cli.image import opened_store, store_url
from dsec.cli.image_sharing import existing, store_option, with_objects
from dsec.cli.output import note, print_json, print_table, printable
from dsec.cli.parameters import duration, json_option

if TYPE_CHECKING:
    from dsec.images.lazy.collection.collector import LayerCollectionReport
    from dsec.images.lazy.collection.local import LocalCollectionReport
    from dsec.stores.objects import ObjectStore


@click.command(name="unpublish")
@click.argument("image", metavar="REFERENCE|TAG")
@store_option
@json_option
@pass_options
def unpublish(options: Options, image: str, url: str | None, as_json: bool) -> None:
    """Make an image of the object store unknown. By a TAG: that tag, and the image with its last one.

    What it consists of is deleted by `dsec image gc --store`, a grace period later, and not while a host holds it.
    """
    from dsec.images.lazy.collection.roots import unpublish as forget

    gone = with_objects(options, existing(options, url), lambda objects: forget(objects, image))
    if as_json:
        print_json({"reference": gone})
    else:
        note("the tag is gone; others mean the image, which stays" if not gone else f"unpublished {gone}")


@click.command(name="gc")
@click.option(
    "--store",
    "url",
    metavar="[URL]",
    is_flag=False,
    flag_value="node",
    help="Collect in this object store, in place of this host: file:///path or s3://bucket/prefix; without a URL, or "
    "with `node`, the one that this host's node uses.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done and do nothing.")
@click.option(
    "--grace",
    "grace_s",
    type=duration,
    metavar="DURATION",
    help="The store's grace period, for the first who publishes or collects there.  [24h]",
)
@json_option
@pass_options
def gc(options: Options, url: str | None, dry_run: bool, grace_s: float | None, as_json: bool) -> None:
    """Take away what no image needs: from this host's cache of layers, or with --store from an object store.

    On this host, layers go with their last name; this takes what is left of them in the cache. In a store, what no
    published image and no host needs is marked, and deleted by a run that comes a grace period later: run it daily.
    Sandboxes, pulls, publications and other collections may go on meanwhile.
    """
    if url is None:
        if grace_s is not None:
            raise click.UsageError("--grace is about an object store: give --store too")
        _collect_here(options, dry_run, as_json)
        return

    async def collect(objects: ObjectStore) -> LayerCollectionReport:
        from dsec.images.lazy.collection.collector import collect_layers
        from dsec.images.lazy.collection.opened import open_layer_objects

        return await collect_layers(await open_layer_objects(objects, grace_s=grace_s), dry_run=dry_run, say=_say)

    where = existing(options, url)
    _print_collection(with_objects(options, where, collect), as_json)


def _say(line: str) -> None:
    if sys.stderr.isatty():
        note(line)


def _collect_here(options: Options, dry_run: bool, as_json: bool) -> None:
    from dsec.images.lazy.collection.local import collect_local
    from dsec.images.lazy.serving.client import LayerDaemon

    with opened_store(options) as images:
        daemon = images.lazy if isinstance(images.lazy, LayerDaemon) else None
        done = options.run_alone(lambda: collect_local(images, daemon, store_url(options), dry_run=dry_run))
    if as_json:
        print_json(done)
    else:
        _print_local(done)


def _print_local(done: LocalCollectionReport) -> None:
    from dsec.base.units import format_size

    would = "would be " if done.is_dry_run else ""
    click.echo(f"layers {would}taken from the cache: {done.cached_layers} ({format_size(done.freed_bytes)})")
    if not done.is_dry_run:
        click.echo(f"pins in object stores: {done.pins} renewed, {done.unpinned} taken back")
    for problem in done.problems:
        note(f"{printable(problem)}; its pins grow old by themselves")


def _print_collection(done: LayerCollectionReport, as_json: bool) -> None:
    from dsec.base.errors import StateCorruptedError
    from dsec.base.units import format_size

    if as_json:
        print_json(done)
    else:
        would = "would be " if done.is_dry_run else ""
        click.echo(f"images: {done.images}, manifests: {done.manifests}, chunks: {done.chunks}, pins: {done.pins}")
        click.echo(
            f"{would}deleted: {done.deleted} ({format_size(done.freed_bytes)}); {would}marked for a later run: "
            f"{done.doomed}; waiting for the end of the grace period: {done.waiting}; needed again: {done.kept}"
        )
        for problem in done.damaged:
            click.echo(f"cannot be read: {printable(problem)}")
    if done.damaged:
        note("nothing is deleted while something cannot be read: publish it again, or unpublish it")
        click.get_current_context().exit(StateCorruptedError.exit_code)


def list_store(options: Options, url: str, as_json: bool) -> None:
    """Print the images of an object store."""
    from dsec.cli.output import age
    from dsec.images.lazy.collection.roots import list_published

    found = with_objects(options, existing(options, url), list_published)
    if as_json:
        print_json(found)
        return
    rows = [
        (
            ", ".join(each.tags) or "-",
            printable(each.name),
            str(each.layers),
            age(each.published_at_s) if each.published_at_s else "-",
            each.reference,
        )
        for each in found
    ]
    print_table(["tags", "name", "layers", "age", "reference"], rows)
    for each in found:
        if each.problem:
            note(f"{each.reference}: {printable(each.problem)}")
