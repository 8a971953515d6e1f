"""The one contract by which sandboxes are driven.

`dsec.node.Node` implements it on a host, `dsec.sdk.http.HttpService` against a server; the HTTP API, the SDK, the
command line and the rollout worker use it and cannot tell which they have.

Every operation is bounded in time and raises `dsec.base.errors.DsecError`s only. All of them first resume a paused
sandbox that they need running, and count as activity for its idle timeout. Operations on one sandbox may run side by
side; `rollback`, `stop` and `remove` wait for none of them: they end them with `SandboxExitedError`.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from dsec.model.capability import CapabilityReport
from dsec.model.files import FileChange, FileInfo
from dsec.model.image import ImageInfo
from dsec.model.node import NodeInfo
from dsec.model.process import (
    CommandRequest,
    CommandResult,
    ProcessEvent,
    ProcessInfo,
    SessionCommand,
    SessionInfo,
    SessionRequest,
    TerminalSize,
)
from dsec.model.sandbox import Lifetime, SandboxFilter, SandboxInfo, SandboxSpec, SandboxStats

DEFAULT_CREATE_TIMEOUT_S = 30.0
"""The seed's create timeout."""


class CommandStream(Protocol):
    """A running command: iterate its events, feed it, end it."""

    process_id: str

    def __aiter__(self) -> AsyncIterator[ProcessEvent]: ...

    async def __anext__(self) -> ProcessEvent:
        """Return the next event; the last one is an `ExitEvent`. Not asking for it stops the command: back-pressure."""

    async def write(self, data: bytes) -> None: ...

    async def close_stdin(self) -> None: ...

    async def signal(self, number: int) -> None: ...

    async def resize(self, size: TerminalSize) -> None: ...


class SandboxService(Protocol):
    """Create and operate sandboxes."""

    # -- life ---------------------------------------------------------------------------------------------------

    async def create(
        self, spec: SandboxSpec, *, sandbox_id: str | None = None, timeout_s: float = DEFAULT_CREATE_TIMEOUT_S
    ) -> SandboxInfo:
        """Create a sandbox and return when it is ready. `sandbox_id` is the idempotency key: asking again with the same
        id and spec returns the same sandbox, with another spec raises `AlreadyExistsError`. An id that names another
        node raises `WrongNodeError`, here as everywhere."""

    async def inspect(self, sandbox_id: str) -> SandboxInfo: ...

    async def list(self, query: SandboxFilter = SandboxFilter()) -> Sequence[SandboxInfo]: ...

    async def statistics(self, sandbox_id: str) -> SandboxStats: ...

    async def extend(self, sandbox_id: str, lifetime: Lifetime) -> SandboxInfo:
        """Replace the lifetime; both clocks start again from now."""

    async def pause(self, sandbox_id: str, *, keep_memory: bool = False) -> SandboxInfo:
        """Freeze every process and give the sandbox's memory back, or with `keep_memory` freeze only. Commands stay as
        they are, their timeouts stand still. Idempotent: one that is paused gives back what it still holds.

        Raises:
            SwapFullError: its memory does not fit into what is free; it runs on.
            CapabilityMissingError: memory cannot be given back here (`swap_file`), or nothing frozen; it runs on.
        """

    async def resume(self, sandbox_id: str) -> SandboxInfo:
        """Let a paused sandbox go on; its memory is read back meanwhile. Idempotent."""

    async def rollback(self, sandbox_id: str, *, snapshot: str | None = None) -> SandboxInfo:
        """Return to the clean state (or a checkpoint): the writable layer is swapped, all processes end."""

    async def end_processes(self, sandbox_id: str) -> None:
        """Kill every command, session and daemon of the sandbox and return when all are seen to be gone; files stay."""

    async def stop(self, sandbox_id: str) -> SandboxInfo:
        """Destroy the sandbox; its record stays until `remove`. Idempotent."""

    async def remove(self, sandbox_id: str) -> None:
        """Stop it if needed and forget it. Idempotent for ids this node has known."""

    # -- commands -----------------------------------------------------------------------------------------------

    async def run(self, sandbox_id: str, request: CommandRequest) -> CommandResult:
        """Run a command to its end and return what was kept of its output. A timeout is a result, not an error.
        Cancelling (or a client that vanishes) kills its tree."""

    def stream(self, sandbox_id: str, request: CommandRequest) -> AbstractAsyncContextManager[CommandStream]:
        """Run a command and hear it as it goes; leaving the context early kills its tree."""

    async def start_process(self, sandbox_id: str, request: CommandRequest) -> ProcessInfo:
        """Start a background process; it lives until it ends, is killed, or the sandbox rolls back or stops."""

    async def list_processes(self, sandbox_id: str) -> Sequence[ProcessInfo]: ...

    def attach(self, sandbox_id: str, process_id: str) -> AbstractAsyncContextManager[CommandStream]:
        """Hear a background process: first what its buffer holds, then what comes. Leaving does not end it."""

    async def wait_process(self, sandbox_id: str, process_id: str, *, timeout_s: float | None = None) -> CommandResult:
        """Wait for a background process. Raises `DeadlineExceededError` when it still runs."""

    async def signal_process(self, sandbox_id: str, process_id: str, number: int) -> None:
        """Signal a background process; 9 kills its whole tree and returns when all of it is gone."""

    async def open_session(self, sandbox_id: str, request: SessionRequest) -> SessionInfo:
        """Open a shell session. Raises `CommandNotFoundError` when the image has no shell."""

    async def run_in_session(self, sandbox_id: str, session_id: str, command: SessionCommand) -> CommandResult: ...

    async def close_session(self, sandbox_id: str, session_id: str) -> None: ...

    # -- files --------------------------------------------------------------------------------------------------

    # Contents may be `dsec.service.content.ByteStream`s, given and returned: then they are moved, not copied.

    def read_file(self, sandbox_id: str, path: str, *, user: str | None = None) -> AsyncIterator[bytes]: ...

    async def write_file(
        self,
        sandbox_id: str,
        path: str,
        content: AsyncIterable[bytes] | bytes,
        *,
        append: bool = False,
        permissions: int = 0o644,
        user: str | None = None,
    ) -> FileInfo: ...

    async def stat_file(self, sandbox_id: str, path: str, *, user: str | None = None) -> FileInfo: ...

    async def list_files(
        self, sandbox_id: str, path: str, *, depth: int = 1, user: str | None = None
    ) -> Sequence[FileInfo]: ...

    async def make_directory(self, sandbox_id: str, path: str, *, user: str | None = None) -> bool: ...

    async def move_file(self, sandbox_id: str, source: str, target: str, *, user: str | None = None) -> None: ...

    async def remove_file(
        self, sandbox_id: str, path: str, *, recursive: bool = False, user: str | None = None
    ) -> None: ...

    def watch_files(
        self, sandbox_id: str, path: str, *, recursive: bool = False, user: str | None = None
    ) -> AbstractAsyncContextManager[AsyncIterator[FileChange]]: ...

    def download(self, sandbox_id: str, path: str, *, user: str | None = None) -> AsyncIterator[bytes]:
        """A tar stream of a file or directory."""

    async def upload(
        self, sandbox_id: str, path: str, archive: AsyncIterable[bytes], *, user: str | None = None
    ) -> None:
        """Unpack a tar stream into the directory `path`."""

    # -- the node -----------------------------------------------------------------------------------------------

    async def node(self) -> NodeInfo: ...

    async def images(self) -> Sequence[ImageInfo]: ...

    async def capabilities(self) -> Sequence[CapabilityReport]: ...

    async def aclose(self) -> None:
        """Let go of the service. Sandboxes stay."""
