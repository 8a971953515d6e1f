"""Work in a sandbox's files: in a thread, as a user of the sandbox, inside its root, with typed errors.

Why always a thread: a guest can make any operation on its files slow. It holds the kernel's lock of a directory while
it is throttled or reclaims memory, fills a directory with a million names, or touches parts of its image that are not
there yet. On the event loop that would stop every other sandbox; a hop to a thread costs some 60 us.

What bounds a hostile guest then: at most `OPERATIONS_PER_SANDBOX` threads are ever busy with one sandbox, so that it
only slows itself; loops over its entries are limited and look for cancellation, so that deadlines end them; no open
waits (`root.open_data`); file systems that a guest could serve itself (FUSE) are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread

from dsec.base.errors import SandboxExitedError
from dsec.base.units import format_size
from dsec.linux.identity import FILE_CAPABILITIES, file_identity
from dsec.runtimes.container.file_errors import typed_errors
from dsec.runtimes.container.root import RootHandle
from dsec.runtimes.container.users import ROOT, ResolvedUser, resolve_user

OPERATIONS_PER_SANDBOX = 4

CHECK_EVERY = 256
"""Entries between two looks for cancellation."""

_T = TypeVar("_T")


class Access:
    """How the files of one sandbox are reached.

    Args:
        root: the sandbox's root directory.
        first_host_id: host id of the sandbox's user 0.
        limiter: bounds the node's threads that work in files.
        disk_bytes: the sandbox's quota, for messages.
    """

    def __init__(
        self, root: RootHandle, first_host_id: int, limiter: anyio.CapacityLimiter, *, disk_bytes: int | None = None
    ) -> None:
        self.root = root
        self.first_host_id = first_host_id
        self._limiter = limiter
        self._own = anyio.CapacityLimiter(OPERATIONS_PER_SANDBOX)
        self._disk = f"the sandbox's disk quota is {format_size(disk_bytes)}" if disk_bytes is not None else ""

    async def run(self, user: ResolvedUser, path: bytes, work: Callable[[int], _T]) -> _T:
        """Run `work(root_fd)` in a thread as `user`; `path` is what errors name. Cancellation waits for the thread."""

        def in_thread() -> _T:
            with self.root.hold() as root_fd, typed_errors(path, disk=self._disk), self._identity(user):
                return work(root_fd)

        return await self._hop(in_thread)

    async def run_for(self, user: str | None, path: bytes, work: Callable[[int, ResolvedUser], _T]) -> _T:
        """As `run`, for a user named by a request (None is root)."""

        def in_thread() -> _T:
            with self.root.hold() as root_fd, typed_errors(path, disk=self._disk):
                resolved = ROOT if user is None else resolve_user(root_fd, user)
                with self._identity(resolved):
                    return work(root_fd, resolved)

        return await self._hop(in_thread)

    async def run_outside(self, work: Callable[[], None]) -> None:
        """Run clean-up that must happen even when the sandbox has ended, and that touches no path."""
        with anyio.CancelScope(shield=True):
            await self._hop(work)

    def call_if_alive(self, user: ResolvedUser, path: bytes, work: Callable[[], None]) -> None:
        """In a thread: do `work` as `user` unless the sandbox has ended, when there is nothing left to do it to."""
        try:
            with self.root.hold(), typed_errors(path, disk=self._disk), self._identity(user):
                work()
        except SandboxExitedError:
            return

    async def _hop(self, work: Callable[[], _T]) -> _T:
        async with self._own:
            return await anyio.to_thread.run_sync(work, limiter=self._limiter)

    @contextmanager
    def _identity(self, user: ResolvedUser) -> Iterator[None]:
        first = self.first_host_id
        with file_identity(
            first + user.uid,
            first + user.gid,
            privileged=user.uid == 0,
            groups=[first + gid for gid in user.groups],
            capabilities=FILE_CAPABILITIES,
        ):
            yield


class CancellationCheck:
    """Looks for cancellation of the operation that a thread works for, once in a while. For loops over entries."""

    def __init__(self, look: Callable[[], None] = anyio.from_thread.check_cancelled) -> None:
        self._look = look
        self._calls = 0

    def __call__(self) -> None:
        self._calls += 1
        if self._calls % CHECK_EVERY == 0:
            self._look()
