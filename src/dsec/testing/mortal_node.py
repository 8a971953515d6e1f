"""A node that dies at any of its steps and is started again, as whoever drives it sees it."""

from __future__ import annotations

import inspect
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, cast

import anyio

from dsec.base.errors import NodeUnavailableError
from dsec.linux.pipes import Pipe
from dsec.node.node import Node
from dsec.service.content import ByteStream
from dsec.service.port import SandboxService
from dsec.service.state import StateService
from dsec.testing.faults import Faults, Killed
from dsec.testing.memory_node import MemoryHost


class MortalNode:
    """Runs one node after another on a host of fakes.

    Args:
        host: outlives the nodes.
        draw: when a node dies.
        deaths: how many may.
        within: a node that dies does so within so many steps.
    """

    def __init__(self, host: MemoryHost, draw: random.Random, *, deaths: int = 0, within: int = 200) -> None:
        self._host = host
        self._draw = draw
        self._left = deaths
        self._within = within
        self._node: Node | None = None
        self._faults = Faults()
        self._up = anyio.Event()
        self._down = anyio.Event()
        self._stopping = False
        self.deaths = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[MortalNode]:
        """Keep a node running until the context ends."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._run)
            yield self
            self._stopping = self._faults.armed = True
            self._faults.armed = False
            self._down.set()

    async def _run(self) -> None:
        while not self._stopping:
            kill_at = self._draw.randint(1, self._within) if self._left else 0
            self._left -= bool(kill_at)
            self._faults, self._down = Faults(kill_at=kill_at), anyio.Event()
            try:
                async with Node.open(self._faults.parts(self._host)) as node:
                    self._node = node
                    self._up.set()
                    await self._down.wait()
            except Killed:
                pass
            except BaseExceptionGroup as several:
                # A task group of the node's wraps its deaths.
                if several.split(Killed)[1] is not None:
                    raise
            finally:
                self._node = None
                if self._up.is_set():  # Whoever waits for a node that died while it started waits for the next.
                    self._up = anyio.Event()
                self.deaths += self._faults.dead

    async def call(self, act: Callable[[Node], Awaitable[Any]]) -> Any:
        """Ask the node; what was asked goes on there if whoever asked is gone.

        Raises:
            NodeUnavailableError: it died meanwhile, or is dead.
        """
        with anyio.CancelScope(shield=True):
            while self._node is None:
                await self._up.wait()
            with self.answering():
                return await act(self.node)

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Let whoever asks the node see its death as a node that is gone, not as a death of their own.

        Raises:
            NodeUnavailableError: it died within.
        """
        asked = self._faults
        try:
            yield
        except Killed as error:
            self._down.set()
            raise NodeUnavailableError("the node died") from error
        except RuntimeError as error:
            # What is still under way when a dead node is cleared away finds its task group closed.
            if not asked.dead:
                raise
            raise NodeUnavailableError("the node died") from error
        except BaseExceptionGroup as several:
            if several.split(Killed)[1] is not None:
                raise
            self._down.set()
            raise NodeUnavailableError("the node died") from several

    @property
    def node(self) -> Node:
        """The present node.

        Raises:
            NodeUnavailableError: it is dead.
        """
        if self._node is None or self._faults.dead:
            self._down.set()
            raise NodeUnavailableError("the node is dead")
        return self._node

    def service(self, step: Callable[[], Awaitable[None]]) -> SandboxService:
        """Return the node as a worker uses it; `step` is a point at which the worker may die."""
        return cast(SandboxService, _Asked(self, lambda node: node, step))

    def state(self, step: Callable[[], Awaitable[None]]) -> StateService:
        """Return its saved state, likewise."""
        return cast(StateService, _Asked(self, lambda node: node.state, step))


class _Asked:
    """Every call that waits is a step of the worker before and after it."""

    def __init__(self, keeper: MortalNode, part: Callable[[Node], Any], step: Callable[[], Awaitable[None]]) -> None:
        self._keeper, self._part, self._step = keeper, part, step

    def __getattr__(self, name: str) -> Any:
        asked = getattr(self._part(self._keeper.node), name)
        if not inspect.iscoroutinefunction(asked):
            return self._reading(asked) if name in ("read_file", "download") else asked

        async def call(*args: Any, **kwargs: Any) -> Any:
            await self._step()
            found = await self._keeper.call(lambda node: getattr(self._part(node), name)(*args, **kwargs))
            await self._step()
            return found

        return call

    def _reading(self, asked: Callable[..., ByteStream]) -> Callable[..., ByteStream]:
        return lambda *args, **kwargs: _Read(self._keeper, asked(*args, **kwargs))


class _Read(ByteStream):
    """What a node sends until it dies: a paused sandbox is resumed by whoever reads, and a resume is a step."""

    def __init__(self, keeper: MortalNode, source: ByteStream) -> None:
        self._keeper, self._source = keeper, source

    async def __anext__(self) -> bytes:
        with self._keeper.answering():
            return await anext(self._source)

    async def fill(self, pipe: Pipe) -> int:
        with self._keeper.answering():
            return await self._source.fill(pipe)

    async def aclose(self) -> None:
        with self._keeper.answering():
            await self._source.aclose()
