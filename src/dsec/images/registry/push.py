"""Push an image to a registry in our format, so that others mount its layers by ranges of blobs
(docs/formats/registry-image.md).

A layer is cut into chunks and written to a file first: its digest is known at the end only, and what the registry has
already need not be sent. A layer that is here by its manifest alone is taken over within its registry, without a byte.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from dsec.base.errors import CapabilityMissingError, InvalidRequestError
from dsec.images.command import Progress, silent
from dsec.images.durable import full_disk_reported
from dsec.images.layers import LayerRecord
from dsec.images.lazy.formats import manifest as manifests
from dsec.images.lazy.formats.document import VERSION, DocumentLayer, ImageDocument, encode_document
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.publication.conversion import LayerFile, convert
from dsec.images.lazy.publication.cut_layers import CutLayer, cut_before, note_cut
from dsec.images.lazy.publication.laid_out import LaidOut, lay_out_image
from dsec.images.lazy.publication.seeding import seed_published
from dsec.images.lazy.tracing import traces
from dsec.images.meter import Meter
from dsec.images.registry import media
from dsec.images.registry.client import RegistryClient, digest_of
from dsec.images.registry.reference import SCHEME, Reference, parse_blob_url
from dsec.images.registry.shared_traces import known_traces, manifest_of_traces, tag_of_traces
from dsec.images.registry.together import each
from dsec.images.registry.upload import BlobFile, has_blob, put_manifest, upload_blob
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageInfo, LayerFormat
from dsec.model.image_work import PushedImage as PushedImage

_LAYERS_AT_ONCE = 2
"""One is cut into chunks while another is sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PushRequest:
    """One push.

    Attributes:
        name: of the image here.
        reference: where it goes; its tag moves there.
        by_traces: lay its layers out so that what its traces name lies together (`dsec.images.lazy.erofs.layout`).
        progress: takes lines for people.
    """

    name: str
    reference: Reference
    by_traces: bool = False
    progress: Progress = silent


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer in the repository."""

    manifest: LayerManifest
    descriptors: tuple[media.Descriptor, media.Descriptor]


async def push_image(images: LocalImageStore, request: PushRequest, client: RegistryClient) -> PushedImage:
    """Put an image into a registry: blobs first, the manifest last. Idempotent.

    Raises:
        ImageNotFoundError: no such image.
        CapabilityMissingError: a layer is stored as a directory.
        InvalidRequestError: a layer is lazy and this registry has not got it; or the reference names a digest; or it
            is to be laid out by traces, and there are none.
        HostDiskFullError: no room for a layer's chunks.
        StoreUnavailableError, UnauthorizedError, PermissionDeniedError: as the registry answers. What was sent stays
            there, and is not sent again.
    """
    if request.reference.digest:
        raise InvalidRequestError(
            f"an image cannot be pushed to {request.reference}: its digest is known afterwards",
            resolution="name a tag",
        )
    return await _Push(images, request, client).carry_out()


class _Push:
    """One push under way."""

    def __init__(self, images: LocalImageStore, request: PushRequest, client: RegistryClient) -> None:
        self._images = images
        self._request = request
        self._client = client
        self._repository = request.reference.repository
        self._layouts: dict[str, LaidOut] = {}
        self._there: dict[str, CutLayer] = {}
        """Layers that were cut before, and whose blobs the repository has, perhaps from another one, by digest."""
        self._cut: dict[str, LayerManifest] = {}
        """Manifests of the layers that were cut, by digest."""
        self._sent_bytes = 0
        self._present_bytes = 0

    async def carry_out(self) -> PushedImage:
        with self._images.held(self._request.name) as info:
            return await self._pushed(info)

    async def _pushed(self, info: ImageInfo) -> PushedImage:
        # Who may not come in is told so before layers are laid out and cut, which takes long.
        await has_blob(self._client, self._repository, digest_of(b"{}"))
        with self._images.work_directory() as work:
            by_traces = self._request.by_traces
            if not by_traces:
                await self._look(info)
            but, say = self._there.keys(), self._request.progress
            laying = partial(lay_out_image, self._images, info, work.path, by_traces=by_traces, but=but, say=say)
            self._layouts = await anyio.to_thread.run_sync(laying)
            pushed = await self._put_image(info)
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(seed_published, self._images, self._cut, self._layouts)
            return pushed

    async def _look(self, info: ImageInfo) -> None:
        """Find out which layers need not be cut."""
        known = await anyio.to_thread.run_sync(cut_before, self._images, info)
        for digest, cut in known.items():
            with contextlib.suppress(InvalidRequestError):  # It was cut, and never pushed.
                elsewhere, blob = parse_blob_url(cut.blob)
                if await has_blob(self._client, self._repository, blob, elsewhere=elsewhere):
                    self._there[digest] = cut

    async def _put_image(self, info: ImageInfo) -> PushedImage:
        layers = await each([layer.digest for layer in info.layers], self._layer, at_once=_LAYERS_AT_ONCE)
        described = await self._put_bytes(media.OUR_CONFIG, _document(info, layers))
        data = _encoded(described, [part for layer in layers for part in layer.descriptors])
        reference = self._request.reference
        target = reference.tag or digest_of(data)
        with anyio.CancelScope(shield=True):  # Once others know the image it is too late to cancel it.
            digest = await put_manifest(self._client, self._repository, target, media.OCI_MANIFEST, data)
            await self._put_traces(info, layers, media.Descriptor(media.OCI_MANIFEST, digest, len(data)))
        return PushedImage(
            reference=str(Reference(repository=self._repository, tag=reference.tag, digest=digest)),
            layers=len(layers),
            sent_bytes=self._sent_bytes,
            present_bytes=self._present_bytes,
        )

    async def _put_traces(self, info: ImageInfo, layers: Sequence[_Layer], image: media.Descriptor) -> None:
        """Put what is known of the image's reads beside it, in place of what was there."""
        names = [layer.manifest.id for layer in layers]
        known = await anyio.to_thread.run_sync(known_traces, self._images, info, names, self._layouts)
        if not known:
            return
        blobs = [await self._put_bytes(media.OUR_TRACE, traces.encode(trace)) for trace in known]
        data = manifest_of_traces(image, await self._put_bytes(media.EMPTY, b"{}"), blobs)
        await put_manifest(self._client, self._repository, tag_of_traces(image.digest), media.OCI_MANIFEST, data)

    async def _layer(self, digest: str) -> _Layer:
        if digest in self._there:
            cut = self._there[digest]
            self._present_bytes += cut.blob_bytes
            chunks = media.Descriptor(media.OUR_LAYER_CHUNKS, parse_blob_url(cut.blob)[1], cut.blob_bytes)
            return _Layer(cut.manifest, (await self._put_bytes(media.OUR_LAYER_MANIFEST, cut.manifest.data), chunks))
        path, record = await anyio.to_thread.run_sync(self._images.stored_layer, digest)
        if record.format is LayerFormat.DIRECTORY:
            raise CapabilityMissingError(
                f"layer {digest} is stored as a directory, and only EROFS files can be cut into chunks",
                resolution="import the image on a host that can mount EROFS, and push it there (dsec doctor says why)",
            )
        if record.format is LayerFormat.LAZY:
            return await self._taken_over(path, record)
        with self._images.work_directory() as work, full_disk_reported(f"cutting layer {digest[7:19]} into chunks"):
            file = work.path / "blob"
            self._request.progress(f"cutting layer {digest[7:19]} into chunks")
            layout = self._layouts.get(digest)
            whole = LayerFile.of(path, record) if layout is None else layout.file
            manifest, blob = await anyio.to_thread.run_sync(_cut, whole, file)
            chunks = await self._put(media.OUR_LAYER_CHUNKS, blob, of=digest)
            if layout is not None:
                cut = CutLayer(manifest, self._repository.blob_url(blob.digest), blob.size_bytes)
                await anyio.to_thread.run_sync(partial(note_cut, self._images, cut, by_traces=self._request.by_traces))
        return _Layer(manifest, (await self._put_bytes(media.OUR_LAYER_MANIFEST, manifest.data), chunks))

    async def _taken_over(self, path: Path, record: LayerRecord) -> _Layer:
        """Have a layer that is here by its manifest only in the repository, from another one of the same registry."""
        data = await anyio.to_thread.run_sync(path.read_bytes)
        manifest = manifests.decode(data, str(path), expected=record.manifest)
        last = manifest.chunks[-1]
        size_bytes = last.blob_start + last.stored_bytes
        for origin in record.origins:
            if not origin.startswith(SCHEME):
                continue
            repository, digest = parse_blob_url(origin)
            if repository.host != self._repository.host:
                continue
            if await has_blob(self._client, self._repository, digest, elsewhere=repository):
                self._present_bytes += size_bytes
                chunks = media.Descriptor(media.OUR_LAYER_CHUNKS, digest, size_bytes)
                return _Layer(manifest, (await self._put_bytes(media.OUR_LAYER_MANIFEST, data), chunks))
        raise InvalidRequestError(
            f"layer {record.digest} is here by its manifest only, and {self._repository.host} has not got it",
            detail=f"it comes from {', '.join(record.origins) or 'the object store of this node'}",
            resolution="fetch all of it first (dsec image pull --eager), or push it from where its layers are",
        )

    async def _put(self, media_type: str, blob: BlobFile, *, of: str = "") -> media.Descriptor:
        """Have a blob in the repository; of a layer, say how far that is: documents are there in a moment."""
        if await has_blob(self._client, self._repository, blob.digest):
            self._present_bytes += blob.size_bytes
        else:
            say = self._request.progress if of else silent
            meter = Meter(f"sending layer {of[7:19]}", blob.size_bytes, say)
            await upload_blob(self._client, self._repository, blob, on_bytes=meter.add)
            self._sent_bytes += blob.size_bytes
        return media.Descriptor(media_type, blob.digest, blob.size_bytes)

    async def _put_bytes(self, media_type: str, data: bytes) -> media.Descriptor:
        with self._images.work_directory() as work, full_disk_reported("pushing an image"):
            path = work.path / "document"
            await anyio.to_thread.run_sync(path.write_bytes, data)
            return await self._put(media_type, BlobFile(path, digest_of(data), len(data)))


def _cut(file: LayerFile, target: Path) -> tuple[LayerManifest, BlobFile]:
    """Write a layer's blob to a file. Blocks."""
    hasher, size_bytes = hashlib.sha256(), 0
    with target.open("wb") as stream:

        def sink(_: str, stored: bytes) -> None:
            nonlocal size_bytes
            stream.write(stored)
            hasher.update(stored)
            size_bytes += len(stored)

        manifest = convert(file, sink)
    return manifest, BlobFile(target, f"sha256:{hasher.hexdigest()}", size_bytes)


def _document(info: ImageInfo, layers: Sequence[_Layer]) -> bytes:
    return encode_document(
        ImageDocument(
            version=VERSION,
            name=info.name,
            config=info.config,
            source=info.source,
            layers=tuple(DocumentLayer(digest=layer.manifest.layer, manifest=layer.manifest.id) for layer in layers),
        )
    )


def _encoded(config: media.Descriptor, layers: Sequence[media.Descriptor]) -> bytes:
    return media.encode_document(
        media.Document(
            schema_version=2,
            media_type=media.OCI_MANIFEST,
            artifact_type=media.OUR_CONFIG,
            config=config,
            layers=list(layers),
        )
    )
