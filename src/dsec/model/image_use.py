"""What came of images that are loaded when touched, and what of them was read."""

from __future__ import annotations

from dsec.model.value import Value


class LayerUse(Value, frozen=True):
    """What came of a layer, and what of it was read; content bytes, in whole chunks.

    Attributes:
        manifest: name of its manifest.
        layer: its digest.
        size_bytes: of its file.
        metadata_bytes: what is always fetched first.
        touched_bytes: chunks that were read, those that came beforehand included.
        prefetched_bytes: of these, what had come beforehand.
        wasted_bytes: what came beforehand and was not read, so far.
        fetched_bytes: what came from sources at least once, metadata included.
        cached_bytes: what the cache counts of it now: chunks, and the metadata apart.
        is_complete: all of it is here, so that further reads are seen by nobody.
        age_s: seconds since it was mounted first.
    """

    manifest: str
    layer: str
    size_bytes: int
    metadata_bytes: int
    touched_bytes: int = 0
    prefetched_bytes: int = 0
    wasted_bytes: int = 0
    fetched_bytes: int = 0
    cached_bytes: int = 0
    is_complete: bool = False
    age_s: float = 0.0


class ImageUse(Value, frozen=True):
    """What came of an image, and what of it was read; content bytes, in whole chunks.

    Attributes:
        image: its name.
        image_id: its id.
        size_bytes: of its layers' files.
        here_bytes: of these, what is on this host: what `dsec image ls` and `layers` say too.
        local_bytes: of those that are wholly here and were never loaded when touched: of them nothing is seen.
        touched_bytes, prefetched_bytes, wasted_bytes, fetched_bytes: of the others; see `LayerUse`.
        layers: what they are of, one a lazy layer.
        commands: names of the programs that it has traces of; empty text: that of its first use.
    """

    image: str
    image_id: str
    size_bytes: int
    here_bytes: int
    local_bytes: int
    touched_bytes: int
    prefetched_bytes: int
    wasted_bytes: int
    fetched_bytes: int
    layers: tuple[LayerUse, ...]
    commands: tuple[str, ...]
