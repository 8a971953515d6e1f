"""Collecting what no snapshot needs, beside nodes that save, remove and merge: nothing that is needed is ever lost."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.base.clock import ManualClock
from dsec.base.errors import DsecError, StoreUnavailableError
from dsec.model.files import FileKind
from dsec.state.manifest import SnapshotHeader
from dsec.state.memory_trees import MemoryEntry, MemoryFrozenTree, MemoryNewTree
from dsec.state.snapshots import SnapshotStore
from dsec.stores.chunks import open_chunks
from dsec.stores.objects import DEFAULT_TIMEOUT_S
from dsec.stores.objects_memory import MemoryObjectStore
from dsec.testing.faulty_store import Faults, FaultyObjectStore

GRACE_S = 1000.0
Files = dict[str, bytes]


class InterruptedStore(FaultyObjectStore):
    """A store before whose puts something else happens."""

    before_put: Callable[[str], Awaitable[None]] | None = None

    async def put(
        self, key: str, data: bytes, *, if_absent: bool = False, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> bool:
        if self.before_put is not None:
            await self.before_put(key)
        return await super().put(key, data, if_absent=if_absent, timeout_s=timeout_s)


def tree_of(files: Files) -> MemoryFrozenTree:
    entries = {"/": MemoryEntry(FileKind.DIRECTORY, 0o755)}
    entries.update({f"/{name}": MemoryEntry(FileKind.FILE, 0o644, content=content) for name, content in files.items()})
    return MemoryFrozenTree(entries)


@dataclass
class Node:
    """One of several nodes on a store."""

    store: InterruptedStore
    snapshots: SnapshotStore


@dataclass
class Fleet:
    """Nodes on one store, and what its snapshots must restore to."""

    clock: ManualClock
    nodes: list[Node] = field(default_factory=list)
    expected: dict[str, Files] = field(default_factory=dict)
    count: int = 0

    async def open(self, stack: AsyncExitStack, count: int) -> None:
        inner = MemoryObjectStore(clock=self.clock)
        for _ in range(count):
            store = InterruptedStore(inner)
            chunks = await stack.enter_async_context(open_chunks(store, grace_s=GRACE_S, clock=self.clock))
            self.nodes.append(Node(store, SnapshotStore(store, chunks, clock=self.clock)))

    def files(self, seed: int, parent: Files) -> Files:
        """Return files that differ from some others in a block, and share contents with what was there before."""
        source = random.Random(seed % 5)
        large = parent.get("large", source.randbytes(150_000))
        at = 4096 * (seed % 30)
        return {
            **parent,
            "large": large[:at] + random.Random(seed).randbytes(4096) + large[at + 4096 :],
            f"file-{seed % 7}": source.randbytes(3000),
        }

    async def save(self, node: Node, seed: int, parent: str | None) -> str:
        base = self.expected.get(parent or "", {})
        files = self.files(seed, base)
        self.count += 1
        header = SnapshotHeader(sandbox_id=f"sbx-{self.count}", created_at_s=self.clock.wall_s())
        info = await node.snapshots.save(tree_of(files), header, parent=parent, base=tree_of(base) if parent else None)
        self.expected[info.snapshot_id] = files
        return info.snapshot_id

    async def remove(self, node: Node, snapshot: str) -> None:
        del self.expected[snapshot]
        await node.snapshots.remove(snapshot)

    async def collect_all(self) -> None:
        """Collect until nothing moves any more."""
        for _ in range(6):
            self.clock.advance(GRACE_S + 1)
            await self.nodes[0].snapshots.collect()

    async def check(self) -> None:
        for snapshot, files in self.expected.items():
            for node in self.nodes:
                entries: dict[str, MemoryEntry] = {}
                await node.snapshots.restore_into(await node.snapshots.load(snapshot), MemoryNewTree(entries))
                restored = {path[1:]: entry.content for path, entry in entries.items() if entry.content}
                assert restored == files
        listed = {info.snapshot_id for info in await self.nodes[0].snapshots.list_all()}
        assert listed == set(self.expected)


def run(scenario: Callable[[Fleet], Awaitable[None]], *, nodes: int = 2) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            fleet = Fleet(ManualClock())
            await fleet.open(stack, nodes)
            await scenario(fleet)

    anyio.run(main)


@pytest.mark.parametrize("moment", ["chunks/packs/", "manifests/", "snapshots/"])
@pytest.mark.parametrize("merged", [False, True])
def test_a_parent_may_be_removed_and_collected_while_its_child_is_saved(moment: str, merged: bool) -> None:
    async def scenario(fleet: Fleet) -> None:
        saver, collector = fleet.nodes
        grandparent = await fleet.save(saver, 1, None)
        parent = await fleet.save(saver, 2, grandparent)
        if merged:
            await collector.snapshots.merge(parent)
        fleet.clock.advance(2 * GRACE_S)

        async def collect(key: str) -> None:
            if key.startswith(moment):
                saver.store.before_put = None
                await collector.snapshots.remove(parent)
                await fleet.remove(collector, grandparent)
                for _ in range(4):
                    await collector.snapshots.collect()
                    fleet.clock.advance(GRACE_S / 20)

        saver.store.before_put = collect
        child = await fleet.save(saver, 3, parent)
        del fleet.expected[parent]
        assert (await saver.snapshots.find(child)).parent == parent
        await fleet.collect_all()
        await fleet.check()

    run(scenario)


@pytest.mark.parametrize("strike", range(1, 30))
def test_a_collection_that_ends_at_any_call_loses_nothing(strike: int) -> None:
    async def scenario(fleet: Fleet) -> None:
        node = fleet.nodes[0]
        first = await fleet.save(node, 1, None)
        second = await fleet.save(node, 2, first)
        await fleet.save(node, 3, second)
        await node.snapshots.merge(second)
        await fleet.remove(node, first)
        count = 0

        def fails(action: str, key: str) -> bool:
            nonlocal count
            count += action in ("put", "delete")
            return count == strike

        node.store.faults = Faults(fails_after=fails)
        for _ in range(4):
            fleet.clock.advance(GRACE_S + 1)
            try:
                await node.snapshots.collect()
            except StoreUnavailableError:
                continue
        node.store.faults = Faults()
        await fleet.check()
        await fleet.collect_all()
        await fleet.check()

    run(scenario, nodes=1)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["save", "save", "save on", "save on", "remove", "merge", "collect", "wait", "wait long"]),
        st.integers(0, 1),
        st.integers(0, 1000),
    ),
    max_size=25,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_whatever_nodes_do_each_snapshot_that_is_listed_restores(steps: list[tuple[str, int, int]]) -> None:
    async def scenario(fleet: Fleet) -> None:
        for what, number, seed in steps:
            node = fleet.nodes[number]
            known = sorted(fleet.expected)
            chosen = known[seed % len(known)] if known else None
            try:
                await _step(fleet, node, what, seed, chosen)
            except DsecError as error:
                raise AssertionError(f"{what} failed") from error
        await fleet.check()
        await fleet.collect_all()
        await fleet.check()

    run(scenario)


async def _step(fleet: Fleet, node: Node, what: str, seed: int, chosen: str | None) -> None:
    match what:
        case "save":
            await fleet.save(node, seed, None)
        case "save on":
            await fleet.save(node, seed, chosen)
        case "remove" if chosen is not None:
            await fleet.remove(node, chosen)
        case "merge" if chosen is not None:
            await node.snapshots.merge(chosen)
        case "collect":
            await node.snapshots.collect()
        case "wait":
            fleet.clock.advance(GRACE_S / 8)
        case "wait long":
            fleet.clock.advance(GRACE_S + 1)
