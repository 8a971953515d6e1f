"""What a command touched of an image, seen from outside of everything that loads it: by the page cache.

After a command ran on layers that are all here, and of which nothing was cached before, the pages of files that the
kernel holds are those that were read (and read ahead), and the pages of the layer's device are the file system's
metadata that was. Rounded up to chunks, that is the least that has to be fetched for the same command.
"""

from __future__ import annotations

import errno
import os
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.formats.stored import CHUNK_BYTES, ChunkRef
from dsec.linux.mounts import mounts_under
from dsec.linux.page_cache import cached_ranges, device_size, extents
from dsec.model.value import Value


class Touched(Value, frozen=True):
    """What was touched of one layer.

    Attributes:
        layer: its digest.
        page_bytes: pages of files and of metadata.
        chunks: chunks with such pages.
        metadata_chunks: pieces of the packed metadata with such pages.
    """

    layer: str
    page_bytes: int
    chunks: tuple[ChunkRef, ...]
    metadata_chunks: tuple[ChunkRef, ...]

    @property
    def content_bytes(self) -> int:
        """What all of it comes to, rounded up to chunks."""
        return sum(ref.content_bytes for ref in (*self.chunks, *self.metadata_chunks))

    @property
    def stored_bytes(self) -> int:
        """The same as it is stored, which is what crosses a link."""
        return sum(ref.stored_bytes for ref in (*self.chunks, *self.metadata_chunks))


def touched(mount: Path, manifest: LayerManifest) -> Touched:
    """Say what was touched of a mounted layer since it was mounted. Blocks for a look at each of its files."""
    (device,) = (entry.source for entry in mounts_under(mount) if entry.target == os.path.realpath(mount))
    files = [piece for path in _files(mount) for piece in _cached_on_device(path)]
    descriptor = os.open(device, os.O_RDONLY)
    try:
        metadata = list(cached_ranges(descriptor, device_size(descriptor)))
    finally:
        os.close(descriptor)
    packed = _metadata_positions(metadata, manifest)
    # Tails of files lie among the metadata, unaligned, and are fetched with it.
    positions = {at // CHUNK_BYTES for each in files for at in range(each.start, each.stop, 4096)}
    return Touched(
        layer=manifest.layer,
        page_bytes=sum(map(len, (*files, *metadata))),
        chunks=tuple(manifest.chunks[position] for position in sorted(positions)),
        metadata_chunks=tuple(manifest.metadata_chunks[position] for position in sorted(packed)),
    )


def _files(root: Path) -> Iterator[Path]:
    for directory, _, names in os.walk(root):
        for name in names:
            path = Path(directory, name)
            if path.is_file() and not path.is_symlink():
                yield path


def _cached_on_device(path: Path) -> Iterator[range]:
    """Yield where on the device the pages of a file lie that are cached, without its tail among the metadata."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENOENT):
            return
        raise
    try:
        cached = list(cached_ranges(descriptor, device_size(descriptor)))
        for logical, physical, length in extents(descriptor) if cached else ():
            for pages in cached:
                start, stop = max(pages.start, logical), min(pages.stop, logical + length)
                if start < stop and physical % 4096 == 0:
                    yield range(start - logical + physical, stop - logical + physical)
    finally:
        os.close(descriptor)


def _metadata_positions(pages: list[range], manifest: LayerManifest) -> set[int]:
    """Return the pieces of the packed metadata in which pages of the device lie."""
    starts = [extent.start for extent in manifest.metadata]
    packed = [0, *accumulate(extent.length for extent in manifest.metadata)]
    found = set()
    for each in pages:
        for at in range(each.start, each.stop, 4096):
            place = bisect_right(starts, at) - 1
            if place >= 0 and at < manifest.metadata[place].end:
                found.add((packed[place] + at - starts[place]) // CHUNK_BYTES)
    return found
