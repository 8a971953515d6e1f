"""The protocol of shell sessions with the shells of this host: bash, and whatever `sh` is."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator

import anyio
import pytest

from dsec.base.errors import ProcessNotFoundError, SandboxExitedError
from dsec.model.process import CommandResult, ExitStatus, SessionCommand, Stream, TerminalSize
from dsec.model.sandbox import SandboxSpec, SandboxState
from dsec.node.core import Core
from dsec.node.sandbox import Generation
from dsec.node.sessions import Session
from dsec.node.supervisor import Supervisor
from dsec.stores.port import SandboxRecord
from dsec.testing.memory_node import MemoryHost

pytestmark = pytest.mark.anyio


class HostShell:
    """A `Process` over a shell of this host, with descriptor 3."""

    process_id = "prc-shell"

    def __init__(self, process: asyncio.subprocess.Process, control: asyncio.StreamReader) -> None:
        self._process, self._control = process, control
        self._chunks: asyncio.Queue[tuple[Stream, bytes] | None] = asyncio.Queue()
        self._open = 2
        self._pumps = [
            asyncio.create_task(self._pump(reader, stream))
            for reader, stream in ((process.stdout, Stream.STDOUT), (process.stderr, Stream.STDERR))
        ]

    @classmethod
    async def start(cls, shell: str) -> HostShell:
        reading, writing = os.pipe()
        argv = ("bash", "-c", f'exec "$@" 3>&{writing} {writing}>&-', "start", shell)
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=pipe, stdout=pipe, stderr=pipe, pass_fds=(writing,), start_new_session=True
        )
        os.close(writing)
        control = asyncio.StreamReader()
        file = os.fdopen(reading, "rb")
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(control), file)
        return cls(process, control)

    async def _pump(self, reader: asyncio.StreamReader | None, stream: Stream) -> None:
        assert reader is not None
        while data := await reader.read(65_536):
            await self._chunks.put((stream, data))
        self._open -= 1
        if not self._open:
            await self._chunks.put(None)

    async def read(self) -> tuple[Stream, bytes] | None:
        chunk = await self._chunks.get()
        if chunk is None:
            self._chunks.put_nowait(None)
        return chunk

    async def read_control(self) -> bytes:
        return await self._control.read(65_536)

    async def write(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        try:
            await self._process.stdin.drain()
        except (BrokenPipeError, ConnectionResetError) as error:
            raise SandboxExitedError("the shell has ended") from error

    async def close_stdin(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()

    async def wait(self) -> ExitStatus:
        code = await self._process.wait()
        return ExitStatus(exit_code=code if code >= 0 else 128 - code, signal=-code if code < 0 else None)

    async def signal(self, number: int) -> None:
        self._process.send_signal(number)

    async def resize(self, size: TerminalSize) -> None:
        raise NotImplementedError

    async def kill(self) -> None:
        try:
            os.killpg(self._process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        await self._process.wait()

    async def close(self) -> None:
        await asyncio.gather(*self._pumps)


@pytest.fixture(params=["bash", "sh", "dash"])
async def session(request: pytest.FixtureRequest) -> AsyncIterator[Session]:
    if shutil.which(request.param) is None:
        pytest.skip(f"this host has no {request.param}")
    spec = SandboxSpec()
    record = SandboxRecord(sandbox_id="sbx-a", state=SandboxState.READY, requested=spec, spec=spec)
    host = MemoryHost()
    async with anyio.create_task_group() as group:
        core = Core(host.parts(), Supervisor(group))
        shell = await HostShell.start(request.param)
        opened = Session(core, Generation(record, None), shell, request.param, "/")  # type: ignore[arg-type]
        yield opened
        await opened.close()


async def run(session: Session, script: str, timeout_s: float = 20.0) -> CommandResult:
    return await session.run(SessionCommand(script=script, timeout_s=timeout_s))


async def test_directory_and_variables_persist(session: Session) -> None:
    assert (await run(session, "X=1; cd /tmp; export Y=2")).status.exit_code == 0
    assert (await run(session, "echo $X; pwd; printenv Y")).stdout == b"1\n/tmp\n2\n"
    assert session.cwd == "/tmp"


@pytest.mark.parametrize("script", ["if", "echo 'open", "for", "echo )", "x\\"])
async def test_bad_syntax_is_a_status_and_no_end(session: Session, script: str) -> None:
    assert (await run(session, script)).status.exit_code != 0
    assert (await run(session, "echo on")).stdout == b"on\n"


@pytest.mark.parametrize(
    "script",
    [
        "", "# only a comment", "true\n\n\n", "cat <<END\nit's\nEND", "echo it\\'s 'q' \"d\"",
        "(exit 0)", "unset PWD", "exec 3>&-; exec 8>&-; exec 9>&-", "exec </dev/null", "exec 5>/dev/null",
    ],
)  # fmt: skip
async def test_scripts_of_every_shape_come_to_an_end(session: Session, script: str) -> None:
    assert (await run(session, script)).status.exit_code == 0
    assert (await run(session, "echo on")).stdout == b"on\n"


async def test_the_shells_own_echo_of_its_input_cannot_forge_an_end(session: Session) -> None:
    await run(session, "set -v; set -x")
    result = await run(session, "echo said; (exit 4)")
    assert (result.status.exit_code, result.stdout) == (4, b"said\n")
    assert b"echo said" in result.stderr


async def test_scripts_do_not_hold_the_descriptors_that_report(session: Session) -> None:
    result = await run(session, "ls /proc/self/fd; true")
    assert {3, 8, 9}.isdisjoint(map(int, result.stdout.split()[:-1]))
    for number in (3, 8, 9):
        assert (await run(session, f"(echo forged >&{number}) 2>/dev/null && exit 0; (exit 6)")).status.exit_code == 6


async def test_redirected_output_of_the_shell_does_not_hide_its_end(session: Session) -> None:
    assert (await run(session, "exec >/dev/null 2>&1; echo nowhere; (exit 9)")).status.exit_code == 9
    result = await run(session, "echo nowhere; echo nowhere >&2")
    assert (result.stdout, result.stderr) == (b"", b"")


async def test_much_output_is_cut_in_the_middle(session: Session) -> None:
    command = SessionCommand(script="head -c 3000000 /dev/zero | tr '\\0' a", output_limit_bytes=1000)
    result = await session.run(command)
    assert len(result.stdout) == 1000
    assert result.stdout_dropped_bytes == 3_000_000 - 1000


async def test_output_without_a_newline_at_its_end_is_whole(session: Session) -> None:
    assert (await run(session, "printf abc; printf def >&2")).stdout == b"abc"
    assert (await run(session, "true")).stdout == b""


async def test_a_big_script_passes(session: Session) -> None:
    result = await run(session, f": '{'x' * 300_000}'\necho end")
    assert result.stdout == b"end\n"


async def test_exit_ends_the_session_with_its_status(session: Session) -> None:
    result = await run(session, "echo bye; exit 7")
    assert (result.status.exit_code, result.stdout) == (7, b"bye\n")
    with pytest.raises(ProcessNotFoundError):
        await run(session, "true")


async def test_a_timeout_kills_what_runs_and_ends_the_session(session: Session) -> None:
    result = await run(session, "echo begun; sleep 600", 0.2)
    assert result.status.timed_out
    assert result.stdout == b"begun\n"
    with pytest.raises(ProcessNotFoundError):
        await run(session, "true")


async def test_scripts_run_one_after_another(session: Session) -> None:
    results: list[bytes] = []

    async def one(number: int) -> None:
        results.append((await run(session, f"N={number}; sleep 0.01; echo $N")).stdout)

    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(one, number)
    assert sorted(results) == [b"%d\n" % number for number in range(5)]
