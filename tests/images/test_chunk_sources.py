"""Chunk sources: the conformance suite over every driver, and what a chain of them does."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from dsec.base.errors import DsecError, ObjectNotFoundError, StateCorruptedError, StoreUnavailableError
from dsec.images.lazy.formats.stored import CHUNK_BYTES, ChunkRef, encode
from dsec.images.lazy.peers.landing import Landing, State
from dsec.images.lazy.source import BlobSource, ChunkSource, MemorySource, ObjectSource, chunk_key, fetch_verified
from dsec.stores.objects import DEFAULT_TIMEOUT_S, Begin, ObjectStore
from dsec.stores.objects_folder import FolderObjectStore
from dsec.stores.objects_memory import MemoryObjectStore
from dsec.stores.opening import open_store
from dsec.testing.chunk_source_suite import ChunkSourceSuite, OpenSource, stored_chunks
from dsec.testing.faulty_store import Faults, FaultyObjectStore
from dsec.testing.s3_server import S3Server


def _objects_in(make_store: object) -> OpenSource:
    async def open_source(stored: Mapping[str, bytes], refs: Sequence[ChunkRef]) -> ChunkSource:
        store: ObjectStore = make_store()  # type: ignore[operator]
        for name, data in stored.items():
            await store.put(chunk_key(name), data)
        return ObjectSource(store)

    return open_source


class TestMemory(ChunkSourceSuite):
    @pytest.fixture
    def open_source(self) -> OpenSource:
        async def open_source(stored: Mapping[str, bytes], refs: Sequence[ChunkRef]) -> ChunkSource:
            return MemorySource(stored)

        return open_source


class TestFolder(ChunkSourceSuite):
    @pytest.fixture
    def open_source(self, tmp_path: Path) -> OpenSource:
        return _objects_in(lambda: FolderObjectStore(tmp_path / uuid.uuid4().hex))


class TestBlob(ChunkSourceSuite):
    @pytest.fixture
    def open_source(self, tmp_path: Path) -> OpenSource:
        async def open_source(stored: Mapping[str, bytes], refs: Sequence[ChunkRef]) -> ChunkSource:
            store = FolderObjectStore(tmp_path / uuid.uuid4().hex)
            if refs:
                await store.put("blobs/layer", b"".join(stored[ref.id] for ref in refs))
            return BlobSource(store, "blobs/layer")

        return open_source


@pytest.mark.slow
class TestS3(ChunkSourceSuite):
    @pytest.fixture
    def open_source(self, s3_server: S3Server, s3_url: str) -> OpenSource:
        return _objects_in(lambda: open_store(s3_url, environment=s3_server.environment))


@pytest.mark.anyio
async def test_a_blob_cut_short_is_said_and_may_be_asked_again() -> None:
    stored, refs = stored_chunks()
    store = MemoryObjectStore()
    await store.put("blob", b"".join(stored[ref.id] for ref in refs)[:-1])
    with pytest.raises(StoreUnavailableError, match="ranges"):
        await BlobSource(store, "blob").fetch(refs[-1])


@pytest.mark.anyio
async def test_an_object_of_any_length_is_not_read_further_than_a_chunk_goes() -> None:
    stored, refs = stored_chunks()
    store = MemoryObjectStore()
    await store.put(chunk_key(refs[0].id), stored[refs[0].id] + bytes(3 * CHUNK_BYTES))
    assert len(await ObjectSource(store).fetch(refs[0])) <= CHUNK_BYTES + 9


@pytest.mark.anyio
async def test_a_chunk_that_one_source_damaged_comes_from_the_next() -> None:
    stored, (ref, *_) = stored_chunks([b"content" * 100])
    lying = MemorySource({ref.id: stored[ref.id][:-1] + b"?"}, "node-17")
    good = MemorySource(stored, "store")
    assert await fetch_verified([lying, good], ref, timeout_s=1) == b"content" * 100
    with pytest.raises(StateCorruptedError, match="node-17"):
        await fetch_verified([MemorySource({}), lying], ref, timeout_s=1)


class _Blamed(MemorySource):
    """Notes what it is blamed for."""

    def __init__(self, stored: Mapping[str, bytes]) -> None:
        super().__init__(stored, "blamed")
        self.errors: list[tuple[str, str]] = []

    def blame(self, ref: ChunkRef, error: DsecError) -> None:
        self.errors.append((ref.id, error.code))


@pytest.mark.anyio
async def test_whoever_gave_what_does_not_verify_is_told_so_and_nobody_else() -> None:
    stored, (ref, *_) = stored_chunks([b"content" * 100])
    lying, empty, good = _Blamed({ref.id: stored[ref.id][:-1] + b"?"}), _Blamed({}), _Blamed(stored)
    await fetch_verified([empty, lying, good], ref, timeout_s=1)
    assert (empty.errors, lying.errors, good.errors) == ([], [(ref.id, "state_corrupted")], [])


class _InPieces(MemoryObjectStore):
    """Gives objects in pieces of ten bytes; the first time less than it says, and then it fails."""

    fails = 1

    async def get_pieces(
        self, key: str, start: int, length: int, begin: Begin, *, timeout_s: float = DEFAULT_TIMEOUT_S
    ) -> bytes:
        data = await self.get_range(key, start, length)
        while True:
            take = begin(len(data))
            for at in range(0, len(data), 10):
                if self.fails and at >= 20:
                    break
                take(data[at : at + 10])
            else:
                return data
            self.fails -= 1
            if self.fails:
                raise StoreUnavailableError("it fails")


@pytest.mark.anyio
@pytest.mark.parametrize("fails", [0, 1, 2])
async def test_what_an_origin_gives_is_passed_on_from_its_beginning_each_time_that_it_begins(fails: int) -> None:
    stored, (ref, *_) = stored_chunks([b"content" * 100])
    store = _InPieces()
    store.fails = fails
    await store.put(chunk_key(ref.id), stored[ref.id])
    landings: list[Landing] = []

    def land(size: int) -> Landing:
        landings.append(Landing(ref.id, size, lambda: None))
        return landings[-1]

    try:
        if fails > 1:
            with pytest.raises(StoreUnavailableError):
                await fetch_verified([ObjectSource(store)], ref, timeout_s=1, passing=lambda _: land)
        else:
            await fetch_verified([ObjectSource(store)], ref, timeout_s=1, passing=lambda _: land)
            assert bytes(landings[-1].view) == stored[ref.id]
        spoilt = [landing.state is State.SPOILT for landing in landings]
        assert spoilt == {0: [False], 1: [True, False], 2: [True]}[fails]
    finally:
        for landing in landings:
            landing.close()


@pytest.mark.anyio
async def test_an_unreachable_source_is_worth_another_try_and_an_empty_one_is_not() -> None:
    _, (ref, *_) = stored_chunks([b"content"])
    silent = ObjectSource(FaultyObjectStore(MemoryObjectStore(), Faults(fails=lambda action, key: True)))
    with pytest.raises(StoreUnavailableError) as caught:
        await fetch_verified([MemorySource({}), silent], ref, timeout_s=1)
    assert caught.value.retryable
    with pytest.raises(ObjectNotFoundError):
        await fetch_verified([MemorySource({}), MemorySource({})], ref, timeout_s=1)


@pytest.mark.anyio
async def test_a_chunk_that_expands_without_bound_is_refused() -> None:
    _, bomb = encode(bytes(CHUNK_BYTES))
    _, (ref, *_) = stored_chunks([b"small"])
    with pytest.raises(StateCorruptedError):
        await fetch_verified([MemorySource({ref.id: bomb})], ref, timeout_s=1)
