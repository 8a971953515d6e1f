"""Where the SDK connects: a server, the node of this host, or a node in this process.

1. A URL (given, or `DSEC_URL` with `DSEC_TOKEN`) is a server.
2. Otherwise `node.sock` in the state directory, when a node answers there.
3. Otherwise this process becomes the node (dsec.sdk.embedded) until the connection is closed. Of several processes
   that try at once one gets the state directory's lock; the others find its socket.

A sandbox that moved is followed to the nodes that `DSEC_PEERS` (or the node's setting `peers`) names, and to no other
(`dsec.sdk.links`). They get the token of the server; whoever came through the node's socket has none, and gives what
`DSEC_TOKEN` says, or what the file `token` of the state directory holds: the nodes of one fleet share it.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import anyio

from dsec.base.errors import NodeUnavailableError, StateLockedError
from dsec.model.peer import parse_peers
from dsec.node.running_settings import unheeded
from dsec.node.settings import SETTINGS, NodeSettings
from dsec.sdk.http import HttpService
from dsec.sdk.keepalive import Endpoint
from dsec.service.port import SandboxService

START_TIMEOUT_S = 60.0
"""How long to wait for a node that holds the lock and does not answer yet: it may adopt thousands of sandboxes."""
POLL_S = 0.05


def endpoint_from(url: str | None, token: str | None, environment: Mapping[str, str] = os.environ) -> Endpoint | None:
    """Return the server that is named, or None for the node of this host."""
    chosen = url or environment.get("DSEC_URL")
    if not chosen:
        return None
    return Endpoint(url=chosen, token=environment.get("DSEC_TOKEN", "") if token is None else token)


def peers_from(text: str, token: str) -> tuple[Endpoint, ...]:
    """Return the servers that a list of peers names, each with this token.

    Raises:
        InvalidRequestError: the list is malformed.
    """
    return tuple(Endpoint(url=peer.url, token=token) for peer in parse_peers(text))


def token_beside(state_dir: Path, environment: Mapping[str, str] = os.environ) -> str:
    """Return the token that the owner of a node's socket gives to the node's peers; empty: there is none."""
    if environment.get("DSEC_TOKEN"):
        return environment["DSEC_TOKEN"]
    try:
        return (state_dir / "token").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


@asynccontextmanager
async def open_service(
    *, url: str | None = None, token: str | None = None, state_dir: str | Path | None = None
) -> AsyncIterator[SandboxService]:
    """Connect, and let go at the end. Sandboxes stay.

    Raises:
        NodeUnavailableError: the server does not answer, or the node does not start.
        InvalidRequestError: the URL or a setting is malformed.
    """
    endpoint = endpoint_from(url, token)
    if endpoint is not None:
        async with _open_http(endpoint, peers_from(os.environ.get("DSEC_PEERS", ""), endpoint.token)) as service:
            yield service
        return
    from dsec.sdk.embedded import settings_of

    async with open_local(settings_of(state_dir)) as service:
        yield service


@asynccontextmanager
async def open_local(settings: NodeSettings) -> AsyncIterator[SandboxService]:
    """Talk to the node of this host where one runs, and otherwise be it until the context ends. Sandboxes stay.

    Raises:
        NodeUnavailableError: a node holds the state directory and does not answer.
    """
    async with AsyncExitStack() as stack:
        yield await _enter_local(stack, settings)


@asynccontextmanager
async def _open_http(endpoint: Endpoint, peers: tuple[Endpoint, ...]) -> AsyncIterator[HttpService]:
    service = HttpService(endpoint, peers=peers)
    try:
        yield service
    finally:
        with anyio.move_on_after(5, shield=True):
            await service.aclose()


async def _enter_local(stack: AsyncExitStack, settings: NodeSettings) -> SandboxService:
    from dsec.sdk.embedded import open_node

    directory = Path(settings.state_dir)
    # Not a cancel scope: a node that is opened inside one could not outlive it.
    deadline = anyio.current_time() + START_TIMEOUT_S
    while anyio.current_time() < deadline:
        if await answers(directory / "node.sock"):
            _warn_unheeded(settings)
            endpoint = Endpoint(url=f"unix:{directory / 'node.sock'}")
            peers = peers_from(settings.peers, token_beside(directory)) if settings.peers else ()
            return await stack.enter_async_context(_open_http(endpoint, peers))
        try:
            return await stack.enter_async_context(open_node(settings))
        except StateLockedError:
            await anyio.sleep(POLL_S)
    raise NodeUnavailableError(
        f"a node holds {directory} but does not answer",
        resolution="end the process whose id stands in node.lock, or use another DSEC_STATE_DIR",
    )


def _warn_unheeded(settings: NodeSettings) -> None:
    """Warn of settings that were given and that the node which runs already does not go by."""
    given = [row.name for row in SETTINGS if getattr(settings, row.name) != row.default]
    differences = unheeded(settings, given, Path(settings.state_dir))
    if differences:
        warnings.warn(
            f"a node runs in {settings.state_dir} already, and its settings count: {'; '.join(differences)} "
            "(`dsec down` ends it; sandboxes stay)",
            stacklevel=2,
        )


async def answers(path: Path) -> bool:
    """Tell whether somebody accepts connections at a unix socket.

    Raises:
        NodeUnavailableError: somebody does, but not for us.
    """
    try:
        stream = await anyio.connect_unix(str(path))
    except PermissionError as error:
        raise NodeUnavailableError(
            f"the node at {path} belongs to somebody else", resolution="use DSEC_URL and DSEC_TOKEN, or DSEC_STATE_DIR"
        ) from error
    except OSError:
        return False
    await stream.aclose()
    return True
