"""Layers of an image laid out anew for their publication: the same trees, read in fewer chunks, and shared in more.

A file that was laid out is compared with the layer's digest, entry by entry and byte by byte, before anybody has it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dsec.base.errors import DsecError, InvalidRequestError, StateCorruptedError
from dsec.base.units import format_size
from dsec.images import erofs
from dsec.images.command import Progress, silent
from dsec.images.durable import full_disk_reported
from dsec.images.lazy.erofs.layout import Moves, lay_out
from dsec.images.lazy.erofs.metadata import Extent
from dsec.images.lazy.formats.manifest import BLOCK_BYTES
from dsec.images.lazy.publication.conversion import LayerFile
from dsec.images.lazy.tracing.traces import ReadLog, Trace, TraceShelf
from dsec.images.listing import tree_digest
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageInfo, LayerFormat


@dataclass(frozen=True, slots=True)
class LaidOut:
    """A layer that was laid out.

    Attributes:
        file: the new file.
        moves: where the data of the old one is in it.
    """

    file: LayerFile
    moves: Moves


def lay_out_image(
    images: LocalImageStore,
    info: ImageInfo,
    directory: Path,
    *,
    by_traces: bool,
    but: Collection[str] = (),
    say: Progress = silent,
) -> dict[str, LaidOut]:
    """Lay out the layers of an image that are wholly here, so that their chunks are shared with other layers.

    Args:
        images: has the layers and the traces.
        info: the image.
        directory: where the files are made.
        by_traces: put what the image's traces name in front: that of the first use, then the latest ones.
        but: layers that are left as they are.
        say: told what takes long.

    Returns:
        The layers by digest. Those that cannot be laid out, or for which there is no room, stay as they are, unless it
        is to be done by traces.

    Raises:
        InvalidRequestError: `by_traces`, and the image has no trace, or a layer cannot be laid out.
        HostDiskFullError: `by_traces`, and no room.
    """
    traces = _traces(images, info) if by_traces else ()
    found = {}
    for place, layer in enumerate(info.layers):
        path, record = images.stored_layer(layer.digest)
        if record.format is LayerFormat.EROFS and layer.digest not in found and layer.digest not in but:
            target = directory / f"{place}.erofs"
            how = " by what is read first" if by_traces else ""
            say(f"laying layer {layer.digest[7:19]} out{how}: {format_size(record.size_bytes)}")
            read = [extent for each in traces for extent in _reads(each, place, layer.digest)]
            try:
                with full_disk_reported("laying a layer out"):
                    moves = lay_out(path, target, read)
                _check(target, layer.digest)
            except DsecError:
                if by_traces:
                    raise
                # Published as it is it is as good, and shared less.
                target.unlink(missing_ok=True)
                continue
            found[layer.digest] = LaidOut(LayerFile(target, layer.digest, record.entries), moves)
    return found


def laid_out_again(
    images: LocalImageStore, digest: str, directory: Path, *, traced: ImageInfo | None = None
) -> Path | None:
    """Lay out a layer that is wholly here as when it was cut; None: it cannot be. Blocks.

    Args:
        images: has the layer.
        digest: the layer's.
        directory: where the file is made.
        traced: the image by whose traces it was laid out; other ones now make another file. None: by content alone.
    """
    path, record = images.stored_layer(digest)
    if record.format is not LayerFormat.EROFS:
        return None
    target = directory / "laid-out.erofs"
    try:
        place = -1 if traced is None else [layer.digest for layer in traced.layers].index(digest)
        traces = () if traced is None else _traces(images, traced)
        with full_disk_reported("laying a layer out"):
            lay_out(path, target, [extent for each in traces for extent in _reads(each, place, digest)])
    except DsecError:
        return None
    return target


def _traces(images: LocalImageStore, info: ImageInfo) -> tuple[Trace, ...]:
    shelf = TraceShelf(images.root)
    first = shelf.first(info.image_id)
    if first is None:
        raise InvalidRequestError(
            f"image {info.name} has no trace to lay it out by",
            resolution=f"record what it is used for: dsec image trace {info.name} -- COMMAND",
        )
    return (first, *(trace for trace in shelf.of(info.image_id) if trace.command != first.command))


def _reads(trace: Trace, place: int, digest: str) -> list[Extent]:
    if place >= len(trace.layers) or trace.layers[place].digest != digest or trace.layers[place].manifest:
        return []  # It is about another file of the layer.
    return [
        Extent(block * BLOCK_BYTES, blocks * BLOCK_BYTES) for layer, block, blocks, _ in trace.reads if layer == place
    ]


def _check(file: Path, digest: str) -> None:
    with tempfile.TemporaryDirectory(dir=file.parent) as scratch, erofs.opened(file, Path(scratch)) as root_fd:
        found, _ = tree_digest(root_fd)
    if found != digest:
        raise StateCorruptedError(
            f"layer {digest} became another one when it was laid out",
            detail=f"its content has the digest {found}",
            resolution="publish the image without --trace, and report this",
        )


def moved(trace: Trace, layouts: Mapping[str, LaidOut]) -> Trace:
    """Return what a trace says of files that were laid out anew."""
    log = ReadLog([() for _ in trace.layers])
    for layer, block, blocks, after_ms in trace.reads:
        layout = layouts.get(trace.layers[layer].digest)
        runs: Sequence[tuple[int, int]] = [(block, blocks)] if layout is None else layout.moves.of(block, blocks)
        for start, count in runs:
            log.add(layer, start * BLOCK_BYTES, count * BLOCK_BYTES, after_ms / 1000)
    layers = tuple(
        layer
        if layer.digest not in layouts
        else msgspec.structs.replace(layer, size_bytes=layouts[layer.digest].file.path.stat().st_size)
        for layer in trace.layers
    )
    return msgspec.structs.replace(trace, reads=log.reads(), layers=layers)
