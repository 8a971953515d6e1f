"""Commands that outlive the worker: a process in the sandbox that carries the id of its operation.

A scaffold may run for an hour. Were it a command of the worker's, the worker's death would end it, and it would be run
again from the start. As a background process of the node's it goes on by itself, and who comes after asks for it by the
operation's id, which stands among its arguments: nothing has to be written down between starting it and knowing it.
Its effect is therefore `Effect.ASKED`: announced before it begins, and asked for after a death. Its output is kept by
the node, bounded, head and tail.
"""

from __future__ import annotations

from dsec.base.errors import DeadlineExceededError, ProcessNotFoundError, UnknownOutcomeError
from dsec.episode.operations import Effect, Operation
from dsec.episode.tools import CommandOutput, Run, ToolFailed, ToolResult
from dsec.model.process import CommandRequest, ProcessInfo
from dsec.service.port import SandboxService

MARK = "dsec-operation"
_WAIT_S = 20.0
"""How long is waited at once: an interval that no proxy cuts off."""


def outlives_worker(operation: Operation) -> bool:
    """Say whether an operation is a process that is asked for."""
    return operation.effect is Effect.ASKED and isinstance(operation.call, Run)


def marked_id(process: ProcessInfo) -> str:
    """Return the id of the operation that a process is; empty: of none."""
    argv = process.argv
    return argv[4] if len(argv) > 4 and argv[3] == MARK else ""


class OperationProcesses:
    """Processes that stand for operations, in one sandbox.

    Args:
        service: where the sandbox is.
        sandbox_id: the sandbox.
        cwd: where commands run that name no directory.
    """

    def __init__(self, service: SandboxService, sandbox_id: str, *, cwd: str | None = None) -> None:
        self._service = service
        self._sandbox_id = sandbox_id
        self._cwd = cwd

    async def run(self, operation: Operation) -> ToolResult:
        """Start an operation's process, and wait for its end.

        Raises:
            DsecError: it could not be started, or the sandbox is gone.
        """
        call = operation.call
        assert isinstance(call, Run)
        request = CommandRequest(
            argv=("/bin/sh", "-c", 'shift; exec "$@"', MARK, operation.operation_id, *call.command),
            cwd=call.cwd or self._cwd,
            env=call.env,
            user=call.user,
            stdin=call.stdin.data,
            timeout_s=call.timeout_s,
            output_limit_bytes=call.output_limit_bytes,
        )
        started = await self._service.start_process(self._sandbox_id, request)
        return await self._wait(started.process_id)

    async def ask(self, operation: Operation) -> ToolResult | None:
        """Return what became of an operation's process, once it has ended; None: it never began here."""
        for process in await self._service.list_processes(self._sandbox_id):
            if marked_id(process) == operation.operation_id:
                return await self._wait(process.process_id)
        return None

    async def _wait(self, process_id: str) -> ToolResult:
        while True:
            try:
                result = await self._service.wait_process(self._sandbox_id, process_id, timeout_s=_WAIT_S)
                return CommandOutput.of(result)
            except DeadlineExceededError:
                continue
            except (UnknownOutcomeError, ProcessNotFoundError) as error:
                # Its work stands in the workspace. It is not run again: that would do it twice.
                return ToolFailed.of(error)
