"""Carry out a policy's tool calls in a sandbox."""

from __future__ import annotations

from dsec.base.errors import (
    DsecError,
    InvalidStateError,
    PlatformError,
    SandboxExitedError,
    SandboxNotFoundError,
)
from dsec.episode.content import Content
from dsec.episode.tools import (
    CommandOutput,
    FileContent,
    FileWritten,
    ReadFile,
    Run,
    ToolCall,
    ToolFailed,
    ToolResult,
    UploadArchive,
    Uploaded,
    WriteFile,
)
from dsec.model.process import CommandRequest
from dsec.service.port import SandboxService
from dsec.worker.transfer import read_bounded, single_chunk

END_THE_ATTEMPT = (PlatformError, SandboxExitedError, SandboxNotFoundError, InvalidStateError)
"""Errors that are no result: there is no sandbox to go on in, or it is the platform that failed."""


class Toolbox:
    """The tools of one try."""

    def __init__(self, service: SandboxService, sandbox_id: str) -> None:
        self._service = service
        self._sandbox_id = sandbox_id

    async def call(self, call: ToolCall, *, remaining_s: float) -> ToolResult:
        """Carry out one call; a command gets at most `remaining_s` seconds.

        Raises:
            DsecError: one that ends the attempt; every other error is a result.
        """
        try:
            match call:
                case Run():
                    return await self._run(call, remaining_s)
                case WriteFile():
                    return await self._write(call)
                case ReadFile():
                    return await self._read(call)
                case UploadArchive():
                    archive = single_chunk(call.archive)
                    await self._service.upload(self._sandbox_id, call.path, archive, user=call.user)
                    return Uploaded()
        except END_THE_ATTEMPT:
            raise
        except DsecError as error:
            return ToolFailed.of(error)

    async def _run(self, call: Run, remaining_s: float) -> CommandOutput:
        request = CommandRequest(
            argv=call.command,
            cwd=call.cwd,
            env=call.env,
            user=call.user,
            stdin=call.stdin.data,
            timeout_s=min(call.timeout_s, remaining_s),
            output_limit_bytes=call.output_limit_bytes,
        )
        return CommandOutput.of(await self._service.run(self._sandbox_id, request))

    async def _write(self, call: WriteFile) -> FileWritten:
        info = await self._service.write_file(
            self._sandbox_id,
            call.path,
            call.content.data,
            append=call.append,
            permissions=call.permissions,
            user=call.user,
        )
        return FileWritten(size_bytes=info.size_bytes)

    async def _read(self, call: ReadFile) -> FileContent:
        source = self._service.read_file(self._sandbox_id, call.path, user=call.user)
        data = await read_bounded(source, call.limit_bytes)
        return FileContent(content=Content.of(data[: call.limit_bytes]), truncated=len(data) > call.limit_bytes)
