"""Traces of images that nobody ran."""

from __future__ import annotations

from dsec.images.lazy.tracing.traces import Trace, TracedLayer
from dsec.model.image import ImageInfo

_PAGE_BYTES = 4096


def trace_of_end(info: ImageInfo) -> Trace:
    """Return a trace of ``python3`` that reads the last page but one of an image's lowest layer: laid out by it, the
    layer comes to something else than by its content alone.
    """
    layer = info.layers[0]
    return Trace(
        version=1,
        image_id=info.image_id,
        command="python3",
        argv=("python3",),
        source="trace",
        runs=1,
        recorded_at_s=1.0,
        layers=(TracedLayer(digest=layer.digest, size_bytes=layer.size_bytes),),
        reads=((0, layer.size_bytes // _PAGE_BYTES - 2, 1, 0),),
    )
