"""A node's work on its images, each request once, however many ask for it: `dsec.service.images.ImageService`.

Work runs in an event loop of its own, in a thread: what is hashed, decoded and sent there must not delay commands in
sandboxes. A few go on at a time and some more wait; further ones are refused. Whoever asks watches, and may leave.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread

from dsec.base.errors import DsecError, NodeUnavailableError, NotFoundError, WorkCancelledError
from dsec.images.work import ImageWork
from dsec.model.image_layers import Composition
from dsec.model.image_use import ImageUse
from dsec.model.image_work import (
    ImageEvent,
    ImageFound,
    ImageProgress,
    ImagePublish,
    ImagePull,
    ImagePush,
    ImageReport,
    ImageRequest,
    ImageVerify,
    ImageWorkInfo,
    work_id_of,
    work_info,
)
from dsec.node.core import Core

AT_ONCE = 4
"""Each may take a processor and a share of the link."""
WAITING = 64
_PROGRESS_S = 0.1
"""Between two that are told: nobody reads faster."""
_THREADS = 8
_ENDING_S = 10.0


class NodeImages:
    """The work on a node's images.

    Args:
        core: the node's inner state.
        work: does it.
    """

    def __init__(self, core: Core, work: ImageWork) -> None:
        self._core = core
        self._work = work
        self._running: dict[ImageRequest, _Running] = {}
        self._places = anyio.Semaphore(AT_ONCE)
        self._threads = anyio.CapacityLimiter(_THREADS)

    def pull(self, request: ImagePull) -> AbstractAsyncContextManager[AsyncIterator[ImageEvent]]:
        return self._watched(request)

    def publish(self, request: ImagePublish) -> AbstractAsyncContextManager[AsyncIterator[ImageEvent]]:
        return self._watched(request)

    def push(self, request: ImagePush) -> AbstractAsyncContextManager[AsyncIterator[ImageEvent]]:
        return self._watched(request)

    def verify(self, request: ImageVerify) -> AbstractAsyncContextManager[AsyncIterator[ImageEvent]]:
        return self._watched(request)

    async def running(self) -> Sequence[ImageWorkInfo]:
        self._core.check_open()
        return [
            work_info(request, is_waiting=not running.has_begun, progress=running.progress)
            for request, running in self._running.items()
        ]

    async def cancel(self, work_id: str) -> None:
        self._core.check_open()
        for request, running in self._running.items():
            if work_id_of(request) == work_id:
                running.scope.cancel()
                await running.gone.wait()
                return
        raise NotFoundError(
            f"no work {work_id!r} on images goes on here", resolution="it may be done: ask what goes on"
        )

    async def layers(self, image: str, workspace: str = "", toolkits: Sequence[str] = ()) -> Composition:
        self._core.check_open()
        return await anyio.to_thread.run_sync(
            self._work.layers, image, workspace, tuple(toolkits), limiter=self._threads
        )

    async def statistics(self, image: str = "") -> Sequence[ImageUse]:
        self._core.check_open()
        return await anyio.to_thread.run_sync(self._work.statistics, image, limiter=self._threads)

    @asynccontextmanager
    async def _watched(self, request: ImageRequest) -> AsyncIterator[AsyncIterator[ImageEvent]]:
        self._core.check_open()
        running = self._running.get(request)
        if running is None:
            if len(self._running) >= AT_ONCE + WAITING:
                raise NodeUnavailableError(
                    f"{len(self._running)} pulls, pushes and the like go on or wait here", resolution="ask again later"
                )
            running = self._running[request] = _Running()
            self._core.supervisor.start(f"work on an image: {request!r}", lambda: self._carry_out(request, running))
        yield running.events()

    async def _carry_out(self, request: ImageRequest, running: _Running) -> None:
        try:
            with running.scope:
                async with self._places:
                    running.has_begun = True
                    await self._apart(request, running)
            if running.report is not None:
                running.end(running.report)
            elif running.scope.cancelled_caught:
                await self._work.clear_away(request)
                running.fail(WorkCancelledError("the work was cancelled", resolution="ask again if it is wanted"))
        except DsecError as error:
            running.fail(error)
        finally:
            del self._running[request]
            brief = "the work was not carried out to its end: the node ends, or its log says why"
            running.fail(NodeUnavailableError(brief, resolution="ask again"))
            running.gone.set()

    async def _apart(self, request: ImageRequest, running: _Running) -> None:
        """Do the work in an event loop of its own; cancelled with us, and gone when we are."""
        token = anyio.lowlevel.current_token()

        def say(event: ImageProgress | ImageFound) -> None:
            if running.takes(event):
                anyio.from_thread.run_sync(running.tell, event, token=token)

        async def work() -> None:
            running.report = await self._work.carry_out(request, say)

        opening = anyio.from_thread.start_blocking_portal()
        portal = await anyio.to_thread.run_sync(opening.__enter__, limiter=self._threads)
        try:
            future = portal.start_task_soon(work)
            try:
                await anyio.to_thread.run_sync(future.result, abandon_on_cancel=True, limiter=self._threads)
            finally:
                future.cancel()
        finally:
            # What a thread has begun, such as laying a layer out, it ends by itself; a node that ends need not wait.
            with anyio.move_on_after(_ENDING_S, shield=True):
                await anyio.to_thread.run_sync(
                    opening.__exit__, None, None, None, abandon_on_cancel=True, limiter=self._threads
                )


class _Running:
    """One piece of work, and what it said. Used from the node's event loop, but for `takes` and `report`.

    Attributes:
        scope: ends it.
        has_begun: it has a place among those that go on.
        progress: the latest.
        report: what it came to, also when it was being cancelled; None: nothing yet.
        gone: it has ended, and is known no more.
    """

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self.has_begun = False
        self.progress: ImageProgress | None = None
        self.report: ImageReport | None = None
        self.gone = anyio.Event()
        self._kept: list[ImageEvent] = []
        self._error: DsecError | None = None
        self._is_over = False
        self._changed = anyio.Event()
        self._told_s = -_PROGRESS_S

    def takes(self, event: ImageProgress | ImageFound) -> bool:
        """Return whether an event is to be told, or is superseded soon enough."""
        now_s = time.monotonic()
        if isinstance(event, ImageProgress):
            if now_s - self._told_s < _PROGRESS_S and event.total:
                return False
            self._told_s = now_s
        return True

    def tell(self, event: ImageProgress | ImageFound) -> None:
        """Let everybody who watches know."""
        if isinstance(event, ImageProgress):
            self.progress = event
        else:
            self._kept.append(event)
        self._change()

    def end(self, report: ImageReport) -> None:
        """Say what it came to."""
        self._kept.append(report)
        self._is_over = True
        self._change()

    def fail(self, error: DsecError) -> None:
        """Say why it came to nothing, unless it is over."""
        if not self._is_over:
            self._error, self._is_over = error, True
            self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def events(self) -> AsyncIterator[ImageEvent]:
        """Yield what was found, the latest progress, and what it comes to."""
        told, shown = 0, None
        while True:
            changed = self._changed
            if self.progress is not shown and self.progress is not None:
                shown = self.progress
                yield shown
            while told < len(self._kept):
                told += 1
                yield self._kept[told - 1]
            if self._is_over:
                break
            await changed.wait()
        if self._error is not None:
            raise self._error
