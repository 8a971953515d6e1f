"""The port of work on images as a whole: bring them here and there, and check them.

Contract of every driver: each call belongs to one event loop, may take hours, and ends soon when it is cancelled. It
says how far it is through `say`, from any thread. What it raises is said in `dsec.service.images`. It is cancelled when
its node ends, and may then leave what the next call of this kind goes on with, or because nobody wants it any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from dsec.base.errors import CapabilityMissingError
from dsec.model.image_layers import Composition
from dsec.model.image_use import ImageUse
from dsec.model.image_work import ImageFound, ImageProgress, ImageReport, ImageRequest

Say = Callable[[ImageProgress | ImageFound], None]


class ImageWork(Protocol):
    """Who does it."""

    async def carry_out(self, request: ImageRequest, say: Say) -> ImageReport:
        """Do what is asked, and return what it came to. Once others know of that it ends well, cancelled or not."""

    async def clear_away(self, request: ImageRequest) -> None:
        """Take from this host what work that was cancelled has left for the next call to go on with."""

    def layers(self, image: str, workspace: str, toolkits: Sequence[str]) -> Composition:
        """Say what an image, or an environment of several, is made of. Blocks."""

    def statistics(self, image: str) -> tuple[ImageUse, ...]:
        """Say what of an image, or with an empty name of all, is here and was read. Blocks."""


class NoImageWork:
    """Nothing can be done: there is neither store nor registry behind these images."""

    async def carry_out(self, request: ImageRequest, say: Say) -> ImageReport:
        raise _missing()

    async def clear_away(self, request: ImageRequest) -> None:
        """Nothing was done."""

    def layers(self, image: str, workspace: str, toolkits: Sequence[str]) -> Composition:
        raise _missing()

    def statistics(self, image: str) -> tuple[ImageUse, ...]:
        raise _missing()


def _missing() -> CapabilityMissingError:
    return CapabilityMissingError(
        "the images of this service come from nowhere and go nowhere", resolution="talk to a node of a host"
    )
