"""Turn a layer's EROFS file into chunks and a manifest, and publish both in an object store.

A manifest is published after its chunks, so that one that can be read is whole. Killed at any instruction, a conversion
leaves chunks that nothing names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread

from dsec.base.errors import ObjectNotFoundError, StateCorruptedError
from dsec.images.layers import LayerRecord
from dsec.images.lazy.erofs.metadata import Extent, metadata_extents
from dsec.images.lazy.formats import manifest as manifests
from dsec.images.lazy.formats.manifest import LayerManifest, Piece
from dsec.images.lazy.formats.stored import CHUNK_BYTES, encode
from dsec.images.lazy.source import chunk_key
from dsec.model.image import LayerFormat
from dsec.model.value import Value
from dsec.stores.objects import ObjectStore

Sink = Callable[[str, bytes], None]
"""Takes name and stored form of each piece, in the order of a blob; called from the converting thread."""


@dataclass(frozen=True, slots=True)
class LayerFile:
    """What is converted.

    Attributes:
        path: the EROFS file.
        layer: its digest over the canonical listing, which whoever made the file computed.
        entries: number of entries of its tree.
    """

    path: Path
    layer: str
    entries: int

    @classmethod
    def of(cls, path: Path, record: LayerRecord) -> LayerFile:
        """Return the file of a stored layer. Raises ValueError for one that is stored as a directory."""
        if record.format is not LayerFormat.EROFS:
            raise ValueError(f"layer {record.digest} is no EROFS file")
        return cls(path, record.digest, record.entries)


class PublishReport(Value, frozen=True):
    """What a publication sent.

    Attributes:
        manifest: name of the manifest.
        chunks: pieces of the layer, metadata included.
        new_chunks: those that the store did not hold.
        stored_bytes: bytes of the new ones.
    """

    manifest: str
    chunks: int
    new_chunks: int
    stored_bytes: int


def convert(file: LayerFile, sink: Sink) -> LayerManifest:
    """Cut a layer's file into chunks, give each to `sink`, and return its manifest. Blocks; memory is bounded.

    Raises:
        InvalidRequestError: the file cannot be taken apart.
    """
    extents = metadata_extents(file.path)
    size = file.path.stat().st_size
    with file.path.open("rb", buffering=0) as stream:

        def read(extent: Extent) -> bytes:
            stream.seek(extent.start)
            data = stream.read(extent.length)
            if len(data) != extent.length:
                raise StateCorruptedError(f"{file.path} became shorter while it was read")
            return data

        metadata = _stored(_packed(extents, read), sink)
        whole = (Extent(start, min(CHUNK_BYTES, size - start)) for start in range(0, size, CHUNK_BYTES))
        chunks = _stored(map(read, whole), sink)
    return manifests.make(file.layer, size, file.entries, chunks=chunks, metadata=extents, metadata_chunks=metadata)


def _stored(contents: Iterable[bytes], sink: Sink) -> Sequence[Piece]:
    pieces = []
    for content in contents:
        name, stored = encode(content)
        sink(name, stored)
        pieces.append((name, len(stored)))
    return pieces


def _packed(extents: Sequence[Extent], read: Callable[[Extent], bytes]) -> Iterator[bytes]:
    """Yield the bytes of extents, one behind the other, by the chunk."""
    pending = bytearray()
    for extent in extents:
        for start in range(extent.start, extent.end, CHUNK_BYTES):
            pending += read(Extent(start, min(CHUNK_BYTES, extent.end - start)))
            while len(pending) >= CHUNK_BYTES:
                yield bytes(pending[:CHUNK_BYTES])
                del pending[:CHUNK_BYTES]
    if pending:
        yield bytes(pending)


def manifest_key(name: str) -> str:
    """Return the key of a manifest in an object store."""
    return f"layers/manifests/{name}.json"


async def publish(file: LayerFile, store: ObjectStore) -> PublishReport:
    """Convert a layer and put it into an object store: chunks first, the manifest last. Idempotent.

    Raises:
        InvalidRequestError: the file cannot be taken apart.
        StoreUnavailableError: the store does not answer. What was put stays, and is not sent again.
    """
    chunks = new_chunks = stored_bytes = 0
    seen: set[str] = set()

    async def put(name: str, stored: bytes) -> None:
        nonlocal chunks, new_chunks, stored_bytes
        chunks += 1
        if name not in seen and await store.put(chunk_key(name), stored, if_absent=True):
            new_chunks += 1
            stored_bytes += len(stored)
        seen.add(name)

    made = await anyio.to_thread.run_sync(lambda: convert(file, lambda *piece: anyio.from_thread.run(put, *piece)))
    await store.put(manifest_key(made.id), made.data, if_absent=True)
    return PublishReport(manifest=made.id, chunks=chunks, new_chunks=new_chunks, stored_bytes=stored_bytes)


async def fetch_manifest(store: ObjectStore, name: str, *, timeout_s: float = 30.0) -> LayerManifest:
    """Return a manifest, verified.

    Raises:
        ObjectNotFoundError: the store has not got it.
        StateCorruptedError: what it has is not that manifest, or contradicts itself.
        StoreUnavailableError: the store does not answer.
    """
    limit = manifests.MAXIMUM_DOCUMENT_BYTES + 1
    try:
        data = await store.get_range(manifest_key(name), 0, limit, timeout_s=timeout_s)
    except ObjectNotFoundError as error:
        raise ObjectNotFoundError(
            f"{store.url} has no layer manifest {name[:12]}", resolution="publish the image there again"
        ) from error
    return manifests.decode(data, store.url, expected=name)
