"""Layers that are whole on this host: check the file, and mend it from where the layer was pulled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio.to_thread

from dsec.base.errors import DsecError, HostDiskFullError
from dsec.base.units import format_number_of
from dsec.images.durable import full_disk_reported
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.origins import Origins
from dsec.images.lazy.verifying.copies import replaced_by_copy
from dsec.images.lazy.verifying.fetched import fetch_pieces
from dsec.images.lazy.verifying.findings import Finding, Subject, VerifyOptions, some, words
from dsec.images.lazy.verifying.pieces import Piece, PieceFile
from dsec.images.lazy.verifying.records import StoredLayer
from dsec.images.store import LocalImageStore
from dsec.linux import mounts, page_eviction
from dsec.model.image import LayerFormat

_STEP = 32
"""Chunks that are read before somebody is told: 128 MiB."""
_DISK = "check this node's disk"


async def check_whole(
    images: LocalImageStore, subject: Subject, stored: StoredLayer, options: VerifyOptions
) -> Finding:
    """Check a layer that is whole here, by its chunks where they are known, and by what is in it; mend it if asked."""
    node = options.node
    bad: list[int] = []
    if stored.manifest is not None and stored.record.format is LayerFormat.EROFS:
        bad = await _bad_chunks(subject, stored.file, stored.manifest, options)
        if bad and options.repair:
            finding = await _mended(subject, stored, stored.manifest, bad, options)
            if not finding.ok:
                return finding
            await anyio.to_thread.run_sync(_show_anew, images, stored)
            left = await _content(images, subject, options)
            return finding if left.ok else left
        if bad:
            detail = f"{len(bad)} of {len(stored.manifest.chunks)} chunks do not verify: {_numbers(bad)}"
            return subject.bad(detail, node=node, advice=f"--repair fetches them again; {_DISK}")
    found = await _content(images, subject, options)
    if found.ok or not options.repair or stored.record.format is not LayerFormat.EROFS:
        return found
    return await replaced_by_copy(images, subject, found, options)


async def _content(images: LocalImageStore, subject: Subject, options: VerifyOptions) -> Finding:
    """Compare the digest of everything in a layer."""
    advice = f"import or pull {subject.part} again; {_DISK}"
    try:
        found = await anyio.to_thread.run_sync(images.layer_content_digest, subject.digest)
    except DsecError as error:
        return subject.bad(words(error), node=options.node, advice=advice)
    except OSError as error:
        return subject.bad(f"it cannot be read: {error.strerror}", node=options.node, advice=advice)
    if found == subject.digest:
        return subject.good("hash matched", node=options.node)
    detail = f"hash mismatch, expected {subject.digest[7:19]}..., got {found[7:19]}..."
    return subject.bad(detail, node=options.node, advice=advice)


async def _bad_chunks(subject: Subject, file: Path, manifest: LayerManifest, options: VerifyOptions) -> list[int]:
    """Return the numbers of the chunks of a file that are not what their names say; all, if it is not there."""
    pieces, bad = PieceFile(file, manifest), []
    total = len(manifest.chunks)
    if not await anyio.to_thread.run_sync(file.exists):
        return list(range(total))
    await anyio.to_thread.run_sync(pieces.forget_cached)
    for start in range(0, total, _STEP):
        bad += await anyio.to_thread.run_sync(pieces.bad, range(start, min(start + _STEP, total)))
        options.progress(subject.part, min(start + _STEP, total), total)
    return bad


async def _mended(
    subject: Subject, stored: StoredLayer, manifest: LayerManifest, bad: Sequence[int], options: VerifyOptions
) -> Finding:
    """Fetch bad chunks again and write them to their places."""
    urls = stored.record.origins or ((options.store_url,) if options.store_url else ())
    sources = await Origins().sources(urls)
    file, done = PieceFile(stored.file, manifest), 0

    def advance() -> None:
        nonlocal done
        done += 1
        options.progress(f"{subject.part} repair", done, len(bad))

    async def take(piece: Piece, content: bytes) -> None:
        await anyio.to_thread.run_sync(file.write, piece.place, content)

    try:
        with full_disk_reported("repairing a layer"):
            await anyio.to_thread.run_sync(lambda: stored.file.touch(mode=0o600))
            failures = await fetch_pieces(
                sources, [Piece(False, place, manifest.chunks[place]) for place in bad], take, advance
            )
            await anyio.to_thread.run_sync(file.finish)
    except HostDiskFullError as error:
        return subject.bad(words(error), node=options.node, advice=error.resolution)
    except OSError as error:
        advice = f"the disk cannot be written either; {_DISK}"
        return subject.bad(f"{_numbers(bad)}: {error.strerror}", node=options.node, advice=advice)
    if failures:
        what = some([f"{piece}: {words(error)}" for piece, error in failures.items()])
        advice = f"see to where it was pulled from ({', '.join(urls) or 'nobody knows'}), or pull {subject.part} again"
        return subject.bad(f"{len(failures)} chunks cannot be had again: {what}", node=options.node, advice=advice)
    detail = f"{format_number_of(len(bad), 'chunk')} did not verify, fetched again: {_numbers(bad)}"
    return Finding(
        part=subject.part,
        ok=True,
        detail=detail,
        advice=_DISK[0].upper() + _DISK[1:],
        node=options.node,
        layer=subject.digest,
        repaired=True,
    )


def _show_anew(images: LocalImageStore, stored: StoredLayer) -> None:
    """Have the kernel read again what it cached of a layer that is mounted."""
    target = images.root / "mounts" / stored.path.name
    for entry in mounts.mounts_under(images.root / "mounts"):
        if entry.target == str(target):
            if entry.source.startswith("/dev/loop"):
                page_eviction.evict_device(entry.source)
            page_eviction.evict_tree(target)
            page_eviction.evict_inodes()


def _numbers(bad: Sequence[int]) -> str:
    shown = ", ".join(f"chunk {number}" for number in bad[:8])
    return shown + (f" and {len(bad) - 8} more" if len(bad) > 8 else "")
