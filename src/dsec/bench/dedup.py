"""`dedup`: how much of twenty related images is stored once, and by which way.

The images are those of `dedup_images`: a base, a runtime and tools each, every part rebuilt at its own rate. Measured
is what each way stores for all of them, against what it stores for each alone, summed up:

- chunks of layers laid out for sharing, each once (ours), and of layers as mkfs.erofs lays them out;
- whole files, each content once, as composefs and ostree keep them, compressed as chunks are, with the metadata of each
  layer beside them;
- whole layers as gzip tars, each once, as a registry and an image store of containers keep them;
- a gzip tar of each image.

The time for the layout is told apart, and so is what reading costs: all files of the largest layer are read from front
to back, caches dropped before, from the file as mkfs.erofs made it and from the one laid out, in turn.

The lengths of gzip tars are drawn up from every eighth MiB, since gzip takes longer than everything else together.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio.to_thread

from dsec.base.units import MIB, format_size
from dsec.bench.context import BenchContext
from dsec.bench.dedup_images import RelatedImage, Workload
from dsec.bench.distribution import distribution, ratio
from dsec.bench.report import Report, make_report
from dsec.images import erofs
from dsec.images.layer_tar import write_layer_tar
from dsec.images.lazy.erofs.layout import lay_out
from dsec.images.lazy.erofs.metadata import metadata_extents
from dsec.images.lazy.formats.stored import encode
from dsec.images.lazy.publication.conversion import LayerFile, convert
from dsec.images.listing import walk
from dsec.images.staging import remove_tree
from dsec.images.store import LocalImageStore

GOAL = 0.6
_CHUNKS, _PLAIN = "chunks, laid out for sharing", "chunks in the order of mkfs.erofs"
_FILES, _LAYERS, _TARS = "whole files, each once", "gzip tars of layers, each once", "a gzip tar of each image"
_SAMPLED = 8
_PIECE_BYTES = 4 * MIB
_ROUNDS = 3


@dataclass(slots=True)
class _Way:
    """What one way stores: the length of each piece, by its name, for each layer."""

    name: str
    pieces: dict[str, dict[str, int]] = field(default_factory=dict)

    def alone(self, images: Sequence[RelatedImage]) -> int:
        """Return what it stores for each image alone, summed up."""
        return sum(sum(self._of([image]).values()) for image in images)

    def together(self, images: Sequence[RelatedImage]) -> int:
        """Return what it stores for all of them."""
        return sum(self._of(images).values())

    def saved(self, images: Sequence[RelatedImage]) -> float:
        return 1 - self.together(images) / self.alone(images)

    def _of(self, images: Sequence[RelatedImage]) -> dict[str, int]:
        layers = dict.fromkeys(digest for image in images for digest in image.layers)
        return {name: length for layer in layers for name, length in self.pieces[layer].items()}


async def bench_dedup(context: BenchContext) -> Report:
    """Measure what twenty related images share, beside other ways to keep them."""
    return await anyio.to_thread.run_sync(_measure, context)


def _measure(context: BenchContext) -> Report:
    directory = context.workplace.directory / "dedup"
    directory.mkdir()
    with context.workplace.images_of("dedup-images") as store:
        base = store.get(context.workplace.image).layers[-1].digest
        images = Workload(store, base, directory, context.progress.say).images()
        return _Measurement(context, store, directory, images).report()


class _Measurement:
    def __init__(
        self, context: BenchContext, store: LocalImageStore, directory: Path, images: Sequence[RelatedImage]
    ) -> None:
        self._context = context
        self._store = store
        self._directory = directory
        self._images = images
        self._ways = {name: _Way(name) for name in (_CHUNKS, _PLAIN, _FILES, _LAYERS)}
        self._layout_s = 0.0
        self._bytes = 0
        self._laid_out_bytes = 0

    def report(self) -> Report:
        layers = dict.fromkeys(digest for image in self._images for digest in image.layers)
        for number, digest in enumerate(layers, 1):
            self._context.progress.say(f"layer {number} of {len(layers)}")
            self._measure_layer(digest)
        largest = max(layers, key=lambda digest: self._store.stored_layer(digest)[1].size_bytes)
        plain_s, laid_out_s = self._reading(largest)
        tars = self._ways[_LAYERS].alone(self._images)
        series: list[dict[str, Any]] = [self._row(way) for way in self._ways.values()]
        series += [
            {"way": _TARS, "stored_bytes": tars, "alone_bytes": tars, "saved": 0.0},
            {"what": "distinct layers", "count": len(layers), "bytes": self._bytes},
            {"what": "laying out", "unit": "MB/s", "p50": _rate(self._bytes, self._layout_s)},
            {"what": "length of a file laid out, of the plain one", "ratio": ratio(self._laid_out_bytes, self._bytes)},
            {
                "what": "reading all files of the largest layer, laid out",
                "unit": "s",
                "p50": distribution(laid_out_s).p50,
                "plain_p50": distribution(plain_s).p50,
                "speed_of_plain": ratio(distribution(plain_s).p50, distribution(laid_out_s).p50),
                "n": _ROUNDS,
            },
        ]
        saved = {name: way.saved(self._images) for name, way in self._ways.items()}
        return make_report(
            "dedup",
            "share of bytes saved",
            "higher",
            ours=distribution([saved.pop(_CHUNKS)]),
            references={name: distribution([share]) for name, share in saved.items()},
            series=series,
            host=self._context.host | {"images": [image.name for image in self._images], "goal": GOAL},
        )

    def _row(self, way: _Way) -> dict[str, Any]:
        together, alone = way.together(self._images), way.alone(self._images)
        self._context.progress.say(f"{way.name}: {format_size(together)} of {format_size(alone)}")
        return {
            "way": way.name,
            "stored_bytes": together,
            "alone_bytes": alone,
            "saved": round(1 - together / alone, 4),
        }

    def _measure_layer(self, digest: str) -> None:
        path, record = self._store.stored_layer(digest)
        laid_out = self._directory / "laid-out.erofs"
        began_s = time.perf_counter()
        lay_out(path, laid_out, [])
        self._layout_s += time.perf_counter() - began_s
        self._bytes += path.stat().st_size
        self._laid_out_bytes += laid_out.stat().st_size
        for name, file in ((_CHUNKS, laid_out), (_PLAIN, path)):
            self._ways[name].pieces[digest] = _chunks(LayerFile(file, digest, record.entries))
        (root,) = self._store.mount_layers([digest])
        self._ways[_FILES].pieces[digest] = dict(_files(root)) | {f"metadata {digest}": _metadata_bytes(path)}
        tar = _Gzip()
        write_layer_tar(root, tar)
        self._ways[_LAYERS].pieces[digest] = {digest: tar.length()}
        laid_out.unlink()

    def _reading(self, digest: str) -> tuple[list[float], list[float]]:
        """Read all files of a layer, plain and laid out in turn, and return the seconds of each."""
        plain, _ = self._store.stored_layer(digest)
        laid_out = self._directory / "laid-out.erofs"
        lay_out(plain, laid_out, [])
        os.sync()
        seconds: dict[Path, list[float]] = {plain: [], laid_out: []}
        target = self._directory / "mounted"
        target.mkdir()
        for number in range(2 * _ROUNDS):
            file = (plain, laid_out)[number % 2]
            _forget(file)
            erofs.mount_file(file, target)
            try:
                began_s = time.perf_counter()
                _read_all(target)
                seconds[file].append(time.perf_counter() - began_s)
            finally:
                remove_tree(target)
                target.mkdir(exist_ok=True)
        return seconds[plain], seconds[laid_out]


def _chunks(file: LayerFile) -> dict[str, int]:
    """Return name and stored length of each chunk of a layer, and of its manifest."""
    pieces: dict[str, int] = {}

    def take(name: str, stored: bytes) -> None:
        pieces[name] = len(stored)

    manifest = convert(file, take)
    return pieces | {f"manifest {manifest.id}": len(manifest.data)}


def _rate(count: int, seconds: float) -> float:
    return ratio(count / 1e6, seconds)


def _forget(file: Path) -> None:
    with file.open("rb") as stream:
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read_all(root: Path) -> None:
    for directory, _, names in os.walk(root):
        for name in names:
            path = Path(directory) / name
            if path.is_file() and not path.is_symlink():
                with path.open("rb", buffering=0) as file:
                    while file.read(MIB):
                        pass


def _files(root: Path) -> Iterator[tuple[str, int]]:
    """Yield name and stored length of each file's content: compressed where that makes it smaller."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for node in walk(fd):
            if stat.S_ISREG(node.status.st_mode):
                with open(os.open(node.name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=node.parent_fd), "rb") as file:
                    yield _stored_file(file.read)
    finally:
        os.close(fd)


def _stored_file(read: Any) -> tuple[str, int]:
    hasher, length = hashlib.sha256(), 0
    while piece := read(_PIECE_BYTES):
        hasher.update(piece)
        length += len(encode(piece)[1])
    return hasher.hexdigest(), length


def _metadata_bytes(file: Path) -> int:
    with file.open("rb") as stream:
        total = 0
        for extent in metadata_extents(file):
            stream.seek(extent.start)
            total += len(zlib.compress(stream.read(extent.length), 1))
        return total


class _Gzip:
    """A sink that draws up how long what is written would be as gzip, from every eighth MiB."""

    def __init__(self) -> None:
        self._pending = bytearray()
        self._number = 0
        self._read = 0
        self._sampled = self._compressed = 0

    def write(self, data: bytes) -> int:
        self._read += len(data)
        self._pending += data
        while len(self._pending) >= MIB:
            self._take(bytes(self._pending[:MIB]))
            del self._pending[:MIB]
        return len(data)

    def _take(self, piece: bytes) -> None:
        if self._number % _SAMPLED == 0:
            self._sampled += len(piece)
            self._compressed += len(zlib.compress(piece, 6))
        self._number += 1

    def length(self) -> int:
        if not self._sampled:
            self._take(bytes(self._pending))
        return round(self._compressed * self._read / self._sampled) if self._sampled else 0
