"""The loop in the background that the sync half runs on: one thread per process, shared by every client.

A sync call hands its coroutine to that loop and waits. An interrupt of the waiting thread (Ctrl-C) cancels the
coroutine, so that a command does not run on unheard. Context managers and iterators live in one task of the loop from
beginning to end, since what they hold (cancel scopes, task groups) may not change tasks; the sync side takes items from
that task.

A forked child has no loop thread and starts its own on first use. At exit the loop is told to end and waited for.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
)
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Generic, ParamSpec, TypeVar, cast, overload

import anyio
from anyio import to_thread
from anyio.abc import TaskStatus
from anyio.from_thread import BlockingPortal
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from dsec.service.content import ByteStream

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")

EXIT_TIMEOUT_S = 20.0
"""How long the end of the process waits for connections (an embedded node among them) to close."""


class _Background:
    """The loop thread of this process.

    `anyio.from_thread.start_blocking_portal` is not used: it is a generator, and dropping one in a forked child runs
    its clean-up there, which waits for a thread that only the parent has.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._portal: BlockingPortal | None = None
        self._thread: threading.Thread | None = None
        self._at_exit: set[Callable[[], None]] = set()
        self._registered = False

    def portal(self) -> BlockingPortal:
        with self._lock:
            if self._portal is None:
                self._portal = self._start()
            return self._portal

    def _start(self) -> BlockingPortal:
        if not self._registered:
            self._registered = True
            os.register_at_fork(after_in_child=self._forget)
            atexit.register(self._close)
        ready: Future[BlockingPortal] = Future()
        self._thread = threading.Thread(target=_run_loop, args=(ready,), name="dsec", daemon=True)
        self._thread.start()
        return ready.result()

    def before_exit(self, action: Callable[[], None]) -> None:
        """Do this before the loop ends; once, however often it is asked for."""
        self._at_exit.add(action)

    def _forget(self) -> None:
        """In a forked child: the thread is the parent's."""
        self._lock = threading.Lock()
        self._portal = None
        self._thread = None
        self._at_exit.clear()

    def _close(self) -> None:
        portal, thread = self._portal, self._thread
        if portal is None or thread is None:
            return
        for action in tuple(self._at_exit):
            action()
        self._at_exit.clear()
        self._portal = None
        portal.call(portal.stop, True)
        thread.join(EXIT_TIMEOUT_S)


def _run_loop(ready: Future[BlockingPortal]) -> None:
    async def main() -> None:
        async with BlockingPortal() as portal:
            ready.set_result(portal)
            await portal.sleep_until_stopped()

    anyio.run(main, backend_options={"use_uvloop": True})


background = _Background()


def call(function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run an async function in the background loop and return its result."""

    async def work() -> T:
        return await function(*args, **kwargs)

    return wait(background.portal().start_task_soon(work))


def wait(future: Future[T]) -> T:
    """Wait for work in the loop; whatever interrupts the wait cancels the work and lets it end."""
    try:
        return future.result()
    except BaseException:
        if not future.done():
            future.cancel()
        raise


class Held(Generic[V, T]):
    """A context manager entered in a task of the loop, whose value is iterated there.

    Attributes:
        value: what entering returned.
    """

    def __init__(self, manager: AbstractAsyncContextManager[V], items: Callable[[V], AsyncIterable[T]]) -> None:
        self._items = items
        self._complete = False
        self.value: V
        self._received: MemoryObjectReceiveStream[T]
        self._future: Future[Any]
        self._scope: anyio.CancelScope
        self._future, (self.value, self._received) = background.portal().start_task(self._hold, manager)

    async def _hold(
        self,
        manager: AbstractAsyncContextManager[V],
        *,
        task_status: TaskStatus[tuple[V, MemoryObjectReceiveStream[T]]],
    ) -> None:
        self._scope = anyio.CancelScope()
        async with manager as value:
            send, receive = anyio.create_memory_object_stream[T](0)
            task_status.started((value, receive))
            with send, receive, self._scope:
                await self._pass_on(value, send)
                await anyio.sleep_forever()  # The context stays open until it is left.

    async def _pass_on(self, value: V, send: MemoryObjectSendStream[T]) -> None:
        async for item in self._items(value):
            await send.send(item)
        self._complete = True
        send.close()

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            return call(self._received.receive)
        except (anyio.EndOfStream, anyio.ClosedResourceError):
            if not self._complete:
                self._future.result()  # Raises what ended the iteration.
            raise StopIteration from None

    def close(self) -> None:
        """Leave the context and wait until that is done."""
        if not self._future.done():
            background.portal().call(self._scope.cancel)
        self._future.result()


@contextmanager
def hold(manager: AbstractAsyncContextManager[V], items: Callable[[V], AsyncIterable[T]]) -> Iterator[Held[V, T]]:
    """Keep an async context manager open in the loop while the block runs."""
    held = Held(manager, items)
    try:
        yield held
    finally:
        held.close()


class Iterated(Iterator[T]):
    """An async iterator of the loop, iterated from this thread.

    Attributes:
        source: the async iterator. Who takes it as a whole need not iterate here.
    """

    def __init__(self, source: AsyncIterator[T]) -> None:
        self.source = source
        self._items = _items(source)

    def __next__(self) -> T:
        return next(self._items)

    def close(self) -> None:
        """Let go of what is behind it. Idempotent."""
        self._items.close()


def _items(iterator: AsyncIterator[T]) -> Generator[T, None, None]:
    with hold(_closing(iterator), lambda opened: opened) as held:
        yield from held


def iterate(iterator: AsyncIterator[T]) -> Iterated[T]:
    """Iterate an async iterator of the loop from this thread."""
    return Iterated(iterator)


@asynccontextmanager
async def _closing(iterator: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    try:
        yield iterator
    finally:
        if isinstance(iterator, AsyncGenerator | ByteStream):
            await iterator.aclose()


@overload
def as_async(content: bytes) -> bytes: ...
@overload
def as_async(content: Iterable[bytes] | ByteStream) -> AsyncIterator[bytes]: ...
def as_async(content: bytes | Iterable[bytes] | ByteStream) -> bytes | AsyncIterator[bytes]:
    """Let the loop read a blocking iterable: each item is taken in a worker thread. What is the loop's own anyway (a
    local file, the content of another sandbox's file) is handed over whole."""
    if isinstance(content, Iterated):
        return cast(AsyncIterator[bytes], content.source)
    return content if isinstance(content, bytes | ByteStream) else _pull(content)


async def _pull(content: Iterable[bytes]) -> AsyncIterator[bytes]:
    items = iter(content)
    while True:
        item = await to_thread.run_sync(next, items, None)
        if item is None:
            return
        yield item
