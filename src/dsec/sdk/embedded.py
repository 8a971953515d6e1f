"""A node in this process. It serves `node.sock` meanwhile, so that the command line and other processes can look in.

An ordinary user's node lives in a user namespace of its own, which a process with threads cannot enter: there a node is
started in the background, as the command line does, and leaves by itself when nobody needs it.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec

from dsec.node import namespace
from dsec.node.settings import NodeSettings, default_state_dir, environment_values, settings_from
from dsec.service.port import SandboxService


def settings_of(state_dir: str | Path | None) -> NodeSettings:
    """Return the node's settings from the environment, with the state directory filled in."""
    settings = settings_from(environment_values(os.environ))
    chosen = str(state_dir or settings.state_dir or default_state_dir())
    return msgspec.structs.replace(settings, state_dir=chosen)


@asynccontextmanager
async def open_node(settings: NodeSettings) -> AsyncIterator[SandboxService]:
    """Be the node of `settings.state_dir` until the context ends, or have one in the background. Sandboxes live on.

    Raises:
        StateLockedError: another process is.
        CapabilityMissingError: this host can run nothing.
        NodeUnavailableError: the node in the background did not start; the detail says why.
    """
    from dsec.api.server import serve
    from dsec.node.builder import open_node as build_node

    if namespace.is_ordinary_user():
        async with _open_background(settings) as service:
            yield service
        return
    async with (
        build_node(settings) as node,
        serve(node, socket_path=Path(settings.state_dir) / "node.sock"),
    ):
        yield node


@asynccontextmanager
async def _open_background(settings: NodeSettings) -> AsyncIterator[SandboxService]:
    """Start a node and talk to it. Its settings are those of the environment, which it inherits."""
    from dsec.sdk.background import node_argv, start_background_node
    from dsec.sdk.connect import peers_from, token_beside
    from dsec.sdk.http import HttpService
    from dsec.sdk.keepalive import Endpoint

    state_dir = Path(settings.state_dir)
    peers = peers_from(settings.peers, token_beside(state_dir))
    await start_background_node(node_argv(state_dir), state_dir)
    service = HttpService(Endpoint(url=f"unix:{state_dir / 'node.sock'}"), peers=peers)
    try:
        yield service
    finally:
        with anyio.move_on_after(5, shield=True):
            await service.aclose()
