"""Record which blocks of an image a command reads: in a real sandbox of a node of its own, whose layers are mounted
afresh and watched.

The node's state directory is one that is thrown away, with an image store in which the image's layers are mounted
already: by the recorder (`dsec.images.lazy.tracing.recording`). So the sandbox is made as any other, nobody else's
cache is disturbed, and the node of this host, if one runs, knows nothing of it. One that was killed is cleared away by
the next.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec

from dsec.base.errors import CapabilityMissingError, StateLockedError
from dsec.cli.leave import leave_host, may_have_sandboxes
from dsec.cli.output import note, printable
from dsec.images.catalog import Catalog
from dsec.images.durable import try_lock
from dsec.images.layers import EROFS_FILE, RECORD, LayerRecord, hex_of
from dsec.images.lazy.erofs.metadata import Extent, metadata_extents
from dsec.images.lazy.formats import manifest as manifests
from dsec.images.lazy.tracing.recording import RecordedLayer, recording
from dsec.images.lazy.tracing.traces import VERSION, Read, Trace, TracedLayer, command_of, merged, shortened
from dsec.images.staging import remove_tree
from dsec.images.store import LocalImageStore
from dsec.linux.userns import is_host_root
from dsec.model.image import ImageInfo, LayerFormat
from dsec.model.process import CommandRequest, CommandResult
from dsec.model.sandbox import SandboxSpec
from dsec.node.builder import open_node
from dsec.node.settings import NodeSettings

_PLACE, _LOCK = "tracing", "tracing.lock"


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOrder:
    """What is to be recorded.

    Attributes:
        image: the image.
        above: images that are stacked on it: a workspace, toolkits.
        argv: the command.
        repeat: how many times, each in a new sandbox with cold layers; what later runs read in addition is added.
        timeout_s: of each run of the command.
        settings: the host's; the state directory is that of the image store.
    """

    image: str
    argv: tuple[str, ...]
    repeat: int
    timeout_s: float
    settings: NodeSettings
    above: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Layer:
    """A layer of an image, and what is behind it on this host."""

    traced: TracedLayer
    entries: int
    file: Path
    metadata: tuple[Extent, ...]


async def record_trace(images: LocalImageStore, order: TraceOrder) -> tuple[Trace, ...]:
    """Record what a command reads, and return the trace of each image of the stack, from the lowest up. Needs root.

    Raises:
        ImageNotFoundError: no such image.
        CapabilityMissingError: a layer is stored as a directory, or this is an ordinary user.
        CommandNotFoundError: the image has no such program.
        StateLockedError: another trace is being recorded on this host.
    """
    stack = [images.get(name) for name in (order.image, *order.above)]
    digests = dict.fromkeys(layer.digest for info in stack for layer in info.layers)
    layers = await anyio.to_thread.run_sync(lambda: [_layer(images, digest) for digest in digests])
    with _alone(images.root):
        place = Path(order.settings.state_dir) / _PLACE
        runs = [await _recorded(place, stack, layers, order) for _ in range(order.repeat)]
    return tuple(merged(*(_trace(info, layers, reads, order) for reads in runs)) for info in stack)


@contextmanager
def _alone(images: Path) -> Iterator[None]:
    lock = images / _LOCK
    lock.touch(mode=0o600)
    descriptor = try_lock(lock)
    if descriptor is None:
        raise StateLockedError("another trace is being recorded here", resolution="wait until that one is done")
    try:
        yield
    finally:
        os.close(descriptor)


def _layer(images: LocalImageStore, digest: str) -> _Layer:
    path, record = images.stored_layer(digest)
    if record.format is LayerFormat.DIRECTORY or not is_host_root():
        raise CapabilityMissingError(
            "only layers that this host mounts can be watched",
            detail=f"layer {digest} is stored as a directory, or this process is not root",
            resolution="record the trace as root on a host that mounts EROFS (dsec doctor says why this one does not)",
        )
    if record.format is LayerFormat.EROFS:
        traced = TracedLayer(digest=digest, size_bytes=record.size_bytes)
        return _Layer(traced, record.entries, path, metadata_extents(path))
    manifest = manifests.decode(path.read_bytes(), str(path), expected=record.manifest)
    traced = TracedLayer(digest=digest, size_bytes=manifest.size_bytes, manifest=manifest.id)
    return _Layer(traced, record.entries, _device_of(images.mount_layers([digest])[0]), manifest.metadata)


def _device_of(mounted: Path) -> Path:
    """Return the device of a mounted file system, which outlives the exchange of what is behind it."""
    number = mounted.stat().st_dev
    return Path("/dev", Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve().name)


async def _recorded(place: Path, stack: list[ImageInfo], layers: list[_Layer], order: TraceOrder) -> tuple[Read, ...]:
    """Run the command once."""
    await _cleared(place, order.settings)
    await anyio.to_thread.run_sync(_make_store, place / "images", stack, layers)
    watched = [
        RecordedLayer(
            file=layer.file,
            size_bytes=layer.traced.size_bytes,
            metadata=layer.metadata,
            target=place / "images/mounts" / hex_of(layer.traced.digest),
        )
        for layer in layers
    ]
    try:
        with recording(place, watched) as recorder:
            settings = _private(place, order.settings)
            async with open_node(settings) as node:
                try:
                    recorder.begin()
                    names = [info.name for info in stack]
                    box = (await node.create(SandboxSpec(image=names[0], layers=tuple(names[1:])))).sandbox_id
                    done = await node.run(box, CommandRequest(argv=order.argv, timeout_s=order.timeout_s))
                    _warn_of_failure(done)
                    return recorder.reads()
                finally:
                    with anyio.CancelScope(shield=True):
                        await node.shutdown(destroy=True)
    finally:
        await _cleared(place, order.settings)


def _warn_of_failure(done: CommandResult) -> None:
    """Say that a command did not do what it was to do: perhaps it reads something else when it does."""
    status = done.status
    if status.timed_out:
        note("warning: the command was ended at --timeout; kept is what it had read by then")
    elif status.exit_code:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        note(f"warning: the command exited with {status.exit_code}" + (f": {printable(said[-1])}" if said else ""))


def _trace(info: ImageInfo, layers: list[_Layer], reads: tuple[Read, ...], order: TraceOrder) -> Trace:
    """Return what of an image of the stack was read."""
    own = [layer.digest for layer in info.layers]
    places = {place: own.index(layer.traced.digest) for place, layer in enumerate(layers) if layer.traced.digest in own}
    traced = {layer.traced.digest: layer.traced for layer in layers}
    return Trace(
        version=VERSION,
        image_id=info.image_id,
        command=command_of(order.argv),
        argv=shortened(order.argv),
        source="trace",
        runs=1,
        recorded_at_s=time.time(),
        layers=tuple(traced[digest] for digest in own),
        reads=tuple(
            (places[layer], block, blocks, after_ms) for layer, block, blocks, after_ms in reads if layer in places
        ),
    )


def _make_store(root: Path, stack: list[ImageInfo], layers: list[_Layer]) -> None:
    """Make an image store of these images: their layers are there for whoever looks, and the recorder mounts them."""
    (root / "names").mkdir(mode=0o700, parents=True)
    for info in stack:
        Catalog(root / "names").write(info)
    for layer in layers:
        directory = root / "layers" / hex_of(layer.traced.digest)
        directory.mkdir(mode=0o700, parents=True)
        file = directory / EROFS_FILE
        with file.open("wb") as made:  # Nobody opens it, since its layer is mounted; its size is looked at.
            made.truncate(layer.traced.size_bytes)
        record = LayerRecord(
            version=1,
            digest=layer.traced.digest,
            format=LayerFormat.EROFS,
            size_bytes=layer.traced.size_bytes,
            entries=layer.entries,
        )
        (directory / RECORD).write_bytes(msgspec.json.encode(record))


def _private(place: Path, settings: NodeSettings) -> NodeSettings:
    """Return the settings of a node that knows no other and is known to none."""
    alone = {"store": "", "peers": "", "peer_token_file": "", "tracker": "", "peer_listen": "", "balance_look_s": 0.0}
    return msgspec.structs.replace(settings, state_dir=str(place), **alone)


async def _cleared(place: Path, settings: NodeSettings) -> None:
    """Take away what is left of a run, also of one that was killed."""
    if not place.exists():
        return
    if may_have_sandboxes(place):
        async with open_node(_private(place, settings)) as node:
            await node.shutdown(destroy=True)
    await anyio.to_thread.run_sync(leave_host, place)
    await anyio.to_thread.run_sync(remove_tree, place)
