"""Work on images that does nothing but what a test lets it: a fake of `dsec.images.work.ImageWork`."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import anyio

from dsec.base.errors import DsecError, ImageNotFoundError
from dsec.images.work import Say
from dsec.model.image import ImageInfo
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
    PublishedImage,
    PushedImage,
)


class MemoryImageWork:
    """Says one progress, waits, and reports.

    Attributes:
        asked: what was begun.
        cancelled: of that, what was cancelled.
        cleared: after what of that was cleared away.
        may_end: nothing is reported before it is set.
        error: raised in place of a report.
    """

    def __init__(self) -> None:
        self.asked: list[ImageRequest] = []
        self.cancelled: list[ImageRequest] = []
        self.cleared: list[ImageRequest] = []
        self.may_end = threading.Event()
        self.error: DsecError | None = None

    async def carry_out(self, request: ImageRequest, say: Say) -> ImageReport:
        """See the port."""
        self.asked.append(request)
        say(ImageProgress(what="working", done=1, total=2))
        finding = ImageFinding(part="manifest", ok=True, detail="right")
        if not isinstance(request, ImagePull | ImagePublish | ImagePush):
            say(ImageFound(finding=finding))
        try:
            while not self.may_end.is_set():  # noqa: ASYNC110 - a test sets it from another thread.
                await anyio.sleep(0.002)
        except BaseException:
            self.cancelled.append(request)
            raise
        if self.error is not None:
            raise self.error
        if isinstance(request, ImagePull):
            return ImagePulled(image=ImageInfo(name=request.name or request.reference, image_id="sha256:1", layers=()))
        if isinstance(request, ImagePublish):
            return ImagePublished(image=PublishedImage(reference="b3:1", layers=1))
        if isinstance(request, ImagePush):
            return ImagePushed(image=PushedImage(reference=request.reference, layers=1))
        return ImageVerified(ok=True, findings=(finding,))

    async def clear_away(self, request: ImageRequest) -> None:
        """See the port."""
        self.cleared.append(request)

    def layers(self, image: str, workspace: str, toolkits: Sequence[str]) -> Composition:
        """See the port."""
        names = (image, *filter(None, [workspace]), *toolkits)
        return Composition(images=names, layers=(), warnings=())

    def statistics(self, image: str) -> tuple[ImageUse, ...]:
        """See the port."""
        raise ImageNotFoundError(f"there is no image {image!r}")
