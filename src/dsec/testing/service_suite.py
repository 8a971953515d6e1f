"""The conformance suite of `SandboxService`: one set of tests for the node over every runtime, and for every way to it.

Use it by inheriting in a test module and overriding the `service` fixture::

    class TestNodeOverCrun(ServiceSuite):
        @pytest.fixture
        async def service(self): ...

Programs are run through `sh` and are of the small set that the in-memory runtime knows. Tests that need a real shell
are marked ``needs_real_shell`` and skipped where `real_shell` is False.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator, Sequence

import anyio
import pytest

from dsec.base.errors import (
    AlreadyExistsError,
    CapabilityMissingError,
    CommandNotFoundError,
    DeadlineExceededError,
    DirectoryNotEmptyError,
    DsecError,
    ImageNotFoundError,
    InvalidRequestError,
    InvalidStateError,
    IsADirectoryInSandboxError,
    NotFoundError,
    PathNotFoundError,
    PermissionDeniedError,
    ProcessNotFoundError,
    SandboxExitedError,
    SandboxNotFoundError,
    UnsafeArchiveError,
    UserNotFoundError,
    WrongNodeError,
)
from dsec.base.ids import named_node, new_sandbox_id
from dsec.model.capability import Capability
from dsec.model.files import FileKind
from dsec.model.process import (
    CommandRequest,
    CommandResult,
    ErrorEvent,
    ExitEvent,
    OutputEvent,
    ProcessEvent,
    ProcessState,
    SessionCommand,
    SessionRequest,
    Stream,
)
from dsec.model.sandbox import (
    Lifetime,
    Network,
    Resources,
    SandboxFilter,
    SandboxInfo,
    SandboxSpec,
    SandboxState,
)
from dsec.service.port import CommandStream, SandboxService

needs_real_shell = pytest.mark.needs_real_shell
ESCALATING_S = (0.3, 3.0, 30.0)
"""Times for a command that is to say something before its time is over, which on a loaded host may be too short."""


def sh(script: str, *, timeout_s: float | None = 30.0, output_limit_bytes: int = 1 << 20) -> CommandRequest:
    """A command that runs `script` in the sandbox's shell."""
    return CommandRequest(argv=("sh", "-c", script), timeout_s=timeout_s, output_limit_bytes=output_limit_bytes)


async def events(stream: CommandStream) -> list[ProcessEvent]:
    """Everything that a stream says until its end."""
    return [event async for event in stream]


def output(heard: Sequence[ProcessEvent], stream: Stream = Stream.STDOUT) -> bytes:
    return b"".join(event.data for event in heard if isinstance(event, OutputEvent) and event.stream is stream)


async def first_output(stream: CommandStream) -> bytes:
    async for event in stream:
        if isinstance(event, OutputEvent):
            return event.data
    raise AssertionError("the command ended without output")


async def content(chunks: AsyncIterator[bytes]) -> bytes:
    return b"".join([chunk async for chunk in chunks])


def archive(*members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


async def chunks(data: bytes, size: int = 1000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


class ServiceSuite:
    """Inherit, and override `service`.

    Attributes:
        image: an image with a shell, a user ``user`` (the default one) and a directory ``/home/user``.
        real_shell: whether the sandboxes have a whole POSIX shell.
    """

    image = "python"
    real_shell = True

    pytestmark = pytest.mark.anyio

    @pytest.fixture
    async def service(self) -> SandboxService:
        raise NotImplementedError("override the service fixture")

    @pytest.fixture(autouse=True)
    def _skip_without_a_shell(self, request: pytest.FixtureRequest) -> None:
        if not self.real_shell and request.node.get_closest_marker("needs_real_shell"):
            pytest.skip("the in-memory runtime has no whole shell")

    @pytest.fixture
    async def box(self, service: SandboxService) -> AsyncIterator[str]:
        """A sandbox's id; it is removed afterwards."""
        info = await service.create(self.spec())
        yield info.sandbox_id
        await service.remove(info.sandbox_id)

    def spec(self, **changes: object) -> SandboxSpec:
        return SandboxSpec(image=self.image, **changes)  # type: ignore[arg-type]

    # -- life -------------------------------------------------------------------------------------------------------

    async def test_create_returns_a_ready_sandbox_with_defaults_filled_in(
        self, service: SandboxService, box: str
    ) -> None:
        info = await service.inspect(box)
        assert info.state is SandboxState.READY
        assert info.generation == 0
        assert info.spec.hostname == box
        assert info.expires_in_s is not None
        assert 0 < info.expires_in_s <= 3600

    async def test_create_twice_with_one_id_creates_once(self, service: SandboxService) -> None:
        spec = self.spec(metadata={"task": "twice"})
        infos: list[SandboxInfo] = []

        async def create() -> None:
            infos.append(await service.create(spec, sandbox_id="sbx-suite-twice"))

        async with anyio.create_task_group() as group:
            group.start_soon(create)
            group.start_soon(create)
        assert [info.sandbox_id for info in infos] == ["sbx-suite-twice"] * 2
        assert len(await service.list(SandboxFilter(metadata={"task": "twice"}))) == 1
        with pytest.raises(AlreadyExistsError):
            await service.create(self.spec(metadata={"task": "other"}), sandbox_id="sbx-suite-twice")
        await service.remove("sbx-suite-twice")

    async def test_the_id_of_a_new_sandbox_names_its_node(self, service: SandboxService) -> None:
        node = (await service.node()).node
        info = await service.create(self.spec())
        assert info.node == node
        assert named_node(info.sandbox_id) == node
        await service.remove(info.sandbox_id)

    async def test_an_id_that_names_another_node_is_refused_everywhere(self, service: SandboxService) -> None:
        elsewhere = new_sandbox_id("zzzzz", lambda count: bytes(count))
        for operation in (
            service.create(self.spec(), sandbox_id=elsewhere),
            service.inspect(elsewhere),
            service.run(elsewhere, sh("true")),
            service.stop(elsewhere),
            service.remove(elsewhere),
        ):
            with pytest.raises(WrongNodeError, match="zzzzz"):
                await operation

    async def test_unknown_image_is_named_and_leaves_nothing(self, service: SandboxService) -> None:
        before = await service.list()
        with pytest.raises(ImageNotFoundError, match="no-such-image"):
            await service.create(SandboxSpec(image="no-such-image"))
        assert await service.list() == before

    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"resources": Resources(memory_bytes=4096)}, "memory_bytes"),
            ({"env": {"1BAD": "x"}}, "env"),
            ({"env": {"GOOD": "nul\0"}}, "NUL"),
            ({"metadata": {str(number): "x" for number in range(65)}}, "metadata"),
            ({"metadata": {"big": "x" * 1025}}, "metadata"),
            ({"lifetime": Lifetime(idle_timeout_s=-1.0)}, "idle_timeout_s"),
            ({"hostname": "not a host name"}, "hostname"),
            ({"workdir": "relative"}, "workdir"),
        ],
    )
    async def test_bad_specs_are_refused_by_field(
        self, service: SandboxService, changes: dict[str, object], field: str
    ) -> None:
        with pytest.raises(InvalidRequestError, match=field):
            await service.create(self.spec(**changes))

    async def test_a_policy_that_cannot_be_enforced_is_refused_by_capability(self, service: SandboxService) -> None:
        reports = {report.capability: report for report in await service.capabilities()}
        report = reports.get(Capability.NETWORK_ALLOW)
        if report is not None and report.available:
            pytest.skip("this host can enforce network rules")
        with pytest.raises(CapabilityMissingError, match="network_allow"):
            await service.create(self.spec(network=Network(rules=("pypi",))))

    async def test_unknown_sandbox_is_not_found(self, service: SandboxService) -> None:
        with pytest.raises(SandboxNotFoundError):
            await service.inspect("sbx-suite-nobody")
        with pytest.raises(SandboxNotFoundError):
            await service.run("sbx-suite-nobody", sh("true"))

    async def test_list_filters_by_metadata_and_state(self, service: SandboxService) -> None:
        ids = []
        for job in ("a", "b"):
            info = await service.create(self.spec(metadata={"suite": "list", "job": job}))
            ids.append(info.sandbox_id)
        await service.stop(ids[1])
        by_job = await service.list(SandboxFilter(metadata={"suite": "list", "job": "a"}))
        stopped = await service.list(SandboxFilter(metadata={"suite": "list"}, states=(SandboxState.STOPPED,)))
        live = await service.list(SandboxFilter(metadata={"suite": "list"}))
        for sandbox_id in ids:
            await service.remove(sandbox_id)
        assert [info.sandbox_id for info in by_job] == ids[:1]
        assert [info.sandbox_id for info in stopped] == ids[1:]
        assert [info.sandbox_id for info in live] == ids[:1]

    async def test_stop_is_idempotent_and_concurrent_callers_both_succeed(self, service: SandboxService) -> None:
        info = await service.create(self.spec())
        states = []

        async def stop() -> None:
            states.append((await service.stop(info.sandbox_id)).state)

        async with anyio.create_task_group() as group:
            group.start_soon(stop)
            group.start_soon(stop)
        await stop()
        assert states == [SandboxState.STOPPED] * 3
        with pytest.raises(InvalidStateError):
            await service.run(info.sandbox_id, sh("true"))
        await service.remove(info.sandbox_id)
        await service.remove(info.sandbox_id)
        with pytest.raises(SandboxNotFoundError):
            await service.inspect(info.sandbox_id)

    async def test_pause_and_transparent_resume(self, service: SandboxService, box: str) -> None:
        assert (await service.pause(box)).state is SandboxState.PAUSED
        assert (await service.pause(box)).state is SandboxState.PAUSED
        result = await service.run(box, sh("echo awake"))
        assert result.stdout == b"awake\n"
        assert (await service.inspect(box)).state is SandboxState.READY
        await service.pause(box)
        assert (await service.resume(box)).state is SandboxState.READY

    async def test_pause_that_keeps_the_memory(self, service: SandboxService, box: str) -> None:
        for _ in range(2):
            assert (await service.pause(box, keep_memory=True)).state is SandboxState.PAUSED
        assert (await service.run(box, sh("echo awake"))).stdout == b"awake\n"
        assert (await service.inspect(box)).state is SandboxState.READY

    async def test_extend_replaces_the_lifetime(self, service: SandboxService, box: str) -> None:
        info = await service.extend(box, Lifetime(idle_timeout_s=None, maximum_s=7200.0))
        assert info.expires_in_s is not None
        assert 7100 < info.expires_in_s <= 7200
        assert (await service.extend(box, Lifetime(idle_timeout_s=None, maximum_s=None))).expires_in_s is None

    async def test_statistics_tell_the_writable_layer(self, service: SandboxService, box: str) -> None:
        statistics = await service.statistics(box)
        assert statistics.writable is not None
        assert statistics.writable.used_bytes >= 0

    # -- commands ---------------------------------------------------------------------------------------------------

    async def test_run_returns_status_and_both_streams(self, service: SandboxService, box: str) -> None:
        result = await service.run(box, sh("echo out; echo err >&2; exit 3"))
        assert result.status.exit_code == 3
        assert (result.stdout, result.stderr) == (b"out\n", b"err\n")
        assert (result.stdout_dropped_bytes, result.stderr_dropped_bytes) == (0, 0)

    async def test_run_passes_argv_env_cwd_and_stdin(self, service: SandboxService, box: str) -> None:
        request = CommandRequest(argv=("sh", "-c", 'cat; echo "$SUITE"; pwd'), env={"SUITE": "a b"}, cwd="/tmp")
        result = await service.run(box, CommandRequest(argv=request.argv, env=request.env, cwd="/tmp", stdin=b"in\0\n"))
        assert result.stdout == b"in\0\na b\n/tmp\n"

    async def test_run_uses_the_chosen_user(self, service: SandboxService, box: str) -> None:
        result = await service.run(box, CommandRequest(argv=("id", "-u"), user="0"))
        assert result.stdout == b"0\n"

    async def test_missing_things_are_named(self, service: SandboxService, box: str) -> None:
        with pytest.raises(CommandNotFoundError):
            await service.run(box, CommandRequest(argv=("no-such-program",)))
        with pytest.raises(PathNotFoundError):
            await service.run(box, CommandRequest(argv=("true",), cwd="/no/such/directory"))
        with pytest.raises(UserNotFoundError):
            await service.run(box, CommandRequest(argv=("true",), user="nosuchuser"))

    @pytest.mark.parametrize(
        "request_",
        [
            CommandRequest(argv=()),
            CommandRequest(argv=("echo", "nul\0")),
            CommandRequest(argv=("true",), timeout_s=-1.0),
            CommandRequest(argv=("true",), timeout_s=1e9),
            CommandRequest(argv=("true",), output_limit_bytes=1 << 40),
            CommandRequest(argv=("true",), env={"a b": "c"}),
            CommandRequest(argv=("true",), cwd="nul\0"),
        ],
    )
    async def test_bad_commands_are_refused(self, service: SandboxService, box: str, request_: CommandRequest) -> None:
        with pytest.raises(InvalidRequestError):
            await service.run(box, request_)

    async def test_output_is_cut_in_the_middle_with_an_exact_count(self, service: SandboxService, box: str) -> None:
        await service.write_file(box, "numbers", b"".join(b"%07d\n" % number for number in range(50_000)))
        result = await service.run(box, CommandRequest(argv=("cat", "numbers"), output_limit_bytes=8000))
        assert len(result.stdout) == 8000
        assert result.stdout_dropped_bytes == 400_000 - 8000
        assert result.stdout.startswith(b"0000000\n")
        assert result.stdout.endswith(b"0049999\n")

    async def test_timeout_is_a_result_and_kills_the_tree(self, service: SandboxService, box: str) -> None:
        for timeout_s in ESCALATING_S:
            result = await service.run(box, sh("echo begun; sleep 600 & sleep 600", timeout_s=timeout_s))
            assert result.status.timed_out
            if result.stdout:
                break
        assert result.stdout == b"begun\n"
        await self._wait_for_processes(service, box, 1)

    @needs_real_shell
    async def test_a_timeout_is_reported_only_when_every_process_is_gone(
        self, service: SandboxService, box: str
    ) -> None:
        for _ in range(5):
            result = await service.run(
                box, sh("setsid sh -c 'trap : TERM; sleep 601 & sleep 601' &\nwait", timeout_s=0.1)
            )
            assert result.status.timed_out
            found = await service.run(box, sh("cat /proc/[0-9]*/comm"))
            assert b"sleep" not in found.stdout

    async def test_cancelling_run_kills_its_tree(self, service: SandboxService, box: str) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(service.run, box, sh("echo x >begun; sleep 600"))
            await self._wait_for_file(service, box, "begun")
            group.cancel_scope.cancel()
        await self._wait_for_processes(service, box, 1)

    async def _wait_for_file(self, service: SandboxService, box: str, path: str) -> None:
        with anyio.fail_after(60):
            while True:
                try:
                    if (await service.stat_file(box, path)).size_bytes:
                        return
                except PathNotFoundError:
                    pass
                await anyio.sleep(0.01)

    async def _wait_for_processes(self, service: SandboxService, box: str, number: int) -> None:
        """Wait for the count; the kernel's may lag behind the end of a process by seconds (RCU)."""
        with anyio.fail_after(60):
            # What may be far away has no event to wait on.
            while (await service.statistics(box)).processes not in (None, number):  # noqa: ASYNC110
                await anyio.sleep(0.01)

    async def test_stream_tells_output_as_it_comes_then_the_exit(self, service: SandboxService, box: str) -> None:
        async with service.stream(box, sh("echo a; echo b >&2; exit 4")) as stream:
            heard = await events(stream)
        assert output(heard) == b"a\n"
        assert output(heard, Stream.STDERR) == b"b\n"
        last = heard[-1]
        assert isinstance(last, ExitEvent)
        assert last.status.exit_code == 4

    async def test_stream_can_be_written_to(self, service: SandboxService, box: str) -> None:
        request = CommandRequest(argv=("cat",), keep_stdin_open=True)
        async with service.stream(box, request) as stream:
            await stream.write(b"one")
            assert await first_output(stream) == b"one"
            await stream.write(b"two")
            assert await first_output(stream) == b"two"
            await stream.close_stdin()
            last = (await events(stream))[-1]
        assert isinstance(last, ExitEvent)
        assert last.status.exit_code == 0

    async def test_leaving_a_stream_early_kills_the_tree(self, service: SandboxService, box: str) -> None:
        async with service.stream(box, sh("echo begun; sleep 600")) as stream:
            assert await first_output(stream) == b"begun\n"
        await self._wait_for_processes(service, box, 1)

    async def test_a_signal_ends_a_streamed_command(self, service: SandboxService, box: str) -> None:
        async with service.stream(box, sh("echo begun; exec sleep 600")) as stream:
            assert await first_output(stream) == b"begun\n"
            await stream.signal(15)
            last = (await events(stream))[-1]
        assert isinstance(last, ExitEvent)
        assert (last.status.exit_code, last.status.signal) == (143, 15)

    async def test_a_signal_right_after_the_start_is_not_lost(self, service: SandboxService, box: str) -> None:
        async with service.stream(box, CommandRequest(argv=("sleep", "600"), timeout_s=60.0)) as stream:
            await stream.signal(15)
            last = (await events(stream))[-1]
        assert isinstance(last, ExitEvent)
        assert (last.status.exit_code, last.status.timed_out) == (143, False)

    async def test_a_streamed_timeout_is_an_exit_event(self, service: SandboxService, box: str) -> None:
        async with service.stream(box, CommandRequest(argv=("sleep", "600"), timeout_s=0.2)) as stream:
            last = (await events(stream))[-1]
        assert isinstance(last, ExitEvent)
        assert last.status.timed_out

    async def test_a_stream_that_is_not_read_stops_its_command(self, service: SandboxService, box: str) -> None:
        """Back-pressure: what nobody asks for is not produced without bound."""
        async with service.stream(box, CommandRequest(argv=("yes",), timeout_s=30)) as stream:
            heard = 0
            async for event in stream:
                assert isinstance(event, OutputEvent)
                assert event.offset == heard
                heard += len(event.data)
                if heard > 1 << 20:
                    break

    # -- background processes ---------------------------------------------------------------------------------------

    async def test_background_process_can_be_listed_heard_and_waited_for(
        self, service: SandboxService, box: str
    ) -> None:
        started = await service.start_process(box, sh("echo one; sleep 0.1; echo two; exit 5", timeout_s=None))
        assert started.state is ProcessState.RUNNING
        async with service.attach(box, started.process_id) as stream:
            heard = await events(stream)
        assert output(heard) == b"one\ntwo\n"
        result = await service.wait_process(box, started.process_id, timeout_s=60)
        assert result.status.exit_code == 5
        assert result.stdout == b"one\ntwo\n"
        listed = await service.list_processes(box)
        assert [(each.process_id, each.state) for each in listed] == [(started.process_id, ProcessState.EXITED)]
        assert listed[0].stdout_bytes == 8

    async def test_several_attachers_hear_the_whole_buffer(self, service: SandboxService, box: str) -> None:
        started = await service.start_process(box, sh("echo early; sleep 0.1; echo late", timeout_s=None))
        heard: list[bytes] = []

        async def listen() -> None:
            async with service.attach(box, started.process_id) as stream:
                heard.append(output(await events(stream)))

        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(listen)
        await listen()
        assert heard == [b"early\nlate\n"] * 4

    async def test_leaving_an_attachment_does_not_end_the_process(self, service: SandboxService, box: str) -> None:
        started = await service.start_process(box, sh("echo begun; sleep 600", timeout_s=None))
        async with service.attach(box, started.process_id) as stream:
            assert await first_output(stream) == b"begun\n"
        assert (await service.list_processes(box))[0].state is ProcessState.RUNNING
        with pytest.raises(DeadlineExceededError):
            await service.wait_process(box, started.process_id, timeout_s=0.05)
        await service.signal_process(box, started.process_id, 9)
        result = await service.wait_process(box, started.process_id, timeout_s=60)
        assert result.status.signal == 9

    async def test_a_background_process_takes_input_through_an_attachment(
        self, service: SandboxService, box: str
    ) -> None:
        request = CommandRequest(argv=("cat",), keep_stdin_open=True, timeout_s=None)
        started = await service.start_process(box, request)
        async with service.attach(box, started.process_id) as stream:
            await stream.write(b"typed")
            assert await first_output(stream) == b"typed"
            await stream.close_stdin()
            assert isinstance((await events(stream))[-1], ExitEvent)

    async def test_unknown_process_is_not_found(self, service: SandboxService, box: str) -> None:
        with pytest.raises(ProcessNotFoundError):
            await service.wait_process(box, "prc-nobody", timeout_s=1)

    # -- sessions ---------------------------------------------------------------------------------------------------

    async def test_session_keeps_directory_and_variables(self, service: SandboxService, box: str) -> None:
        session = await service.open_session(box, SessionRequest())

        async def run(script: str) -> CommandResult:
            return await service.run_in_session(box, session.session_id, SessionCommand(script=script))

        first = await run("cd /tmp; COLOUR=blue; echo set")
        second = await run('echo "$COLOUR"; pwd; false')
        third = await run("echo oops >&2; exit 7")
        assert (first.status.exit_code, first.stdout) == (0, b"set\n")
        assert (second.status.exit_code, second.stdout) == (1, b"blue\n/tmp\n")
        assert (third.status.exit_code, third.stderr) == (7, b"oops\n")
        with pytest.raises(NotFoundError):
            await run("echo the shell has exited")

    async def test_a_session_survives_a_syntax_error(self, service: SandboxService, box: str) -> None:
        session = await service.open_session(box, SessionRequest(cwd="/tmp"))
        bad = await service.run_in_session(box, session.session_id, SessionCommand(script="if"))
        good = await service.run_in_session(box, session.session_id, SessionCommand(script="pwd"))
        assert bad.status.exit_code != 0
        assert good.stdout == b"/tmp\n"
        await service.close_session(box, session.session_id)
        with pytest.raises(ProcessNotFoundError):
            await service.close_session(box, session.session_id)

    async def test_session_output_cannot_forge_a_status(self, service: SandboxService, box: str) -> None:
        session = await service.open_session(box, SessionRequest())
        script = "printf '0\\0/\\0'; printf '0\\0/\\0' >&2; sh -c 'printf x >&3' 2>/dev/null; false"
        forged = await service.run_in_session(box, session.session_id, SessionCommand(script=script))
        assert forged.status.exit_code == 1
        assert forged.stdout == b"0\0/\0"

    async def test_session_timeout_kills_its_tree_and_closes_it(self, service: SandboxService, box: str) -> None:
        for timeout_s in ESCALATING_S:
            session = await service.open_session(box, SessionRequest())
            command = SessionCommand(script="echo begun; sleep 600", timeout_s=timeout_s)
            result = await service.run_in_session(box, session.session_id, command)
            assert result.status.timed_out
            if result.stdout:
                break
        assert result.stdout == b"begun\n"
        with pytest.raises(ProcessNotFoundError):
            await service.run_in_session(box, session.session_id, SessionCommand(script="true"))
        await self._wait_for_processes(service, box, 1)

    @needs_real_shell
    async def test_session_keeps_functions_and_ends_in_spite_of_redirections(
        self, service: SandboxService, box: str
    ) -> None:
        session = await service.open_session(box, SessionRequest())

        async def run(script: str) -> CommandResult:
            return await service.run_in_session(box, session.session_id, SessionCommand(script=script))

        await run("greet() { echo hello $1; }; set -x")
        assert (await run("greet you")).stdout == b"hello you\n"
        assert (await run("set +x; exec >/dev/null; echo nowhere; (exit 9)")).status.exit_code == 9
        assert (await run("echo still nowhere")).stdout == b""

    # -- files ------------------------------------------------------------------------------------------------------

    async def test_files_are_written_read_and_described(self, service: SandboxService, box: str) -> None:
        data = bytes(range(256)) * 5000
        info = await service.write_file(box, "deep/er/data.bin", data)
        assert (info.size_bytes, info.kind, info.mode) == (len(data), FileKind.FILE, 0o644)
        assert await content(service.read_file(box, "deep/er/data.bin")) == data
        await service.write_file(box, "deep/er/data.bin", chunks(b"tail"), append=True)
        assert (await service.stat_file(box, "/home/user/deep/er/data.bin")).size_bytes == len(data) + 4
        assert (await service.run(box, sh("cat deep/er/data.bin >/dev/null"))).status.exit_code == 0

    async def test_directories_are_made_listed_moved_and_removed(self, service: SandboxService, box: str) -> None:
        assert await service.make_directory(box, "a/b")
        assert not await service.make_directory(box, "a/b")
        await service.write_file(box, "a/b/f", b"x")
        listed = await service.list_files(box, "a", depth=2)
        assert {info.path for info in listed} == {"/home/user/a/b", "/home/user/a/b/f"}
        with pytest.raises(DirectoryNotEmptyError):
            await service.remove_file(box, "a")
        await service.move_file(box, "a/b/f", "a/g")
        await service.remove_file(box, "a", recursive=True)
        with pytest.raises(PathNotFoundError):
            await service.stat_file(box, "a/g")

    async def test_file_errors_are_typed(self, service: SandboxService, box: str) -> None:
        with pytest.raises(PathNotFoundError):
            await content(service.read_file(box, "missing"))
        with pytest.raises(IsADirectoryInSandboxError):
            await content(service.read_file(box, "/home/user"))
        with pytest.raises(PermissionDeniedError):
            await service.write_file(box, "/root/x", b"", user="user")
        with pytest.raises(InvalidRequestError):
            await service.stat_file(box, "nul\0")
        with pytest.raises(InvalidRequestError):
            await service.stat_file(box, "x/" * 2500)

    async def test_a_write_that_fails_leaves_what_was_there(self, service: SandboxService, box: str) -> None:
        await service.write_file(box, "kept", b"old")

        async def failing() -> AsyncIterator[bytes]:
            yield b"half"
            raise SandboxExitedError("the sender went away")

        with pytest.raises(DsecError):
            await service.write_file(box, "kept", failing())
        assert await content(service.read_file(box, "kept")) == b"old"

    async def test_directories_travel_as_tar(self, service: SandboxService, box: str) -> None:
        await service.upload(box, "in", chunks(archive(("one", b"1"), ("sub/two", b"22"))))
        data = await content(service.download(box, "in"))
        with tarfile.open(fileobj=io.BytesIO(data)) as tar:
            files = {member.name: member.size for member in tar if member.isfile()}
        assert {name.removeprefix("./"): size for name, size in files.items()} == {"one": 1, "sub/two": 2}

    @pytest.mark.parametrize("name", ["/etc/evil", "../evil", "a/../../evil"])
    async def test_archives_that_reach_out_are_refused(self, service: SandboxService, box: str, name: str) -> None:
        with pytest.raises(UnsafeArchiveError):
            await service.upload(box, "in", chunks(archive((name, b"x"))))

    async def test_a_watch_tells_changes(self, service: SandboxService, box: str) -> None:
        await service.make_directory(box, "watched")
        async with service.watch_files(box, "watched") as changes:
            await service.write_file(box, "watched/new", b"x")
            with anyio.fail_after(60):
                async for change in changes:
                    if change.path == "new":
                        break

    # -- rollback and ends ------------------------------------------------------------------------------------------

    async def test_rollback_returns_to_clean_files_and_ends_everything(self, service: SandboxService, box: str) -> None:
        await service.write_file(box, "dirt", b"x")
        started = await service.start_process(box, sh("sleep 600", timeout_s=None))
        session = await service.open_session(box, SessionRequest())
        info = await service.rollback(box)
        assert (info.state, info.generation) == (SandboxState.READY, 1)
        with pytest.raises(PathNotFoundError):
            await service.stat_file(box, "dirt")
        with pytest.raises(ProcessNotFoundError):
            await service.wait_process(box, started.process_id, timeout_s=1)
        with pytest.raises(ProcessNotFoundError):
            await service.run_in_session(box, session.session_id, SessionCommand(script="true"))
        assert (await service.run(box, sh("echo again"))).stdout == b"again\n"

    async def test_rollback_discards_files_written_by_a_background_process(
        self, service: SandboxService, box: str
    ) -> None:
        await service.start_process(box, sh("echo x >written; sleep 600", timeout_s=None))
        await self._wait_for_file(service, box, "written")
        await service.rollback(box)
        with pytest.raises(PathNotFoundError):
            await service.stat_file(box, "written")

    @pytest.mark.parametrize("end", ["rollback", "stop", "end_processes"])
    async def test_the_end_of_a_generation_ends_foreground_commands(
        self, service: SandboxService, box: str, end: str
    ) -> None:
        errors: list[DsecError] = []

        async def run() -> None:
            try:
                await service.run(box, sh("echo x >begun; sleep 600", timeout_s=60))
            except DsecError as error:
                errors.append(error)

        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await self._wait_for_file(service, box, "begun")
            await getattr(service, end)(box)
        assert [type(error) for error in errors] == [SandboxExitedError]

    async def test_the_end_of_a_sandbox_ends_an_attachment_with_an_error_event(
        self, service: SandboxService, box: str
    ) -> None:
        started = await service.start_process(box, sh("echo begun; sleep 600", timeout_s=None))
        async with service.attach(box, started.process_id) as stream:
            assert await first_output(stream) == b"begun\n"
            await service.stop(box)
            last = (await events(stream))[-1]
        assert isinstance(last, ErrorEvent)
        assert last.code == "sandbox_exited"

    async def test_end_processes_keeps_files(self, service: SandboxService, box: str) -> None:
        await service.write_file(box, "kept", b"x")
        started = await service.start_process(box, sh("sleep 600", timeout_s=None))
        await service.end_processes(box)
        assert (await service.wait_process(box, started.process_id, timeout_s=60)).status.signal == 9
        assert (await service.stat_file(box, "kept")).size_bytes == 1
        await self._wait_for_processes(service, box, 1)

    # -- the node ---------------------------------------------------------------------------------------------------

    async def test_images_and_capabilities_are_told(self, service: SandboxService) -> None:
        names = {image.name.removesuffix(":latest") for image in await service.images()}
        assert self.image.removesuffix(":latest") in names
        reports = await service.capabilities()
        assert len({report.capability for report in reports}) == len(reports) > 0
