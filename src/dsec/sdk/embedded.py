"""A node in this process. It serves `node.sock` meanwhile, so that the command line and other processes can look in."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from dsec.node.settings import NodeSettings, default_state_dir, environment_values, settings_from
from dsec.service.port import SandboxService


def settings_of(state_dir: str | Path | None) -> NodeSettings:
    """Return the node's settings from the environment, with the state directory filled in."""
    settings = settings_from(environment_values(os.environ))
    chosen = str(state_dir or settings.state_dir or default_state_dir())
    return msgspec.structs.replace(settings, state_dir=chosen)


@asynccontextmanager
async def open_node(settings: NodeSettings) -> AsyncIterator[SandboxService]:
    """Be the node of `settings.state_dir` until the context ends. Sandboxes live on.

    Raises:
        StateLockedError: another process is.
        CapabilityMissingError: this host can run nothing.
    """
    from dsec.api.server import serve
    from dsec.node.builder import open_node as build_node

    async with (
        build_node(settings) as node,
        serve(node, socket_path=Path(settings.state_dir) / "node.sock"),
    ):
        yield node
