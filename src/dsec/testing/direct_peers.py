"""Nodes of one process that hold each other directly: the `Peers` of tests on a real host."""

from __future__ import annotations

from collections.abc import Sequence

from dsec.base.errors import InvalidRequestError
from dsec.node.node import Node
from dsec.service.peers import Peer


class DirectPeers:
    """The nodes of this process, by their ids."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}

    def add(self, node: Node) -> None:
        self._nodes[node.node_id] = node

    def of(self, node_id: str) -> DirectPeers:
        """Return the peers of one of them: all know all."""
        return self

    def known(self) -> Sequence[Peer]:
        return tuple(node.migrations for node in self._nodes.values())

    async def find(self, node: str) -> Peer:
        found = self._nodes.get(node)
        if found is None:
            raise InvalidRequestError(f"{node[:80]!r} is no peer")
        return found.migrations
