"""Writable layers in memory: the fake that the node's tests run on.

The content of a layer belongs to the in-memory runtime; both share the two mappings below.
"""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Iterator, Sized
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dsec.base.errors import AlreadyExistsError, InvalidRequestError, SandboxDiskFullError, SnapshotNotFoundError
from dsec.model.capability import Capability, CapabilityReport
from dsec.state.memory_trees import MemoryFrozenTree, MemoryNewTree
from dsec.state.port import WritableLayer
from dsec.state.trees import FrozenTree, NewTree

Contents = dict[Path, dict[str, Any]]
"""By a layer's upper directory: its entries by path. An entry's length is what it costs of the quota."""

_REPORTS = tuple(
    CapabilityReport(capability=capability, available=True, reason="in memory")
    for capability in (Capability.DISK_QUOTA, Capability.CONSTANT_TIME_ROLLBACK, Capability.CHECKPOINT)
)


class MemoryWritableLayers:
    """A `WritableLayers` without a disk.

    Args:
        contents: entries of every layer, shared with `MemoryRuntime.contents`.
        quotas: bytes by upper directory, shared with `MemoryRuntime.quotas`.
        reports: what to claim; tests leave capabilities out.
    """

    driver = "memory"
    encoding = "memory"

    def __init__(
        self,
        contents: Contents | None = None,
        quotas: dict[Path, int] | None = None,
        *,
        reports: tuple[CapabilityReport, ...] = _REPORTS,
    ) -> None:
        self._contents = contents if contents is not None else {}
        self._quotas = quotas if quotas is not None else {}
        self._reports = reports
        self._layers: dict[str, WritableLayer] = {}

    @property
    def counts_frozen(self) -> bool:
        return False

    def limit(self, name: str, quota_bytes: int) -> None:
        self._quotas[self._existing(name).upper] = quota_bytes

    def capabilities(self) -> tuple[CapabilityReport, ...]:
        return self._reports

    def create(self, name: str, *, quota_bytes: int | None) -> WritableLayer:
        return self._add(name, {}, quota_bytes)

    def branch(self, checkpoint: str, name: str, *, quota_bytes: int | None) -> WritableLayer:
        return self._add(name, self._copy_of(checkpoint), quota_bytes)

    def settle(self, name: str) -> None:
        """Nothing waits to be written."""

    def checkpoint(self, name: str, checkpoint: str) -> None:
        self._add(checkpoint, self._copy_of(name), None)

    def frozen_upper(self, checkpoint: str) -> Path:
        return self._existing(checkpoint).upper

    @contextmanager
    def open_frozen(self, checkpoint: str) -> Iterator[FrozenTree]:
        yield MemoryFrozenTree(self._contents[self._existing(checkpoint).upper])

    @contextmanager
    def open_new(self, name: str) -> Iterator[NewTree]:
        yield MemoryNewTree(self._contents[self._existing(name).upper])

    def send(self, checkpoint: str, parent: str | None, fd: int) -> None:
        entries, before = self._copy_of(checkpoint), {} if parent is None else self._copy_of(parent)
        changed = {path: entry for path, entry in entries.items() if before.get(path) != entry}
        data = pickle.dumps((changed, sorted(before.keys() - entries.keys())))
        with open(fd, "wb", closefd=False) as stream:
            stream.write(len(data).to_bytes(8, "little") + data)

    def receive(self, name: str, fd: int, *, base: str | None, quota_bytes: int | None) -> None:
        with open(fd, "rb", closefd=False) as stream:
            size = int.from_bytes(stream.read(8), "little")
            data = stream.read()
        layer = self._layers.get(name)
        if layer is None:
            layer = self._add(name, {} if base is None else self._copy_of(base), quota_bytes)
        if not data or len(data) != size:
            raise InvalidRequestError("what was received is not what a layer holds", detail="it is cut off")
        changed, gone = pickle.loads(data)  # A fake: both ends are this process.
        entries = {path: entry for path, entry in self._contents[layer.upper].items() if path not in gone} | changed
        if sum(map(len, entries.values())) > self._quotas.get(layer.upper, math.inf):
            raise SandboxDiskFullError("what was received of a layer does not fit its quota")
        self._contents[layer.upper].clear()
        self._contents[layer.upper].update(entries)

    def renew(self, name: str) -> None:
        """Nothing lies beside the files."""
        self._existing(name)

    def get(self, name: str) -> WritableLayer | None:
        return self._layers.get(name)

    def used_bytes(self, name: str) -> int:
        entries: dict[str, Sized] = self._contents[self._existing(name).upper]
        return sum(map(len, entries.values()))

    def discard(self, name: str) -> None:
        layer = self._layers.pop(name, None)
        if layer is not None:
            self._contents.pop(layer.upper, None)
            self._quotas.pop(layer.upper, None)

    def wait_removed(self, timeout_s: float) -> bool:
        """What is discarded is gone at once."""
        return True

    def names(self) -> frozenset[str]:
        return frozenset(self._layers)

    def close(self) -> None:
        """Nothing is held."""

    def _existing(self, name: str) -> WritableLayer:
        layer = self._layers.get(name)
        if layer is None:
            raise SnapshotNotFoundError(f"there is no layer or checkpoint {name!r}")
        return layer

    def _copy_of(self, name: str) -> dict[str, Any]:
        # Whoever calls may be another thread than the one that writes: one step takes the entries, which never change.
        return copy.deepcopy(dict(self._contents[self._existing(name).upper]))

    def _add(self, name: str, entries: dict[str, Any], quota_bytes: int | None) -> WritableLayer:
        if name in self._layers:
            raise AlreadyExistsError(f"the writable layer {name!r} exists")
        root = Path("/memory") / name
        layer = WritableLayer(name=name, upper=root / "upper", work=root / "work")
        self._layers[name] = layer
        self._contents[layer.upper] = entries
        if quota_bytes is not None:
            self._quotas[layer.upper] = quota_bytes
        return layer
