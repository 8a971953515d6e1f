"""Verify an image: its manifests, then its layers, then every chunk of those that are loaded when touched.

Trust goes from the image's name through records and manifests to chunks, and in that order it is looked at. Each level
is looked at wholly, whatever the one before it found, so that one run names everything that is wrong, and where. What
is on this host is read in any case; with `full` also everything that the layers' origins have.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio.to_thread

from dsec.base.errors import DsecError, HostDiskFullError, InvalidRequestError, StateCorruptedError
from dsec.base.units import format_number_of, format_size
from dsec.images import erofs
from dsec.images.lazy.collection.objects import Part
from dsec.images.lazy.formats.document import ImageDocument
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.origins import REGISTRY_SCHEME, close_origins
from dsec.images.lazy.publication.cut_layers import CutLayer, cuts_of
from dsec.images.lazy.publication.laid_out import laid_out_again
from dsec.images.lazy.publication.pulled import PulledFrom, pulled_from
from dsec.images.lazy.serving.client import LayerDaemon
from dsec.images.lazy.verifying.documents import Documents, look_at_documents, put_documents
from dsec.images.lazy.verifying.findings import Finding, Subject, VerifyOptions, words
from dsec.images.lazy.verifying.origin_checks import OriginCheck, place_of
from dsec.images.lazy.verifying.peer_faults import peer_faults
from dsec.images.lazy.verifying.records import StoredLayer, read_stored, restore
from dsec.images.lazy.verifying.whole_layers import check_whole
from dsec.images.listing import tree_digest
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageInfo, LayerFormat
from dsec.stores.opening import open_existing


async def verify_image(
    images: LocalImageStore, name: str, daemon: LayerDaemon | None, options: VerifyOptions
) -> AsyncIterator[Finding]:
    """Yield what is found about an image, part by part.

    Args:
        images: where it is.
        name: its name.
        daemon: serves its lazy layers; None: there can be none.
        options: how.

    Raises:
        ImageNotFoundError: no such image.
    """
    with _held(images, name) as info:
        async for finding in _findings(_ImageCheck(images, info, daemon, options)):
            yield finding


@contextlib.contextmanager
def _held(images: LocalImageStore, name: str) -> Iterator[ImageInfo]:
    """Return an image whose layers stay while it is verified, though its name may go; unless the disk is full."""
    with contextlib.ExitStack() as stack:
        try:
            info = stack.enter_context(images.held(name))
        except HostDiskFullError:
            info = images.get(name)
        yield info


async def _findings(check: _ImageCheck) -> AsyncIterator[Finding]:
    images, options = check.images, check.options
    try:
        async for finding in check.manifests():
            yield finding
        for subject, stored in check.layers:
            if stored.record.format is not LayerFormat.LAZY:
                yield await check_whole(images, subject, stored, options)
                async for finding in check.published(subject, stored):
                    yield finding
        for subject, stored in check.layers:
            if stored.record.format is LayerFormat.LAZY and stored.manifest is not None:
                async for finding in check.chunks(subject, stored, stored.manifest):
                    yield finding
        async for finding in check.documents():
            yield finding
    finally:
        await close_origins()


class _ImageCheck:
    """The check of one image.

    Attributes:
        images, options: as given.
        layers: those whose records are right, from the lowest up.
    """

    def __init__(
        self, images: LocalImageStore, info: ImageInfo, daemon: LayerDaemon | None, options: VerifyOptions
    ) -> None:
        self.images = images
        self._info = info
        self._daemon = daemon
        self.options = options
        self._unreachable: dict[str, str] = {}
        self._documents: Documents | None = None
        self.layers: list[tuple[Subject, StoredLayer]] = []

    async def manifests(self) -> AsyncIterator[Finding]:
        """Check what is written down of the image and its layers, here and where it was pulled from."""
        origin = await anyio.to_thread.run_sync(pulled_from, self.images.root, self._info.image_id)
        if origin is not None and (self.options.full or self.options.repair):
            self._documents = await look_at_documents(origin)
            if self._documents.away:
                self._unreachable[place_of(origin.store)] = self._documents.away  # It need not be waited for again.
        document = None if self._documents is None else self._documents.document
        is_good = True
        for number, layer in enumerate(self._info.layers, 1):
            finding = await self._record(Subject(part=f"layer-{number}", digest=layer.digest), document, origin)
            if finding is not None:
                is_good = is_good and finding.ok
                yield finding
        lazy = sum(stored.record.format is LayerFormat.LAZY for _, stored in self.layers)
        if is_good:
            detail = f"{format_number_of(len(self._info.layers), 'layer')}, {lazy} of them lazy"
            yield Finding(part="manifest", ok=True, detail=detail, node=self.options.node)
        if self._documents is not None and self.options.full and not self._puts_documents(self._documents):
            yield self._about_documents(self._documents)

    def _puts_documents(self, documents: Documents) -> bool:
        """Return whether documents are to be put again, once all that they name was looked at."""
        return self.options.repair and bool(documents.problems) and not documents.away

    def _about_documents(self, documents: Documents) -> Finding:
        origin, document = documents.origin, documents.document
        if documents.is_bad or documents.was_unpublished or document is None:
            return documents.finding()
        if [layer.digest for layer in document.layers] != [layer.digest for layer in self._info.layers]:
            detail = f"{origin.reference} has other layers than {self._info.name} has here"
            return Finding(part="document", ok=False, detail=detail, advice="pull the image again", node=origin.store)
        return documents.finding()

    async def documents(self) -> AsyncIterator[Finding]:
        """Put the image's documents again where they were pulled from, if that is needed and asked for."""
        documents = self._documents
        if documents is None or not self._puts_documents(documents):
            return
        manifests = {subject.digest: stored.manifest for subject, stored in self.layers if stored.manifest is not None}
        with self.images.work_directory() as work:
            left = await put_documents(documents, manifests, work)
        yield documents.finding(left, was_repaired=not left)

    async def _record(
        self, subject: Subject, document: ImageDocument | None, origin: PulledFrom | None
    ) -> Finding | None:
        """Read what is written down of a layer; return a finding where that was damaged."""
        try:
            stored = await anyio.to_thread.run_sync(read_stored, self.images, subject.digest)
        except DsecError as error:
            if not self.options.repair:
                advice = "--repair writes it anew from where the image was pulled; or pull or import the image again"
                return self._unreadable(subject, words(error), advice)
            return await self._restored(subject, error, document, origin)
        self.layers.append((subject, stored))
        return None

    async def _restored(
        self, subject: Subject, problem: DsecError, document: ImageDocument | None, origin: PulledFrom | None
    ) -> Finding:
        known = "" if origin is None or origin.store.startswith(REGISTRY_SCHEME) else origin.store
        origins = tuple(url for url in (known, self.options.store_url) if url)
        try:
            stored = await restore(self.images, subject.digest, document, origins)
            stored = await anyio.to_thread.run_sync(read_stored, self.images, subject.digest)
        except DsecError as error:
            detail = f"{words(problem)}; and it cannot be written anew: {words(error)}"
            return self._unreadable(subject, detail, "pull or import the image again")
        self.layers.append((subject, stored))
        return Finding(
            part=f"manifest of {subject.part}",
            ok=True,
            detail=f"{words(problem)}: written anew",
            advice="check this node's disk",
            node=self.options.node,
            layer=subject.digest,
            repaired=True,
        )

    def _unreadable(self, subject: Subject, detail: str, advice: str) -> Finding:
        part, node = f"manifest of {subject.part}", self.options.node
        return Finding(part=part, ok=False, detail=detail, advice=advice, node=node, layer=subject.digest)

    async def chunks(self, subject: Subject, stored: StoredLayer, manifest: LayerManifest) -> AsyncIterator[Finding]:
        """Check the chunks of a lazy layer: what is cached here, and with `full` what its origins have."""
        yield await self._cached(subject, stored, manifest)
        if not self.options.full:
            return
        if self._daemon is not None:
            root = self._daemon.root
            for finding in await anyio.to_thread.run_sync(lambda: list(peer_faults(root, subject, manifest.id))):
                yield finding
        origins = stored.record.origins or self._own_store()
        check = OriginCheck(self.images, subject, manifest, origins, self.options, self._unreachable)
        with self.images.work_directory() as work:
            path = work.path / "fetched.erofs"
            descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            assert descriptor is not None
            try:
                os.ftruncate(descriptor, manifest.size_bytes)
                free = os.fstatvfs(descriptor)
                has_room = free.f_bavail * free.f_frsize > 2 * manifest.size_bytes
                for url in origins:
                    yield await check.check(url, descriptor if has_room else None)
                if not has_room:
                    detail = (
                        f"what it is as a whole was not checked: that takes {format_size(manifest.size_bytes)} here"
                    )
                    yield subject.good(detail, node=self.options.node)
                elif len(check.filled) == len(manifest.chunks):
                    yield await anyio.to_thread.run_sync(self._assembled, subject, path)
            finally:
                os.close(descriptor)

    def _own_store(self) -> tuple[str, ...]:
        return (self.options.store_url,) if self.options.store_url else ()

    async def published(self, subject: Subject, stored: StoredLayer) -> AsyncIterator[Finding]:
        """Check what others have of a layer that is whole here: where it was pulled from, or brought to from here."""
        if not self.options.full or stored.record.format is not LayerFormat.EROFS:
            return
        if stored.manifest is not None:
            check = OriginCheck(
                self.images, subject, stored.manifest, stored.record.origins, self.options, self._unreachable
            )
            for url in stored.record.origins:
                yield await check.check(url, None)
            return
        for cut, by_traces in await anyio.to_thread.run_sync(cuts_of, self.images, subject.digest):
            async for finding in self._published_as_cut(subject, cut, by_traces=by_traces):
                yield finding

    async def _published_as_cut(self, subject: Subject, cut: CutLayer, *, by_traces: bool) -> AsyncIterator[Finding]:
        origins = tuple(url for url in (cut.blob, *await self._stores_with(cut.manifest)) if url)
        with self.images.work_directory() as work:

            def as_cut() -> Path | None:
                traced = self._info if by_traces else None
                return laid_out_again(self.images, subject.digest, work.path, traced=traced)

            check = OriginCheck(self.images, subject, cut.manifest, origins, self.options, self._unreachable, as_cut)
            for url in origins:
                yield await check.check(url, None)

    async def _stores_with(self, manifest: LayerManifest) -> tuple[str, ...]:
        """Return the node's object store, if the layer was published there as it was cut last."""
        for url in self._own_store():
            if url in self._unreachable:
                continue
            try:
                store = await anyio.to_thread.run_sync(open_existing, url)
                try:
                    if await store.head(Part.manifest(manifest.id).key) is not None:
                        return (url,)
                finally:
                    await store.aclose()
            except DsecError as error:
                # Nobody said that it is there; and not for each layer is it to be waited for.
                self._unreachable[url] = words(error)
        return ()

    def _assembled(self, subject: Subject, path: Path) -> Finding:
        """Compare the digest of everything in the file that all chunks make: each may be what its name says, and the
        manifest lie about what they are together.
        """
        advice = "its manifest was made wrongly: publish the image again, and pull that"
        try:
            with self.images.work_directory() as scratch, erofs.opened(path, scratch.path) as root_fd:
                found = tree_digest(root_fd, file_bytes=path.stat().st_size)[0]
        except (InvalidRequestError, StateCorruptedError, OSError) as error:
            detail = words(error) if isinstance(error, DsecError) else str(error)
            return subject.bad(f"its chunks make no layer: {detail}", node=self.options.node, advice=advice)
        if found == subject.digest:
            return subject.good("hash matched", node=self.options.node)
        detail = f"hash mismatch, expected {subject.digest[7:19]}..., got {found[7:19]}..."
        return subject.bad(detail, node=self.options.node, advice=advice)

    async def _cached(self, subject: Subject, stored: StoredLayer, manifest: LayerManifest) -> Finding:
        node, suffix, repair = self.options.node, " cache", self.options.repair
        if self._daemon is None:
            return subject.good("nothing is cached without a daemon of layers", node=node, suffix=suffix)
        daemon, origins = self._daemon, stored.record.origins
        try:
            answer = await anyio.to_thread.run_sync(
                lambda: daemon.verify(manifest.id, repair=repair, origins=origins, file=stored.file)
            )
        except DsecError as error:
            return subject.bad(words(error), node=node, suffix=suffix, advice="see that its origins can be reached")
        if not answer.bad:
            return subject.good(
                f"{format_number_of(answer.pieces, 'piece')} here, hashes matched", node=node, suffix=suffix
            )
        detail = f"{len(answer.bad)} of {answer.pieces} pieces do not verify: {_numbers(answer.bad)}"
        disk = f"{_in_use(answer.mapped)}check this node's disk"
        if not repair:
            command = f"`dsec image prefetch {self._info.name} --all`"
            advice = f"they are fetched again when they are read, or now by {command}; {disk}"
            return subject.bad(detail, node=node, suffix=suffix, advice=advice)
        return Finding(
            part=f"{subject.part}{suffix}",
            ok=True,
            detail=f"{detail}; they were fetched again",
            advice=disk,
            node=node,
            layer=subject.digest,
            repaired=True,
        )


def _in_use(mapped: tuple[str, ...]) -> str:
    """Return what to do about damaged pages that the kernel keeps for programs that run."""
    if not mapped:
        return ""
    shown = ", ".join(mapped[:5]) + (", ..." if len(mapped) > 5 else "")
    return f"programs run with what was damaged of {shown}: end the sandboxes of this image; "


def _numbers(bad: tuple[int, ...]) -> str:
    shown = ", ".join("metadata" if number < 0 else f"chunk {number}" for number in bad[:8])
    return shown + (f" and {len(bad) - 8} more" if len(bad) > 8 else "")
