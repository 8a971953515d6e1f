"""Images in an object store: publish one, and pull it elsewhere without its bytes (docs/formats/layer-manifest.md).

An image's document names each layer by its digest and its manifest, and is named by its own BLAKE3. That name, the
*reference*, is all that has to be carried from one host to another by somebody one trusts: everything else follows from
it and is checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from dsec.base.errors import (
    AlreadyExistsError,
    CapabilityMissingError,
    ImageNotFoundError,
    InvalidRequestError,
    ObjectNotFoundError,
    PermissionDeniedError,
    StateCorruptedError,
    StoreUnavailableError,
)
from dsec.base.units import format_size
from dsec.images.durable import full_disk_reported
from dsec.images.layers import LayerRecord
from dsec.images.lazy.caching.bringing import Progress, untold
from dsec.images.lazy.caching.whole import fetch_whole
from dsec.images.lazy.collection.holder import holder_of, pinning
from dsec.images.lazy.collection.objects import tag_key
from dsec.images.lazy.collection.opened import open_layer_objects
from dsec.images.lazy.collection.publishing import (
    Publication,
    Say,
    publish_document,
    publish_known_layer,
    publish_layer,
    quiet,
    rely_on_layer,
)
from dsec.images.lazy.collection.roots import fetch_document, pin, resolve
from dsec.images.lazy.formats.document import (
    VERSION,
    DocumentLayer,
    ImageDocument,
    encode_document,
    image_key,
    is_reference,
    name_in,
    reference_of,
)
from dsec.images.lazy.formats.manifest import MAXIMUM_MANIFESTS_BYTES, LayerManifest
from dsec.images.lazy.publication.conversion import LayerFile, PublishReport, fetch_manifest
from dsec.images.lazy.publication.cut_layers import CutLayer, cut_before, note_cut
from dsec.images.lazy.publication.laid_out import LaidOut, lay_out_image
from dsec.images.lazy.publication.published_traces import publish_traces, pull_traces
from dsec.images.lazy.publication.pulled import PulledFrom, note_pulled, pulled_from
from dsec.images.lazy.publication.seeding import seed_published
from dsec.images.registry.reference import names_registry
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageInfo, LayerFormat
from dsec.model.image_work import PublishedImage as PublishedImage
from dsec.stores.objects import ObjectStore


async def publish_image(
    images: LocalImageStore,
    name: str,
    store: ObjectStore,
    *,
    tag: str | None = None,
    by_traces: bool = False,
    resend: bool = False,
    say: Say = quiet,
) -> PublishedImage:
    """Put an image into an object store: chunks, manifests, and its document last. Idempotent.

    Args:
        images: where it is.
        name: its name.
        store: where it goes.
        tag: what people are to pull it by, beside its reference; it moves if it is there. None: nothing.
        by_traces: lay its layers out so that what its traces name lies together (`dsec.images.lazy.erofs.layout`).
        resend: send what the store has, too, in place of what may have rotted there.
        say: told what takes long.

    Raises:
        ImageNotFoundError: no such image.
        CapabilityMissingError: a layer is stored as a directory.
        InvalidRequestError: a layer is lazy, and this store has not got it; or `tag` is no name, or one of a registry;
            or there is no trace.
        StoreUnavailableError: the store does not answer.
    """
    await anyio.to_thread.run_sync(images.get, name)  # Said before a store begins to be.
    if tag is not None:
        _check_tag(tag)
    publication = Publication(await open_layer_objects(store), say, resend=resend)
    with images.held(name) as info, images.work_directory() as work:
        there = {} if by_traces or resend else await _there_already(images, info, publication)
        laying = partial(lay_out_image, images, info, work.path, by_traces=by_traces, but=there.keys(), say=say)
        layouts = await anyio.to_thread.run_sync(laying)
        order = _Order(images, info, layouts, there, by_traces=by_traces, say=say)
        published = await _publish(order, publication, tag=tag)
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(seed_published, images, order.cut, layouts)
        return published


def _check_tag(tag: str) -> None:
    tag_key(tag)
    if names_registry(tag):
        raise InvalidRequestError(
            f"{tag!r} would be pulled from the registry {tag.partition('/')[0]}, not from this store",
            resolution="tag it with a name without a host, or put it there: dsec image push IMAGE HOST/REPOSITORY:TAG",
        )


@dataclass(frozen=True, slots=True)
class _Order:
    """What is published.

    Attributes:
        layouts: the layers that were laid out, by digest.
        there: manifests of layers that the store has, by digest; those are not cut.
        by_traces: whether they were laid out by traces.
        say: told what takes long.
        cut: manifests of the layers that were cut for it, by digest.
    """

    images: LocalImageStore
    info: ImageInfo
    layouts: Mapping[str, LaidOut]
    there: Mapping[str, LayerManifest]
    by_traces: bool
    say: Say
    cut: dict[str, LayerManifest] = field(default_factory=dict)


async def _there_already(
    images: LocalImageStore, info: ImageInfo, publication: Publication
) -> dict[str, LayerManifest]:
    """Return manifests of the layers that were cut before, and of which the store still has everything."""
    known = await anyio.to_thread.run_sync(cut_before, images, info)
    return {
        digest: cut.manifest
        for digest, cut in known.items()
        if await publish_known_layer(publication, cut.manifest) is not None
    }


async def _publish(order: _Order, publication: Publication, *, tag: str | None) -> PublishedImage:
    info, store = order.info, publication.objects.store

    def document_of(report: PublishedImage) -> bytes:
        pairs = zip(info.layers, report.manifests, strict=True)
        made = tuple(DocumentLayer(digest=layer.digest, manifest=manifest) for layer, manifest in pairs)
        return encode_document(
            ImageDocument(version=VERSION, name=info.name, config=info.config, source=info.source, layers=made)
        )

    reference, report = await publish_document(
        publication, lambda: _publish_layers(order, publication), document_of, tag=tag
    )
    with anyio.CancelScope(shield=True):  # Others know the image: it is too late to cancel it.
        await publish_traces(order.images, info, report.manifests, reference, store, layouts=order.layouts)
    return msgspec.structs.replace(report, reference=reference)


async def _publish_layers(order: _Order, publication: Publication) -> PublishedImage:
    report = PublishedImage(reference="", layers=len(order.info.layers))
    for layer in order.info.layers:
        sent = await _publish_layer(order, layer.digest, publication)
        report = msgspec.structs.replace(
            report,
            manifests=(*report.manifests, sent.manifest),
            chunks=report.chunks + sent.chunks,
            new_chunks=report.new_chunks + sent.new_chunks,
            stored_bytes=report.stored_bytes + sent.stored_bytes,
        )
    return report


async def _publish_layer(order: _Order, digest: str, publication: Publication) -> PublishReport:
    if digest in order.there and (known := await publish_known_layer(publication, order.there[digest])) is not None:
        return known
    path, record = await anyio.to_thread.run_sync(order.images.stored_layer, digest)
    if record.format is LayerFormat.LAZY:
        return await rely_on_layer(publication, record.manifest)
    layout = order.layouts.get(digest)
    order.say(f"cutting layer {digest[7:19]} into chunks: {format_size(record.size_bytes)}")
    made: list[LayerManifest] = []
    if layout is None:
        sent = await publish_layer(publication, _file_of(path, record), made=made.append)
        order.cut[digest] = made[0]
        return sent
    sent = await publish_layer(publication, layout.file, made=made.append)
    order.cut[digest] = made[0]
    note = partial(note_cut, order.images, CutLayer(made[0]), by_traces=order.by_traces)
    await anyio.to_thread.run_sync(note)
    return sent


def _file_of(path: Path, record: LayerRecord) -> LayerFile:
    if record.format is LayerFormat.DIRECTORY:
        raise CapabilityMissingError(
            f"layer {record.digest} is stored as a directory, and only EROFS files can be cut into chunks",
            resolution="import the image on a host that can mount EROFS, and publish it there (dsec doctor says why)",
        )
    return LayerFile.of(path, record)


async def pull_image(
    images: LocalImageStore,
    image: str,
    store: ObjectStore,
    *,
    name: str | None = None,
    eager: bool = False,
    progress: Progress = untold,
) -> ImageInfo:
    """Make an image of a store known here, its layers by their manifests only: chunks come when they are touched.

    A layer that is here already stays as it is, except that `eager` makes a lazy one whole. When a pull was killed, the
    next goes on with what that one had fetched.

    Args:
        images: where it is to be known.
        image: the reference that `publish_image` returned; or a tag, which means what the store says.
        store: has the image; its lazy layers come from there, and it is told that this host holds them.
        name: of the image here; None: the tag, or with a reference the name that it was published from.
        eager: fetch all of it, so that its layers are like those that were made here.
        progress: of that; told now and then, from the event loop.

    Raises:
        InvalidRequestError: that is no reference, and no name either.
        AlreadyExistsError: no name is given, and its own is that of another image that was made here.
        HostDiskFullError: no room for it.
        ObjectNotFoundError: the store has not got it, or a manifest of it; or it was unpublished meanwhile.
        StateCorruptedError: what the store has is something else, or contradicts itself.
        StoreUnavailableError: the store does not answer.
    """
    reference = await resolve(store, image)
    document = await fetch_document(store, reference)
    if name is None and is_reference(image):
        await anyio.to_thread.run_sync(_check_free, images, document)
    manifests = await _manifests_of(store, reference, document)
    digests: list[str] = []
    with images.undone_on_failure(digests):
        async with pinning(images.root):
            if not eager:
                await _hold(images, reference, store, manifests)
            for manifest in manifests:
                add = partial(images.add_lazy_layer, manifest, origins=[store.url])
                digests.append(await anyio.to_thread.run_sync(add))
        if eager:
            await _fetch_whole(images, manifests, store.url, progress)
        source = f"{document.source} ({store.url})"
        # Who pulls by a tag expects to find it so, as with a registry; a reference is no name that anybody can type.
        default_name = document.name if is_reference(image) else image
        made = await anyio.to_thread.run_sync(
            lambda: images.add_image(name or default_name, digests, document.config, source=source)
        )
    with anyio.CancelScope(shield=True):  # It is too late to cancel it.
        await pull_traces(images, made, reference, store)
    # The image is here, and a full disk may not take that back for the sake of a note.
    with suppress(OSError):
        text = encode_document(document).decode()
        kept = text if reference_of(text.encode()) == reference else ""  # Unless another version writes it otherwise.
        note_pulled(images.root, made.image_id, PulledFrom(reference=reference, store=store.url, document=kept))
    return made


def _check_free(images: LocalImageStore, document: ImageDocument) -> None:
    """Refuse the name that a document gives itself where an image has it that was made here: whoever wrote the document
    does not say what `python` is on this host. One that was pulled makes place for the next."""
    try:
        known = images.get(document.name)
    except ImageNotFoundError:
        return
    is_same = known.config == document.config and [each.digest for each in known.layers] == [
        each.digest for each in document.layers
    ]
    if not is_same and pulled_from(images.root, known.image_id) is None:
        raise AlreadyExistsError(
            f"the image calls itself {known.name!r}, and another one of this name was made on this host",
            resolution="give it a name with --name; the same one replaces what is here",
        )


async def _fetch_whole(
    images: LocalImageStore, manifests: Sequence[LayerManifest], origin: str, progress: Progress
) -> None:
    total_bytes = sum(manifest.size_bytes for manifest in manifests)
    done_bytes = 0

    def tell(here_bytes: int, _: int) -> None:
        progress(done_bytes + here_bytes, total_bytes)

    for manifest in manifests:
        await fetch_whole(images, manifest, origins=[origin], progress=tell)
        done_bytes += manifest.size_bytes


async def _hold(
    images: LocalImageStore, reference: str, store: ObjectStore, manifests: Sequence[LayerManifest]
) -> None:
    """Tell the store that this host holds layers, so that they outlive their image's being unpublished."""
    try:
        with full_disk_reported("pulling an image"):
            holder = await anyio.to_thread.run_sync(holder_of, images.root)
        await pin(store, holder, [manifest.id for manifest in manifests])
    except (PermissionDeniedError, StoreUnavailableError):
        return  # A store that may be read only: what was unpublished is there for the grace period.
    # Now, and not before, is it certain that a collector which does not see the document sees the pins.
    if await store.head(image_key(name_in(reference))) is None:
        raise ObjectNotFoundError(
            f"image {reference} was unpublished from {store.url} while it was pulled",
            resolution=f"`dsec image ls --store {store.url}` lists what is there",
        )


async def _manifests_of(store: ObjectStore, reference: str, document: ImageDocument) -> list[LayerManifest]:
    """Return the manifests of an image's layers, which stand in memory together."""
    found: list[LayerManifest] = []
    left_bytes = MAXIMUM_MANIFESTS_BYTES
    for layer in document.layers:
        found.append(await _manifest_of(store, layer))
        left_bytes -= len(found[-1].data)
        if left_bytes < 0:
            raise StateCorruptedError(
                f"the manifests of image {reference} of {store.url} are too large to be true",
                detail=f"those of {len(found)} of its {len(document.layers)} layers have more than "
                f"{format_size(MAXIMUM_MANIFESTS_BYTES)}",
                resolution="do not trust whoever published it",
            )
    return found


async def _manifest_of(store: ObjectStore, layer: DocumentLayer) -> LayerManifest:
    manifest = await fetch_manifest(store, layer.manifest)
    if manifest.layer != layer.digest:
        raise StateCorruptedError(
            f"manifest {layer.manifest[:12]} of {store.url} is of another layer",
            detail=f"{manifest.layer}, not {layer.digest}",
            resolution="publish the image again",
        )
    return manifest
