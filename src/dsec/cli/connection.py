"""Find the service that a command talks to.

With a URL it is a server. Without, it is the node of this host, behind `node.sock` in the state directory; when no node
answers there, one is started in the background. Several commands may start at once: each starts a node, one of them
gets the state directory's lock, and all talk to that one.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import msgspec

from dsec.cli.context import Options
from dsec.cli.output import note
from dsec.cli.settings import Loaded, load
from dsec.node.running_settings import unheeded
from dsec.sdk import background
from dsec.sdk.connect import answers, open_local, peers_from, token_beside
from dsec.sdk.http import HttpService
from dsec.sdk.keepalive import Endpoint
from dsec.service.port import SandboxService


@asynccontextmanager
async def open_service(options: Options) -> AsyncIterator[SandboxService]:
    """Connect to the service that the options name, starting a node when none is there.

    Raises:
        NodeUnavailableError: the node does not start; the detail holds the end of its log.
        InvalidRequestError: the options contradict each other.
    """
    loaded = load(options)
    if options.url:
        endpoint = Endpoint(url=options.url, token=options.token or "")
        token = endpoint.token
    else:
        state_dir = loaded.state_dir
        token = options.token or token_beside(state_dir)
        if await answers(state_dir / "node.sock"):
            _tell_unheeded(loaded)
        else:
            await start_node(options, state_dir)
        endpoint = Endpoint(url=f"unix:{state_dir / 'node.sock'}")
    service = HttpService(endpoint, peers=peers_from(loaded.settings.peers, token))
    try:
        yield service
    finally:
        with anyio.CancelScope(shield=True), anyio.move_on_after(5):
            await service.aclose()


@asynccontextmanager
async def open_service_inside(options: Options) -> AsyncIterator[SandboxService]:
    """As `open_service`, but where no node runs, be the node until the context ends: long work saves every hop to it.

    Raises:
        As `open_service`.
    """
    if options.url or os.geteuid() != 0:
        async with open_service(options) as service:
            yield service
        return
    loaded = load(options)
    async with open_local(msgspec.structs.replace(loaded.settings, state_dir=str(loaded.state_dir))) as service:
        yield service


def _tell_unheeded(loaded: Loaded) -> None:
    """Say which settings somebody gave us that the node which runs already does not go by."""
    given = [name for name, origin in loaded.origins.items() if origin != "default"]
    for difference in unheeded(loaded.settings, given, loaded.state_dir):
        note(f"warning: a node runs already, whose settings count: {difference} (`dsec down` ends it; sandboxes stay)")


async def start_node(options: Options, state_dir: Path) -> None:
    """Start a node in the background and return when its socket answers.

    Raises:
        NodeUnavailableError: it ended, or did not answer in time.
        InvalidRequestError: the state directory cannot be made.
    """
    note(f"starting a node in {state_dir} (log: {state_dir / 'node.log'})")
    await background.start_background_node(node_argv(options, state_dir), state_dir)


def node_argv(options: Options, state_dir: Path) -> list[str]:
    """Return the command line of a background node with the same settings as ours."""
    further: list[str] = []
    if options.config_file is not None:
        further += ["--config", str(options.config_file.absolute())]
    for override in options.overrides:
        further += ["--set", override]
    return background.node_argv(state_dir, further)
