"""Any tree, however it is edited between snapshots, comes back exactly: of copies, and of checkpoints on btrfs."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings, strategies

from dsec.model.state import SnapshotInfo
from dsec.state.btrfs import BtrfsWritableLayers
from dsec.state.copying import copy_tree
from dsec.state.disk_tree import DiskNewTree, DiskTree
from dsec.state.manifest import SnapshotHeader
from dsec.state.snapshots import SnapshotStore
from dsec.state.trees import FrozenTree
from dsec.state.volume import StateVolume
from dsec.stores.chunks import open_chunks
from dsec.stores.objects_memory import MemoryObjectStore
from dsec.testing.tree_edits import Description, Edit, apply_edits, describe, edits

HISTORIES = strategies.lists(edits(12), min_size=1, max_size=6)
EXAMPLES = int(os.environ.get("DSEC_TEST_EXAMPLES", "30"))
TICK_S = 0.02
HEADER = SnapshotHeader(sandbox_id="sbx-1")
pytestmark = [pytest.mark.root, pytest.mark.slow]


class Copies:
    """A layer whose frozen states are copies, as of plain directories: nothing is known but what the walk sees."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.live = root / "live"
        self.live.mkdir()
        self.count = 0

    def freeze(self) -> Path:
        self.count += 1
        frozen = self.root / f"frozen-{self.count}"
        frozen.mkdir()
        with opened(self.live) as source, opened(frozen) as target:
            copy_tree(source, target)
        return frozen

    @contextmanager
    def tree(self, frozen: Path) -> Iterator[FrozenTree]:
        with opened(frozen) as fd:
            tree = DiskTree(fd)
            yield tree
            tree.close()


class Subvolumes:
    """A layer of the btrfs driver and its checkpoints.

    Args:
        layers: the driver.
        walked: whether trees are opened so that only the walk is left, which goes by inodes' times of change.
    """

    def __init__(self, layers: BtrfsWritableLayers, *, walked: bool = False) -> None:
        self.layers = layers
        self.walked = walked
        self.name = secrets.token_hex(6)
        self.live = layers.create(self.name, quota_bytes=None).upper
        self.count = self.branches = 0

    def freeze(self) -> Path:
        self.count += 1
        name = f"{self.name}-C{self.count}"
        self.layers.checkpoint(self.live.parent.name, name)
        if self.walked:
            time.sleep(TICK_S)  # A later change bears another time.
        return self.layers.frozen_upper(name)

    @contextmanager
    def tree(self, frozen: Path) -> Iterator[FrozenTree]:
        if self.walked:
            with opened(frozen) as fd:
                tree = DiskTree(fd, frozen_at_ns=1 << 62)
                yield tree
                tree.close()
        else:
            with self.layers.open_frozen(frozen.parent.name) as hinting:
                yield hinting

    def roll_back(self, frozen: Path) -> None:
        self.layers.discard(self.live.parent.name)
        self.branches += 1
        self.live = self.layers.branch(frozen.parent.name, f"{self.name}-B{self.branches}", quota_bytes=None).upper

    def close(self) -> None:
        for number in range(1, self.count + 1):
            self.layers.discard(f"{self.name}-C{number}")
        self.layers.discard(self.live.parent.name)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield fd
    finally:
        os.close(fd)


async def restore(snapshots: SnapshotStore, snapshot_id: str, directory: Path) -> Description:
    directory.mkdir()
    with opened(directory) as fd:
        new = DiskNewTree(fd)
        await snapshots.restore_into(await snapshots.load(snapshot_id), new)
        new.close()
    return describe(directory)


async def check_history(layer: Copies | Subvolumes, history: list[list[Edit]], directory: Path) -> None:
    async with open_chunks(MemoryObjectStore()) as chunks:
        snapshots = SnapshotStore(MemoryObjectStore(), chunks)
        saved: list[tuple[str, Description]] = []
        base: Path | None = None
        for step in history:
            apply_edits(layer.live, step)
            frozen = layer.freeze()
            parent = saved[-1][0] if saved else None
            info = await save(layer, snapshots, frozen, parent, base)
            assert info.files == len(describe(frozen)) - 1
            saved.append((info.snapshot_id, describe(frozen)))
            base = frozen
        for number, (snapshot_id, expected) in enumerate(saved):
            assert await restore(snapshots, snapshot_id, directory / f"restored-{number}") == expected
        await snapshots.merge(saved[-1][0])
        assert (await snapshots.find(saved[-1][0])).depth == 0
        assert await restore(snapshots, saved[-1][0], directory / "merged") == saved[-1][1]


async def save(
    layer: Copies | Subvolumes, snapshots: SnapshotStore, frozen: Path, parent: str | None, base: Path | None
) -> SnapshotInfo:
    with layer.tree(frozen) as tree:
        if base is None:
            return await snapshots.save(tree, HEADER)
        with layer.tree(base) as base_tree:
            return await snapshots.save(tree, HEADER, parent=parent, base=base_tree)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(history=HISTORIES)
def test_every_snapshot_of_copies_restores_exactly(history: list[list[Edit]], tmp_path: Path) -> None:
    directory = tmp_path / secrets.token_hex(4)
    directory.mkdir()
    anyio.run(check_history, Copies(directory), history, directory)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.parametrize("walked", [False, True])
@given(history=HISTORIES)
def test_every_snapshot_of_btrfs_checkpoints_restores_exactly(
    history: list[list[Edit]], walked: bool, volume: StateVolume, tmp_path: Path
) -> None:
    directory = tmp_path / secrets.token_hex(4)
    directory.mkdir()
    layers = BtrfsWritableLayers(volume)
    subvolumes = Subvolumes(layers, walked=walked)
    try:
        anyio.run(check_history, subvolumes, history, directory)
    finally:
        subvolumes.close()
        layers.close()


async def check_branches(layer: Subvolumes, history: list[tuple[list[Edit], int, bool]], directory: Path) -> None:
    """Go back to one or another checkpoint between snapshots; what an increment begins on need not be a past of it."""
    async with open_chunks(MemoryObjectStore()) as chunks:
        snapshots = SnapshotStore(MemoryObjectStore(), chunks)
        saved: list[tuple[str, Path]] = []
        for step, back, is_past in history:
            began = None
            if saved and back < len(saved):
                began = saved[back]
                layer.roll_back(began[1])
            apply_edits(layer.live, step)
            frozen = layer.freeze()
            on = began if is_past and began is not None else (saved[-1] if saved else (None, None))
            info = await save(layer, snapshots, frozen, *on)
            saved.append((info.snapshot_id, frozen))
        for number, (snapshot_id, frozen) in enumerate(saved):
            assert await restore(snapshots, snapshot_id, directory / f"restored-{number}") == describe(frozen)


BRANCHES = strategies.lists(
    strategies.tuples(edits(10), strategies.integers(0, 8), strategies.booleans()), min_size=2, max_size=6
)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(history=BRANCHES)
def test_every_snapshot_restores_exactly_although_the_layer_was_rolled_back_between_them(
    history: list[tuple[list[Edit], int, bool]], volume: StateVolume, tmp_path: Path
) -> None:
    directory = tmp_path / secrets.token_hex(4)
    directory.mkdir()
    layers = BtrfsWritableLayers(volume)
    subvolumes = Subvolumes(layers)
    try:
        anyio.run(check_branches, subvolumes, history, directory)
    finally:
        subvolumes.close()
        layers.close()
