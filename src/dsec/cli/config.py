"""`dsec config show`: every setting, its value and where it came from."""

from __future__ import annotations

from typing import Any

import click

from dsec.cli.context import Options, pass_options
from dsec.cli.lazy import LazyGroup
from dsec.cli.output import print_json, print_table
from dsec.cli.parameters import json_option
from dsec.cli.settings import Loaded, load
from dsec.node.settings import SETTINGS


@click.group(name="config", cls=LazyGroup)
def config() -> None:
    """Show the settings of this host's node.

    They come from /etc/dsec/config.toml and ~/.config/dsec/config.toml (or the file that --config or DSEC_CONFIG
    names), then the environment, then --set NAME=VALUE. Later ones win.
    """


@config.command(name="show")
@json_option
@pass_options
def show(options: Options, as_json: bool) -> None:
    """Show every setting: value, unit, where the value came from, and why the default is what it is."""
    rows = _rows(load(options))
    if as_json:
        print_json(rows)
    else:
        columns = ("name", "value", "unit", "origin", "why this default")
        print_table(columns, ([str(row[key]) for key in ("name", "value", "unit", "origin", "reason")] for row in rows))


def _rows(loaded: Loaded) -> list[dict[str, Any]]:
    return [
        {
            "name": row.name,
            "value": str(loaded.state_dir) if row.name == "state_dir" else getattr(loaded.settings, row.name),
            "unit": row.unit,
            "origin": loaded.origins[row.name],
            "default": row.default,
            "variable": row.variable,
            "reason": row.reason,
        }
        for row in SETTINGS
    ]
