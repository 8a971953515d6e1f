"""`dsec image`: import, build, list, inspect, tag and remove the images of this host.

The commands work on the store itself, which is safe beside a running node.
"""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dsec.cli.context import Options, pass_options
from dsec.cli.lazy import HELP_OPTIONS, Lazy, LazyGroup
from dsec.cli.parameters import json_option, merge_options, pairs_option, words

if TYPE_CHECKING:
    from dsec.images.store import LocalImageStore
    from dsec.model.image import ImageInfo

_FORMATS = ["auto", "rootfs-tar", "oci-layout", "docker-archive", "directory"]
_EXISTING = click.Path(path_type=Path)


@click.group(
    name="image",
    cls=LazyGroup,
    context_settings=HELP_OPTIONS,
    lazy={
        "trace": Lazy("dsec.cli.image_prefetch:trace", "Record what of an image a command reads."),
        "stats": Lazy("dsec.cli.image_prefetch:stats", "Say what of images was read, and what came for nothing."),
        "prefetch": Lazy("dsec.cli.image_prefetch:prefetch", "Bring what will be read of an image before it is."),
        "publish": Lazy("dsec.cli.image_sharing:publish", "Put an image into the object store, for other hosts."),
        "push": Lazy("dsec.cli.image_registry:push", "Put an image into a registry, for other hosts."),
        "unpublish": Lazy("dsec.cli.image_collecting:unpublish", "Make an image of the object store unknown."),
        "gc": Lazy("dsec.cli.image_collecting:gc", "Take away what no image needs, here or in an object store."),
        "verify": Lazy("dsec.cli.image_verify:verify", "Check an image: manifest, layers, chunks."),
        "layers": Lazy("dsec.cli.image_layers:layers", "Show what an environment is made of, layer by layer."),
        "merge": Lazy("dsec.cli.image_layers:merge", "Merge layers of an image that nobody else shares."),
        "peers": Lazy("dsec.cli.image_peers:peers", "Show which nodes have which chunks, and what they send."),
        "pull": Lazy("dsec.cli.image_sharing:pull", "Make a published image known here; its bytes come when touched."),
    },
)
def image() -> None:
    """Make images, share them with other hosts, look at and look after them."""


@image.command(name="import")
@click.argument("path", type=_EXISTING)
@click.option("--name", required=True, metavar="NAME", help="Name of the image, such as my-env:v2.")
@click.option("--format", "kind", type=click.Choice(_FORMATS), default="auto", help="What PATH is.")
@pairs_option("--env", help="Variable of every command, where PATH brings no settings of its own.")
@click.option("--workdir", default="/", metavar="DIR", help="Directory of every command, likewise.")
@click.option("--user", default="0", metavar="USER", help="User of every command, likewise.")
@click.option(
    "--export-hook",
    default="",
    metavar="COMMAND",
    help="Writes the state of processes, at a checkpoint, in place of that which PATH brings.",
)
@click.option(
    "--import-hook", default="", metavar="COMMAND", help="Reads it again, after a rollback, fork or restore, likewise."
)
@click.option(
    "--fingerprint",
    type=_EXISTING,
    metavar="FILE",
    help="Rules of its clean state, in place of those that PATH brings; `fingerprint-template` prints a start.",
)
@click.option("--as-layer", is_flag=True, help="It is to be stacked on other images: a toolkit, or a workspace.")
@click.option("--at", default="/", metavar="DIR", help="Where it is to lie, with --as-layer.  [/]")
@merge_options
@json_option
@pass_options
def import_(
    options: Options,
    path: Path,
    name: str,
    kind: str,
    env: tuple[tuple[str, str], ...],
    workdir: str,
    user: str,
    export_hook: str,
    import_hook: str,
    fingerprint: Path | None,
    as_layer: bool,
    at: str,
    merge_up_to: int,
    keep_layers: int,
    as_json: bool,
) -> None:
    """Import an image: a tar of a root file system, an OCI layout, a docker archive, or a directory.

    The format is told by content. Archives may be compressed with gzip, zstd, xz or bzip2. With --as-layer, directories
    that every base has, such as /usr/bin, keep what the base says of them.
    """
    if at.strip("/") and not as_layer:
        raise click.UsageError("--at needs --as-layer.")
    from dsec.images.fingerprint_rules import read_rules
    from dsec.images.importers.detect import ImportFormat, import_image
    from dsec.images.importers.request import ImportRequest
    from dsec.images.merge_plan import MergeRule
    from dsec.model.image import ImageConfig, StateHooks

    hooks = StateHooks(export_state=words(export_hook), import_state=words(import_hook))
    config = ImageConfig(env=dict(env), workdir=workdir, user=user)
    rules = None if fingerprint is None else read_rules(fingerprint)
    with opened_store(options) as store, showing_progress() as progress:
        request = ImportRequest(
            path=path,
            name=name,
            config=config,
            hooks=hooks,
            fingerprint=rules,
            progress=progress,
            as_layer=as_layer,
            at=os.fsencode(at.strip("/")),
            merge=MergeRule(threshold_bytes=merge_up_to, keep_layers=keep_layers),
        )
        made = import_image(store, request, kind=ImportFormat(kind))
    show_made(made, as_json)


@image.command(name="build")
@click.argument("context", type=_EXISTING)
@click.option("-t", "--tag", "name", required=True, metavar="NAME", help="Name of the image, such as my-env:v2.")
@click.option("-f", "--file", "dockerfile", type=_EXISTING, help="Dockerfile.  [CONTEXT/Dockerfile]")
@pairs_option("--build-arg", help="Value of an ARG.")
@click.option("--no-cache", is_flag=True, help="Run every step, and store what they add as one layer.")
@click.option(
    "--as-layer", is_flag=True, help="Leave out what FROM names: it is to be stacked on that image, or another."
)
@merge_options
@json_option
@pass_options
def build(
    options: Options,
    context: Path,
    name: str,
    dockerfile: Path | None,
    build_arg: tuple[tuple[str, str], ...],
    no_cache: bool,
    as_layer: bool,
    merge_up_to: int,
    keep_layers: int,
    as_json: bool,
) -> None:
    """Build an image from a Dockerfile. FROM means an image of this host; nothing is pulled."""
    from dsec.images.build import BuildRequest
    from dsec.images.build import build as build_image
    from dsec.images.merge_plan import MergeRule

    with opened_store(options) as store, showing_progress() as progress:
        made = build_image(
            store,
            BuildRequest(
                context=context,
                name=name,
                dockerfile=dockerfile,
                arguments=dict(build_arg),
                cache=not no_cache,
                as_layer=as_layer,
                merge=MergeRule(threshold_bytes=merge_up_to, keep_layers=keep_layers),
                progress=progress,
            ),
        )
    show_made(made, as_json)


@image.command(name="prepare")
@click.argument("name", default="python")
@json_option
@pass_options
def prepare(options: Options, name: str, as_json: bool) -> None:
    """Make sure that the image NAME is here: build it if DSec has a recipe for it."""
    from dsec.images.recipes import ensure

    with opened_store(options) as store, showing_progress() as progress:
        made = ensure(store, name, progress=progress)
    show_made(made, as_json)


@image.command(name="ls")
@click.option(
    "--store",
    "url",
    metavar="[URL]",
    is_flag=False,
    flag_value="node",
    help="Those of an object store; without a URL, or with `node`, of the one that this host's node uses.",
)
@json_option
@pass_options
def ls(options: Options, url: str | None, as_json: bool) -> None:
    """List the images of this host, or those that are published in an object store."""
    if url is not None:
        from dsec.cli.image_collecting import list_store

        list_store(options, url, as_json)
        return
    from dsec.base.units import format_size
    from dsec.cli.output import age, print_json, print_table

    with opened_store(options) as store:
        images = store.list()
        here = [store.here_of(each) for each in images]
    if as_json:
        print_json([_with_here(each, here_bytes) for each, here_bytes in zip(images, here, strict=True)])
        return
    rows = [
        (
            each.name,
            each.image_id[7:19],
            str(len(each.layers)),
            format_size(_size(each)),
            format_size(sum(here_bytes)),
            age(each.created_at_s),
        )
        for each, here_bytes in zip(images, here, strict=True)
    ]
    print_table(["name", "id", "layers", "size", "here", "age"], rows)


def _with_here(image: ImageInfo, here_bytes: Sequence[int]) -> dict[str, Any]:
    """Return an image as JSON, each layer with how much of it is here."""
    import msgspec

    told: dict[str, Any] = msgspec.to_builtins(image)
    for layer, size_bytes in zip(told["layers"], here_bytes, strict=True):
        layer["here_bytes"] = size_bytes
    return told


@image.command(name="inspect")
@click.argument("name")
@click.option("--verify", is_flag=True, help="Read every byte and compare it with the layers' digests.")
@json_option
@pass_options
def inspect(options: Options, name: str, verify: bool, as_json: bool) -> None:
    """Show an image: its layers, settings and source."""
    from dsec.cli.output import print_fields, print_json

    with opened_store(options) as store:
        found = store.get(name)
        if verify:
            store.verify(name)
        here = store.here_of(found)
    if as_json:
        print_json(_with_here(found, here))
        return
    fields = [
        ("name", found.name),
        ("id", found.image_id),
        ("source", found.source),
        ("size", _size_here(_size(found), sum(here))),
    ]
    fields += [("user", found.config.user), ("workdir", found.config.workdir)]
    fields += [("env", f"{key}={value}") for key, value in sorted(found.config.env.items())]
    hooks, rules = found.config.hooks, found.config.fingerprint
    commands = (("export hook", hooks.export_state), ("import hook", hooks.import_state))
    fields += [(label, shlex.join(command)) for label, command in commands if command]
    fields += [("fingerprint", f"{path} (metadata)") for path in rules.files]
    fields += [("fingerprint", f"{path} (content)") for path in rules.contents]
    fields += [("fingerprint", f"{path} (ignored)") for path in rules.ignored]
    if rules.command:
        fields.append(("fingerprint", f"{shlex.join(rules.command)} (command)"))
    fields += [
        ("layer", f"{layer.digest} {layer.format.value} {_size_here(layer.size_bytes, here_bytes)}")
        for layer, here_bytes in zip(found.layers, here, strict=True)
    ]
    print_fields(fields)


def _size_here(size_bytes: int, here_bytes: int) -> str:
    from dsec.base.units import format_size

    size = format_size(size_bytes)
    return size if here_bytes >= size_bytes else f"{size}, {format_size(here_bytes)} of it here"


@image.command(name="fingerprint-template")
@click.argument("name", metavar="IMAGE")
@pass_options
def fingerprint_template(options: Options, name: str) -> None:
    """Print a start for the fingerprint rules of IMAGE, made by looking at it: edit it, and import with it."""
    from dsec.images.fingerprint_template import fingerprint_template as template

    with opened_store(options) as store:
        mounted = store.mount([name])
        click.echo(template(mounted.info, mounted.layer_paths), nl=False)


@image.command(name="export")
@click.argument("name", metavar="IMAGE")
@click.argument("target", type=click.Path(path_type=Path), metavar="DIRECTORY")
@json_option
@pass_options
def export(options: Options, name: str, target: Path, as_json: bool) -> None:
    """Write IMAGE as an OCI layout to a new DIRECTORY.

    `dsec image import` makes the same image of it elsewhere; podman and skopeo read it as oci:DIRECTORY:latest.
    """
    from dsec.base.units import format_number_of, format_size
    from dsec.cli.image_sharing import bytes_shown
    from dsec.cli.output import note, print_json
    from dsec.images.oci_export import export_image

    with opened_store(options) as store, bytes_shown("exporting") as progress:
        made = export_image(store, name, target, progress=progress)
    if as_json:
        print_json(made)
    else:
        note(f"{made.directory}: {format_number_of(made.layers, 'layer')}, {format_size(made.size_bytes)}")


@image.command(name="tag")
@click.argument("source")
@click.argument("name")
@json_option
@pass_options
def tag(options: Options, source: str, name: str, as_json: bool) -> None:
    """Give the image SOURCE the further name NAME, for example one that a Dockerfile's FROM wants."""
    with opened_store(options) as store:
        made = store.tag(source, name)
    show_made(made, as_json)


@image.command(name="rm")
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@pass_options
def rm(options: Options, names: tuple[str, ...]) -> None:
    """Remove names of images. Layers go with their last name, once no sandbox uses them."""
    with opened_store(options) as store:
        for name in names:
            store.remove(name)


@image.command(name="prune")
@json_option
@pass_options
def prune(options: Options, as_json: bool) -> None:
    """Remove what builds keep for later ones: base images and steps. Images stay; the next build takes longer."""
    from dsec.base.units import format_size
    from dsec.cli.output import note, print_json
    from dsec.images.build_storage import BuildStorage

    with opened_store(options) as store:
        freed_bytes = BuildStorage(store).prune()
    if as_json:
        print_json({"freed_bytes": freed_bytes})
    else:
        note(f"freed {format_size(freed_bytes)}")


def store_url(options: Options) -> str:
    """Return the object store that this host's node uses."""
    from dsec.cli.settings import load_beside_node

    return load_beside_node(options).settings.store or own_store_url(options)


def own_store_url(options: Options) -> str:
    """Return the object store of a node whose settings name none: a folder that no other host has."""
    return (options.state_dir.absolute() / "store").as_uri()


@contextmanager
def opened_store(options: Options) -> Iterator[LocalImageStore]:
    """Open the image store of this host.

    Raises:
        StoreUnavailableError: something of a layer that is loaded when touched could not be had when it was read.
        StateCorruptedError: a layer is no sound file system.
    """
    from dsec.base.errors import StateCorruptedError, StoreUnavailableError
    from dsec.images.lazy.serving.client import lazy_layers
    from dsec.images.lazy.serving.daemon_options import DaemonOptions
    from dsec.images.store import LocalImageStore
    from dsec.node import namespace

    # The files of an image belong to many users, which an ordinary user's process has only in the node's namespace.
    namespace.enter(options.state_dir)
    root = options.state_dir / "images"
    store = LocalImageStore(root, lazy=lazy_layers(root, DaemonOptions(store_url=store_url(options))))
    try:
        yield store
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EUCLEAN):
            raise StateCorruptedError(
                "the tree of a layer contradicts itself",
                detail=str(error),
                resolution="do not trust whoever published it; `dsec image verify IMAGE --full` says which layer it is",
            ) from error
        if error.errno != errno.EIO:
            raise
        raise StoreUnavailableError(
            "a file of a layer cannot be read: its chunks cannot be had, or a disk fails",
            detail=str(error),
            resolution="`dsec image verify IMAGE --full` says what is wrong with which layer, and where",
        ) from error
    finally:
        store.close()


@contextmanager
def showing_progress() -> Iterator[Callable[[str], None]]:
    """Show lines on stderr: on a terminal the last one, with a spinner; otherwise all of them."""
    from rich.console import Console
    from rich.markup import escape

    from dsec.cli.output import printable

    console = Console(stderr=True)
    if not console.is_terminal:
        with _said_once() as say:
            yield say
        return
    with console.status("") as status:

        def show(line: str) -> None:
            if line.startswith("warning:"):
                console.print(escape(printable(line)))
            status.update(escape(printable(line)[: console.width - 4]))

        yield show


@contextmanager
def _said_once() -> Iterator[Callable[[str], None]]:
    """Say every line; an error whose detail was said already does not say it again."""
    from collections import deque

    from dsec.base.errors import DsecError
    from dsec.cli.output import note, printable

    said: deque[str] = deque(maxlen=200)

    def say(line: str) -> None:
        said.append(line)
        note(printable(line))

    try:
        yield say
    except DsecError as error:
        if click.get_current_context().find_root().obj.json_errors:
            raise  # A program reads it, and nothing else.
        error.detail = "\n".join(line for line in error.detail.splitlines() if line not in said)
        raise


def _size(image: ImageInfo) -> int:
    return sum(layer.size_bytes for layer in image.layers)


def show_made(image: ImageInfo, as_json: bool) -> None:
    """Print an image that was made."""
    from dsec.base.units import format_number_of, format_size
    from dsec.cli.output import print_json

    if as_json:
        print_json(image)
    else:
        layers = format_number_of(len(image.layers), "layer")
        click.echo(f"{image.name}  {image.image_id[7:19]}  {layers}  {format_size(_size(image))}")
