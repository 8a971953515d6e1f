"""Verify an image: its manifests, then its layers, then the chunks of those that are loaded when touched.

Each level is looked at wholly, whatever the one before it found, so that one run names everything that is wrong. What
is on this host is read in any case; with `full` also every chunk that the store has of lazy layers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import anyio.to_thread

from dsec.base.errors import DsecError, ObjectNotFoundError, StateCorruptedError
from dsec.images.layers import LayerRecord
from dsec.images.lazy import manifest as manifests
from dsec.images.lazy.client import LayerDaemon
from dsec.images.lazy.fetching import FETCHES_AT_ONCE
from dsec.images.lazy.manifest import LayerManifest
from dsec.images.lazy.source import DEFAULT_TIMEOUT_S, ObjectSource, fetch_verified
from dsec.images.lazy.stored import ChunkRef
from dsec.images.store import LocalImageStore
from dsec.model.image import LayerFormat
from dsec.model.value import Value
from dsec.stores.objects import ObjectStore


class Finding(Value, frozen=True):
    """What was found about one part of an image.

    Attributes:
        part: ``manifest``, ``layer-1`` (the lowest), ``layer-1 cache`` or ``layer-1 store``.
        ok: whether it is what it should be.
        detail: in words.
        advice: what to do; empty: nothing.
    """

    part: str
    ok: bool
    detail: str
    advice: str = ""


async def verify_image(
    images: LocalImageStore,
    name: str,
    store: ObjectStore,
    daemon: LayerDaemon,
    *,
    full: bool = False,
    repair: bool = False,
) -> AsyncIterator[Finding]:
    """Yield what is found about an image, part by part.

    Args:
        images: where it is.
        name: its name.
        store: the object store that its lazy layers come from.
        daemon: serves them.
        full: read every chunk that the store has, too.
        repair: fetch again what rotted on this host.

    Raises:
        ImageNotFoundError: no such image.
    """
    info = await anyio.to_thread.run_sync(images.get, name)
    lazy: list[tuple[str, LayerManifest]] = []
    for number, layer in enumerate(info.layers, 1):
        part = f"layer-{number}"
        try:
            path, record = await anyio.to_thread.run_sync(images.stored_layer, layer.digest)
            if record.format is LayerFormat.LAZY:
                lazy.append((part, _manifest(record, path.read_bytes())))
        except DsecError as error:
            yield Finding(part=f"manifest of {part}", ok=False, detail=_words(error), advice="pull the image again")
    yield Finding(part="manifest", ok=True, detail=f"{len(info.layers)} layers, {len(lazy)} of them lazy")
    for number, layer in enumerate(info.layers, 1):
        if layer.format is not LayerFormat.LAZY:
            yield await _layer(images, f"layer-{number}", layer.digest)
    for part, manifest in lazy:
        yield await _cached(part, manifest, daemon, repair)
        if full:
            yield await _stored(part, manifest, store)


def _manifest(record: LayerRecord, data: bytes) -> LayerManifest:
    manifest = manifests.decode(data, "the image store", expected=record.manifest)
    if manifest.layer != record.digest:
        raise StateCorruptedError(f"manifest {manifest.id[:12]} is of another layer")
    return manifest


async def _layer(images: LocalImageStore, part: str, digest: str) -> Finding:
    try:
        found = await anyio.to_thread.run_sync(images.layer_content_digest, digest)
    except DsecError as error:
        return Finding(part=part, ok=False, detail=_words(error), advice=f"import or pull {part} again")
    if found == digest:
        return Finding(part=part, ok=True, detail="hash matched")
    detail = f"hash mismatch, expected {digest[7:19]}..., got {found[7:19]}..."
    return Finding(part=part, ok=False, detail=detail, advice=f"import or pull {part} again; check this node's disk")


async def _cached(part: str, manifest: LayerManifest, daemon: LayerDaemon, repair: bool) -> Finding:
    part = f"{part} cache"
    try:
        answer = await anyio.to_thread.run_sync(lambda: daemon.verify(manifest.id, repair=repair))
    except DsecError as error:
        return Finding(part=part, ok=False, detail=_words(error), advice="see that the store can be reached")
    if not answer.bad:
        return Finding(part=part, ok=True, detail=f"{answer.pieces} pieces here, hashes matched")
    detail = f"{len(answer.bad)} of {answer.pieces} pieces do not verify: {_numbers(answer.bad)}"
    done = "they were fetched again" if repair else "they are fetched again when they are read; --repair does it now"
    return Finding(part=part, ok=False, detail=detail, advice=f"{done}. Check this node's disk")


def _numbers(bad: tuple[int, ...]) -> str:
    shown = ", ".join("metadata" if number < 0 else f"chunk {number}" for number in bad[:8])
    return shown + (", ..." if len(bad) > 8 else "")


async def _stored(part: str, manifest: LayerManifest, store: ObjectStore) -> Finding:
    """Fetch every chunk from the store and verify it."""
    source, limiter = ObjectSource(store), anyio.CapacityLimiter(FETCHES_AT_ONCE)
    failures: list[str] = []

    async def fetch(what: str, ref: ChunkRef) -> None:
        async with limiter:
            try:
                await fetch_verified([source], ref, timeout_s=DEFAULT_TIMEOUT_S)
            except DsecError as error:
                failures.append(f"{what} ({ref.id[:12]}): {_reason(error)}")

    pieces = [(f"chunk {number}", ref) for number, ref in enumerate(manifest.chunks)]
    pieces += [(f"metadata chunk {number}", ref) for number, ref in enumerate(manifest.metadata_chunks)]
    async with anyio.create_task_group() as group:
        for what, ref in pieces:
            group.start_soon(fetch, what, ref)
    part = f"{part} store"
    if not failures:
        return Finding(part=part, ok=True, detail=f"{len(pieces)} pieces in {store.url}, hashes matched")
    detail = f"{len(failures)} of {len(pieces)} pieces in {store.url} cannot be had: {'; '.join(sorted(failures)[:5])}"
    advice = f"publish the image again from a host that has it whole; check the disk of {store.url}"
    return Finding(part=part, ok=False, detail=detail, advice=advice)


def _reason(error: DsecError) -> str:
    return "it is not there" if isinstance(error, ObjectNotFoundError) else _words(error)


def _words(error: DsecError) -> str:
    return f"{error.brief} ({error.detail})" if error.detail else error.brief
