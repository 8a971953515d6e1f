"""Frozen layers and who needs them.

A frozen layer is claimed by the checkpoint that it is, by every sandbox whose clean state it is (`origin`), and by
operations that read it. With its last claim it is discarded, together with what a hook exported for it. Claims are
counted in memory: what the journal says makes them anew when a node starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from dsec.base.ids import RandomBytes, random_body
from dsec.node.sandbox import Sandbox
from dsec.state.exports import Exports
from dsec.state.port import WritableLayers

_MARK = "-C"
"""Stands between a sandbox's id and the rest of a frozen layer's name; the capital cannot stand in any sandbox id."""


def frozen_name(sandbox_id: str, random_bytes: RandomBytes) -> str:
    """Return a fresh name for a frozen layer of a sandbox."""
    return f"{sandbox_id}{_MARK}{random_body(10, random_bytes)}"


class SavedLayers:
    """Count claims on frozen layers."""

    def __init__(self, layers: WritableLayers, exports: Exports) -> None:
        self._layers = layers
        self._exports = exports
        self._claims: Counter[str] = Counter()

    def claim(self, name: str) -> None:
        """Keep a layer until it is released. It need not exist yet."""
        self._claims[name] += 1

    def release(self, name: str) -> None:
        """Give a claim up; the last one takes the layer. One that cannot be discarded stays claimed."""
        if self._claims[name] <= 1:
            self._layers.discard(name)
            self._exports.discard(name)
            del self._claims[name]
        else:
            self._claims[name] -= 1

    def claimed(self) -> frozenset[str]:
        """Names of all layers that somebody needs."""
        return frozenset(self._claims)

    @contextmanager
    def held(self, name: str) -> Iterator[None]:
        """Keep a layer while the block runs."""
        self.claim(name)
        try:
            yield
        finally:
            self.release(name)

    def release_all_of(self, sandbox: Sandbox) -> None:
        """Give up what a sandbox that has ended needed. Idempotent."""
        for checkpoint_id, record in list(sandbox.checkpoints.items()):
            self.release(record.layer)
            del sandbox.checkpoints[checkpoint_id]
        if sandbox.holds_origin:
            self.release(sandbox.record.origin)
            sandbox.holds_origin = False
