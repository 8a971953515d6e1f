"""A layer that was made here and rotted: put in its place what others have of it, where it was published or pushed.

Its chunks are not known by name, since what was published was laid out anew. But its digest is over what is in it, so
that any file with that content is the layer. Whoever published it noted what it came to (`cut_layers`); where that is
lost, the documents of the node's store say which manifest has this layer.

The new file takes the name of the old one, which mounts go on to read until they end: what they read was wrong before.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

import anyio.to_thread

from dsec.base.errors import DsecError
from dsec.images.durable import full_disk_reported
from dsec.images.layers import hex_of
from dsec.images.lazy.caching.cached_layer import write_at
from dsec.images.lazy.collection.roots import fetch_document, references
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.formats.stored import CHUNK_BYTES
from dsec.images.lazy.origins import Origins
from dsec.images.lazy.publication.conversion import fetch_manifest
from dsec.images.lazy.publication.cut_layers import cuts_of
from dsec.images.lazy.verifying.fetched import fetch_pieces
from dsec.images.lazy.verifying.findings import Finding, Subject, VerifyOptions, words
from dsec.images.lazy.verifying.pieces import Piece, pieces_of
from dsec.images.staging import WorkDirectory
from dsec.images.store import LocalImageStore
from dsec.linux import mounts
from dsec.stores.opening import open_existing

_MAXIMUM_DOCUMENTS = 10_000
"""Of a store, that are looked through for a layer."""


@dataclass(frozen=True, slots=True)
class _Copy:
    """What others have of a layer.

    Attributes:
        manifest: as what.
        origins: where.
    """

    manifest: LayerManifest
    origins: tuple[str, ...]


async def replaced_by_copy(
    images: LocalImageStore, subject: Subject, problem: Finding, options: VerifyOptions
) -> Finding:
    """Put a copy in the place of a whole layer that is not what its digest says; return what came of it.

    Args:
        images: the image store.
        subject: the layer.
        problem: what was found.
        options: how.
    """
    tried: list[str] = []
    async for copy in _copies(images, subject.digest, options):
        try:
            with images.work_directory() as work, full_disk_reported("repairing a layer"):
                await _fetch_and_replace(images, subject, copy, work, options)
        except DsecError as error:
            tried.append(f"{', '.join(copy.origins)}: {words(error)}")
            continue
        detail = f"{problem.detail}: replaced by what {', '.join(copy.origins)} has of it"
        in_use = (
            "sandboxes that run go on with what is wrong: end them; " if _is_mounted(images, subject.digest) else ""
        )
        return Finding(
            part=problem.part,
            ok=True,
            detail=detail,
            advice=f"{in_use}check this node's disk",
            node=problem.node,
            layer=subject.digest,
            repaired=True,
        )
    left = f"and no copy can be had: {'; '.join(tried)}" if tried else "and it was published nowhere that is known here"
    return subject.bad(f"{problem.detail}, {left}", node=problem.node, advice=problem.advice)


async def _copies(images: LocalImageStore, digest: str, options: VerifyOptions) -> AsyncIterator[_Copy]:
    """Yield what others may have of a layer."""
    stores = (options.store_url,) if options.store_url else ()
    cuts = await anyio.to_thread.run_sync(cuts_of, images, digest)
    for cut, _ in cuts:
        if origins := tuple(url for url in (cut.blob, *stores) if url):
            yield _Copy(cut.manifest, origins)
    known = {cut.manifest.id for cut, _ in cuts}
    for url in stores:
        if (manifest := await _named_in(url, digest)) is not None and manifest.id not in known:
            yield _Copy(manifest, (url,))


async def _named_in(url: str, digest: str) -> LayerManifest | None:
    """Return the manifest of a layer of which some document of a store says it; None: none does, or it is away."""
    try:
        store = await anyio.to_thread.run_sync(open_existing, url)
        try:
            looked_at = 0
            async for reference, _ in references(store):
                looked_at += 1
                if looked_at > _MAXIMUM_DOCUMENTS:
                    return None
                try:
                    layers = (await fetch_document(store, reference)).layers
                    named = next((layer.manifest for layer in layers if layer.digest == digest), None)
                    if named is not None and (found := await fetch_manifest(store, named)).layer == digest:
                        return found
                except DsecError:
                    continue  # Another may name it too.
        finally:
            await store.aclose()
    except DsecError:
        pass
    return None


async def _fetch_and_replace(
    images: LocalImageStore, subject: Subject, copy: _Copy, work: WorkDirectory, options: VerifyOptions
) -> None:
    path = work.path / "copy.erofs"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    pieces, done = [piece for piece in pieces_of(copy.manifest) if not piece.is_metadata], 0

    async def take(piece: Piece, content: bytes) -> None:
        await anyio.to_thread.run_sync(write_at, descriptor, content, piece.place * CHUNK_BYTES)

    def advance() -> None:
        nonlocal done
        done += 1
        options.progress(f"{subject.part} repair", done, len(pieces))

    try:
        os.ftruncate(descriptor, copy.manifest.size_bytes)
        failures = await fetch_pieces(await Origins().sources(copy.origins), pieces, take, advance)
    finally:
        os.close(descriptor)
    if failures:
        raise next(iter(failures.values()))
    await anyio.to_thread.run_sync(images.replace_layer, path, work, copy.manifest, copy.origins)


def _is_mounted(images: LocalImageStore, digest: str) -> bool:
    target = str(images.root / "mounts" / hex_of(digest))
    return any(entry.target == target for entry in mounts.mounts_under(images.root / "mounts"))
