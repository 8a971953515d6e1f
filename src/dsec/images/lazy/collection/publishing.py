"""Put the parts of an image into an object store, relying on what is there already only where that is safe.

See docs/formats/layer-store.md: before an object is asked for, its tombstone is. What somebody may be deleting is said
to be needed, and offered again a window later. All that was relied on is looked at again before the image's document is
put, if the first look was long ago.

Killed at any instruction, a publication leaves parts that nothing names, which a collector takes away.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread

from dsec.base.errors import InvalidRequestError, StoreUnavailableError
from dsec.images.lazy.collection.objects import Part, TombstoneState
from dsec.images.lazy.collection.opened import LayerObjects, each
from dsec.images.lazy.collection.roots import put_document
from dsec.images.lazy.collection.rules import may_rely
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.formats.stored import CHUNK_BYTES
from dsec.images.lazy.publication.conversion import LayerFile, PublishReport, convert, fetch_manifest
from dsec.images.meter import Meter

_PUTS_AT_ONCE = 8
"""Each holds a stored chunk of up to 4 MiB."""
_TRIES = 3
ROUNDS = 20
"""So often is tried again what a collector may be deleting."""

_LONG_BYTES = 16 * CHUNK_BYTES
"""A layer of this length takes long enough that people want to see how far it is."""

Say = Callable[[str], None]
Made = TypeVar("Made")


def quiet(line: str) -> None:
    """Tell nobody."""


class Publication:
    """What is being put into a store, up to the document that names it.

    Args:
        objects: the store.
        say: told what takes long.
        resend: send what the store has, too: what is there under a name may be something else by now.
    """

    def __init__(self, objects: LayerObjects, say: Say = quiet, *, resend: bool = False) -> None:
        self.objects = objects
        self.resend = resend
        self.say = say
        self._needed: set[Part] = set()
        self._looked_at_s: dict[Part, float] = {}
        """When each part was found to be there, and safe to rely on."""

    async def offer(self, part: Part, data: bytes) -> bool:
        """See to it that the store has a part; return whether it was sent.

        One that may be in the course of being deleted stays unsettled: it is to be offered again after `wait`.

        Raises:
            StoreUnavailableError: the store does not answer, or loses what it takes.
        """
        self._needed.add(part)
        if part in self._looked_at_s or not await self._may_rely(part):
            return False
        store = self.objects.store
        for _ in range(_TRIES):
            if not self.resend and await store.head(part.key) is not None:
                return False
            await store.put(part.key, data, if_absent=not self.resend)
            info = await store.head(part.key)
            if info is not None and info.size_bytes == len(data):
                return True
        self._looked_at_s.pop(part)
        raise StoreUnavailableError(
            f"{store.url} acknowledged {part.key} and does not hold it",
            resolution="look at the service: it loses what it takes",
        )

    async def rely_on(self, part: Part) -> None:
        """See to it that the store has a part that this host cannot give it. May leave it unsettled, as `offer` does.

        Raises:
            InvalidRequestError: the store has not got it.
        """
        self._needed.add(part)
        if part in self._looked_at_s or not await self._may_rely(part):
            return
        if await self.objects.store.head(part.key) is None:
            del self._looked_at_s[part]
            raise InvalidRequestError(
                f"{self.objects.store.url} has not got {part.kind.removesuffix('s')} {part.name[:12]}, "
                "and this host has only its name",
                resolution="publish the image from where its layers are, or to the store that it was pulled from",
            )

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Forget what was needed and found in the block when it fails: looks that were cut short found nothing."""
        needed, looked_at_s = set(self._needed), dict(self._looked_at_s)
        try:
            yield
        except BaseException:
            self._needed, self._looked_at_s = needed, looked_at_s
            raise

    def unsettled(self, parts: Iterable[Part]) -> frozenset[Part]:
        """Return those parts that the store may not have, or not keep."""
        return frozenset(part for part in parts if part not in self._looked_at_s)

    async def wait(self, parts: int) -> None:
        """Wait until parts that somebody may be deleting can be offered again."""
        self.say(f"waiting {self.objects.window_s:.0f} s: {parts} parts may be in course of deletion")
        await self.objects.times.sleep(self.objects.window_s)

    async def confirm(self) -> bool:
        """Return whether a document may be put now, after another look at what was looked at long ago.

        Where it may not, all layers are to be published again, which is quick.
        """
        long_ago_s = self.objects.times.clock.boot_s() - self.objects.grace_s / 8
        old = [part for part, looked_at_s in self._looked_at_s.items() if looked_at_s < long_ago_s]

        async def look(part: Part) -> None:
            if await self._may_rely(part) and await self.objects.store.head(part.key) is None:
                del self._looked_at_s[part]

        await each(old, look)
        return not self.unsettled(self._needed)

    def is_recent(self) -> bool:
        """Return whether every look was recent enough for a document that has been put by now."""
        now_s = self.objects.times.clock.boot_s()
        return all(now_s - looked_at_s < self.objects.grace_s / 4 for looked_at_s in self._looked_at_s.values())

    async def _may_rely(self, part: Part) -> bool:
        """Look at a tombstone, and object to it where that is needed."""
        objects = self.objects
        looked_at_s = objects.times.clock.boot_s()
        tombstone = await objects.tombstone(part)
        if may_rely(tombstone, objects.now_s(), objects.grace_s):
            self._looked_at_s[part] = looked_at_s
            return True
        self._looked_at_s.pop(part, None)
        if tombstone is not None and tombstone.state is not TombstoneState.KEPT:
            await objects.store.put(part.tombstone_key, TombstoneState.KEPT.value)
        return False


async def publish_document(
    publication: Publication,
    publish_layers: Callable[[], Awaitable[Made]],
    document_of: Callable[[Made], bytes],
    *,
    tag: str | None = None,
) -> tuple[str, Made]:
    """Publish the layers of an image, and its document once all of them may be relied on at one moment.

    Nearly always each is done once; again after a publication that took very long, or whose host stood still.

    Args:
        publication: what is under way.
        publish_layers: publishes all layers, by `publish_layer`, and returns what came of it.
        document_of: returns the document of that.
        tag: what people are to pull the image by, too.

    Returns:
        The image's reference, and what came of its layers.
    """
    for _ in range(ROUNDS):
        made = await publish_layers()
        if not await publication.confirm():
            continue
        with anyio.CancelScope(shield=True):  # Who is cancelled leaves no image without its tag.
            reference = await put_document(publication.objects.store, document_of(made), tag=tag)
        if publication.is_recent():
            return reference, made
    raise _never_settled()


async def publish_layer(
    publication: Publication, file: LayerFile, *, made: Callable[[LayerManifest], None] = lambda _: None
) -> PublishReport:
    """Convert a layer and put it into a store: chunks first, the manifest last. Idempotent.

    Args:
        publication: what is under way.
        file: the layer's.
        made: told the manifest.

    Raises:
        InvalidRequestError: the file cannot be taken apart.
        StoreUnavailableError: the store does not answer. What was put stays, and is not sent again.
    """
    counts = _Counts()
    manifest = await settle_layer(publication, lambda only: _offered(publication, file, counts, only=only))
    made(manifest)
    return PublishReport(
        manifest=manifest.id, chunks=_count(manifest), new_chunks=counts.new_chunks, stored_bytes=counts.stored_bytes
    )


async def publish_known_layer(publication: Publication, manifest: LayerManifest) -> PublishReport | None:
    """Publish a layer of which the store has all chunks; None: it has not.

    Raises:
        StoreUnavailableError: the store does not answer.
    """
    try:
        with publication.attempt():
            return await _relied_on(publication, manifest)
    except InvalidRequestError:
        return None


async def _relied_on(publication: Publication, manifest: LayerManifest) -> PublishReport:
    """Publish a layer by its manifest. Raises `InvalidRequestError` where a chunk of it is missing."""
    parts = parts_of(manifest)
    for _ in range(ROUNDS):
        await each(parts[1:], publication.rely_on)
        await publication.offer(parts[0], manifest.data)
        unsettled = publication.unsettled(parts)
        if not unsettled:
            return PublishReport(manifest=manifest.id, chunks=_count(manifest), new_chunks=0, stored_bytes=0)
        await publication.wait(len(unsettled))
    raise _never_settled()


async def settle_layer(
    publication: Publication, offer_chunks: Callable[[frozenset[Part] | None], Awaitable[LayerManifest]]
) -> LayerManifest:
    """Offer a layer's chunks, then its manifest, until the store has all of them to be relied on.

    Args:
        publication: what is under way.
        offer_chunks: offers the chunks that it is given, or all, and returns the layer's manifest.
    """
    only: frozenset[Part] | None = None
    for _ in range(ROUNDS):
        manifest = await offer_chunks(only)
        await publication.offer(Part.manifest(manifest.id), manifest.data)
        only = publication.unsettled(parts_of(manifest))
        if not only:
            return manifest
        await publication.wait(len(only))
    raise _never_settled()


class _Counts:
    def __init__(self) -> None:
        self.new_chunks = 0
        self.stored_bytes = 0


async def _offered(
    publication: Publication, file: LayerFile, counts: _Counts, *, only: frozenset[Part] | None
) -> LayerManifest:
    """Convert a layer and offer its chunks, or only some of them, several at a time."""
    send, receive = anyio.create_memory_object_stream[tuple[Part, bytes]](0)
    offered: set[Part] = set()
    size_bytes = file.path.stat().st_size
    say = publication.say if size_bytes >= _LONG_BYTES else quiet
    meter = Meter(f"publishing layer {file.layer[7:19]}", size_bytes, say)

    async def work() -> None:
        async for part, stored in receive:
            if await publication.offer(part, stored):
                counts.new_chunks += 1
                counts.stored_bytes += len(stored)

    def sink(name: str, stored: bytes) -> None:
        part = Part.chunk(name)
        if part not in offered and (only is None or part in only):
            offered.add(part)
            anyio.from_thread.run(send.send, (part, stored))
        # Nearly: pieces of the metadata count, and again with the chunks that hold them.
        meter.add(min(CHUNK_BYTES, size_bytes - meter.bytes))

    failures: list[Exception] = []
    made: list[LayerManifest] = []

    async def supervised(act: Callable[[], Awaitable[None]]) -> None:
        try:
            await act()
        except Exception as error:  # noqa: BLE001 - a supervisor: the first failure ends the others, raised below.
            failures.append(error)
            receive.close()

    async def produce() -> None:
        try:
            made.append(await anyio.to_thread.run_sync(lambda: convert(file, sink)))
        finally:
            send.close()

    async with send, receive, anyio.create_task_group() as group:
        for _ in range(_PUTS_AT_ONCE):
            group.start_soon(supervised, work)
        group.start_soon(supervised, produce)
    if failures:
        raise failures[0]
    return made[0]


async def rely_on_layer(publication: Publication, manifest_id: str) -> PublishReport:
    """See to it that a store has a layer of which this host has no more than the manifest.

    Raises:
        InvalidRequestError: it has not got it.
    """
    parts = [Part.manifest(manifest_id)]
    for _ in range(ROUNDS):
        await each(parts, publication.rely_on)
        unsettled = publication.unsettled(parts)
        if unsettled:
            await publication.wait(len(unsettled))
        elif len(parts) > 1:
            return PublishReport(manifest=manifest_id, chunks=len(parts) - 1, new_chunks=0, stored_bytes=0)
        else:
            parts = parts_of(await fetch_manifest(publication.objects.store, manifest_id))
    raise _never_settled()


def _count(manifest: LayerManifest) -> int:
    return len(manifest.chunks) + len(manifest.metadata_chunks)


def parts_of(manifest: LayerManifest) -> list[Part]:
    """Return a layer's parts, each once: its manifest and its chunks."""
    chunks: Iterable[str] = (ref.id for ref in (*manifest.metadata_chunks, *manifest.chunks))
    return [Part.manifest(manifest.id), *dict.fromkeys(map(Part.chunk, chunks))]


def _never_settled() -> StoreUnavailableError:
    return StoreUnavailableError(
        "parts of the image are being deleted again and again",
        resolution="see who collects in this store, and with which grace period; then publish again",
    )
