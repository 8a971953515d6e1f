"""`lazy-read`: what reading costs through a layer that is loaded when touched, beside the same file mounted from disk.

Three ways to the same bytes: the EROFS file mounted as a node mounts a layer that it has (the reference), the layer
after all its chunks came and its device reads the local file (ours), and the same before that, when every read goes
through the server. Before each sample the caches of the file and of what lies behind it are dropped for the stretch
that is read, so that the disk is what is measured; the ways take turns on the same offsets of different files.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from dsec.base.units import MIB
from dsec.bench.context import BenchContext
from dsec.bench.distribution import Distribution, distribution, ratio
from dsec.bench.report import Report, make_report
from dsec.bench.sampling import Sample, alternate, timed
from dsec.images import erofs
from dsec.images.lazy.caching.cache import LayerCache
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.formats.stored import CHUNK_BYTES
from dsec.images.lazy.publication.conversion import LayerFile, fetch_manifest, publish
from dsec.images.lazy.serving.layer_mounts import LazyMounts
from dsec.images.lazy.serving.server import LayerServer, LayerServerOptions, mount_below
from dsec.images.lazy.source import ObjectSource
from dsec.images.staging import remove_tree
from dsec.stores.objects_folder import FolderObjectStore

_LARGEST_BYTES = 512 * MIB
_STRETCH_BYTES = 32 * MIB
_READ_BYTES = MIB
_BLOCK_BYTES = 4096
_BLOCKS = 64
_SEED = 1
_LOCAL = "the same file, mounted from disk"
_RESIDENT, _SERVED = "all chunks here", "all chunks here, through the server"
_SMALL_FILES = 2000
_FAR_S = 3600.0


@dataclass(frozen=True, slots=True)
class _Way:
    """One way to the large file: where it can be read, and the file on disk behind that."""

    path: Path
    behind: Path

    def forget(self) -> None:
        """Drop what the kernel caches of both."""
        for path in (self.path, self.behind):
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)

    def stretch(self, start: int) -> float:
        """Read a stretch from front to back."""
        self.forget()
        with self.path.open("rb", buffering=0) as file, timed() as watch:
            file.seek(start)
            left = _STRETCH_BYTES
            while left > 0 and (data := file.read(_READ_BYTES)):
                left -= len(data)
        return watch.seconds

    def blocks(self, starts: list[int]) -> float:
        """Read single blocks."""
        self.forget()
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            with timed() as watch:
                for start in starts:
                    os.pread(descriptor, _BLOCK_BYTES, start)
            return watch.seconds / len(starts)
        finally:
            os.close(descriptor)


class _Offsets:
    """Offsets that are the same for every way in one round, and others in the next."""

    def __init__(self, size: int) -> None:
        self._size = size

    def stretch(self, turn: int) -> int:
        return random.Random(turn).randrange(max(1, (self._size - _STRETCH_BYTES) // MIB)) * MIB

    def blocks(self, turn: int) -> list[int]:
        chance = random.Random(turn)
        return [chance.randrange(self._size // _BLOCK_BYTES) * _BLOCK_BYTES for _ in range(_BLOCKS)]


def _sample(read: Callable[[int], float]) -> Sample:
    turn = 0

    async def sample() -> float:
        nonlocal turn
        turn += 1
        return await anyio.to_thread.run_sync(read, turn)

    return sample


def _samples(ways: dict[str, _Way], offsets: _Offsets) -> dict[str, Sample]:
    found: dict[str, Sample] = {}
    for name, way in ways.items():
        found[f"sequential, {name}"] = _sample(lambda turn, way=way: way.stretch(offsets.stretch(turn)))  # type: ignore[misc]
        found[f"random, {name}"] = _sample(lambda turn, way=way: way.blocks(offsets.blocks(turn)))  # type: ignore[misc]
    return found


@dataclass(frozen=True, slots=True)
class _Layer:
    """The layer that is read."""

    directory: Path
    file: Path
    size_bytes: int

    @classmethod
    def make(cls, directory: Path, size_bytes: int) -> _Layer:
        """Make the EROFS file of a tree with one large file and many small ones."""
        tree = directory / "tree"
        (tree / "small").mkdir(parents=True)
        chance = random.Random(_SEED)
        with (tree / "large").open("wb") as file:
            for _ in range(0, size_bytes, MIB):
                file.write(chance.randbytes(MIB))
        for number in range(_SMALL_FILES):
            (tree / "small" / str(number)).write_text(str(number))
        erofs.make(tree, directory / "layer.erofs")
        remove_tree(tree)
        return cls(directory, directory / "layer.erofs", size_bytes)

    @contextmanager
    def mounted(self) -> Iterator[_Way]:
        """Mount the file as a node mounts a layer that it has."""
        target = self.directory / "local"
        target.mkdir()
        erofs.mount_file(self.file, target)
        try:
            yield _Way(target / "large", self.file)
        finally:
            remove_tree(target)


@dataclass(frozen=True, slots=True)
class _Lazy:
    """The layer, loaded when touched."""

    server: LayerServer
    manifest: LayerManifest
    way: _Way

    @classmethod
    @contextmanager
    def mounted(cls, directory: Path, store: FolderObjectStore, manifest: LayerManifest) -> Iterator[_Lazy]:
        with ExitStack() as stack:
            cache = LayerCache(directory / "cache")
            stack.callback(cache.close)
            options = LayerServerOptions(flush_interval_s=_FAR_S)
            server = LayerServer(cache, mount_below(directory / "served")[0], [ObjectSource(store)], options)
            stack.callback(server.close)
            server.start()
            stack.callback(remove_tree, directory / "mounts")
            root = LazyMounts(directory / "mounts", server).ensure(manifest)
            yield cls(server, manifest, _Way(root / "large", server.layer(manifest.id).path))

    def first_touches(self, count: int) -> list[float]:
        """Read a block of each of some chunks that are not here, and return the seconds of each."""
        seconds = []
        descriptor = os.open(self.way.path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            for position in range(1, count + 1):
                with timed() as watch:
                    os.pread(descriptor, _BLOCK_BYTES, position * CHUNK_BYTES)
                seconds.append(watch.seconds)
        finally:
            os.close(descriptor)
        return seconds


async def bench_lazy_read(context: BenchContext) -> Report:
    """Measure sequential and random reads of a layer whose chunks are all here, beside the same file from disk."""
    options, directory = context.options, context.workplace.directory / "lazy"
    directory.mkdir()
    size = max(2 * _STRETCH_BYTES, min(options.size_bytes, _LARGEST_BYTES))
    context.progress.say(f"making and publishing a layer of {size // MIB} MiB")
    layer = await anyio.to_thread.run_sync(_Layer.make, directory, size)
    store = FolderObjectStore(directory / "store")
    published = await publish(LayerFile(layer.file, "sha256:" + "0" * 64, _SMALL_FILES + 3), store)
    manifest = await fetch_manifest(store, published.manifest)
    with layer.mounted() as local, _Lazy.mounted(directory, store, manifest) as lazy:
        return await _measure(context, size, local, lazy)


async def _measure(context: BenchContext, size: int, local: _Way, lazy: _Lazy) -> Report:
    rounds = max(5, context.options.samples // 4)
    touches = await anyio.to_thread.run_sync(lazy.first_touches, min(10, len(lazy.manifest.chunks) - 2))
    context.progress.say("fetching all chunks")
    positions = range(len(lazy.manifest.chunks))
    await anyio.to_thread.run_sync(lazy.server.bring, lazy.manifest.id, positions)
    # Not recorded yet, so that the device still reads through the server; what is dirty must not cost the samples.
    await anyio.to_thread.run_sync(os.sync)
    ways = {_LOCAL: local, _SERVED: lazy.way}
    served_s = await alternate(_samples(ways, _Offsets(size)), rounds=rounds, progress=context.progress)
    await anyio.to_thread.run_sync(lazy.server.flush)
    ways = {_LOCAL: local, _RESIDENT: lazy.way}
    resident_s = await alternate(_samples(ways, _Offsets(size)), rounds=rounds, progress=context.progress)
    return _report(context, touches, served_s, resident_s)


def _report(
    context: BenchContext,
    touches: list[float],
    served_s: dict[str, list[float]],
    resident_s: dict[str, list[float]],
) -> Report:
    stretch = _STRETCH_BYTES / 1e6
    series: list[dict[str, Any]] = [
        _row("random", "us per 4 KiB", 1e6, _RESIDENT, resident_s),
        _row("sequential", "ms per 32 MiB", 1e3, _SERVED, served_s),
        _row("random", "us per 4 KiB", 1e6, _SERVED, served_s),
        {"what": "first touch of a chunk in a folder", "unit": "ms"} | _as_row(distribution(touches, scale=1e3)),
    ]
    return make_report(
        "lazy-read",
        "MB/s",
        "higher",
        ours=_speed(stretch, resident_s[f"sequential, {_RESIDENT}"]),
        references={_LOCAL: _speed(stretch, resident_s[f"sequential, {_LOCAL}"])},
        series=series,
        host=context.host,
    )


def _speed(megabytes: float, seconds: list[float]) -> Distribution:
    return distribution([megabytes / each for each in seconds])


def _row(kind: str, unit: str, scale: float, way: str, seconds: dict[str, list[float]]) -> dict[str, Any]:
    ours = distribution(seconds[f"{kind}, {way}"], scale=scale)
    local = distribution(seconds[f"{kind}, {_LOCAL}"], scale=scale)
    return {
        "what": f"{kind} reads, {way}",
        "unit": unit,
        **_as_row(ours),
        "local_p50": local.p50,
        "speed_of_local": ratio(local.p50, ours.p50),
    }


def _as_row(values: Distribution) -> dict[str, Any]:
    return {"p50": values.p50, "p95": values.p95, "n": values.n}
