"""`dsec image push`, and the half of `dsec image pull` that speaks to registries.

The commands work on the image store itself, which is safe beside running nodes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

from dsec.cli.context import Options, pass_options
from dsec.cli.image import opened_store, showing_progress
from dsec.cli.parameters import json_option

if TYPE_CHECKING:
    from dsec.images.registry.client import RegistryClient
    from dsec.model.image import ImageInfo

T = TypeVar("T")


@click.command(name="push")
@click.argument("name", metavar="IMAGE")
@click.argument("reference", metavar="HOST[:PORT]/REPOSITORY[:TAG]")
@click.option("--trace", "by_traces", is_flag=True, help="Lay its layers out by its traces: fewer chunks are read.")
@json_option
@pass_options
def push(options: Options, name: str, reference: str, by_traces: bool, as_json: bool) -> None:
    """Put IMAGE into a registry, in chunks, and print the reference by which other hosts pull it.

    Any registry that implements the OCI distribution API will do. What it has already is not sent again. Credentials
    are those of podman or docker: log in with them (`podman login HOST`). Its traces (`dsec image trace`) go with it.
    """
    from dsec.base.units import format_number_of, format_size
    from dsec.cli.output import note, print_json, resumable
    from dsec.images.registry.push import PushRequest, push_image
    from dsec.images.registry.reference import parse_reference

    parsed = parse_reference(reference)
    with resumable(), opened_store(options) as images, showing_progress() as progress:
        request = PushRequest(name=name, reference=parsed, by_traces=by_traces, progress=progress)
        made = _with_client(options, parsed.repository.host, lambda client: push_image(images, request, client))
    if as_json:
        print_json(made)
        return
    layers = format_number_of(made.layers, "layer")
    note(f"{layers}; {format_size(made.sent_bytes)} sent, {format_size(made.present_bytes)} were there")
    click.echo(made.reference)


def pull_from_registry(options: Options, reference: str, *, name: str | None, eager: bool) -> ImageInfo:
    """Pull an image from a registry."""
    from dsec.cli.output import resumable
    from dsec.images.registry.pull import PullRequest
    from dsec.images.registry.pull import pull_from_registry as pull
    from dsec.images.registry.reference import parse_reference

    parsed = parse_reference(reference)
    with resumable(), opened_store(options) as images, showing_progress() as progress:
        request = PullRequest(reference=parsed, name=name, eager=eager, progress=progress)
        return _with_client(options, parsed.repository.host, lambda client: pull(images, request, client))


def _with_client(options: Options, host: str, act: Callable[[RegistryClient], Awaitable[T]]) -> T:
    from dsec.images.registry.client import RegistryClient
    from dsec.images.registry.source import close_shared

    async def run() -> T:
        client = RegistryClient(host)
        try:
            return await act(client)
        finally:
            await close_shared()
            await client.aclose()

    return options.run_alone(run)
