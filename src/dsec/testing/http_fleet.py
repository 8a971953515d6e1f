"""Nodes of fakes that are each other's peers over real connections, each behind a server of its own."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from dsec.api.server import TcpAddress, serve
from dsec.model.peer_proof import PeerGate
from dsec.node.node import Node
from dsec.sdk.http import HttpService
from dsec.sdk.keepalive import Endpoint
from dsec.sdk.peers import HttpPeers
from dsec.testing.memory_node import CountingBytes, MemoryHost
from dsec.testing.relay import Relay, relayed

TOKEN = "a-token-of-the-fleet"
SECRET = b"a-secret-of-the-fleet"
_IDS_EACH = 10_000


@dataclass
class Served:
    """A node behind its server.

    Attributes:
        host, node: the node of fakes.
        url: where it answers.
        client: of this server; follows to the others.
        relay: what peers go through to reach it, where there is one.
    """

    host: MemoryHost
    node: Node
    url: str
    client: HttpService
    relay: Relay | None = None


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that nobody listens on now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


@asynccontextmanager
async def http_fleet(directory: Path, *names: str, relays: bool = False) -> AsyncIterator[dict[str, Served]]:
    """Run one node for each name; all know all.

    Args:
        directory: for the file of their secret.
        names: ids of the nodes, five symbols each.
        relays: put one before each node, which its peers and the clients of the others go through.
    """
    secret = directory / "peer-token"
    secret.touch(0o600)
    secret.write_bytes(SECRET)
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    async with AsyncExitStack() as stack:
        before = {name: await stack.enter_async_context(relayed(port)) for name, port in ports.items() if relays}
        urls = {name: before[name].url if relays else f"http://127.0.0.1:{port}" for name, port in ports.items()}
        listed = ",".join(f"{name}={url}" for name, url in urls.items())
        fleet = {}
        for number, (name, port) in enumerate(ports.items()):
            peers = HttpPeers(name, listed, secret)
            stack.callback(peers.close)
            host = MemoryHost(node_id=name, random_bytes=CountingBytes(number * _IDS_EACH))
            host.peers = peers
            node = await stack.enter_async_context(host.node())
            tcp = TcpAddress(token=TOKEN, port=port)
            served = await stack.enter_async_context(serve(node, tcp=tcp, gate=PeerGate(name, SECRET)))
            others = [Endpoint(url=url, token=TOKEN) for each, url in urls.items() if each != name]
            client = HttpService(Endpoint(url=served.url, token=TOKEN), peers=others)
            stack.push_async_callback(client.aclose)
            fleet[name] = Served(host, node, served.url, client, before.get(name))
        yield fleet
