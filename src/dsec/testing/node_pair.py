"""Two real nodes on one host that are each other's peers, for tests and benchmarks of what moves between them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from dsec.base.ids import NODE_ID_LENGTH, random_body
from dsec.sdk.connect import peers_from
from dsec.sdk.http import HttpService
from dsec.sdk.keepalive import Endpoint
from dsec.testing.http_fleet import SECRET, TOKEN, free_ports
from dsec.testing.node_process import NodeProcess

HERE, THERE = (random_body(NODE_ID_LENGTH, os.urandom) for _ in range(2))
"""Of this process alone: what nodes make on a host carries their ids, and others run these tests beside us."""
_FIRST_HOST_ID = 0x5000_0000
_HOST_IDS_EACH = 0x0400_0000


@dataclass(frozen=True, slots=True)
class NodePair:
    """Two nodes, not started yet.

    Attributes:
        here, there: the nodes.
        peers: the setting that names both.
        urls: where each answers, by its id.
    """

    here: NodeProcess
    there: NodeProcess
    peers: str
    urls: dict[str, str]

    @asynccontextmanager
    async def client(self, node: str) -> AsyncIterator[HttpService]:
        """Yield a client of a node that follows to the other, as the environment of a fleet makes one."""
        client = HttpService(Endpoint(url=self.urls[node], token=TOKEN), peers=peers_from(self.peers, TOKEN))
        try:
            yield client
        finally:
            await client.aclose()


def node_pair(here: Path, there: Path, environment: dict[str, str] | None = None) -> NodePair:
    """Prepare two state directories that exist; their nodes get ids, one token and one secret."""
    ports = dict(zip((HERE, THERE), free_ports(2), strict=True))
    urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
    peers = ",".join(f"{name}={url}" for name, url in urls.items())
    nodes = []
    for number, (name, directory) in enumerate(((HERE, here), (THERE, there))):
        (directory / "node.id").write_text(f"{name}\n")
        for file, content in (("peer-token", SECRET), ("token", TOKEN.encode())):
            (directory / file).touch(0o600)
            (directory / file).write_bytes(content)
        own = {"DSEC_PEERS": peers, "DSEC_FIRST_HOST_ID": str(_FIRST_HOST_ID + number * _HOST_IDS_EACH)}
        nodes.append(NodeProcess(directory, {**own, **(environment or {})}, tcp=True, port=ports[name]))
    return NodePair(nodes[0], nodes[1], peers, urls)
