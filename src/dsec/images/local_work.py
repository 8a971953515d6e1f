"""Work on the images of this host: between its image store, its object store, and registries. An `ImageWork`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from urllib.parse import unquote, urlsplit

import anyio
import anyio.to_thread

from dsec.base.errors import CapabilityMissingError, InvalidRequestError
from dsec.images.composition import composition
from dsec.images.lazy.collection.local import collect_local
from dsec.images.lazy.collection.objects import FORMAT
from dsec.images.lazy.publication.sharing import publish_image, pull_image
from dsec.images.lazy.serving.client import LayerDaemon
from dsec.images.lazy.tracing.image_use import image_uses
from dsec.images.lazy.verifying.findings import VerifyOptions
from dsec.images.lazy.verifying.verification import verify_image
from dsec.images.registry.client import RegistryClient
from dsec.images.registry.pull import PullRequest, pull_from_registry
from dsec.images.registry.push import PushRequest, push_image
from dsec.images.registry.reference import names_registry, parse_reference
from dsec.images.registry.source import close_shared
from dsec.images.store import LocalImageStore
from dsec.images.work import Say
from dsec.model.image_layers import Composition
from dsec.model.image_use import ImageUse
from dsec.model.image_work import (
    ImageFinding,
    ImageFound,
    ImageProgress,
    ImagePublish,
    ImagePublished,
    ImagePull,
    ImagePulled,
    ImagePush,
    ImagePushed,
    ImageReport,
    ImageRequest,
    ImageVerified,
    ImageVerify,
)
from dsec.stores.objects import ObjectStore
from dsec.stores.opening import open_existing, open_store


class LocalImageWork:
    """The work on a host's images.

    Args:
        images: where they are.
        daemon: serves its lazy layers; None: nobody does, and images are pulled whole.
        store_url: of its object store, where none is named.
        node: its node's id, for findings.
    """

    def __init__(self, images: LocalImageStore, daemon: LayerDaemon | None, *, store_url: str, node: str) -> None:
        self._images = images
        self._daemon = daemon
        self._store_url = store_url
        self._node = node

    async def carry_out(self, request: ImageRequest, say: Say) -> ImageReport:
        """See the port."""
        if isinstance(request, ImagePull):
            return await self._pull(request, say)
        if isinstance(request, ImagePublish):
            return await self._publish(request, say)
        if isinstance(request, ImagePush):
            return await self._push(request, say)
        return await self._verify(request, say)

    async def clear_away(self, request: ImageRequest) -> None:
        """See the port. What no image needs goes, as by `dsec image gc`."""
        if isinstance(request, ImagePull):
            also = (request.store,) if request.store else ()
            await collect_local(self._images, self._daemon, self._store_url, also=also)

    async def _pull(self, request: ImagePull, say: Say) -> ImagePulled:
        if names_registry(request.reference):
            return await self._pull_from_registry(request, say)

        def progress(here_bytes: int, total_bytes: int) -> None:
            say(ImageProgress(what="pulling", done=here_bytes, total=total_bytes))

        async with self._opened(request.store, to_read=True) as store:
            pulled = await pull_image(
                self._images,
                request.reference,
                store,
                name=request.name or None,
                eager=request.eager,
                progress=progress,
            )
        return ImagePulled(image=pulled)

    @asynccontextmanager
    async def _opened(self, named: str, *, to_read: bool = False) -> AsyncIterator[ObjectStore]:
        """Open an object store for the duration of the block."""
        if named:
            await anyio.to_thread.run_sync(_check_store, named)
        opening = open_existing if to_read else open_store
        store = await anyio.to_thread.run_sync(opening, named or self._store_url)
        try:
            yield store
        finally:
            with anyio.CancelScope(shield=True):
                await store.aclose()

    async def _pull_from_registry(self, request: ImagePull, say: Say) -> ImagePulled:
        if request.store:
            raise InvalidRequestError(f"{request.reference!r} is in a registry, and `store` is about object stores")
        reference = parse_reference(request.reference)
        client = RegistryClient(reference.repository.host)
        wanted = PullRequest(
            reference=reference, name=request.name or None, eager=request.eager, progress=partial(_line, say)
        )
        try:
            return ImagePulled(image=await pull_from_registry(self._images, wanted, client))
        finally:
            with anyio.CancelScope(shield=True):
                await close_shared()
                await client.aclose()

    async def _publish(self, request: ImagePublish, say: Say) -> ImagePublished:
        async with self._opened(request.store) as store:
            published = await publish_image(
                self._images,
                request.image,
                store,
                tag=request.tag or None,
                by_traces=request.by_traces,
                say=partial(_line, say),
            )
        return ImagePublished(image=published)

    async def _push(self, request: ImagePush, say: Say) -> ImagePushed:
        reference = parse_reference(request.reference)
        client = RegistryClient(reference.repository.host)
        wanted = PushRequest(
            name=request.image, reference=reference, by_traces=request.by_traces, progress=partial(_line, say)
        )
        try:
            return ImagePushed(image=await push_image(self._images, wanted, client))
        finally:
            with anyio.CancelScope(shield=True):
                await client.aclose()

    async def _verify(self, request: ImageVerify, say: Say) -> ImageVerified:
        def progress(part: str, done: int, total: int) -> None:
            say(ImageProgress(what=part, done=done, total=total))

        options = VerifyOptions(
            node=self._node, store_url=self._store_url, full=request.full, repair=request.repair, progress=progress
        )
        findings: list[ImageFinding] = []
        async for finding in verify_image(self._images, request.image, self._daemon, options):
            findings.append(finding)
            say(ImageFound(finding=finding))
        return ImageVerified(ok=all(finding.ok for finding in findings), findings=tuple(findings))

    def layers(self, image: str, workspace: str, toolkits: Sequence[str]) -> Composition:
        """See the port."""
        return composition(self._images, image, workspace or None, toolkits)

    def statistics(self, image: str) -> tuple[ImageUse, ...]:
        """See the port."""
        if self._daemon is None:
            raise CapabilityMissingError(
                "this node has no layers that are loaded when touched", resolution="dsec doctor says why"
            )
        return image_uses(self._images, (self._images.get(image),) if image else self._images.list(), self._daemon)


def _check_store(url: str) -> None:
    """Refuse a store that who may ask this node may not name: a folder of its host that is no store of images yet. The
    node may write anywhere, and would make one of it.

    Raises:
        InvalidRequestError: it is one.
    """
    parts = urlsplit(url)
    if parts.scheme == "s3" or (parts.scheme == "file" and Path(unquote(parts.path), FORMAT).is_file()):
        return
    raise InvalidRequestError(
        f"{url!r} is no store of images that this node can be asked to use",
        detail="a node that is asked uses s3://bucket/prefix, and folders in which images were published before",
        resolution="`dsec image publish --store` on its host makes one; or name none: the node has one",
    )


def _line(say: Say, line: str) -> None:
    say(ImageProgress(what=line))
