"""Images of a node, brought here and there, of a node in this process or of a server elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from dsec.api import wire
from dsec.base.errors import CapabilityMissingError
from dsec.model.image_layers import Composition
from dsec.model.image_use import ImageUse
from dsec.model.image_work import (
    ImageEvent,
    ImagePublish,
    ImagePull,
    ImagePush,
    ImageRequest,
    ImageVerify,
    ImageWorkInfo,
)
from dsec.sdk.events import events_of
from dsec.sdk.http import HttpService, encode_body
from dsec.service.images import HasImages, ImageService
from dsec.service.port import SandboxService


class HttpImages:
    """The `ImageService` of a server. Belongs to the event loop of its `HttpService`."""

    def __init__(self, service: HttpService) -> None:
        self._service = service

    @asynccontextmanager
    async def pull(self, request: ImagePull) -> AsyncIterator[AsyncIterator[ImageEvent]]:
        async with self._asked("pull_image", request) as events:
            yield events

    @asynccontextmanager
    async def publish(self, request: ImagePublish) -> AsyncIterator[AsyncIterator[ImageEvent]]:
        async with self._asked("publish_image", request) as events:
            yield events

    @asynccontextmanager
    async def push(self, request: ImagePush) -> AsyncIterator[AsyncIterator[ImageEvent]]:
        async with self._asked("push_image", request) as events:
            yield events

    @asynccontextmanager
    async def verify(self, request: ImageVerify) -> AsyncIterator[AsyncIterator[ImageEvent]]:
        async with self._asked("verify_image", request) as events:
            yield events

    @asynccontextmanager
    async def _asked(self, name: str, request: ImageRequest) -> AsyncIterator[AsyncIterator[ImageEvent]]:
        async with self._service._stream(name, (), encode_body(request)) as reply:
            yield events_of(reply, wire.ImageStreamEvent)

    async def running(self) -> Sequence[ImageWorkInfo]:
        found: list[ImageWorkInfo] = await self._service._call("image_work")
        return found

    async def cancel(self, work_id: str) -> None:
        await self._service._call("cancel_image_work", work_id=work_id)

    async def layers(self, image: str, workspace: str = "", toolkits: Sequence[str] = ()) -> Composition:
        query = [("image", image), ("workspace", workspace), ("toolkits", ",".join(toolkits))]
        found: Composition = await self._service._call("image_layers", query=query)
        return found

    async def statistics(self, image: str = "") -> Sequence[ImageUse]:
        found: list[ImageUse] = await self._service._call("image_statistics", query=[("image", image)])
        return found


def images_of(service: SandboxService) -> ImageService:
    """Return what brings and keeps the images of a service.

    Raises:
        CapabilityMissingError: nobody does.
    """
    if isinstance(service, HttpService):
        return HttpImages(service)
    if isinstance(service, HasImages):
        return service.image_work
    raise CapabilityMissingError("this service brings no images anywhere", resolution="talk to a node")
