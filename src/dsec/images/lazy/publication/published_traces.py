"""Traces beside a published image, so that other hosts prefetch by them too (docs/formats/layer-trace.md).

They go under the image's reference and not into its document: traces come later than images, and a better one takes the
place of another, while a document never changes. So nothing proves them, and nothing relies on them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import anyio.to_thread
import msgspec

from dsec.base.errors import DsecError, StateCorruptedError
from dsec.images.lazy.formats.document import name_in
from dsec.images.lazy.publication.laid_out import LaidOut, moved
from dsec.images.lazy.tracing import traces
from dsec.images.lazy.tracing.traces import MAXIMUM_DOCUMENT_BYTES, MAXIMUM_TRACES, Trace, TraceShelf, file_of
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageInfo
from dsec.stores.objects import ObjectStore

_MOST_LISTED = 8 * MAXIMUM_TRACES


def trace_prefix(reference: str) -> str:
    """Return what the keys of an image's traces begin with, in an object store."""
    return f"layers/traces/{name_in(reference)}/"


async def publish_traces(
    images: LocalImageStore,
    info: ImageInfo,
    manifests: Sequence[str],
    reference: str,
    store: ObjectStore,
    *,
    layouts: Mapping[str, LaidOut] = {},
) -> int:
    """Put what is known of an image's reads beside it, and return how many traces that were.

    Args:
        images: has the traces.
        info: the image.
        manifests: of its layers, from the lowest up, as they were published.
        reference: what it was published as.
        store: where.
        layouts: the layers that were laid out anew for it, by digest.

    Raises:
        StoreUnavailableError: the store does not answer.
    """
    found = await anyio.to_thread.run_sync(TraceShelf(images.root).of, info.image_id)
    about = (moved(trace, layouts) if layouts else trace for trace in found)
    named = [each for trace in about if (each := named_by(trace, manifests)) is not None]
    for trace in named:
        await store.put(trace_prefix(reference) + file_of(trace.command), traces.encode(trace))
    return len(named)


def named_by(trace: Trace, manifests: Sequence[str]) -> Trace | None:
    """Return a trace whose layers are those of manifests; None where it is about other files."""
    if len(trace.layers) != len(manifests):
        return None
    pairs = list(zip(trace.layers, manifests, strict=True))
    if any(layer.manifest not in ("", manifest) for layer, manifest in pairs):
        return None
    layers = tuple(msgspec.structs.replace(layer, manifest=manifest) for layer, manifest in pairs)
    return msgspec.structs.replace(trace, layers=layers)


async def pull_traces(images: LocalImageStore, info: ImageInfo, reference: str, store: ObjectStore) -> int:
    """Keep the traces of a published image that are not here yet, and return how many those were.

    Without them the image is as good as with them, so that nothing about them is an error.
    """
    shelf, count = TraceShelf(images.root), 0
    with contextlib.suppress(DsecError, OSError):
        looked_at = 0
        async for entry in store.list(trace_prefix(reference)):
            looked_at += 1
            if looked_at > _MOST_LISTED:
                break  # A store may say that there are more for ever.
            if count >= MAXIMUM_TRACES or entry.size_bytes > MAXIMUM_DOCUMENT_BYTES:
                continue
            data = await store.get_range(entry.key, 0, MAXIMUM_DOCUMENT_BYTES + 1)
            with contextlib.suppress(StateCorruptedError):
                # The id of an image follows from its settings too, of which another version may know more.
                trace = msgspec.structs.replace(traces.decode(data, entry.key), image_id=info.image_id)
                is_of_it = [layer.digest for layer in trace.layers] == [layer.digest for layer in info.layers]
                if is_of_it and shelf.get(info.image_id, trace.command) is None:
                    await anyio.to_thread.run_sync(shelf.put, trace)
                    count += 1
    return count
