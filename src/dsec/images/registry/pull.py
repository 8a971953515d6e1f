"""Pull images from a registry, or a mirror of it: ours at once, their chunks when they are touched; ordinary ones by
downloading and converting their layers.

Layers of ordinary images are downloaded several at a time, ahead of the one that is being unpacked, and each lies in a
file that a later pull goes on with if this one is killed (`download`). Unpacking, merging and naming are those of every
import (`dsec.images.importers.oci_stack`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec

from dsec.base.errors import (
    DsecError,
    HostDiskFullError,
    InvalidRequestError,
    ObjectNotFoundError,
    PermissionDeniedError,
    PlatformError,
    UnauthorizedError,
    UnsafeArchiveError,
)
from dsec.base.foreign_json import decode_foreign
from dsec.base.units import format_size
from dsec.images.command import Progress, silent
from dsec.images.importers.oci_config import OciImageConfig
from dsec.images.importers.oci_stack import import_stack
from dsec.images.importers.request import ImportRequest
from dsec.images.importers.rootfs_tar import stream_limit
from dsec.images.layers import hex_of
from dsec.images.lazy.caching.whole import fetch_whole
from dsec.images.lazy.formats import manifest as manifests
from dsec.images.lazy.formats.document import MAXIMUM_DOCUMENT_BYTES, ImageDocument, decode_document, reference_of
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.publication.pulled import PulledFrom, note_pulled
from dsec.images.meter import Meter
from dsec.images.registry import media
from dsec.images.registry.client import RegistryClient
from dsec.images.registry.configuration import mirrors_of
from dsec.images.registry.download import download
from dsec.images.registry.downloads import DOWNLOADS, Downloads
from dsec.images.registry.reference import SCHEME, Reference
from dsec.images.registry.resolve import FoundImage, find_image
from dsec.images.registry.retrying import Backoff
from dsec.images.registry.shared_traces import pull_traces
from dsec.images.registry.together import each
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageInfo

_AT_ONCE = 4
"""Transfers: more of them seldom bring more, and cost a registry."""
_TRIES_OF_A_MIRROR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """One pull.

    Attributes:
        reference: the image.
        name: of the image here; None: its reference, so that an image takes no name that nobody gave it.
        eager: of an image of ours: fetch all of it now.
        progress: takes lines for people.
    """

    reference: Reference
    name: str | None = None
    eager: bool = False
    progress: Progress = silent


async def pull_from_registry(images: LocalImageStore, request: PullRequest, client: RegistryClient) -> ImageInfo:
    """Make an image of a registry known here. What is here already is not fetched again.

    Raises:
        InvalidRequestError: the reference is of no image for this machine, or its layers cannot be unpacked.
        UnsafeArchiveError: a layer could escape, or unfolds without bound.
        HostDiskFullError: no room for it.
        ObjectNotFoundError: the registry has not got it, or a part of it.
        StateCorruptedError: what the registry has is something else, or contradicts itself.
        StoreUnavailableError, UnauthorizedError, PermissionDeniedError: as it answers.
    """
    for mirror in mirrors_of(request.reference, client.options.environment):
        try:
            return await _pull_from_mirror(images, request, client, mirror)
        except (ObjectNotFoundError, PermissionDeniedError, PlatformError, UnauthorizedError) as error:
            if isinstance(error, HostDiskFullError):
                raise
            request.progress(f"mirror {mirror.repository} is of no use: {error.brief}")
    return await _pull(images, request, client, request.reference)


async def _pull_from_mirror(
    images: LocalImageStore, request: PullRequest, client: RegistryClient, mirror: Reference
) -> ImageInfo:
    # There is another to be asked, so that this one need not be waited for.
    options = dataclasses.replace(client.options, backoff=Backoff(tries=_TRIES_OF_A_MIRROR))
    mirror_client = RegistryClient(mirror.repository.host, options)
    try:
        return await _pull(images, request, mirror_client, mirror)
    finally:
        await mirror_client.aclose()


async def _pull(images: LocalImageStore, request: PullRequest, client: RegistryClient, place: Reference) -> ImageInfo:
    """Pull from one place: the image's registry, or a mirror of it."""
    found = await find_image(client, place)
    if found.is_ours:
        return await _pull_ours(images, request, client, found)
    return await _OrdinaryPull(images, request, client, found).carry_out()


async def _pull_ours(
    images: LocalImageStore, request: PullRequest, client: RegistryClient, found: FoundImage
) -> ImageInfo:
    data = await client.document(found.repository, found.config, MAXIMUM_DOCUMENT_BYTES)
    document = decode_document(data, reference_of(data), found.told)
    pairs = list(_pairs(document, found))
    described = await _manifests(client, found, document, [manifest for manifest, _ in pairs])
    digests: list[str] = []
    with images.undone_on_failure(digests):
        for layer, (_, chunks) in zip(described, pairs, strict=True):
            _check_blob(found, layer, chunks)
            places = (found.repository, request.reference.repository)
            origins = tuple(dict.fromkeys(place.blob_url(chunks.digest) for place in places))
            digests.append(await anyio.to_thread.run_sync(partial(images.add_lazy_layer, layer, origins=origins)))
            if request.eager:
                await fetch_whole(images, layer, origins=origins, progress=_told(request.progress, layer))
        name, source = request.name or _default_name(request, found), f"{document.source} ({found.told})"
        made = await anyio.to_thread.run_sync(partial(images.add_image, name, digests, document.config, source=source))
    with anyio.CancelScope(shield=True):  # It is too late to cancel it.
        await pull_traces(images, made, client, found.repository, found.digest)
    # The image is here, and a full disk may not take that back for the sake of a note.
    with suppress(OSError):
        note_pulled(images.root, made.image_id, _pulled(request, found, data))
    return made


def _pulled(request: PullRequest, found: FoundImage, document: bytes) -> PulledFrom:
    return PulledFrom(
        reference=str(msgspec.structs.replace(request.reference, digest=found.digest)),
        store=f"{SCHEME}{request.reference.repository}",
        # What a stranger's fields that nobody reads hold need not be text; then it cannot be given back, and is not.
        document=document.decode(errors="replace"),
        manifest=found.data.decode(errors="replace"),
    )


def _pairs(document: ImageDocument, found: FoundImage) -> Iterator[tuple[media.Descriptor, media.Descriptor]]:
    """Yield the descriptors of manifest and chunks of each layer."""
    types = [descriptor.media_type for descriptor in found.layers]
    if types != [media.OUR_LAYER_MANIFEST, media.OUR_LAYER_CHUNKS] * len(document.layers):
        raise media.damaged(found.told, f"its {len(types)} blobs do not fit its {len(document.layers)} layers")
    yield from zip(found.layers[::2], found.layers[1::2], strict=True)


async def _manifests(
    client: RegistryClient, found: FoundImage, document: ImageDocument, descriptors: list[media.Descriptor]
) -> list[LayerManifest]:
    """Return the layers' manifests, verified against the document."""
    if (total_bytes := sum(descriptor.size for descriptor in descriptors)) > manifests.MAXIMUM_MANIFESTS_BYTES:
        raise media.damaged(found.told, f"the manifests of its layers would have {total_bytes} bytes")

    async def fetch(number: int) -> LayerManifest:
        data = await client.document(found.repository, descriptors[number], manifests.MAXIMUM_DOCUMENT_BYTES)
        layer = document.layers[number]
        made = manifests.decode(data, found.told, expected=layer.manifest)
        if made.layer != layer.digest:
            raise media.damaged(found.told, f"manifest {layer.manifest[:12]} is of {made.layer}")
        return made

    return await each(range(len(descriptors)), fetch, at_once=_AT_ONCE)


def _check_blob(found: FoundImage, layer: LayerManifest, chunks: media.Descriptor) -> None:
    last = layer.chunks[-1]
    if last.blob_start + last.stored_bytes != chunks.size:
        raise media.damaged(found.told, f"the chunks of layer {layer.layer[7:19]} do not fill {chunks.size} bytes")


def _told(say: Progress, layer: LayerManifest) -> Callable[[int, int], None]:
    meter = Meter(f"layer {layer.layer[7:19]}", layer.size_bytes, say)
    return lambda here_bytes, _: meter.add(here_bytes - meter.bytes)


class _OrdinaryPull:
    """A pull of an image that others built.

    A blob's lock is held only while it is downloaded, by a task that waits for nothing else then, so that no two pulls
    wait for each other. What is unpacked is a link of this pull's own, which others cannot delete.
    """

    def __init__(
        self, images: LocalImageStore, request: PullRequest, client: RegistryClient, found: FoundImage
    ) -> None:
        self._images = images
        self._request = request
        self._client = client
        self._found = found
        self._downloads = Downloads(images.root / DOWNLOADS)
        self._limiter = anyio.CapacityLimiter(_AT_ONCE)
        self._meter = Meter("downloading", sum(layer.size for layer in found.layers), request.progress)
        self._blobs: dict[str, _Blob] = {}
        self._import_request = ImportRequest(
            path=Path(str(request.reference)),
            name=request.name or _default_name(request, found),
            progress=request.progress,
            source=found.told,
        )

    async def carry_out(self) -> ImageInfo:
        """Pull; whoever pulls the same image at the same time waits, and then finds its layers here."""
        config = await self._config()
        await anyio.to_thread.run_sync(self._downloads.sweep)

        def waiting() -> None:
            self._request.progress(f"waiting for another pull of {self._found.told}")

        async with self._downloads.held(f"{hex_of(self._found.digest)}.image", on_wait=waiting) as lock:
            try:
                return await self._import(config)
            finally:
                lock.unlink(missing_ok=True)

    async def _config(self) -> OciImageConfig:
        data = await self._client.document(self._found.repository, self._found.config, media.MAXIMUM_CONFIG_BYTES)
        try:
            config = decode_foreign(data, OciImageConfig)
        except msgspec.MsgspecError as error:
            raise InvalidRequestError(
                f"{self._found.told} has no configuration of an image", detail=str(error)
            ) from error
        if len(config.rootfs.diff_ids) != len(self._found.layers):
            raise InvalidRequestError(
                f"{self._found.told} has {len(self._found.layers)} layers and {len(config.rootfs.diff_ids)} diff ids",
                resolution="push the image again",
            )
        for layer in self._found.layers:
            if layer.size > stream_limit(self._import_request):
                raise UnsafeArchiveError(
                    f"layer {layer.digest[:19]} of {self._found.told} has {format_size(layer.size)}",
                    resolution="make a smaller image; one this large is taken for an attack on the disk",
                )
        return config

    async def _import(self, config: OciImageConfig) -> ImageInfo:
        layers, diff_ids = self._found.layers, config.rootfs.diff_ids
        with self._images.work_directory() as work:
            async with anyio.create_task_group() as group:

                async def want(number: int) -> Path:
                    """Wait for the blob of a layer, and have the next ones come meanwhile. Those before it are done."""
                    self._forget(work.path, {layer.digest for layer in layers[number:]})
                    for each in range(number, min(number + _AT_ONCE, len(layers))):
                        is_here = each != number and self._images.has_diff(diff_ids[each])
                        if not is_here and layers[each].digest not in self._blobs:
                            blob = self._blobs[layers[each].digest] = _Blob()
                            group.start_soon(self._bring, layers[each], diff_ids[each], work.path, blob)
                    return await self._blobs[layers[number].digest].ready()

                made = await _threaded(
                    import_stack,
                    self._images,
                    self._import_request,
                    config,
                    lambda number: anyio.from_thread.run(want, number),
                )
                # Once the image is here it is too late to cancel it, and only the downloads end.
                group.cancel_scope.shield = True
                group.cancel_scope.cancel()
            if isinstance(made, DsecError):
                raise made
            self._forget(work.path, set())
        return made

    async def _bring(self, layer: media.Descriptor, diff_id: str, work: Path, blob: _Blob) -> None:
        """Download a blob, and link it to where nobody else deletes it."""
        name = hex_of(layer.digest)
        try:
            async with self._limiter, self._downloads.held(name) as path:
                # Another pull may have stored the layer while we waited for it; then nobody reads the file.
                if not self._images.has_diff(diff_id):
                    await download(self._client, self._found.repository, layer, path, on_bytes=self._meter.add)
                (work / name).hardlink_to(path)
        except DsecError as error:
            blob.error = error
        blob.path = work / name
        blob.done.set()

    def _forget(self, work: Path, needed: set[str]) -> None:
        """Delete the blobs that were unpacked, as far as nobody else works on them."""
        for digest, blob in list(self._blobs.items()):
            if digest not in needed and blob.done.is_set() and blob.error is None:
                del self._blobs[digest]
                (work / hex_of(digest)).unlink(missing_ok=True)
                self._downloads.discard(hex_of(digest))


class _Blob:
    """A blob on its way."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.path = Path()
        self.error: DsecError | None = None

    async def ready(self) -> Path:
        await self.done.wait()
        if self.error is not None:
            raise self.error
        return self.path


async def _threaded(
    function: Callable[[LocalImageStore, ImportRequest, OciImageConfig, Callable[[int], Path]], ImageInfo],
    images: LocalImageStore,
    request: ImportRequest,
    config: OciImageConfig,
    blob: Callable[[int], Path],
) -> ImageInfo | DsecError:
    """Call a function in a thread and return its error in place of raising it, which a task group would wrap."""
    try:
        return await anyio.to_thread.run_sync(function, images, request, config, blob)
    except DsecError as error:
        return error


def _default_name(request: PullRequest, found: FoundImage) -> str:
    """Return the name of an image here: where it is, and its tag, or a part of its digest where none was given."""
    repository, tag = request.reference.repository, request.reference.tag or hex_of(found.digest)[:12]
    place = repository.path if repository.host.startswith("[") else str(repository)  # Names hold no brackets.
    return f"{place}:{tag}"
