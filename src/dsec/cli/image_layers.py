"""`dsec image merge`: what an image is made of, and fewer layers of the same."""

from __future__ import annotations

import click

from dsec.cli.context import Options, pass_options
from dsec.cli.image import opened_store, show_made, showing_progress
from dsec.cli.parameters import json_option, size


@click.command(name="merge")
@click.argument("image")
@click.option(
    "--threshold", type=size, default="3GiB", show_default=True, metavar="SIZE", help="Of one merged layer, at most."
)
@click.option("--name", metavar="NAME", help="Name of the result.  [that of IMAGE, which moves]")
@click.option("--all", "everything", is_flag=True, help="Merge the base too, and what other images share.")
@json_option
@pass_options
def merge(options: Options, image: str, threshold: int, name: str | None, everything: bool, as_json: bool) -> None:
    """Merge neighbouring layers of IMAGE that no other image shares and that were made together.

    The base, and what other images have too, stay apart: merged, they would be stored and loaded once for each image.
    Sandboxes that stand on IMAGE are left alone.
    """
    from dsec.cli.output import note, print_json
    from dsec.images.merge_plan import MergeRule
    from dsec.images.merging import merge_image

    rule = MergeRule(threshold_bytes=threshold, keep_layers=0, everything=everything)
    with opened_store(options) as store, showing_progress() as progress:
        report = merge_image(store, image, to=name or "", rule=rule, progress=progress)
    if as_json:
        print_json(report)
        return
    for reason in dict.fromkeys(report.reasons):
        note(f"left apart: {reason}")
    note(f"{report.before} layers became {len(report.image.layers)}")
    show_made(report.image, as_json)
