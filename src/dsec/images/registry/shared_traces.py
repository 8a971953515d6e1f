"""Traces beside an image in a registry, so that other hosts prefetch by them too (docs/formats/registry-image.md).

They have a tag of their own, made of the image's digest, since they come later than the image and are replaced. So
nothing proves them, and nothing relies on them: they are hints, checked like any (`dsec.images.lazy.tracing.traces`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import anyio.to_thread

from dsec.base.errors import DsecError
from dsec.images.lazy.publication.laid_out import LaidOut, moved
from dsec.images.lazy.publication.published_traces import named_by
from dsec.images.lazy.tracing import traces
from dsec.images.lazy.tracing.traces import MAXIMUM_DOCUMENT_BYTES, MAXIMUM_TRACES, Trace, TraceShelf
from dsec.images.registry import media
from dsec.images.registry.client import RegistryClient
from dsec.images.registry.reference import Repository
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageInfo


def tag_of_traces(digest: str) -> str:
    """Return the tag under which the traces of the image with this digest are."""
    return f"traces-{digest.replace(':', '-')}"


def known_traces(
    images: LocalImageStore, info: ImageInfo, manifests: Sequence[str], layouts: Mapping[str, LaidOut]
) -> list[Trace]:
    """Return what is known of an image's reads, about the files that its manifests are of. Blocks.

    Args:
        images: has the traces.
        info: the image.
        manifests: of its layers, from the lowest up.
        layouts: the layers that were laid out anew, by digest.
    """
    found = TraceShelf(images.root).of(info.image_id)
    about = (moved(trace, layouts) if layouts else trace for trace in found)
    return [named for trace in about if (named := named_by(trace, manifests)) is not None]


def manifest_of_traces(image: media.Descriptor, config: media.Descriptor, blobs: Sequence[media.Descriptor]) -> bytes:
    """Return the OCI manifest that names traces as what belongs to an image."""
    document = media.Document(
        schema_version=2,
        media_type=media.OCI_MANIFEST,
        artifact_type=media.OUR_TRACE,
        config=config,
        layers=list(blobs),
        subject=image,
    )
    return media.encode_document(document)


async def pull_traces(
    images: LocalImageStore, info: ImageInfo, client: RegistryClient, repository: Repository, digest: str
) -> int:
    """Keep the traces of an image that are not here yet, and return how many those were.

    Without them the image is as good as with them, so that nothing about them is an error.
    """
    shelf, count = TraceShelf(images.root), 0
    with contextlib.suppress(DsecError, OSError):
        found = await client.manifest(repository, tag_of_traces(digest))
        for descriptor in found.document.layers[:MAXIMUM_TRACES]:
            if descriptor.media_type != media.OUR_TRACE:
                continue
            with contextlib.suppress(DsecError):
                data = await client.document(repository, descriptor, MAXIMUM_DOCUMENT_BYTES)
                trace = traces.decode(data, repository.blob_url(descriptor.digest))
                if trace.image_id == info.image_id and shelf.get(info.image_id, trace.command) is None:
                    await anyio.to_thread.run_sync(shelf.put, trace)
                    count += 1
    return count
