"""The conformance suite of `dsec.runtimes.port`: what every runtime does, the in-memory fake included.

Inherit in a test module and give the fixtures `runtime` (opened) and `make_request` (a function that makes a
`LaunchRequest` of a fresh writable layer over an image with a POSIX shell and the usual programs)::

    class TestCrun(RuntimeSuite):
        @pytest.fixture
        async def runtime(self): ...

Tests that need a real shell or kernel are marked ``needs_real_shell`` and skipped, with `no_real_shell` as the reason,
where that is not empty. Tests of a capability are skipped where the runtime says that it has not got it.
"""

from __future__ import annotations

import re
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import ClassVar

import anyio
import pytest

from dsec.base.errors import (
    AlreadyExistsError,
    CapabilityMissingError,
    CommandNotFoundError,
    InvalidRequestError,
    InvalidStateError,
    PathNotFoundError,
    PermissionDeniedError,
    SandboxExitedError,
    SandboxProcessLimitError,
    UserNotFoundError,
)
from dsec.model.capability import Capability
from dsec.model.process import ExitStatus, Stream, TerminalSize
from dsec.model.sandbox import Resources
from dsec.runtimes.port import Instance, LaunchRequest, Process, Runtime, SpawnRequest

needs_real_shell = pytest.mark.needs_real_shell
PATIENCE_S = 60.0
MakeRequest = Callable[..., LaunchRequest]
_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}


class Commands:
    """Makes requests with fresh process ids."""

    def __init__(self) -> None:
        self._count = 0

    def sh(self, script: str, **options: object) -> SpawnRequest:
        """A command that runs `script` in the sandbox's shell."""
        return self.run("sh", "-c", script, **options)

    def run(self, *argv: str, **options: object) -> SpawnRequest:
        """A command."""
        self._count += 1
        fields: dict[str, object] = {"process_id": f"prc-{self._count}", "env": _ENV, **options}
        return SpawnRequest(argv=argv, **fields)  # type: ignore[arg-type]


async def collect(process: Process) -> tuple[bytes, bytes, ExitStatus]:
    """Read a process to its end; return both streams and its status, and close it."""
    output = {Stream.STDOUT: bytearray(), Stream.STDERR: bytearray()}
    try:
        with anyio.fail_after(PATIENCE_S):
            while (chunk := await process.read()) is not None:
                output[chunk[0]] += chunk[1]
            status = await process.wait()
    finally:
        await process.close()
    return bytes(output[Stream.STDOUT]), bytes(output[Stream.STDERR]), status


async def ended(process: Process) -> ExitStatus:
    """Wait for the end of a process, not for ever."""
    with anyio.fail_after(PATIENCE_S):
        return await process.wait()


async def read_until(process: Process, expected: bytes) -> bytes:
    """Read until `expected` was written; return all that came."""
    seen = b""
    with anyio.fail_after(PATIENCE_S):
        while expected not in seen:
            chunk = await process.read()
            assert chunk is not None, f"it ended after {seen[-500:]!r}"
            seen += chunk[1]
    return seen


async def start_until_refused(instance: Instance, commands: Commands) -> None:
    """Start commands until one is refused; a moment between two forks may let some through."""
    for _ in range(20):
        await collect(await instance.spawn(commands.run("true")))


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something holds that nobody announces."""
    with anyio.fail_after(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110 (there is no event to wait for)
            await anyio.sleep(0.01)


def can(runtime: Runtime, capability: Capability) -> bool:
    """Whether the runtime says that it has a capability."""
    return any(report.capability is capability and report.available for report in runtime.capabilities())


class RuntimeSuite:
    """See the module."""

    no_real_shell = ""
    """Why tests that need a real shell are skipped; empty: they are not."""

    waits_for_children = ""
    """Why a command does not end before what it left running closes its streams; empty: it does."""

    deviations: ClassVar[Mapping[str, str]] = {}
    """Names of tests that this runtime does not pass, with the reason; they are skipped."""

    @pytest.fixture(autouse=True)
    def _skip_what_is_missing(self, request: pytest.FixtureRequest, runtime: Runtime) -> None:
        assert all(hasattr(self, name) for name in self.deviations)
        if request.function.__name__ in self.deviations:
            pytest.skip(self.deviations[request.function.__name__])
        if self.no_real_shell and request.node.get_closest_marker("needs_real_shell"):
            pytest.skip(self.no_real_shell)
        if self.waits_for_children and request.node.get_closest_marker("leaves_children"):
            pytest.skip(self.waits_for_children)
        for marker in request.node.iter_markers("needs_capability"):
            for report in runtime.capabilities():
                if report.capability is marker.args[0] and not report.available:
                    pytest.skip(f"{runtime.name}: {report.reason}")

    @pytest.fixture
    def commands(self) -> Commands:
        return Commands()

    @pytest.fixture
    async def instance(self, runtime: Runtime, make_request: MakeRequest) -> AsyncIterator[Instance]:
        instance = await runtime.launch(make_request())
        yield instance
        # Bounded, whatever became of the test.
        with anyio.fail_after(PATIENCE_S, shield=True):
            await instance.terminate()

    # -- launching ----------------------------------------------------------------------------------------------------

    async def test_launched_instance_is_listed_and_gone_after_terminate(
        self, runtime: Runtime, make_request: MakeRequest
    ) -> None:
        request = make_request()
        instance = await runtime.launch(request)
        assert request.instance_id in await runtime.instances()
        await instance.terminate()
        assert request.instance_id not in await runtime.instances()

    async def test_second_launch_of_an_id_is_refused_and_leaves_the_first_alone(
        self, runtime: Runtime, instance: Instance, make_request: MakeRequest, commands: Commands
    ) -> None:
        with pytest.raises(AlreadyExistsError):
            await runtime.launch(make_request(instance_id=instance.instance_id))
        assert (await collect(await instance.spawn(commands.sh("echo alive"))))[0] == b"alive\n"

    async def test_open_is_idempotent(self, runtime: Runtime) -> None:
        await runtime.open()

    async def test_every_capability_that_is_missing_has_a_reason(self, runtime: Runtime) -> None:
        assert all(report.reason for report in runtime.capabilities() if not report.available)

    async def test_cancelled_launch_leaves_nothing(self, runtime: Runtime, make_request: MakeRequest) -> None:
        for delay_s in (0.0, 0.001, 0.004, 0.008, 0.02):
            request = make_request()
            with anyio.move_on_after(delay_s) as scope:
                await runtime.launch(request)
            if scope.cancelled_caught:
                assert request.instance_id not in await runtime.instances()
            await runtime.discard(request.instance_id)

    async def test_discard_is_idempotent(self, runtime: Runtime, make_request: MakeRequest) -> None:
        request = make_request()
        await runtime.launch(request)
        for _ in range(3):
            await runtime.discard(request.instance_id)
        assert request.instance_id not in await runtime.instances()

    async def test_adopt_of_an_unknown_id_returns_none(self, runtime: Runtime) -> None:
        assert await runtime.adopt("sbx-nobody-g0") is None

    @needs_real_shell
    async def test_hostname_is_as_asked(self, runtime: Runtime, make_request: MakeRequest, commands: Commands) -> None:
        instance = await runtime.launch(make_request(hostname="a-host"))
        assert (await collect(await instance.spawn(commands.sh("hostname"))))[0] == b"a-host\n"
        await instance.terminate()

    # -- starting commands --------------------------------------------------------------------------------------------

    async def test_command_reports_output_and_exit_code(self, instance: Instance, commands: Commands) -> None:
        out, err, status = await collect(await instance.spawn(commands.sh("echo out; echo err >&2; exit 7")))
        assert (out, err, status.exit_code, status.signal) == (b"out\n", b"err\n", 7, None)

    async def test_environment_is_the_whole_environment(self, instance: Instance, commands: Commands) -> None:
        out, _, _ = await collect(await instance.spawn(commands.run("env", env={**_ENV, "A": "1 =\n2"})))
        names = {line.partition(b"=")[0] for line in out.splitlines() if b"=" in line and not line.startswith(b"2")}
        assert names <= {b"PATH", b"A", b"HOME", b"TERM"}
        assert b"A=1 =\n2" in out

    async def test_cwd_is_entered(self, instance: Instance, commands: Commands) -> None:
        assert (await collect(await instance.spawn(commands.run("pwd", cwd="/tmp"))))[0] == b"/tmp\n"

    async def test_numeric_user_and_group_are_taken(self, instance: Instance, commands: Commands) -> None:
        out, _, _ = await collect(await instance.spawn(commands.sh("id -u; id -g", user="1000:1000")))
        assert out == b"1000\n1000\n"

    async def test_missing_program_is_typed(self, instance: Instance, commands: Commands) -> None:
        for argv in (("no-such-program",), ("/no/such/program",)):
            with pytest.raises(CommandNotFoundError):
                await collect(await instance.spawn(commands.run(*argv)))

    async def test_missing_cwd_is_typed(self, instance: Instance, commands: Commands) -> None:
        with pytest.raises(PathNotFoundError):
            await collect(await instance.spawn(commands.run("true", cwd="/no/such/directory")))

    async def test_unknown_user_is_typed(self, instance: Instance, commands: Commands) -> None:
        with pytest.raises(UserNotFoundError):
            await collect(await instance.spawn(commands.run("true", user="nobody-of-that-name")))

    @needs_real_shell
    async def test_what_cannot_be_executed_is_typed(self, instance: Instance, commands: Commands) -> None:
        for argv in (("/etc/passwd",), ("/etc",)):
            with pytest.raises(PermissionDeniedError):
                await collect(await instance.spawn(commands.run(*argv)))

    @needs_real_shell
    async def test_names_that_look_like_errors_do_not_change_the_error(
        self, instance: Instance, commands: Commands
    ) -> None:
        for name in ("chdir", "cannot allocate memory", "no space left on device", "permission denied exec", "cwd"):
            with pytest.raises(CommandNotFoundError):
                await collect(await instance.spawn(commands.run(name)))

    async def test_durable_start_is_checked_before_it_is_acknowledged(
        self, instance: Instance, commands: Commands
    ) -> None:
        with pytest.raises(CommandNotFoundError):
            await instance.spawn(commands.run("no-such-program", durable=True))
        with pytest.raises(PathNotFoundError):
            await instance.spawn(commands.run("true", cwd="/no/such/directory", durable=True))

    async def test_process_id_in_use_is_refused_and_the_first_lives(
        self, instance: Instance, commands: Commands
    ) -> None:
        first = await instance.spawn(commands.sh("cat", stdin=True))
        with pytest.raises(AlreadyExistsError):
            await instance.spawn(commands.sh("true", process_id=first.process_id))
        await first.write(b"still here")
        await first.close_stdin()
        assert (await collect(first))[0] == b"still here"

    @needs_real_shell
    async def test_text_that_a_runtime_cannot_be_told_is_refused(self, instance: Instance, commands: Commands) -> None:
        for argv in (("echo", "a\0b"), ("echo", "\udcff")):
            with pytest.raises(InvalidRequestError):
                await instance.spawn(commands.run(*argv))
        with pytest.raises(InvalidRequestError):
            await instance.spawn(commands.run("true", env={"A": "\0"}))

    @needs_real_shell
    async def test_long_arguments_arrive_whole(self, instance: Instance, commands: Commands) -> None:
        argv = tuple("x" * 100_000 for _ in range(8))
        out, _, _ = await collect(await instance.spawn(commands.sh('printf "%s" "$*" | wc -c', process_id="long")))
        assert out.strip() == b"0"
        out, _, _ = await collect(
            await instance.spawn(commands.run("sh", "-c", 'printf "%s" "$@" | wc -c', "sh", *argv))
        )
        assert int(out) == 800_000

    # -- streams ------------------------------------------------------------------------------------------------------

    @needs_real_shell
    async def test_binary_output_arrives_exactly(self, instance: Instance, commands: Commands) -> None:
        script = "$|=1; print pack('C*', 0..255) x 4096; print STDERR pack('C*', reverse 0..255) x 64"
        out, err, _ = await collect(await instance.spawn(commands.run("perl", "-e", script)))
        assert out == bytes(range(256)) * 4096
        assert err == bytes(reversed(range(256))) * 64

    async def test_zeros_arrive_exactly(self, instance: Instance, commands: Commands) -> None:
        out, _, _ = await collect(await instance.spawn(commands.run("head", "-c", "1000003", "/dev/zero")))
        assert out == bytes(1_000_003)

    async def test_input_is_fed_and_ends(self, instance: Instance, commands: Commands) -> None:
        process = await instance.spawn(commands.run("cat", stdin=True))
        data = bytes(range(256)) * 2048

        async def feed() -> None:
            await process.write(data)
            await process.close_stdin()
            await process.close_stdin()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(feed)
            out, _, status = await collect(process)
        assert (out, status.exit_code) == (data, 0)

    async def test_input_is_empty_when_nobody_writes(self, instance: Instance, commands: Commands) -> None:
        assert (await collect(await instance.spawn(commands.run("cat"))))[0] == b""

    async def test_write_to_closed_input_is_typed(self, instance: Instance, commands: Commands) -> None:
        process = await instance.spawn(commands.run("cat", stdin=True))
        await process.close_stdin()
        with pytest.raises(SandboxExitedError):
            await process.write(b"late")
        await collect(process)

    async def test_command_that_prints_without_end_is_stopped_while_nobody_reads(
        self, instance: Instance, commands: Commands
    ) -> None:
        process = await instance.spawn(commands.run("yes"))
        seen = len(await read_until(process, b"y\n"))
        # It keeps running, yet what it gets rid of is bounded: what was held for us ends before 4 MiB.
        await process.kill()
        out, _, status = await collect(process)
        assert len(out) + seen < 4 << 20
        assert status.signal == signal.SIGKILL

    async def test_control_descriptor_is_apart_from_the_output(self, instance: Instance, commands: Commands) -> None:
        process = await instance.spawn(commands.sh("echo control >&3; echo out", control_fd=True))
        assert await process.read_control() == b"control\n"
        assert (await collect(process))[0] == b"out\n"
        assert await process.read_control() == b""

    @needs_real_shell
    @pytest.mark.leaves_children
    async def test_output_of_children_left_running_is_discarded_and_they_go_on(
        self, instance: Instance, commands: Commands
    ) -> None:
        script = "(while [ ! -e /tmp/go ]; do sleep 0.05; done; seq 100000; echo done >/tmp/done) & echo first"
        out, _, status = await collect(await instance.spawn(commands.sh(script)))
        assert (out, status.exit_code) == (b"first\n", 0)
        wait = "touch /tmp/go; while [ ! -e /tmp/done ]; do sleep 0.05; done; cat /tmp/done"
        assert (await collect(await instance.spawn(commands.sh(wait))))[0] == b"done\n"

    @needs_real_shell
    async def test_standard_streams_can_be_opened_again_inside(self, instance: Instance, commands: Commands) -> None:
        for user in ("0", "1000"):
            for durable in (False, True):
                script = "echo a >/dev/stdout; echo b >/dev/stderr; cat /dev/stdin"
                out, err, _ = await collect(await instance.spawn(commands.sh(script, user=user, durable=durable)))
                assert (out, err) == (b"a\n", b"b\n")

    # -- the end of commands ------------------------------------------------------------------------------------------

    async def test_wait_may_be_called_any_number_of_times(self, instance: Instance, commands: Commands) -> None:
        process = await instance.spawn(commands.sh("exit 3"))
        seen: list[int] = []

        async def wait() -> None:
            seen.append((await ended(process)).exit_code)

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(wait)
        await wait()
        assert seen == [3, 3, 3, 3]
        await process.close()

    async def test_cancelled_wait_and_read_leave_the_process_alone(
        self, instance: Instance, commands: Commands
    ) -> None:
        process = await instance.spawn(commands.run("cat", stdin=True))
        with anyio.move_on_after(0.02):
            await process.wait()
        with anyio.move_on_after(0.02):
            await process.read()
        await process.write(b"here")
        await process.close_stdin()
        assert (await collect(process))[0] == b"here"

    async def test_signal_reaches_the_command_and_is_reported(self, instance: Instance, commands: Commands) -> None:
        process = await instance.spawn(commands.run("sleep", "1000"))
        await process.signal(signal.SIGTERM)
        _, _, status = await collect(process)
        assert (status.exit_code, status.signal) == (128 + signal.SIGTERM, signal.SIGTERM), status
        await process.signal(signal.SIGTERM)  # No error when it has ended.

    @needs_real_shell
    async def test_signal_can_be_handled_by_the_command(self, instance: Instance, commands: Commands) -> None:
        script = "trap 'echo caught; exit 5' USR1; echo ready; while :; do sleep 0.02; done"
        for durable in (False, True):
            process = await instance.spawn(commands.sh(script, durable=durable))
            await read_until(process, b"ready\n")
            await process.signal(signal.SIGUSR1)
            out, _, status = await collect(process)
            assert (out, status.exit_code, status.signal) == (b"caught\n", 5, None)

    async def test_kill_ends_a_command_that_ignores_sigterm(self, instance: Instance, commands: Commands) -> None:
        process = await instance.spawn(commands.sh("trap '' TERM; echo ready; sleep 1000"))
        await read_until(process, b"ready\n")
        await process.kill()
        assert (await ended(process)).signal == signal.SIGKILL
        await process.kill()
        await process.close()

    async def test_close_leaves_a_running_command_alone(self, instance: Instance, commands: Commands) -> None:
        process = await instance.spawn(commands.sh("sleep 0.1; echo x >/tmp/made"))
        await process.close()
        await process.close()

        async def is_made() -> bool:
            return (await collect(await instance.spawn(commands.sh("cat /tmp/made"))))[2].exit_code == 0

        await until(is_made)

    # -- terminals ----------------------------------------------------------------------------------------------------

    @needs_real_shell
    @pytest.mark.needs_capability(Capability.TERMINAL)
    async def test_terminal_has_a_size_and_can_be_resized(self, instance: Instance, commands: Commands) -> None:
        size = TerminalSize(columns=101, rows=37)
        # Not at the first change: the runtime sets the size beside the start of the program, which may hear of it.
        told = """stty size; [ "$(stty size)" = "11 55" ] && exit 4"""
        script = f"trap '{told}' WINCH; stty size; while :; do sleep 0.02; done"
        process = await instance.spawn(commands.sh(script, terminal=size))
        await read_until(process, b"37 101\r\n")
        await process.resize(TerminalSize(columns=55, rows=11))
        await read_until(process, b"11 55\r\n")
        assert (await ended(process)).exit_code == 4
        await process.close()

    @needs_real_shell
    @pytest.mark.needs_capability(Capability.TERMINAL)
    async def test_terminal_echoes_interrupts_and_ends(self, instance: Instance, commands: Commands) -> None:
        process = await instance.spawn(commands.sh("echo ready; cat; echo end", terminal=TerminalSize()))
        # Not before the command runs: until then the runtime still sets the terminal's modes.
        await read_until(process, b"ready\r\n")
        await process.write(b"hello\n")
        assert await read_until(process, b"hello\r\nhello\r\n")
        await process.close_stdin()
        out, _, status = await collect(process)
        assert (out.endswith(b"end\r\n"), status.exit_code) == (True, 0)
        process = await instance.spawn(commands.sh("echo ready; exec sleep 1000", terminal=TerminalSize()))
        # One process from then on: an interrupt while a shell forks can be lost between the two.
        await read_until(process, b"ready")
        await process.write(b"\x03")
        assert (await collect(process))[2].signal == signal.SIGINT

    @needs_real_shell
    @pytest.mark.needs_capability(Capability.TERMINAL)
    async def test_terminal_output_arrives_to_the_last_byte(self, instance: Instance, commands: Commands) -> None:
        for _ in range(5):
            out, _, _ = await collect(await instance.spawn(commands.sh("seq 5000", terminal=TerminalSize())))
            assert out == b"".join(b"%d\r\n" % number for number in range(1, 5001))

    @needs_real_shell
    @pytest.mark.needs_capability(Capability.TERMINAL)
    async def test_missing_program_on_a_terminal_is_typed(self, instance: Instance, commands: Commands) -> None:
        with pytest.raises(CommandNotFoundError):
            await collect(await instance.spawn(commands.run("no-such-program", terminal=TerminalSize())))

    async def test_resize_without_a_terminal_is_refused(self, instance: Instance, commands: Commands) -> None:
        process = await instance.spawn(commands.run("true"))
        with pytest.raises(InvalidRequestError):
            await process.resize(TerminalSize())
        await collect(process)

    # -- whole trees --------------------------------------------------------------------------------------------------

    @needs_real_shell
    @pytest.mark.needs_capability(Capability.PROCESS_TREE_KILL)
    async def test_kill_ends_daemons_and_hundreds_of_children(
        self, runtime: Runtime, make_request: MakeRequest, commands: Commands
    ) -> None:
        instance = await runtime.launch(make_request(resources=Resources(memory_bytes=1 << 30, pids=2000)))
        script = """
            setsid sleep 7777 &
            (setsid sh -c 'trap "" TERM HUP INT; (setsid sleep 7777 &) ; sleep 7777' &)
            i=0; while [ $i -lt 300 ]; do sleep 7777 & i=$((i+1)); done
            echo ready; wait"""
        for durable in (False, True):
            process = await instance.spawn(commands.sh(script, durable=durable))
            await read_until(process, b"ready\n")
            await process.kill()
            # Only the shell that looks is there besides the init.
            found = "for p in /proc/[0-9]*; do cat $p/cmdline; echo; done | tr '\\0' ' ' | grep -c 'sleep 777[7]'"
            assert (await collect(await instance.spawn(commands.sh(found))))[0] == b"0\n"
            await process.close()
        await instance.terminate()

    @needs_real_shell
    @pytest.mark.needs_capability(Capability.PIDS_LIMIT)
    @pytest.mark.needs_capability(Capability.PROCESS_TREE_KILL)
    async def test_fork_bomb_is_contained_and_killed(
        self, runtime: Runtime, make_request: MakeRequest, commands: Commands
    ) -> None:
        instance = await runtime.launch(make_request(resources=Resources(memory_bytes=1 << 30, pids=40)))
        await instance.spawn(commands.run("perl", "-e", "fork while 1"))

        async def is_full() -> bool:
            return ((await instance.statistics()).processes or 0) >= 40

        await until(is_full)
        with pytest.raises(SandboxProcessLimitError):
            await start_until_refused(instance, commands)
        await instance.kill_processes()
        assert (await collect(await instance.spawn(commands.sh("echo alive"))))[0] == b"alive\n"
        await instance.terminate()

    @pytest.mark.needs_capability(Capability.PROCESS_TREE_KILL)
    async def test_kill_processes_keeps_the_instance(self, instance: Instance, commands: Commands) -> None:
        processes = [await instance.spawn(commands.run("sleep", "1000", durable=durable)) for durable in (False, True)]
        await instance.kill_processes()
        for process in processes:
            assert (await ended(process)).signal == signal.SIGKILL
            await process.close()
        assert (await collect(await instance.spawn(commands.sh("echo alive"))))[0] == b"alive\n"

    @pytest.mark.needs_capability(Capability.PROCESS_TREE_KILL)
    async def test_orphans_end_and_the_kept_live(self, instance: Instance, commands: Commands) -> None:
        kept = await instance.spawn(commands.run("cat", stdin=True))
        lost = await instance.spawn(commands.run("sleep", "1000"))
        await instance.end_orphans(frozenset({kept.process_id}))
        assert (await ended(lost)).signal == signal.SIGKILL
        await kept.close_stdin()
        assert (await collect(kept))[2].exit_code == 0
        await lost.close()

    # -- durable commands ---------------------------------------------------------------------------------------------

    async def test_durable_command_is_found_again_in_the_same_life(
        self, instance: Instance, commands: Commands
    ) -> None:
        process = await instance.spawn(commands.sh("echo one; sleep 0.1; echo two; exit 6", durable=True))
        assert await process.read() == (Stream.STDOUT, b"one\n")
        await process.close()
        again = await instance.reattach(process.process_id)
        assert again is not None
        out, _, status = await collect(again)
        assert (out, status.exit_code) == (b"two\n", 6), status

    async def test_an_input_that_is_held_open_is_written_on_by_who_takes_over(
        self, instance: Instance, commands: Commands
    ) -> None:
        process = await instance.spawn(commands.run("cat", durable=True, stdin=True, hold_stdin=True))
        await process.write(b"one\n")
        await read_until(process, b"one\n")
        await process.close()
        again = await instance.reattach(process.process_id)
        assert again is not None
        await again.write(b"two\n")
        await read_until(again, b"two\n")
        await again.close_stdin()
        out, _, status = await collect(again)
        assert (out, status.exit_code) == (b"", 0)

    async def test_an_input_that_was_ended_stays_ended(self, instance: Instance, commands: Commands) -> None:
        script = "cat; sleep 0.1; echo end"
        process = await instance.spawn(commands.sh(script, durable=True, stdin=True, hold_stdin=True))
        await process.write(b"one\n")
        await read_until(process, b"one\n")
        await process.close_stdin()
        await process.close()
        again = await instance.reattach(process.process_id)
        assert again is not None
        out, _, status = await collect(again)
        assert (out, status.exit_code) == (b"end\n", 0)

    @needs_real_shell
    async def test_a_signal_reaches_a_command_whose_input_is_held_open(
        self, instance: Instance, commands: Commands
    ) -> None:
        script = "trap 'echo caught; exit 5' TERM; echo ready; while :; do sleep 0.02; done"
        process = await instance.spawn(commands.sh(script, durable=True, stdin=True, hold_stdin=True))
        await read_until(process, b"ready\n")
        await process.signal(signal.SIGTERM)
        assert (await collect(process))[2].exit_code == 5

    async def test_a_command_that_is_found_again_has_run_since_its_start(
        self, instance: Instance, commands: Commands
    ) -> None:
        script = "sleep 0.2; echo late; cat"
        process = await instance.spawn(commands.sh(script, durable=True, stdin=True, hold_stdin=True))
        await read_until(process, b"late\n")
        await process.close()
        again = await instance.reattach(process.process_id)
        assert again is not None
        await again.close_stdin()
        assert (await collect(again))[2].duration_s >= 0.18  # The kernel's ticks are 10 ms.

    async def test_reattach_to_what_never_was_returns_none(self, instance: Instance) -> None:
        assert await instance.reattach("prc-nobody") is None

    @needs_real_shell
    async def test_durable_terminal_is_refused(self, instance: Instance, commands: Commands) -> None:
        with pytest.raises(InvalidRequestError):
            await instance.spawn(commands.run("true", durable=True, terminal=TerminalSize()))
        assert (await collect(await instance.spawn(commands.sh("echo alive"))))[0] == b"alive\n"

    # -- the instance -------------------------------------------------------------------------------------------------

    async def test_paused_instance_stands_still_until_it_is_resumed(
        self, instance: Instance, commands: Commands
    ) -> None:
        process = await instance.spawn(commands.run("cat", stdin=True))
        for _ in range(2):
            await instance.pause()
        await process.write(b"x")
        with anyio.move_on_after(0.1) as scope:
            await process.read()
        assert scope.cancelled_caught
        for _ in range(2):
            await instance.resume()
        await process.close_stdin()
        assert (await collect(process))[0] == b"x"

    async def test_paused_instance_can_be_terminated(
        self, runtime: Runtime, make_request: MakeRequest, commands: Commands
    ) -> None:
        instance = await runtime.launch(make_request())
        process = await instance.spawn(commands.run("sleep", "1000"))
        await instance.pause()
        with anyio.fail_after(PATIENCE_S):
            await instance.terminate()
        await process.close()

    async def test_paused_instance_gives_memory_back_and_goes_on_as_it_was(
        self, runtime: Runtime, instance: Instance, commands: Commands
    ) -> None:
        if not (can(runtime, Capability.PAUSE) and can(runtime, Capability.MEMORY_LIMIT)):
            with pytest.raises(CapabilityMissingError):
                await instance.release_memory()
            return
        process = await instance.spawn(commands.run("cat", stdin=True))
        with pytest.raises(InvalidStateError):
            await instance.release_memory()
        for content in (b"x", b"y", b"z"):
            await instance.pause()
            with anyio.fail_after(PATIENCE_S):
                assert await instance.release_memory() >= 0
                await instance.prefetch(0.0)
                await instance.prefetch(1.0)
            await instance.resume()
            await process.write(content)
            await read_until(process, content)
            # Whoever needs the instance at once ends both, and reading ahead is for one that runs as well.
            await instance.pause()
            with anyio.move_on_after(0):
                await instance.release_memory()
            await instance.resume()
            with anyio.move_on_after(0):
                await instance.prefetch(PATIENCE_S)
            await instance.prefetch(1.0)
            await process.write(content)
            await read_until(process, content)
        needed = await instance.swappable_bytes()
        assert needed is None or needed >= 0
        await process.close_stdin()
        await collect(process)

    async def test_statistics_count_processes(self, instance: Instance, commands: Commands) -> None:
        process = await instance.spawn(commands.sh("echo ready; cat", stdin=True))
        await read_until(process, b"ready\n")
        statistics = await instance.statistics()
        assert statistics.processes is None or statistics.processes >= 2
        await process.close_stdin()
        await collect(process)

    async def test_terminate_is_idempotent_and_concurrent(
        self, runtime: Runtime, make_request: MakeRequest, commands: Commands
    ) -> None:
        instance = await runtime.launch(make_request())
        process = await instance.spawn(commands.run("sleep", "1000"))
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(instance.terminate)
        await instance.terminate()
        with pytest.raises(SandboxExitedError):
            await instance.spawn(commands.run("true"))
        for call in (
            instance.pause, instance.resume, instance.release_memory, instance.statistics, instance.kill_processes
        ):  # fmt: skip
            with pytest.raises(SandboxExitedError):
                await call()
        await process.close()

    async def test_cancelled_terminate_can_be_repeated(
        self, runtime: Runtime, make_request: MakeRequest, commands: Commands
    ) -> None:
        instance = await runtime.launch(make_request())
        process = await instance.spawn(commands.run("sleep", "1000"))
        with anyio.move_on_after(0):
            await instance.terminate()
        await instance.terminate()
        assert instance.instance_id not in await runtime.instances()
        await process.close()

    @needs_real_shell
    async def test_process_ids_of_the_host_are_not_seen_inside(self, instance: Instance, commands: Commands) -> None:
        out, _, _ = await collect(await instance.spawn(commands.sh("ls /proc")))
        pids = [int(name) for name in out.split() if re.fullmatch(rb"\d+", name)]
        assert len(pids) <= 4
