"""Hands in a sandbox: they carry out what the tools that ship ask for.

What a guest makes of a file or a command is a result. Only what leaves no sandbox to go on in is an error (see
`dsec.worker.toolbox`, which carries out the calls that scripts make).
"""

from __future__ import annotations

from dsec.base.errors import AlreadyExistsError, DsecError, InvalidRequestError, LimitExceededError, PathNotFoundError
from dsec.base.units import KIB, MIB
from dsec.episode.agent_calls import EditFile, OutsideCall, ReadLines, Search, Submit, UnusableCall
from dsec.episode.content import Content
from dsec.episode.operations import Operation
from dsec.episode.tools import CommandOutput, FileContent, Run, ToolFailed, ToolResult, WriteFile
from dsec.service.port import SandboxService
from dsec.worker.episodes.processes import OperationProcesses, outlives_worker
from dsec.worker.toolbox import END_THE_ATTEMPT, Toolbox
from dsec.worker.transfer import read_bounded

MAXIMUM_TEXT_BYTES = 16 * MIB
"""Of a file that is read by lines, or edited."""
SEARCH_OUTPUT_BYTES = 16 * KIB
SEARCH_S = 60.0
READ_BYTES = 32 * KIB
_STRIDE = 64 * KIB


class SandboxHands:
    """Implements `dsec.worker.episodes.ports.Hands` in one sandbox.

    Args:
        service: where the sandbox is.
        sandbox_id: the sandbox.
        cwd: where commands run, and what paths that are not absolute begin at.
    """

    def __init__(self, service: SandboxService, sandbox_id: str, *, cwd: str = "/") -> None:
        self._service = service
        self._sandbox_id = sandbox_id
        self._cwd = cwd.rstrip("/") or "/"
        self._toolbox = Toolbox(service, sandbox_id)
        self._processes = OperationProcesses(service, sandbox_id, cwd=self._cwd)

    async def run(self, operation: Operation) -> ToolResult:
        """Carry an operation out.

        Raises:
            DsecError: there is no sandbox to go on in, or the platform failed.
        """
        call = operation.call
        try:
            match call:
                case UnusableCall():
                    return ToolFailed(code=InvalidRequestError.code, brief=call.problem)
                case OutsideCall():
                    return ToolFailed(
                        code=InvalidRequestError.code, brief=f"this episode has no system outside called {call.name!r}"
                    )
                case Submit():
                    return CommandOutput(exit_code=0, stdout=Content(text="submitted"))
                case EditFile():
                    return await self._edit(call)
                case ReadLines():
                    return await self._read(call)
                case Search():
                    return await self._search(call)
                case Run() if outlives_worker(operation):
                    return await self._processes.run(operation)
                case Run():
                    command = Run(
                        script=call.script,
                        argv=call.argv,
                        cwd=call.cwd or self._cwd,
                        env=call.env,
                        user=call.user,
                        stdin=call.stdin,
                        timeout_s=call.timeout_s,
                        output_limit_bytes=call.output_limit_bytes,
                    )
                    return await self._toolbox.call(command, remaining_s=call.timeout_s)
                case _:
                    return await self._toolbox.call(call, remaining_s=0.0)
        except END_THE_ATTEMPT:
            raise
        except DsecError as error:
            return ToolFailed.of(error)

    async def ask(self, operation: Operation) -> ToolResult | None:
        """Return what became of a command that outlives the worker; a sandbox keeps no account of others."""
        return await self._processes.ask(operation) if outlives_worker(operation) else None

    async def compensate(self, operation: Operation) -> None:
        """Do nothing: what a sandbox does is undone by its workspace."""

    def _path(self, path: str) -> str:
        return path if path.startswith("/") else f"{self._cwd.rstrip('/')}/{path}"

    async def _text(self, path: str) -> str:
        source = self._service.read_file(self._sandbox_id, self._path(path))
        data = await read_bounded(source, MAXIMUM_TEXT_BYTES)
        if len(data) > MAXIMUM_TEXT_BYTES:
            raise LimitExceededError(
                f"{path} is longer than {MAXIMUM_TEXT_BYTES} bytes", resolution="use the shell, on parts of it"
            )
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            raise InvalidRequestError(
                f"{path} is no text in UTF-8: byte {error.start}", resolution="use the shell"
            ) from error

    async def _read(self, call: ReadLines) -> FileContent:
        shown, is_cut = _numbered(await self._text(call.path), call)
        return FileContent(content=Content.of(shown.encode()), truncated=is_cut)

    async def _search(self, call: Search) -> ToolResult:
        argv = ("grep", "-rnE", "-e", call.pattern, "--", call.path)
        run = Run(argv=argv, cwd=self._cwd, timeout_s=SEARCH_S, output_limit_bytes=SEARCH_OUTPUT_BYTES)
        return await self._toolbox.call(run, remaining_s=SEARCH_S)

    async def _edit(self, call: EditFile) -> ToolResult:
        if not call.old:
            await self._check_absent(call.path)
            text = call.new
        else:
            before = await self._text(call.path)
            found = before.count(call.old)
            if found != 1:
                raise InvalidRequestError(
                    f"`old` stands in {call.path} {found} times, and has to stand there once",
                    resolution="read the file again, and copy more of what is around the place",
                )
            text = before.replace(call.old, call.new)
        content, permissions = Content.of(text.encode(errors="replace")), 0o644
        if call.old:
            info = await self._service.stat_file(self._sandbox_id, self._path(call.path))
            permissions = info.mode & 0o7777
        written = WriteFile(path=self._path(call.path), content=content, permissions=permissions)
        return await self._toolbox.call(written, remaining_s=0.0)

    async def _check_absent(self, path: str) -> None:
        try:
            await self._service.stat_file(self._sandbox_id, self._path(path))
        except PathNotFoundError:
            return
        raise AlreadyExistsError(f"{path} is there already", resolution="give what is to be replaced as `old`")


def _numbered(text: str, call: ReadLines) -> tuple[str, bool]:
    """Return the lines that are asked for, with their numbers, and whether more were asked for or are there.

    The text is not cut into all its lines: a guest's file may have millions, each an object of ours.
    """
    total = text.count("\n") + (not text.endswith("\n") and bool(text))
    begin = _beginning(text, call.first)
    # What is beyond cannot be shown: a line is never shorter when its number stands before it.
    lines = text[begin : begin + READ_BYTES + 1].split("\n")[: min(call.count, max(0, total - call.first + 1))]
    shown, length = "", 0
    for number, line in enumerate(lines, start=call.first):
        numbered = f"{number}\t{line.removesuffix(chr(13))}\n"
        length += len(numbered.encode())
        if length > READ_BYTES:
            # A first line that is too long alone is shown as far as it goes: otherwise nothing of it could be seen.
            shown = shown or numbered.encode()[:READ_BYTES].decode(errors="ignore") + "\n"
            return f"{shown}[... cut in line {number} of {total} ...]\n", True
        shown += numbered
    return shown or f"[it has {total} lines]\n", call.first - 1 + call.count < total


def _beginning(text: str, number: int) -> int:
    """Return where a line begins, counted from 1; the end where there are not so many."""
    position, left = 0, number - 1
    while left and position < len(text):
        found = text.count("\n", position, position + _STRIDE)
        if found >= left:
            break
        position, left = position + _STRIDE, left - found
    for _ in range(left):
        position = text.find("\n", position) + 1
        if not position:
            return len(text)
    return min(position, len(text))
