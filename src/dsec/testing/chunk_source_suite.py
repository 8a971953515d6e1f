"""What every implementation of `dsec.images.lazy.source.ChunkSource` does: subclass with a fixture `open_source`."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence

import anyio
import pytest

from dsec.base.errors import ObjectNotFoundError, StateCorruptedError
from dsec.images.lazy.formats.stored import CHUNK_BYTES, ChunkRef, encode
from dsec.images.lazy.source import ChunkSource, fetch_verified

OpenSource = Callable[[Mapping[str, bytes], Sequence[ChunkRef]], Awaitable[ChunkSource]]
"""Makes a source that holds stored chunks by name; those of the references in their order, where it needs one."""

CONTENTS = (b"x", b"text " * 9000, os.urandom(70_000), b"0123456789abcdef" * (CHUNK_BYTES // 16))


def stored_chunks(contents: Sequence[bytes] = CONTENTS) -> tuple[dict[str, bytes], list[ChunkRef]]:
    """Return stored chunks by name, and references to them as a manifest would give."""
    stored, refs, start = {}, [], 0
    for content in contents:
        name, data = encode(content)
        stored[name] = data
        refs.append(ChunkRef(id=name, content_bytes=len(content), stored_bytes=len(data), blob_start=start))
        start += len(data)
    return stored, refs


class ChunkSourceSuite:
    @pytest.mark.anyio
    async def test_chunks_come_as_they_were_stored(self, open_source: OpenSource) -> None:
        stored, refs = stored_chunks()
        source = await open_source(stored, refs)
        for ref in (*refs, *reversed(refs)):
            assert await source.fetch(ref) == stored[ref.id]

    @pytest.mark.anyio
    async def test_many_are_fetched_at_once(self, open_source: OpenSource) -> None:
        stored, refs = stored_chunks([bytes([number]) * (number + 1) for number in range(40)])
        source = await open_source(stored, refs)
        got: dict[str, bytes] = {}

        async def fetch(ref: ChunkRef) -> None:
            got[ref.id] = await source.fetch(ref)

        async with anyio.create_task_group() as group:
            for ref in refs:
                group.start_soon(fetch, ref)
        assert got == stored

    @pytest.mark.anyio
    async def test_what_is_not_there_is_said(self, open_source: OpenSource) -> None:
        _, refs = stored_chunks()
        source = await open_source({}, [])
        with pytest.raises(ObjectNotFoundError):
            await source.fetch(refs[0])

    @pytest.mark.anyio
    async def test_damage_is_found_and_its_source_named(self, open_source: OpenSource) -> None:
        """A flipped bit that a Zstandard frame does not use changes nothing: what counts is the content."""
        stored, refs = stored_chunks()
        for damage in (_flip_first, _flip_middle, _flip_last, _empty, _swap_encoding):
            source = await open_source({name: damage(data) for name, data in stored.items()}, refs)
            for ref, content in zip(refs, CONTENTS, strict=True):
                said = await self._said(source, ref, content)
                assert said is None or (ref.id[:12] in said and source.name in said)

    @pytest.mark.anyio
    async def test_blame_raises_nothing(self, open_source: OpenSource) -> None:
        """What comes of it is the source's own affair: it may go on, or ask somebody else from now on, or nobody."""
        stored, refs = stored_chunks()
        source = await open_source(stored, refs)
        await source.fetch(refs[0])
        for ref in refs:
            source.blame(ref, StateCorruptedError(f"chunk {ref.id[:12]} does not verify"))

    async def _said(self, source: ChunkSource, ref: ChunkRef, content: bytes) -> str | None:
        """Fetch; return what was said if it was refused, and fail if it is not the content."""
        try:
            assert await fetch_verified([source], ref, timeout_s=5) == content
        except StateCorruptedError as error:
            return str(error)
        return None


def _flip_first(data: bytes) -> bytes:
    return bytes([data[0] ^ 1]) + data[1:]


def _flip_middle(data: bytes) -> bytes:
    middle = max(len(data) // 2, 8)
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def _flip_last(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def _empty(data: bytes) -> bytes:
    return data[:8] + bytes(len(data) - 8)


def _swap_encoding(data: bytes) -> bytes:
    return data[:7] + bytes([data[7] ^ 1]) + data[8:]
