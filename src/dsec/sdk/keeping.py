"""Hold a connection open for whoever needs it, independent of the task that asked first.

An embedded node is a context manager with tasks inside, which must be entered and left by one task. The keeper has that
task. It is awaited by `aclose`; one that nobody closes ends with its event loop, whose runner cancels and awaits it.
"""

from __future__ import annotations

import asyncio
import weakref
from pathlib import Path

from dsec.sdk.connect import open_service
from dsec.sdk.fleet import fleet_of as fleet_of
from dsec.sdk.images import images_of as images_of
from dsec.sdk.state import state_of as state_of
from dsec.service.port import SandboxService


class Keeper:
    """One connection, opened on first use. The arguments are those of `open_service`."""

    def __init__(
        self, *, url: str | None = None, token: str | None = None, state_dir: str | Path | None = None
    ) -> None:
        self._url = url
        self._token = token
        self._state_dir = state_dir
        self._task: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[SandboxService] | None = None
        self._leave: asyncio.Event | None = None

    async def service(self) -> SandboxService:
        """Return the open service; opening is tried again after it failed."""
        if self._opened is None or self._failed():
            self._opened = asyncio.get_running_loop().create_future()
            self._leave = asyncio.Event()
            self._task = asyncio.create_task(self._keep(self._opened, self._leave), name="dsec connection")
        return await asyncio.shield(self._opened)

    def _failed(self) -> bool:
        opened = self._opened
        return opened is not None and opened.done() and (opened.cancelled() or opened.exception() is not None)

    async def _keep(self, opened: asyncio.Future[SandboxService], leave: asyncio.Event) -> None:
        try:
            async with open_service(url=self._url, token=self._token, state_dir=self._state_dir) as service:
                opened.set_result(service)
                await leave.wait()
        except BaseException as error:
            if opened.done():
                raise
            opened.set_exception(error)
            if not isinstance(error, Exception):
                raise

    async def aclose(self) -> None:
        """Close the connection and return when all of it is gone. Idempotent."""
        task, self._task, self._opened = self._task, None, None
        if task is not None and self._leave is not None:
            self._leave.set()
            await task


_shared: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Keeper] = weakref.WeakKeyDictionary()


async def shared_service() -> SandboxService:
    """Return the service that everything in this event loop shares when it names no other."""
    loop = asyncio.get_running_loop()
    keeper = _shared.get(loop)
    if keeper is None:
        keeper = _shared[loop] = Keeper()
    return await keeper.service()


async def close_shared_service() -> None:
    """Close this event loop's shared connection, if there is one."""
    keeper = _shared.pop(asyncio.get_running_loop(), None)
    if keeper is not None:
        await keeper.aclose()
