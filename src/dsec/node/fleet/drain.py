"""Empty a node: nothing new comes in, what there is moves to peers.

That the node is drained is written down before anything moves, and read again at the next start, so that a restart in
the middle takes nothing in. Creations that were under way when it began end as they would; the sandboxes are therefore
looked for again until a look finds none that was not tried. The work runs in a task of the node's own: it goes on when
nobody listens, one drain at a time. What it was about to move next stays when it is undone.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import structlog
from anyio.streams.memory import MemoryObjectSendStream

from dsec.base.errors import DsecError, HostDiskFullError, InvalidRequestError, SandboxMovedError, SandboxNotFoundError
from dsec.model.event import EventKind
from dsec.model.fleet import DrainEvent, DrainFailure, DrainProgress, DrainReport, DrainRequest
from dsec.model.sandbox import SandboxFilter, SandboxState
from dsec.node.core import Core
from dsec.node.fleet.moving import Migrate, check_at_once, move
from dsec.node.fleet.targets import Targets, ask, others
from dsec.node.sandbox import Sandbox
from dsec.service.peers import Peer

_log = structlog.get_logger(__name__)
_OVER = frozenset({SandboxState.STOPPING, SandboxState.STOPPED, SandboxState.FAILED})
REASON = "drain"
_MOST_NEWS = 100_000


class Drain:
    """Whether this node is drained, and the work of it.

    Args:
        core: the node's inner state.
        migrate: moves one sandbox.
        changed: called when sandboxes are taken no more, or again.
    """

    def __init__(self, core: Core, migrate: Migrate, changed: Callable[[], None]) -> None:
        self._core = core
        self._migrate = migrate
        self._changed = changed
        self._turn = anyio.Lock()

    def read(self) -> None:
        """Take up what an earlier node wrote down."""
        path = self._core.parts.drain_file
        self._core.admission.draining = path is not None and path.exists()

    @asynccontextmanager
    async def drain(self, request: DrainRequest) -> AsyncIterator[AsyncIterator[DrainEvent]]:
        """Begin, and hear how it goes; see `dsec.service.fleet.FleetService.drain`."""
        self._core.check_open()
        check_at_once(request.at_once)
        peers = await self._peers(request)
        self._set(True)
        # Room for everything that will be said: the work never waits for its listener.
        news, events = anyio.create_memory_object_stream[DrainEvent](_MOST_NEWS)
        work = _Work(self._core, self._migrate, peers, request.at_once, news)

        async def run() -> None:
            with news:
                async with self._turn:
                    await work.run()

        self._core.supervisor.start("drain", run)
        with events:
            yield events

    async def _peers(self, request: DrainRequest) -> list[Peer]:
        if not request.to:
            peers = others(self._core)
            here = self._core.registry.select(SandboxFilter())
            if not peers and any(sandbox.state not in _OVER for sandbox in here):
                raise InvalidRequestError(
                    f"the node {self._core.parts.node_id} has no peers that could take its {len(here)} sandboxes",
                    detail="nothing was changed: it goes on taking sandboxes",
                    resolution="name peers in its setting `peers`; `dsec down --destroy` ends all of its sandboxes",
                )
            return peers
        found = {(peer := await self._core.parts.peers.find(name)).node: peer for name in dict.fromkeys(request.to)}
        if self._core.parts.node_id in found:
            raise InvalidRequestError("a node cannot be emptied into itself", resolution="name other nodes")
        return list(found.values())

    def undo(self) -> None:
        """Take sandboxes again."""
        self._set(False)

    def _set(self, draining: bool) -> None:
        path = self._core.parts.drain_file
        if path is not None and draining:
            _keep(path)
        elif path is not None:
            path.unlink(missing_ok=True)
        if draining != self._core.admission.draining:
            self._core.admission.draining = draining
            self._core.recorder.add(EventKind.WARNED, text="the node is drained" if draining else "the drain is over")
            self._changed()


def _keep(path: Path) -> None:
    """Make the file that says so, for good.

    Raises:
        HostDiskFullError: there is no room for it.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise HostDiskFullError(f"{path} cannot be written: {error.strerror}") from error


class _Work:
    """One drain."""

    def __init__(
        self,
        core: Core,
        migrate: Migrate,
        peers: list[Peer],
        at_once: int,
        news: MemoryObjectSendStream[DrainEvent],
    ) -> None:
        self._core, self._migrate, self._peers, self._news = core, migrate, peers, news
        self._limiter = anyio.CapacityLimiter(at_once)
        self._tried: set[str] = set()
        self._moved: dict[str, str] = {}
        self._ended: list[str] = []
        self._failed: list[DrainFailure] = []

    async def run(self) -> None:
        began_s = self._core.now_boot_s()
        self._say(DrainProgress(done=0, total=len(self._here())))
        targets = Targets(await ask(self._core, self._peers))
        while found := self._here():
            self._tried.update(sandbox.sandbox_id for sandbox in found)
            async with anyio.create_task_group() as group:
                for sandbox in found:
                    group.start_soon(self._one, sandbox, targets)
        self._say(
            DrainReport(
                moved=dict(sorted(self._moved.items())),
                ended=tuple(sorted(self._ended)),
                failed=tuple(sorted(self._failed, key=lambda failure: failure.sandbox_id)),
                duration_s=self._core.now_boot_s() - began_s,
            )
        )

    def _here(self) -> list[Sandbox]:
        """The sandboxes that were not tried yet."""
        return [
            sandbox
            for sandbox in self._core.registry.select(SandboxFilter())
            if sandbox.state not in _OVER and sandbox.sandbox_id not in self._tried
        ]

    async def _one(self, sandbox: Sandbox, targets: Targets) -> None:
        name, node = sandbox.sandbox_id, ""
        async with self._limiter:
            try:
                node = await self._move(sandbox, targets)
                self._moved[name] = node
            except SandboxMovedError as error:  # Somebody else moved it just before.
                self._moved[name] = error.url
            except DsecError as error:
                if sandbox.forgotten or sandbox.state in _OVER:
                    self._ended.append(name)
                else:
                    self._failed.append(DrainFailure(sandbox_id=name, code=error.code, brief=error.brief))
        done = len(self._moved) + len(self._ended) + len(self._failed)
        self._say(DrainProgress(done=done, total=len(self._tried), sandbox_id=name, node=node))

    async def _move(self, sandbox: Sandbox, targets: Targets) -> str:
        await sandbox.settled.wait()  # One that is being created when the drain begins.
        if not self._core.admission.draining:
            raise InvalidRequestError("the drain was undone before its turn")
        if sandbox.forgotten:
            raise SandboxNotFoundError(f"the creation of {sandbox.sandbox_id} was undone")
        node, _ = await move(self._migrate, targets, sandbox.sandbox_id, sandbox.record.spec, REASON)
        return node

    def _say(self, event: DrainEvent) -> None:
        try:
            self._news.send_nowait(event)
        except (anyio.BrokenResourceError, anyio.WouldBlock):
            pass  # Whoever asked has left, or does not listen; the work goes on.
