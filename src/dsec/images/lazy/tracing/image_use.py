"""What of images was read, what came beforehand, and what is here: the marks of their lazy layers, summed up."""

from __future__ import annotations

from collections.abc import Iterable

from dsec.images.lazy.serving.client import LayerDaemon
from dsec.images.lazy.tracing.traces import TraceShelf
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageInfo, LayerFormat
from dsec.model.image_use import ImageUse as ImageUse


def image_uses(images: LocalImageStore, chosen: Iterable[ImageInfo], daemon: LayerDaemon) -> tuple[ImageUse, ...]:
    """Sum up what is known of images. A daemon that does not run is started where an image has lazy layers.

    Raises:
        NodeUnavailableError: no daemon answers.
        StateCorruptedError: an image's layer is damaged.
    """
    shelf = TraceShelf(images.root)
    return tuple(_use(images, image, daemon, shelf) for image in chosen)


def lazy_manifests(images: LocalImageStore, image: ImageInfo) -> dict[str, str]:
    """Return the names of the manifests of an image's lazy layers, by digest."""
    lazy = [layer.digest for layer in image.layers if layer.format is LayerFormat.LAZY]
    records = (images.stored_layer(digest)[1] for digest in lazy)
    return {record.digest: record.manifest for record in records if record.format is LayerFormat.LAZY}


def _use(images: LocalImageStore, image: ImageInfo, daemon: LayerDaemon, shelf: TraceShelf) -> ImageUse:
    manifests = lazy_manifests(images, image)
    uses = daemon.statistics(list(manifests.values())) if manifests else ()
    size_bytes = sum(layer.size_bytes for layer in image.layers)
    return ImageUse(
        image=image.name,
        image_id=image.image_id,
        size_bytes=size_bytes,
        here_bytes=sum(images.here_of(image)),
        local_bytes=sum(layer.size_bytes for layer in image.layers if layer.digest not in manifests),
        touched_bytes=sum(use.touched_bytes for use in uses),
        prefetched_bytes=sum(use.prefetched_bytes for use in uses),
        wasted_bytes=sum(use.wasted_bytes for use in uses),
        fetched_bytes=sum(use.fetched_bytes for use in uses),
        layers=uses,
        commands=tuple(sorted(trace.command for trace in shelf.of(image.image_id))),
    )
