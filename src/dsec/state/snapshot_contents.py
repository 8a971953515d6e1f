"""Contents of files on their way: from a frozen tree into chunks, and from chunks into a new tree.

Both ways a few MiB are in memory at a time: what blocks runs in threads, batch by batch, while the store works.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from functools import partial

import anyio
import anyio.to_thread
from anyio.abc import ObjectReceiveStream, ObjectSendStream

from dsec.base.errors import StateCorruptedError
from dsec.state.cutting import Part, cut
from dsec.state.diff import Content
from dsec.state.manifest import Entry, Extent, File, Patch, Tree
from dsec.state.trees import FileReader, FrozenTree, NewTree
from dsec.stores.at_once import each_at_once
from dsec.stores.chunks import ChunkId, ChunkRepository, ChunkWriter

_BATCH_BYTES = 2 << 20
_BATCH_CHUNKS = 256
_BATCH_PARTS = 128
_AHEAD_BYTES = 16 << 20
_AHEAD_PARTS = 384
"""Parts, and so files, that are open at once: as many, and one batch more."""

Extents = dict[bytes, list[Extent]]
"""Extents by path, each in the order of the file."""


async def store_contents(
    tree: FrozenTree, contents: Sequence[tuple[bytes, Content]], writer: ChunkWriter
) -> dict[bytes, list[Extent]]:
    """Give the ranges of some files to a writer and return where each one is. Nothing is durable before its flush."""
    reading = _Reading(tree, contents)
    ids: list[ChunkId] = []

    async def write(receive: ObjectReceiveStream[list[bytes]]) -> None:
        async for batch in receive:
            ids.extend(await writer.add(batch))

    async def read_and_write() -> None:
        await _both(reading.send_batches, write)

    try:
        await _at_once(look_ahead=reading.look_ahead, read_and_write=read_and_write)
    finally:
        reading.close()
    return reading.extents(ids)


async def _both(
    produce: Callable[[ObjectSendStream[list[bytes]]], Awaitable[None]],
    consume: Callable[[ObjectReceiveStream[list[bytes]]], Awaitable[None]],
) -> None:
    """Run both ends of a stream of one batch; the first failure ends the other one and is raised as itself."""
    send, receive = anyio.create_memory_object_stream[list[bytes]](1)
    async with send, receive:
        await _at_once(produce=partial(produce, send), consume=partial(consume, receive))


async def _at_once(**ends: Callable[[], Awaitable[None]]) -> None:
    """Run what hands something on from one to the next; the first failure ends the others and is raised as itself."""

    async def run(end: str) -> None:
        await ends[end]()

    await each_at_once(ends, run)


@dataclass(slots=True)
class _Batch:
    """Chunks to read next, and their files, open and on their way into memory."""

    chunks: list[list[Part]] = field(default_factory=list)
    readers: dict[bytes, FileReader] = field(default_factory=dict)
    files: ExitStack = field(default_factory=ExitStack)
    size: int = 0
    parts: int = 0

    def take(self, parts: list[Part], tree: FrozenTree) -> None:
        self.chunks.append(parts)
        for part in parts:
            if part.path not in self.readers:
                self.readers[part.path] = self.files.enter_context(tree.open(part.path))
            self.readers[part.path].expect(part.start, part.length)
            self.size += part.length
            self.parts += 1


class _Reading:
    """Reads the pieces of files, and remembers which part of which file each one was.

    One task opens files and has them fetched, as far ahead as `_AHEAD_BYTES` and `_AHEAD_PARTS` allow: each alone is a
    round to the disk. Another reads what was opened, while a third, the writer, hashes what was read.
    """

    def __init__(self, tree: FrozenTree, contents: Sequence[tuple[bytes, Content]]) -> None:
        self._tree = tree
        self._patched = {path for path, content in contents if content.base is not None}
        self._cut = cut(contents)
        self._given: list[list[Part]] = []
        self._zeros: list[Part] = []
        self._ahead: deque[_Batch] = deque()
        self._is_all = False
        self._changed = anyio.Event()

    def close(self) -> None:
        """Close what was opened and not read. Nobody looks ahead or reads any more."""
        for ahead in self._ahead:
            ahead.files.close()

    async def look_ahead(self) -> None:
        """Open all files, never too many at once."""
        while True:
            while self._is_far_ahead():
                await self._change()
            opened = await anyio.to_thread.run_sync(self._open_batch)
            self._is_all = not opened
            self._tell_change()
            if self._is_all:
                return

    async def send_batches(self, send: ObjectSendStream[list[bytes]]) -> None:
        """Read all files, in the order in which they were opened."""
        async with send:
            while True:
                while not self._ahead and not self._is_all:
                    await self._change()
                if not self._ahead:
                    return
                batch = await anyio.to_thread.run_sync(self._read_batch)
                self._tell_change()
                if batch:
                    await send.send(batch)

    async def _change(self) -> None:
        await self._changed.wait()

    def _tell_change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    def _is_far_ahead(self) -> bool:
        parts, size = sum(each.parts for each in self._ahead), sum(each.size for each in self._ahead)
        return parts >= _AHEAD_PARTS or size >= _AHEAD_BYTES

    def _open_batch(self) -> bool:
        """Open the files of some pieces and have them fetched; return whether there were any more."""
        wanted = _Batch()
        try:
            for parts in self._cut:
                wanted.take(parts, self._tree)
                if wanted.size >= _BATCH_BYTES or wanted.parts >= _BATCH_PARTS:
                    break
        except BaseException:
            wanted.files.close()
            raise
        if wanted.chunks:
            self._ahead.append(wanted)
        return bool(wanted.chunks)

    def _read_batch(self) -> list[bytes]:
        """Read the pieces of what was opened first; none when they are but zeros."""
        wanted = self._ahead[0]
        with wanted.files:
            batch = [piece for parts in wanted.chunks if (piece := self._read(parts, wanted.readers)) is not None]
        self._ahead.popleft()  # Until now its files were open, and counted.
        return batch

    def _read(self, parts: list[Part], files: dict[bytes, FileReader]) -> bytes | None:
        """Read one piece; None when it is but zeros, of which no chunk is made."""
        read: list[bytes] = []
        for part in parts:
            content = files[part.path].read(part.start, part.length)
            if len(content) != part.length:
                raise StateCorruptedError(f"the frozen file {part.path[:200]!r} is shorter than it was")
            read.append(content)
        piece = read[0] if len(read) == 1 else b"".join(read)
        if len(parts) == 1 and not piece.strip(b"\0"):
            self._zeros.append(parts[0])
            return None
        self._given.append(parts)
        return piece

    def extents(self, ids: Sequence[ChunkId]) -> Extents:
        found: Extents = {}
        for chunk, parts in zip(ids, self._given, strict=True):
            offset = 0
            for part in parts:
                found.setdefault(part.path, []).append(Extent(part.start, part.length, chunk, offset))
                offset += part.length
        for part in self._zeros:
            if part.path in self._patched:  # A whole file has zeros wherever nothing is.
                found.setdefault(part.path, []).append(Extent(part.start, part.length))
        for extents in found.values():
            extents.sort(key=lambda extent: extent.start)
        return found


def finish_entry(entry: Entry | Content, extents: Sequence[Extent]) -> Entry:
    """Return the entry of a file whose content was stored."""
    if not isinstance(entry, Content):
        return entry
    if entry.base is None:
        return File(entry.status, entry.size, tuple(extents))
    return Patch(entry.status, entry.size, tuple(extents), entry.base)


async def restore_contents(tree: Tree, chunks: ChunkRepository, target: NewTree) -> None:
    """Fill a new tree, reading chunks in the order in which the tree needs them.

    Raises:
        StateCorruptedError: a chunk is missing, does not verify or is too short.
    """
    ids = needed_chunks(tree.values())
    filling = _fill(tree, target)
    await _both(partial(_read_chunks, chunks, ids), partial(_write_tree, filling))


def needed_chunks(entries: Iterable[Entry]) -> Iterator[ChunkId]:
    """Yield the chunks that a tree is filled from, in order; one that is needed twice in a row comes once."""
    before = b""
    for entry in entries:
        if isinstance(entry, File):
            for extent in entry.extents:
                if extent.chunk and extent.chunk != before:
                    before = extent.chunk
                    yield ChunkId(extent.chunk)


async def _read_chunks(chunks: ChunkRepository, ids: Iterator[ChunkId], send: ObjectSendStream[list[bytes]]) -> None:
    batch: list[bytes] = []
    size = 0
    async with send, aclosing(chunks.read(ids)) as contents:
        async for content in contents:
            batch.append(content)
            size += len(content)
            if size >= _BATCH_BYTES or len(batch) >= _BATCH_CHUNKS:
                await send.send(batch)
                batch, size = [], 0
        if batch:
            await send.send(batch)


async def _write_tree(filling: Generator[None, bytes, None], receive: ObjectReceiveStream[list[bytes]]) -> None:
    finished = await anyio.to_thread.run_sync(_feed, filling, None)
    async with receive:
        async for batch in receive:
            finished = await anyio.to_thread.run_sync(_feed, filling, batch)
    if not finished:
        raise AssertionError("fewer chunks were read than were asked for")


def _feed(filling: Generator[None, bytes, None], batch: list[bytes] | None) -> bool:
    """Give the filling what it waits for; return whether it is finished."""
    try:
        if batch is None:
            next(filling)
        else:
            for content in batch:
                filling.send(content)
    except StopIteration:
        return True
    return False


def _fill(tree: Tree, target: NewTree) -> Generator[None, bytes, None]:
    """Place every entry; each yield waits for the next chunk of `needed_chunks`."""
    before, content = b"", memoryview(b"")
    for path, entry in tree.items():
        target.place(path, entry)
        if not isinstance(entry, File):
            continue
        for extent in entry.extents:
            if extent.chunk and extent.chunk != before:
                before, content = extent.chunk, memoryview((yield))
            if extent.chunk:
                target.write(extent.start, slice_of(content, extent, path))
    target.finish()


def slice_of(content: memoryview, extent: Extent, path: bytes) -> memoryview:
    """Return what an extent takes of its chunk's content; `path` names the file in the error.

    Raises:
        StateCorruptedError: the chunk is too short.
    """
    if extent.offset + extent.length > len(content):
        raise StateCorruptedError(
            f"chunk {extent.chunk.hex()} has {len(content)} bytes, and {path[:200]!r} needs more of it",
            resolution="the snapshot's manifest is damaged: restore another one",
        )
    return content[extent.offset : extent.offset + extent.length]
