"""The chunk repository, over every store and against every fault."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Set
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsec.base.clock import ManualClock
from dsec.base.errors import (
    CapabilityMissingError,
    HostDiskFullError,
    InvalidRequestError,
    StateCorruptedError,
    StoreUnavailableError,
)
from dsec.stores.chunks import (
    MAXIMUM_CHUNK_BYTES,
    ChunkId,
    ChunkRepository,
    Reachable,
    StoredBytes,
    chunk_id,
    open_chunks,
)
from dsec.stores.objects_folder import FolderObjectStore
from dsec.stores.objects_memory import MemoryObjectStore
from dsec.testing.faulty_store import FaultyObjectStore

pytestmark = pytest.mark.anyio
_GRACE_S = 1000.0
_PACKS = "chunks/packs/"


def _pieces(seed: int, count: int, size: int = 1500) -> list[bytes]:
    source = random.Random(seed)
    return [source.randbytes(size) for _ in range(count)]


async def _write(repository: ChunkRepository, pieces: list[bytes]) -> tuple[list[ChunkId], StoredBytes]:
    async with repository.writer() as writer:
        ids = await writer.add(pieces)
        return ids, await writer.flush()


async def _read(repository: ChunkRepository, ids: list[ChunkId]) -> list[bytes]:
    return [content async for content in repository.read(ids)]


def _reach(*ids: list[ChunkId]) -> Reachable:
    async def reachable() -> Set[ChunkId]:
        return {chunk for some in ids for chunk in some}

    return reachable


class _Shared:
    """A store that several nodes share, with a clock that is moved by hand."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = FaultyObjectStore(MemoryObjectStore(clock=self.clock))

    @asynccontextmanager
    async def node(self, cache_dir: Path | None = None) -> AsyncIterator[ChunkRepository]:
        async with open_chunks(self.store, cache_dir=cache_dir, grace_s=_GRACE_S, clock=self.clock) as repository:
            yield repository

    async def packs(self) -> list[str]:
        return [info.key.removeprefix(_PACKS) async for info in self.store.inner.list(_PACKS)]


@pytest.fixture
def shared() -> _Shared:
    return _Shared()


async def test_a_thousand_small_files_become_one_object_and_read_back(shared: _Shared) -> None:
    pieces = _pieces(1, 1000)
    async with shared.node() as repository:
        ids, stored = await _write(repository, pieces)
        assert (stored.objects, stored.new_chunks, stored.content_bytes) == (1, 1000, 1_500_000)
        assert stored.stored_bytes <= 1.05 * stored.content_bytes
        assert await _read(repository, ids) == pieces
        got = {chunk: content async for chunk, content in repository.read_any_order([*ids, *ids])}
        assert got == dict(zip(ids, pieces, strict=True))


async def test_what_the_store_holds_is_not_stored_again_by_any_node(shared: _Shared) -> None:
    pieces = _pieces(1, 50)
    async with shared.node() as one, shared.node() as other:
        first, stored = await _write(one, pieces)
        second, again = await _write(other, [*pieces, b"new", b"new"])
        assert second[:50] == first
        assert (again.new_chunks, again.objects) == (1, 1)
        assert set(stored.packs) < set(again.packs)


async def test_what_compresses_is_compressed_and_what_does_not_stays(shared: _Shared) -> None:
    async with shared.node() as repository:
        _, text = await _write(repository, [b"the same words again and again %d\n" % n * 400 for n in range(40)])
        _, noise = await _write(repository, _pieces(1, 40, 10_000))
    assert text.stored_bytes < text.content_bytes / 10
    assert noise.stored_bytes < noise.content_bytes + 40 * 41 + 100


@pytest.mark.parametrize("piece", [b"", b"x" * (MAXIMUM_CHUNK_BYTES + 1)])
async def test_a_piece_of_no_allowed_size_is_refused(shared: _Shared, piece: bytes) -> None:
    async with shared.node() as repository, repository.writer() as writer:
        with pytest.raises(InvalidRequestError):
            await writer.add([piece])


async def test_hints_make_chunks_readable_where_lists_are_stale(shared: _Shared) -> None:
    await shared.store.make_lists_stale()
    async with shared.node() as one, shared.node() as other:
        ids, stored = await _write(one, [b"hello"])
        with pytest.raises(StateCorruptedError, match=ids[0].hex()):
            await _read(other, ids)
        await other.learn([*stored.packs, "0" * 32])
        assert await _read(other, ids) == [b"hello"]


async def test_a_stale_list_makes_nobody_forget_a_pack(shared: _Shared) -> None:
    await shared.store.make_lists_stale()
    async with shared.node() as repository:
        ids, _ = await _write(repository, [b"hello"])
        await repository.refresh()
        assert await _read(repository, ids) == [b"hello"]


async def test_an_index_cache_survives_and_a_broken_one_is_begun_anew(shared: _Shared, tmp_path: Path) -> None:
    async with shared.node(tmp_path) as repository:
        ids, _ = await _write(repository, _pieces(1, 20))
    (cache,) = tmp_path.glob("*.sqlite")
    for broken in (None, b"", os.urandom(8192)):
        if broken is not None:
            cache.write_bytes(broken)
        async with shared.node(tmp_path) as repository:
            assert await _read(repository, ids) == _pieces(1, 20)


async def test_a_chunk_of_a_pack_that_was_lost_is_stored_again(shared: _Shared) -> None:
    async with shared.node() as repository:
        _, stored = await _write(repository, [b"hello"])
        await shared.store.delete([_PACKS + stored.packs[0]])
        shared.clock.advance(_GRACE_S / 4 + 1)
        ids, again = await _write(repository, [b"hello"])
        assert again.new_chunks == 1
        assert await _read(repository, ids) == [b"hello"]


async def test_a_write_lost_after_its_acknowledgement_is_noticed(shared: _Shared) -> None:
    async with shared.node() as repository:
        lost: list[str] = []

        def lose_once(key: str) -> bool:
            lost.append(key)
            return len(lost) == 1

        shared.store.faults.loses = lose_once
        ids, _ = await _write(repository, [b"hello"])
        assert await _read(repository, ids) == [b"hello"]
        shared.store.faults.loses = lambda key: True
        with pytest.raises(StoreUnavailableError, match="acknowledged"):
            await _write(repository, [b"other"])


async def test_a_store_that_fails_is_reported_and_nothing_is_relied_on(shared: _Shared) -> None:
    async with shared.node() as repository:
        shared.store.faults.fails = lambda action, key: action == "put"
        with pytest.raises(StoreUnavailableError):
            await _write(repository, [b"hello"])
        shared.store.faults.fails = lambda action, key: False
        shared.store.faults.is_full = lambda key: True
        with pytest.raises(HostDiskFullError):
            await _write(repository, [b"hello"])
        shared.store.faults.is_full = lambda key: False
        _, stored = await _write(repository, [b"hello"])
        assert stored.new_chunks == 1


@pytest.mark.parametrize("fault", ["truncates", "corrupts"])
async def test_damage_on_the_way_is_read_again_and_lasting_damage_is_named(shared: _Shared, fault: str) -> None:
    async with shared.node() as repository:
        ids, stored = await _write(repository, _pieces(1, 5))
        reads: list[str] = []

        def once(key: str) -> bool:
            reads.append(key)
            return len(reads) == 1

        setattr(shared.store.faults, fault, once)
        assert await _read(repository, ids) == _pieces(1, 5)
        setattr(shared.store.faults, fault, lambda key: True)
        with pytest.raises(StateCorruptedError, match=f"chunk .* in pack {stored.packs[0]}"):
            await _read(repository, ids)


async def test_verify_names_what_is_damaged(shared: _Shared) -> None:
    async with shared.node() as repository:
        ids, stored = await _write(repository, _pieces(1, 5))
        assert (await repository.verify()).problems == ()
        key = _PACKS + stored.packs[0]
        data = bytearray(await shared.store.get(key))
        data[1500 * 2] ^= 1
        await shared.store.put(key, bytes(data))
        (problem,) = (await repository.verify()).problems
        assert (problem.pack, problem.chunk) == (stored.packs[0], ids[2].hex())
        await shared.store.put(key, bytes(data[:-1]))
        (problem,) = (await repository.verify()).problems
        assert problem.chunk == ""


async def test_a_repository_of_a_later_format_is_refused(shared: _Shared) -> None:
    await shared.store.put("chunks/format.json", b'{"version": 2, "new": true}')
    with pytest.raises(CapabilityMissingError, match="format 2"):
        async with shared.node():
            pass


async def test_what_is_unreachable_is_deleted_after_the_grace_period_and_not_before(shared: _Shared) -> None:
    async with shared.node() as repository:
        kept, _ = await _write(repository, _pieces(1, 5))
        await _write(repository, _pieces(2, 5))
        assert (await repository.collect(_reach(kept))).doomed == 0
        shared.clock.advance(_GRACE_S)
        assert (await repository.collect(_reach(kept))).doomed == 1
        shared.clock.advance(_GRACE_S - 1)
        assert (await repository.collect(_reach(kept))).waiting == 1
        shared.clock.advance(1)
        assert (await repository.collect(_reach(kept))).deleted == 1
        assert len(await shared.packs()) == 1
        assert await _read(repository, kept) == _pieces(1, 5)


async def test_what_became_reachable_while_its_pack_was_doomed_is_saved(shared: _Shared) -> None:
    async with shared.node() as collector, shared.node() as reader:
        ids, _ = await _write(collector, _pieces(1, 5))
        assert await _read(reader, ids) == _pieces(1, 5)
        shared.clock.advance(_GRACE_S)
        assert (await collector.collect(_reach())).doomed == 1
        shared.clock.advance(_GRACE_S)
        report = await collector.collect(_reach(ids[:2]))
        assert report.deleted == 1
        assert report.copied_bytes > 0
        assert await _read(reader, ids[:2]) == _pieces(1, 5)[:2]


async def test_a_writer_does_not_rely_on_a_pack_that_another_node_doomed(shared: _Shared) -> None:
    async with shared.node() as collector, shared.node() as other:
        ids, _ = await _write(collector, [b"hello"])
        await other.refresh()
        shared.clock.advance(_GRACE_S)
        assert (await collector.collect(_reach())).doomed == 1
        again, stored = await _write(other, [b"hello"])
        assert (again, stored.new_chunks) == (ids, 1)
        shared.clock.advance(_GRACE_S)
        assert (await collector.collect(_reach(ids))).copied_bytes == 0
        assert await _read(other, ids) == [b"hello"]


async def test_a_pack_with_damaged_reachable_chunks_is_kept(shared: _Shared) -> None:
    async with shared.node() as repository:
        ids, stored = await _write(repository, _pieces(1, 5))
        shared.clock.advance(_GRACE_S)
        await repository.collect(_reach())
        shared.clock.advance(_GRACE_S)
        shared.store.faults.corrupts = lambda key: key.startswith(_PACKS)
        assert (await repository.collect(_reach(ids))).damaged == stored.packs
        assert await shared.packs() == list(stored.packs)


@pytest.mark.slow
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_no_reachable_chunk_is_ever_lost(data: st.DataObject) -> None:
    """Two nodes write, publish, drop and collect in any order, at any time; a dict is the model."""
    anyio.run(_live_through, data)


async def _live_through(data: st.DataObject) -> None:
    shared = _Shared()
    manifests: list[list[ChunkId]] = []
    model: dict[ChunkId, bytes] = {}
    async with shared.node() as one, shared.node() as other:
        for _ in range(data.draw(st.integers(1, 14))):
            node = data.draw(st.sampled_from([one, other]))
            match data.draw(st.sampled_from(["write", "write", "drop", "collect", "wait", "wait", "crash"])):
                case "write":
                    pieces = [bytes([n]) * 40 for n in data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=6))]
                    ids, _ = await _write(node, pieces)
                    model.update(zip(ids, pieces, strict=True))
                    shared.clock.advance(data.draw(st.sampled_from([0.0, _GRACE_S / 2 - 1])))
                    manifests.append(ids)
                case "drop" if manifests:
                    manifests.pop(data.draw(st.integers(0, len(manifests) - 1)))
                case "collect":
                    await node.collect(_reach(*manifests))
                case "wait":
                    shared.clock.advance(data.draw(st.sampled_from([1.0, _GRACE_S / 4, _GRACE_S])))
                case "crash":
                    left = data.draw(st.integers(1, 12))
                    await _collect_until_call(node, shared, left, manifests)
            for ids in manifests:
                assert await _read(node, ids) == [model[chunk] for chunk in ids]


async def _collect_until_call(
    node: ChunkRepository, shared: _Shared, left: int, manifests: list[list[ChunkId]]
) -> None:
    """Let a collection end at one of its calls to the store, as if its process died there."""
    begun = len(shared.store.calls)
    shared.store.faults.fails = lambda action, key: len(shared.store.calls) - begun >= left
    try:
        await node.collect(_reach(*manifests))
    except StoreUnavailableError:
        pass
    finally:
        shared.store.faults.fails = lambda action, key: False


_KEEP_WRITING = """
import itertools, sys, anyio, random
from pathlib import Path
from dsec.stores.chunks import open_chunks
from dsec.stores.objects_folder import FolderObjectStore
async def main():
    store = FolderObjectStore(Path(sys.argv[1]) / "store")
    async with open_chunks(store, cache_dir=Path(sys.argv[1]) / "cache") as repository:
        for number in itertools.count():
            async with repository.writer() as writer:
                ids = await writer.add([random.Random(f"{number}/{n}").randbytes(3000) for n in range(200)])
                await writer.flush()
            print(number, *(chunk.hex() for chunk in ids), flush=True)
anyio.run(main)
"""


def _kill_a_writer(directory: Path, after: int) -> list[list[ChunkId]]:
    """Kill a writer after so many flushes; return the ids of each."""
    with subprocess.Popen(
        [sys.executable, "-c", _KEEP_WRITING, str(directory)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(after)]
        os.kill(writer.pid, signal.SIGKILL)
        lines += [line for line in writer.stdout if line.endswith("\n")]
    return [[ChunkId(bytes.fromhex(word)) for word in line.split()[1:]] for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 2, 5])
async def test_what_a_killed_writer_flushed_is_there_on_every_node(tmp_path: Path, after: int) -> None:
    flushed = _kill_a_writer(tmp_path, after)
    for cache_dir in (tmp_path / "cache", None):
        async with open_chunks(FolderObjectStore(tmp_path / "store"), cache_dir=cache_dir) as repository:
            for ids in flushed:
                assert [chunk_id(content) for content in await _read(repository, ids)] == ids
            assert (await repository.verify()).problems == ()
