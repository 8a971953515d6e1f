"""The contract by which images of a node are brought and kept, beside `dsec.service.port.SandboxService`.

`dsec.node.image_work.NodeImages` implements it on a host, `dsec.sdk.images.HttpImages` against a server. The object
store is the node's own where none is named; stores and registries are spoken to with the node's credentials.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

from dsec.model.image_layers import Composition
from dsec.model.image_use import ImageUse
from dsec.model.image_work import ImageEvent, ImagePublish, ImagePull, ImagePush, ImageVerify, ImageWorkInfo


class ImageService(Protocol):
    """Pull, publish, push and verify images, and say what they are made of and what was read of them.

    What may take long tells progress, and its report last. Leaving does not stop it, `cancel` does; the same request
    joins it while it goes on. It ends with the node. Asked for again it finds what is done: nothing is fetched or sent
    twice.

    Raises (of all, once events are read):
        NodeUnavailableError: as much of this goes on as the node takes, or the node ends; ask again.
        CapabilityMissingError: this node has no images that could be brought anywhere.
        WorkCancelledError: somebody cancelled it.
    """

    def pull(self, request: ImagePull) -> AbstractAsyncContextManager[AsyncIterator[ImageEvent]]:
        """Make an image known here; its report is an `ImagePulled`.

        Raises:
            InvalidRequestError: that is no reference, or of no image that can be had here; or `store` is no URL of one,
                or names a folder that is no store of images.
            ObjectNotFoundError: store or registry have not got it.
            UnauthorizedError, PermissionDeniedError: as the registry says to the node.
            StateCorruptedError: what is there is something else, or contradicts itself.
            HostDiskFullError, StoreUnavailableError: see there.
        """

    def publish(self, request: ImagePublish) -> AbstractAsyncContextManager[AsyncIterator[ImageEvent]]:
        """Put an image into an object store; its report is an `ImagePublished`.

        Raises:
            ImageNotFoundError: no such image.
            InvalidRequestError: a layer is not here and not there, the tag is no name, or there is no trace; or `store`
                as of `pull`.
            HostDiskFullError, StoreUnavailableError: see there.
        """

    def push(self, request: ImagePush) -> AbstractAsyncContextManager[AsyncIterator[ImageEvent]]:
        """Put an image into a registry; its report is an `ImagePushed`. Raises as `publish` and as `pull`."""

    def verify(self, request: ImageVerify) -> AbstractAsyncContextManager[AsyncIterator[ImageEvent]]:
        """Check an image, and make good what can be if asked to: findings as they are made, then an `ImageVerified`.

        Raises:
            ImageNotFoundError: no such image.
        """

    async def running(self) -> Sequence[ImageWorkInfo]:
        """Say what of the above goes on or waits, whoever asked for it, in the order in which it was asked for."""

    async def cancel(self, work_id: str) -> None:
        """End what goes on or waits, for all who watch it, and return when it has ended and what it had made is gone.

        Nothing of it is known afterwards: of a pull nothing is on the host that another image does not need; what a
        publication or a push sent, no reference names, and the store's or registry's own collection takes it. Work that
        is done in all but its last words is done.

        Raises:
            NotFoundError: nothing such goes on; it may be done.
        """

    async def layers(self, image: str, workspace: str = "", toolkits: Sequence[str] = ()) -> Composition:
        """Say what an image, or an environment of several, is made of.

        Raises:
            ImageNotFoundError: no such image.
            ImagesConflictError: they cannot be stacked.
        """

    async def statistics(self, image: str = "") -> Sequence[ImageUse]:
        """Say what of an image, or of all, is here, was read and came for nothing.

        Raises:
            ImageNotFoundError: no such image.
        """


@runtime_checkable
class HasImages(Protocol):
    """A service whose node has images to be brought and kept."""

    image_work: ImageService
