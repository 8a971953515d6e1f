"""Sources that turn out to give a layer only in order: a registry, or a proxy before it, that ignores ``Range``.

Theory. Who answers a range with the whole blob makes every chunk cost all that lies before it. One read of the blob
from its beginning brings everything, though, and everything that passes by can be verified by itself. So such a source
refuses single chunks that lie far on, says so (`gives_in_order`), and is read as a stream instead: once a layer,
however many wait for it (`dsec.images.lazy.serving.passing`, for reads; `verifying.fetched`, for checks).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol, runtime_checkable

from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.formats.stored import ChunkRef
from dsec.images.lazy.source import ChunkSource


@runtime_checkable
class InOrderSource(ChunkSource, Protocol):
    """A source of one layer that may turn out to give it only in order.

    Attributes:
        gives_in_order: whether it does at present, as far as is known: so for a while after a `fetch` that failed for
            it, until the next one finds out anew.
    """

    @property
    def gives_in_order(self) -> bool: ...

    def stream(self, start: int, end: int) -> AsyncGenerator[bytes]:
        """Yield the bytes of the layer's blob from `start` to `end`, none twice, over as many connections as it takes.

        It has no deadline; what stalls is given up as the source sees fit. Close it (`aclosing`) to end it early.

        Raises:
            ObjectNotFoundError: it has not got the blob.
            StoreUnavailableError: it does not go on, after all tries.
        """


def in_order_among(sources: Sequence[ChunkSource]) -> InOrderSource | None:
    """Return the first source that is known to give the layer only in order; None: there is none."""
    for source in sources:
        if isinstance(source, InOrderSource) and source.gives_in_order:
            return source
    return None


def blob_order(manifest: LayerManifest) -> list[ChunkRef]:
    """Return all pieces of a layer as they lie in its blob."""
    return [*manifest.metadata_chunks, *manifest.chunks]


async def cut(source: InOrderSource, refs: Sequence[ChunkRef]) -> AsyncGenerator[tuple[ChunkRef, bytes]]:
    """Yield stored chunks out of one stream, each as soon as it has passed by. One of them is in memory at a time.

    Args:
        source: gives the stream.
        refs: what is wanted, in the order of the blob; what lies between is skipped.

    Raises:
        ObjectNotFoundError, StoreUnavailableError: as of `InOrderSource.stream`.
    """
    if not refs:
        return
    position, pending, waiting = refs[0].blob_start, bytearray(), iter(refs)
    ref = next(waiting)
    async with aclosing(source.stream(position, refs[-1].blob_start + refs[-1].stored_bytes)) as stream:
        async for piece in stream:
            pending += piece
            while len(pending) >= ref.blob_start - position + ref.stored_bytes:
                begin = ref.blob_start - position
                stored = bytes(memoryview(pending)[begin : begin + ref.stored_bytes])
                del pending[: begin + ref.stored_bytes]
                position += begin + ref.stored_bytes
                yield ref, stored
                following = next(waiting, None)
                if following is None:
                    return
                ref = following
            # What nobody wants is not kept until the next that somebody does has come.
            skipped = min(len(pending), ref.blob_start - position)
            del pending[:skipped]
            position += skipped
