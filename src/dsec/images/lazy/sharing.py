"""Images in an object store: publish one, and pull it elsewhere without its bytes (docs/formats/layer-manifest.md).

An image's document names each layer by its digest and its manifest, and is named by its own BLAKE3. That name, the
*reference*, is all that has to be carried from one host to another by somebody one trusts: everything else follows from
it and is checked.
"""

from __future__ import annotations

import re
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from dsec.base.errors import (
    CapabilityMissingError,
    DsecError,
    InvalidRequestError,
    ObjectNotFoundError,
    StateCorruptedError,
)
from dsec.base.units import MIB
from dsec.images.durable import full_disk_reported
from dsec.images.layers import LayerRecord
from dsec.images.lazy.cached_layer import write_at
from dsec.images.lazy.conversion import LayerFile, fetch_manifest, manifest_key, publish
from dsec.images.lazy.fetching import FETCHES_AT_ONCE
from dsec.images.lazy.manifest import LayerManifest
from dsec.images.lazy.source import DEFAULT_TIMEOUT_S, ObjectSource, fetch_verified
from dsec.images.lazy.stored import CHUNK_BYTES, ChunkRef, name_of
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageConfig, ImageInfo, LayerFormat
from dsec.model.value import Value
from dsec.stores.objects import ObjectStore

VERSION = 1
MAXIMUM_LAYERS = 500
_MAXIMUM_DOCUMENT_BYTES = 4 * MIB
_SCHEME = "b3:"
_REFERENCE = re.compile(rf"{_SCHEME}[0-9a-f]{{64}}")


class _Layer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    digest: str
    manifest: str


class _Document(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int
    name: str
    config: ImageConfig
    source: str
    layers: tuple[_Layer, ...]


class PublishedImage(Value, frozen=True):
    """What a publication of an image came to.

    Attributes:
        reference: what to pull it by.
        layers: how many.
        chunks: pieces of all layers, metadata included.
        new_chunks: those that the store did not hold.
        stored_bytes: bytes of the new ones.
    """

    reference: str
    layers: int
    chunks: int = 0
    new_chunks: int = 0
    stored_bytes: int = 0


def image_key(name: str) -> str:
    """Return the key of an image's document in an object store."""
    return f"layers/images/{name}.json"


async def publish_image(images: LocalImageStore, name: str, store: ObjectStore) -> PublishedImage:
    """Put an image into an object store: chunks, manifests, and its document last. Idempotent.

    Raises:
        ImageNotFoundError: no such image.
        CapabilityMissingError: a layer is stored as a directory.
        InvalidRequestError: a layer is lazy, and this store has not got it.
        StoreUnavailableError: the store does not answer.
    """
    info = await anyio.to_thread.run_sync(images.get, name)
    layers, report = [], PublishedImage(reference="", layers=len(info.layers))
    for layer in info.layers:
        path, record = await anyio.to_thread.run_sync(images.stored_layer, layer.digest)
        if record.format is LayerFormat.LAZY:
            await _check_there(store, record)
            layers.append(_Layer(digest=layer.digest, manifest=record.manifest))
            continue
        sent = await publish(_file_of(path, record), store)
        layers.append(_Layer(digest=layer.digest, manifest=sent.manifest))
        report = msgspec.structs.replace(
            report,
            chunks=report.chunks + sent.chunks,
            new_chunks=report.new_chunks + sent.new_chunks,
            stored_bytes=report.stored_bytes + sent.stored_bytes,
        )
    document = _Document(version=VERSION, name=info.name, config=info.config, source=info.source, layers=tuple(layers))
    data = msgspec.json.encode(document, order="sorted")
    await store.put(image_key(name_of(data)), data, if_absent=True)
    return msgspec.structs.replace(report, reference=_SCHEME + name_of(data))


def _file_of(path: Path, record: LayerRecord) -> LayerFile:
    if record.format is LayerFormat.DIRECTORY:
        raise CapabilityMissingError(
            f"layer {record.digest} is stored as a directory, and only EROFS files can be cut into chunks",
            resolution="import the image on a host that can mount EROFS, and publish it there (dsec doctor says why)",
        )
    return LayerFile.of(path, record)


async def _check_there(store: ObjectStore, record: LayerRecord) -> None:
    if await store.head(manifest_key(record.manifest)) is None:
        raise InvalidRequestError(
            f"layer {record.digest} is here by its manifest only, and {store.url} has not got it",
            resolution="publish the image from where its layers are, or to the store that it was pulled from",
        )


async def pull_image(
    images: LocalImageStore, reference: str, store: ObjectStore, *, name: str | None = None, eager: bool = False
) -> ImageInfo:
    """Make an image of a store known here, its layers by their manifests only: chunks come when they are touched.

    A layer that is here already, in whatever form, stays as it is.

    Args:
        images: where it is to be known.
        reference: what `publish_image` returned.
        store: has the image; its lazy layers come from there.
        name: of the image here; None: the one it was published under.
        eager: fetch all of it, so that its layers are like those that were made here.

    Raises:
        InvalidRequestError: that is no reference.
        HostDiskFullError: no room for it.
        ObjectNotFoundError: the store has not got it, or a manifest of it.
        StateCorruptedError: what the store has is something else, or contradicts itself.
        StoreUnavailableError: the store does not answer.
    """
    document = await _fetch_document(store, reference)
    manifests = [await _manifest_of(store, layer) for layer in document.layers]
    digests: list[str] = []
    with images.undone_on_failure(digests):
        for manifest in manifests:
            if eager and not images.has_layer(manifest.layer):
                digests.append(await _fetch_layer(images, manifest, store))
            else:
                digests.append(await anyio.to_thread.run_sync(_add_lazy, images, manifest, store.url))
        source = f"{document.source} ({store.url})"
        return await anyio.to_thread.run_sync(
            lambda: images.add_image(name or document.name, digests, document.config, source=source)
        )


def _add_lazy(images: LocalImageStore, manifest: LayerManifest, origin: str) -> str:
    return images.add_lazy_layer(manifest, origins=[origin])


async def _fetch_layer(images: LocalImageStore, manifest: LayerManifest, store: ObjectStore) -> str:
    """Fetch all chunks of a layer, several at a time, and store the file that they make."""
    source, limiter = ObjectSource(store), anyio.CapacityLimiter(FETCHES_AT_ONCE)
    failures: list[DsecError] = []
    with images.work_directory() as work, full_disk_reported("pulling an image"):
        path = work.path / "pulled.erofs"
        with path.open("wb") as file:
            file.truncate(manifest.size_bytes)

            async def fetch(position: int, ref: ChunkRef) -> None:
                async with limiter:
                    if failures:
                        return
                    try:
                        content = await fetch_verified([source], ref, timeout_s=DEFAULT_TIMEOUT_S)
                    except DsecError as error:
                        failures.append(error)
                        return
                    await anyio.to_thread.run_sync(write_at, file.fileno(), content, position * CHUNK_BYTES)

            async with anyio.create_task_group() as group:
                for position, ref in enumerate(manifest.chunks):
                    group.start_soon(fetch, position, ref)
        if failures:
            raise failures[0]
        return await anyio.to_thread.run_sync(lambda: images.take_erofs_file(path, work, expected=manifest.layer))


async def _fetch_document(store: ObjectStore, reference: str) -> _Document:
    if _REFERENCE.fullmatch(reference) is None:
        raise InvalidRequestError(
            f"{reference[:100]!r} is no reference of a published image",
            resolution=f"give what `dsec image publish` printed: {_SCHEME} and 64 hexadecimal digits",
        )
    name = reference.removeprefix(_SCHEME)
    try:
        data = await store.get_range(image_key(name), 0, _MAXIMUM_DOCUMENT_BYTES + 1)
    except ObjectNotFoundError as error:
        raise ObjectNotFoundError(
            f"{store.url} has no image {reference}", resolution="publish it there, or name the right --store"
        ) from error
    if name_of(data) != name:
        raise _damaged(store, reference, f"its name is {_SCHEME}{name_of(data)}")
    try:
        document = msgspec.json.decode(data, type=_Document)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise _damaged(store, reference, str(error)) from error
    if document.version != VERSION or not 0 < len(document.layers) <= MAXIMUM_LAYERS:
        raise _damaged(store, reference, f"version {document.version}, {len(document.layers)} layers")
    return document


async def _manifest_of(store: ObjectStore, layer: _Layer) -> LayerManifest:
    if _REFERENCE.fullmatch(_SCHEME + layer.manifest) is None:
        raise StateCorruptedError(f"{layer.manifest[:80]!r} is no name of a manifest")
    manifest = await fetch_manifest(store, layer.manifest)
    if manifest.layer != layer.digest:
        raise StateCorruptedError(
            f"manifest {layer.manifest[:12]} of {store.url} is of another layer",
            detail=f"{manifest.layer}, not {layer.digest}",
            resolution="publish the image again",
        )
    return manifest


def _damaged(store: ObjectStore, reference: str, detail: str) -> StateCorruptedError:
    return StateCorruptedError(
        f"the image {reference} of {store.url} does not verify", detail=detail, resolution="publish it again"
    )
