"""`dsec image verify`: is an image what it should be, here and where it comes from; and make it so again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from dsec.cli.context import Options, pass_options
from dsec.cli.image import opened_store, store_url
from dsec.cli.output import print_json, printable
from dsec.cli.parameters import json_option

if TYPE_CHECKING:
    from dsec.images.lazy.verifying.findings import Finding, Progress


@click.command(name="verify")
@click.argument("image", required=False)
@click.option("--image", "option", metavar="IMAGE", help="The same as the argument.")
@click.option("--full", is_flag=True, help="Read every chunk that the origins of its layers have, too.")
@click.option("--repair", is_flag=True, help="Make good what can be: here, in object stores and in registries.")
@json_option
@pass_options
def verify(options: Options, image: str | None, option: str | None, full: bool, repair: bool, as_json: bool) -> None:
    """Check IMAGE: its manifests, then its layers, then the chunks of those that are loaded when touched.

    Exits with 70 when something is not what it should be, and with 0 when all of it is, or is so again.
    """
    from dsec.base.errors import StateCorruptedError
    from dsec.images.lazy.serving.client import LayerDaemon
    from dsec.images.lazy.verifying.findings import VerifyOptions
    from dsec.images.lazy.verifying.verification import verify_image

    if not (name := option or image) or (option and image and option != image):
        raise click.UsageError("Name one image, as IMAGE or with --image. `dsec image ls` lists them.")
    findings: list[Finding] = []
    with opened_store(options) as images, _progress() as progress:
        daemon = images.lazy if isinstance(images.lazy, LayerDaemon) else None
        how = VerifyOptions(
            node=_node(options), store_url=store_url(options), full=full, repair=repair, progress=progress
        )

        async def act() -> None:
            async for finding in verify_image(images, name, daemon, how):
                findings.append(finding)
                if not as_json:
                    _print(finding)

        options.run_alone(act)
    if as_json:
        print_json(findings)
    else:
        for advice in dict.fromkeys(finding.advice for finding in findings if finding.advice):
            click.echo(f"advice: {printable(advice)}")
    if not all(finding.ok for finding in findings):
        click.get_current_context().exit(StateCorruptedError.exit_code)


def _print(finding: Finding) -> None:
    word = "REPAIRED" if finding.repaired else "OK" if finding.ok else "FAILED"
    where = "" if finding.ok and not finding.repaired else f" on {printable(finding.node)}"
    click.echo(f"[{finding.part}] {word}{where} ({printable(finding.detail)})")


def _node(options: Options) -> str:
    """Return the id of this host's node; the host's name where it has none yet."""
    import socket

    try:
        return (options.state_dir / "node.id").read_text(errors="replace").strip()
    except FileNotFoundError:
        return socket.gethostname()


@contextmanager
def _progress() -> Iterator[Progress]:
    """Show what is being read on stderr, on a terminal."""
    from rich.console import Console

    from dsec.images.lazy.verifying.findings import untold

    console = Console(stderr=True)
    if not console.is_terminal:
        yield untold
        return
    with console.status("") as status:

        def show(part: str, done: int, total: int) -> None:
            status.update(f"{part}: {done} of {total} pieces")

        yield show
