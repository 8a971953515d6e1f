"""`dsec image layers` and `merge`: what an environment is made of, and fewer layers of the same."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from dsec.cli.context import Options, pass_options
from dsec.cli.image import opened_store, show_made, showing_progress
from dsec.cli.parameters import json_option, size, stack_options

if TYPE_CHECKING:
    from dsec.images.composition import Composition, LayerView

_SHOWN_NAMES = 1
_SHOWN_STEP = 60
_WIDE = 120
"""Characters of a terminal that has room for the step that made a layer."""


@click.command(name="layers")
@click.argument("image")
@stack_options
@json_option
@pass_options
def layers(options: Options, image: str, workspace: str | None, toolkits: tuple[str, ...], as_json: bool) -> None:
    """Show what IMAGE, or an environment of several images, is made of, the uppermost layer first.

    Bars show sizes, their full part what of a layer is on this host. A layer that changes often should lie high; one
    that other images share should stay apart. A terminal of 120 characters or more also shows the step that made each.
    """
    from dsec.cli.output import note, print_json
    from dsec.images.composition import composition

    with opened_store(options) as store:
        found = composition(store, image, workspace, toolkits)
    if as_json:
        print_json(found)
        return
    _show(found)
    for warning in found.warnings:
        note(f"warning: {warning}")


def _show(found: Composition) -> None:
    from dsec.base.units import format_number_of, format_size
    from dsec.cli.bars import Bar
    from dsec.cli.output import console, or_dash, print_table, printable

    total = sum(layer.size_bytes for layer in found.layers)
    here = sum(layer.here_bytes for layer in found.layers)
    names = " + ".join(map(printable, found.images))
    click.echo(
        f"{names}: {format_number_of(len(found.layers), 'layer')}, {format_size(total)}, {format_size(here)} of it here"
    )
    largest = max(layer.size_bytes for layer in found.layers)
    columns = ["", "kind", "image", "", "size", "entries", "made", "changed", "shared with", "here", "by"]
    rows: list[list[str | Bar]] = [
        [
            str(number),
            layer.kind.value,
            layer.image,
            Bar(size=layer.size_bytes, largest=largest, parts=(("█", layer.here_bytes),)),
            format_size(layer.size_bytes),
            f"{layer.entries:,}",
            "-" if layer.created_s is None else _days(layer.created_s),
            _rate(layer),
            or_dash(_named(layer.shared_with)),
            _presence(layer),
            or_dash(layer.made_by[:_SHOWN_STEP]),
        ]
        for number, layer in reversed(list(enumerate(found.layers, 1)))
    ]
    left_out = {"image"} if len(found.images) == 1 else set()
    if console().width < _WIDE:
        left_out.add("by")
    shown = [place for place, name in enumerate(columns) if name not in left_out]
    print_table([columns[place] for place in shown], [[row[place] for place in shown] for row in rows])


def _days(since_s: float) -> str:
    days = max(0.0, time.time() - since_s) / 86_400
    return f"{days:.0f} days ago" if days >= 2 else "today" if days < 1 else "a day ago"


def _rate(layer: LayerView) -> str:
    return f"{layer.changed} of {layer.versions} times" if layer.versions else "unknown"


def _presence(layer: LayerView) -> str:
    if layer.format.value != "lazy":
        return "whole"
    return f"lazy, {layer.here_bytes / layer.size_bytes:.0%}" if layer.size_bytes else "lazy"


def _named(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN_NAMES
    return ", ".join(names[:_SHOWN_NAMES]) + (f" and {more} more" if more > 0 else "")


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
    after = len(report.image.layers)
    note("nothing to merge" if after == report.before else f"{report.before} layers became {after}")
    show_made(report.image, as_json)
