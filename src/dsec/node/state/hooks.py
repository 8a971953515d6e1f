"""Hooks: commands of an image that carry the state of its processes through a checkpoint.

They are commands like any other: in the sandbox, as its user, under its limits. What the guest does with that is its
own affair; ours is that a hook which fails, hangs or never stops writing ends with its whole tree, costs no more memory
than its bound, and makes the operation fail with `HookFailedError`.
"""

from __future__ import annotations

import anyio
import anyio.to_thread

from dsec.base.errors import (
    DsecError,
    HookFailedError,
    LimitExceededError,
    NotFoundError,
    PermissionDeniedError,
    SandboxOutOfMemoryError,
    SandboxProcessLimitError,
)
from dsec.base.units import format_size
from dsec.model.image import StateHooks
from dsec.model.process import CommandRequest, ExitStatus, Stream
from dsec.node.commands import end_process, feed, spawn_request
from dsec.node.core import Core
from dsec.node.sandbox import Generation, Sandbox
from dsec.runtimes.port import Process
from dsec.stores.port import SandboxRecord

_LAST_WORDS_BYTES = 2000
_CANNOT_START = (NotFoundError, PermissionDeniedError, SandboxOutOfMemoryError, SandboxProcessLimitError)


def has_export(sandbox: Sandbox) -> bool:
    """Whether saving the sandbox's state means to run something in it."""
    return bool(sandbox.record.image_config.hooks.export_state)


async def export_state(core: Core, sandbox: Sandbox, layer: str) -> int | None:
    """Run the export hook and keep what it gives for the frozen layer `layer`; return how much that is.

    Raises:
        HookFailedError: it failed, hung or gave too much. Nothing of it is left.
        LimitExceededError: all exported states of the sandbox together are too large.
    """
    hooks = sandbox.record.image_config.hooks
    content = await _Hook(core, sandbox.running(), hooks, "export").run(hooks.export_state, b"")
    total = len(content) + sum(record.exported_bytes or 0 for record in sandbox.checkpoints.values())
    if total > core.settings.maximum_exported_bytes:
        raise LimitExceededError(
            f"{sandbox.sandbox_id} would keep {format_size(total)} of exported state, "
            f"at most {format_size(core.settings.maximum_exported_bytes)} are allowed",
            resolution="remove checkpoints, or export less",
        )
    await anyio.to_thread.run_sync(core.parts.exports.put, layer, content)
    return len(content)


async def import_state(core: Core, record: SandboxRecord, generation: Generation, layer: str) -> None:
    """Give a new generation what was exported for the frozen layer that it began from, if anything was.

    Raises:
        HookFailedError: it failed or hung; the generation must not be handed out.
    """
    hooks = record.image_config.hooks
    if not hooks.import_state or not layer:
        return
    content = await anyio.to_thread.run_sync(core.parts.exports.get, layer)
    if content is not None:
        await _Hook(core, generation, hooks, "import").run(hooks.import_state, content)


class _Hook:
    """One run of a hook."""

    def __init__(self, core: Core, generation: Generation, hooks: StateHooks, which: str) -> None:
        self._core = core
        self._generation = generation
        self._which = which
        # An image, a snapshot and a peer are what others wrote: what they allow a hook ends at what the node allows.
        # The node's bound is named first, since it is also what is taken when theirs is no number.
        self._timeout_s = min(core.settings.maximum_command_timeout_s, hooks.timeout_s)
        self._maximum_bytes = min(core.settings.maximum_exported_bytes, hooks.maximum_bytes)
        self._output = bytearray()
        self._last_words = bytearray()

    async def run(self, argv: tuple[str, ...], data: bytes) -> bytes:
        """Run it to its end and return what it wrote."""
        request = CommandRequest(argv=argv, stdin=data, timeout_s=self._timeout_s)
        try:
            process = await self._generation.instance.spawn(spawn_request(self._core, self._generation, request))
        except _CANNOT_START as error:
            raise self._failed(f"cannot start: {error.brief}") from error
        succeeded = False
        try:
            await self._follow(process, data)
            succeeded = True
        except _CANNOT_START as error:
            raise self._failed(f"cannot start: {error.brief}") from error
        finally:
            # One that succeeded may have started what the image's services are; of another nothing stays.
            if succeeded:
                await process.close()
            else:
                await end_process(self._core, process)
        return bytes(self._output)

    async def _follow(self, process: Process, data: bytes) -> None:
        status: ExitStatus | None = None
        with anyio.CancelScope() as scope, self._generation.operation(scope) as operation:
            scope.deadline = anyio.current_time() + self._timeout_s
            feeder = self._core.supervisor.start("feed a hook", lambda: feed(process, data)) if data else None
            try:
                await self._collect(process)
                status = await process.wait()
            finally:
                if feeder is not None:
                    feeder.cancel()
        if operation.error is not None:
            raise operation.error
        if status is None:
            raise self._failed(f"did not end within {self._timeout_s:g} s")
        if status.signal is not None:
            await self._generation.check_killed(status.signal)
        if status.exit_code != 0:
            raise self._failed(f"ended with status {status.exit_code}")

    async def _collect(self, process: Process) -> None:
        while (chunk := await process.read()) is not None:
            stream, data = chunk
            if stream is Stream.STDERR:
                self._last_words = (self._last_words + data)[-_LAST_WORDS_BYTES:]
            elif self._which == "import":
                continue
            elif len(self._output) + len(data) > self._maximum_bytes:
                raise self._failed(f"wrote more than {format_size(self._maximum_bytes)}")
            else:
                self._output += data

    def _failed(self, how: str) -> DsecError:
        return HookFailedError(
            f"the {self._which} hook of the image {how}",
            detail=self._last_words.decode(errors="replace"),
            resolution="correct the hook in the image, or save without hooks",
        )
