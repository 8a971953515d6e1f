"""Who has which chunk, as far as nodes have said so: an index both ways, of bounded size.

A node that has all of a layer is kept once for the layer, not once for each of its chunks; whoever asks for a chunk
says of which layer it is. What there is no room for is left out. That loses no more than an opportunity: nobody is sent
there.
"""

from __future__ import annotations

from collections.abc import Iterator

from dsec.distribution.messages import LayerChange
from dsec.distribution.policy import TrackerPolicy
from dsec.distribution.random_set import RandomSet
from dsec.placement.sampling import RandomBits, draw_distinct

_Layers = dict[str, set[str] | None]
"""Of one node: the chunks of each layer; None: all of them."""


class Holdings:
    """The index.

    Attributes:
        entries: chunks at nodes, one by one.
    """

    def __init__(self, policy: TrackerPolicy) -> None:
        self._policy = policy
        self._layers: dict[str, _Layers] = {}
        self._listed: dict[str, int] = {}
        self._of_chunk: dict[str, RandomSet[str]] = {}
        self._of_layer: dict[str, RandomSet[str]] = {}
        self._some_of: dict[str, RandomSet[str]] = {}
        self.entries = 0

    def apply(self, node: str, change: LayerChange) -> tuple[list[str], int]:
        """Take what changed at a node; return the chunks that it gained, and how many there was no room for."""
        layers = self._layers.setdefault(node, {})
        if change.gone or (change.lost and layers.get(change.layer, change) is None):
            # Less than all of a layer of which nobody said what all is: nothing is known of it then.
            self._drop(node, change.layer)
        if change.layer not in layers:
            if not (change.complete or change.gained):
                return [], 0
            if len(layers) >= self._policy.layers_a_node:
                return [], max(1, len(change.gained))
        if change.complete:
            self._drop(node, change.layer)
            layers[change.layer] = None
            self._some_of.setdefault(change.layer, RandomSet()).add(node)
            self._of_layer.setdefault(change.layer, RandomSet()).add(node)
            return list(change.gained), 0
        chunks = layers.setdefault(change.layer, set())
        if chunks is None:
            return list(change.gained), 0
        self._some_of.setdefault(change.layer, RandomSet()).add(node)
        self._remove(node, change.layer, chunks, change.lost)
        return list(change.gained), self._insert(node, chunks, change.gained)

    def forget(self, node: str) -> None:
        """Drop all that a node has."""
        for layer in list(self._layers.get(node, ())):
            self._drop(node, layer)
        self._layers.pop(node, None)
        self._listed.pop(node, None)

    def has(self, node: str, layer: str, chunk: str) -> bool:
        """Say whether a node is known to have a chunk."""
        return node in self._of_layer.get(layer, ()) or node in self._of_chunk.get(chunk, ())

    def of(self, node: str) -> Iterator[tuple[str, int | None]]:
        """Yield what a node has: the layer, and how many of its chunks; None: all of them."""
        for layer, chunks in self._layers.get(node, {}).items():
            yield layer, None if chunks is None else len(chunks)

    def count(self, layer: str, chunk: str) -> int:
        """Return how many have a chunk; those that are in both lists count twice."""
        return len(self._of_layer.get(layer, ())) + len(self._of_chunk.get(chunk, ()))

    def draw(self, layer: str, chunk: str, count: int, bits: RandomBits) -> Iterator[str]:
        """Yield so many of those who have a chunk, or all, at random."""
        sets = [found for found in (self._of_layer.get(layer), self._of_chunk.get(chunk)) if found is not None]
        if len(sets) == 1:
            yield from sets[0].draw(count, bits)
        elif sets:
            both, first = [*sets[0], *sets[1]], set()
            for at in draw_distinct(count, len(both), bits):
                if both[at] not in first:
                    first.add(both[at])
                    yield both[at]

    def draw_some(self, layer: str, count: int, bits: RandomBits) -> list[str]:
        """Return so many of those who have something of a layer, or all, at random."""
        found = self._some_of.get(layer)
        return [] if found is None else found.draw(count, bits)

    def among(self, node: str, layer: str, chunks: frozenset[str]) -> frozenset[str]:
        """Return which of the chunks of a layer a node has, by what it said of that layer."""
        layers = self._layers.get(node, {})
        if layer not in layers:
            return frozenset()
        held = layers[layer]
        return chunks if held is None else chunks.intersection(held)

    @property
    def chunks(self) -> int:
        """How many different chunks are listed one by one."""
        return len(self._of_chunk)

    @property
    def layers(self) -> int:
        """How many layers some node has all of."""
        return len(self._of_layer)

    def _insert(self, node: str, chunks: set[str], gained: tuple[str, ...]) -> int:
        unlisted = 0
        listed = self._listed.get(node, 0)
        for chunk in gained:
            if chunk in chunks:
                continue
            if listed >= self._policy.chunks_a_node or self.entries >= self._policy.entries:
                unlisted += 1
                continue
            chunks.add(chunk)
            listed += 1
            self.entries += 1
            holders = self._of_chunk.get(chunk)
            if holders is None:
                holders = self._of_chunk[chunk] = RandomSet()
            holders.add(node)
        self._listed[node] = listed
        return unlisted

    def _remove(self, node: str, layer: str, chunks: set[str], lost: tuple[str, ...]) -> None:
        for chunk in lost:
            if chunk in chunks:
                chunks.discard(chunk)
                self._unlist(node, layer, chunk)

    def _unlist(self, node: str, layer: str, chunk: str) -> None:
        self.entries -= 1
        self._listed[node] -= 1
        for other, chunks in self._layers[node].items():
            if other != layer and chunks is not None and chunk in chunks:
                return  # Another layer of the node has the same chunk.
        holders = self._of_chunk[chunk]
        holders.discard(node)
        if not holders:
            del self._of_chunk[chunk]

    def _drop(self, node: str, layer: str) -> None:
        layers = self._layers[node]
        if layer not in layers:
            return
        chunks = layers.pop(layer)
        _discard(self._some_of, layer, node)
        if chunks is not None:
            for chunk in chunks:
                self._unlist(node, layer, chunk)
            return
        _discard(self._of_layer, layer, node)


def _discard(sets: dict[str, RandomSet[str]], key: str, node: str) -> None:
    """Take a node out of one of the sets, and an empty one out of them."""
    found = sets[key]
    found.discard(node)
    if not found:
        del sets[key]
