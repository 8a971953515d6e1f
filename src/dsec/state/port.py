"""The port of writable layers: where a sandbox's own writes go.

A *writable layer* is the upper half of a sandbox's overlay: a directory pair (`upper`, `work`) on one file
system. A *checkpoint* is a frozen copy of one, cheap and local, from which further layers can begin.

Contract of every driver:

- `create` and `branch` return when the layer can be mounted; cost does not depend on what other layers hold.
- `discard` returns quickly; the space may come back later. Discarding what does not exist is no error.
- `names` tells everything that exists, so that the node can remove what no journal entry claims. It is also
  what makes a crash harmless: a layer that was half made has a name and is discarded like any other.
- A layer written by a hostile guest is never followed: drivers act on the layer's directory by descriptor.
- Raises `HostDiskFullError` when the volume has no room, `CapabilityMissingError` for a quota it cannot enforce.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from dsec.model.capability import CapabilityReport
from dsec.state.trees import FrozenTree, NewTree


@dataclass(frozen=True, slots=True, kw_only=True)
class WritableLayer:
    """One writable layer on the host.

    Attributes:
        name: unique in its store; letters, digits and dashes.
        upper: directory for overlay's `upperdir`.
        work: directory for overlay's `workdir`, on the same file system.
    """

    name: str
    upper: Path
    work: Path


class WritableLayers(Protocol):
    """A store of writable layers and checkpoints. Calls block briefly (well under 10 ms); none waits for a guest."""

    driver: str
    """Name of the driver, such as ``btrfs``."""

    encoding: str
    """How `send` and `receive` spell a layer, such as ``btrfs-send-1``; empty: they raise `CapabilityMissingError`."""

    @property
    def counts_frozen(self) -> bool:
        """Whether a layer's quota counts what it wrote and only a checkpoint still holds."""

    def capabilities(self) -> tuple[CapabilityReport, ...]:
        """Report `DISK_QUOTA`, `CONSTANT_TIME_ROLLBACK` and `CHECKPOINT`."""

    def create(self, name: str, *, quota_bytes: int | None) -> WritableLayer:
        """Make an empty layer.

        Raises:
            AlreadyExistsError: the name is taken.
            CapabilityMissingError: a quota was asked for that this driver cannot enforce.
            HostDiskFullError: the volume is full.
        """

    def branch(self, checkpoint: str, name: str, *, quota_bytes: int | None) -> WritableLayer:
        """Make a layer that begins with the content of a checkpoint. Raises as `create` and `SnapshotNotFoundError`."""

    def settle(self, name: str) -> None:
        """Write out what the layer `name` wrote, so that a checkpoint made at once hardly waits.

        Blocks for as long as the disk takes, unlike the other calls: call it in a thread. What is written meanwhile
        may or may not be written out.
        """

    def checkpoint(self, name: str, checkpoint: str) -> None:
        """Freeze a copy of the layer `name` under the name `checkpoint`. The layer goes on."""

    def frozen_upper(self, checkpoint: str) -> Path:
        """Return the `upper` directory of a checkpoint, to be read only.

        Raises:
            SnapshotNotFoundError: there is no such checkpoint.
        """

    def open_frozen(self, checkpoint: str) -> AbstractContextManager[FrozenTree]:
        """Open a checkpoint to read it as a snapshot does.

        Raises:
            SnapshotNotFoundError: there is no such checkpoint.
        """

    def open_new(self, name: str) -> AbstractContextManager[NewTree]:
        """Open the layer `name`, which is empty and has never been mounted, to fill it as a snapshot says.

        After an error what the layer holds is undefined: discard it.

        Raises:
            HostDiskFullError: from the block: the volume has no room.
        """

    def send(self, checkpoint: str, parent: str | None, fd: int) -> None:
        """Write to a pipe or file what makes the checkpoint out of the checkpoint `parent`, or out of an empty layer.

        Blocks for as long as the reader takes: call it in a thread. BrokenPipeError when nobody reads any more.

        Raises:
            SnapshotNotFoundError: there is no such checkpoint.
            OSError: ENAMETOOLONG for a path longer than 4,095 bytes, which a guest can make and no stream can tell.
        """

    def receive(self, name: str, fd: int, *, base: str | None, quota_bytes: int | None) -> None:
        """Apply what `send` wrote to the layer `name`, read from a pipe or file up to its end.

        A layer that does not exist is made: as an exact copy of the checkpoint `base`, or empty. One that does is
        changed in place, so that increment after increment arrives in it; nobody may use it meanwhile. The stream is
        not trusted. After an error what the layer holds is undefined: discard it. Blocks; call it in a thread.

        Raises:
            InvalidRequestError: it is no such stream, it ends in the middle, or it does not fit what the layer holds.
            SandboxDiskFullError: the quota does not suffice.
            HostDiskFullError: the volume has no room.
            SnapshotNotFoundError: there is no checkpoint `base`.
        """

    def renew(self, name: str) -> None:
        """Let an instance be launched on a layer that was received: what the overlay of another host kept beside the
        files goes. No increment can follow. Idempotent."""

    def get(self, name: str) -> WritableLayer | None:
        """Return the layer, or None when there is none of this name."""

    def limit(self, name: str, quota_bytes: int) -> None:
        """Change the quota of the layer `name`. A layer that holds more keeps it, and can write nothing before it has
        let go of so much.

        Raises:
            NotFoundError: there is no such layer.
            CapabilityMissingError: no quota can be enforced.
        """

    def used_bytes(self, name: str) -> int:
        """Bytes that this layer's own writes hold now."""

    def discard(self, name: str) -> None:
        """Remove a layer or checkpoint; what it held is freed in the background. Idempotent."""

    def wait_removed(self, timeout_s: float) -> bool:
        """Wait until what was discarded is removed; the space may come back later still. Blocks; call it in a thread.

        Returns:
            False when something is left: time is up, or the store is closed. Whoever opens the store next removes it.
        """

    def names(self) -> frozenset[str]:
        """Names of all layers and checkpoints."""

    def close(self) -> None:
        """Let go of descriptors and mounts that this process alone needs. Layers stay.

        What was discarded and is not removed yet stays too, until the store is opened again.
        """
