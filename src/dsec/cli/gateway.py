"""`dsec gateway`: one door to many model services."""

from __future__ import annotations

import click

from dsec.cli.lazy import Lazy, LazyGroup

_COMMANDS = {
    "up": Lazy("dsec.cli.gateway_up:gateway_up", "Serve a gateway until SIGTERM or SIGINT."),
    "keys": Lazy("dsec.cli.gateway_keys:gateway_keys", "Make, list and revoke the keys of projects."),
    "usage": Lazy(
        "dsec.cli.gateway_usage:gateway_usage", "Say what was used and spent, and what thinking budgets did."
    ),
    "explain": Lazy("dsec.cli.gateway_explain:gateway_explain", "Say where a call goes, and why."),
    "fake": Lazy("dsec.cli.gateway_fake:gateway_fake", "Serve a simulated backend."),
}


@click.group(name="gateway", cls=LazyGroup, lazy=_COMMANDS)
def gateway() -> None:
    """One door to many model services: routes, limits, keys and prices."""
