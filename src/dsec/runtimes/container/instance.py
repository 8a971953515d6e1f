"""One launched generation of a sandbox, seen from the host."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import signal
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Mapping

import anyio
import anyio.to_thread

from dsec.base.errors import CapabilityMissingError, InvalidStateError, SandboxExitedError
from dsec.linux.cgroups import CgroupLimits
from dsec.linux.kernel_write import KernelWrites
from dsec.linux.uts import set_host_name
from dsec.model.process import Stream, TerminalSize
from dsec.model.sandbox import Resources, SandboxStats
from dsec.runtimes.container.bundle import ProcessIdentity, process_document
from dsec.runtimes.container.child import HostChild
from dsec.runtimes.container.command import (
    CONTROL_DESCRIPTOR,
    DOCUMENT_DESCRIPTOR,
    LOG_DESCRIPTOR,
    Pipes,
    RuntimeProgram,
    encode_document,
    write_document,
)
from dsec.runtimes.container.durable import DurableProcess
from dsec.runtimes.container.failures import host_error, process_limit_error
from dsec.runtimes.container.files import ContainerFiles
from dsec.runtimes.container.fingerprint import read_fingerprint
from dsec.runtimes.container.group import CommandGroup
from dsec.runtimes.container.groups import Groups
from dsec.runtimes.container.output import Drain, OutputReader
from dsec.runtimes.container.paths import InstancePaths
from dsec.runtimes.container.prefetch import read_back
from dsec.runtimes.container.process import ContainerProcess
from dsec.runtimes.container.record import InstanceRecord
from dsec.runtimes.container.root import RootHandle
from dsec.runtimes.container.start_check import check_start
from dsec.runtimes.container.terminal import ConsoleSocket, open_terminal
from dsec.runtimes.container.ungrouped import EVERYTHING
from dsec.runtimes.container.users import ResolvedUser, resolve_user
from dsec.runtimes.container.waiting import wait_empty, wait_frozen, wait_reaped
from dsec.runtimes.port import Fingerprint, Process, SpawnRequest

_ROOT = ResolvedUser(uid=0, gid=0, home="/root")
_NOT_GIVEN_BACK = "the memory of a sandbox cannot be given back"
_SWEPT_GROUPS = 4
"""Looked at in each start of a command: more than one command can leave behind."""


class ContainerInstance:
    """See `dsec.runtimes.port.Instance`.

    Args:
        instance_id: its id, which is also its control group's name.
        pid: host pid of its init.
        paths: its run directory.
        record: what it was launched with.
        program: the OCI runtime.
        cgroups: the node's groups.
        discard: removes every trace of it from the host.
        file_limiter: threads that work on files, shared by all instances.
    """

    def __init__(
        self,
        instance_id: str,
        pid: int,
        paths: InstancePaths,
        record: InstanceRecord,
        program: RuntimeProgram,
        cgroups: Groups,
        discard: Callable[[str], Awaitable[None]],
        file_limiter: anyio.CapacityLimiter,
    ) -> None:
        self.instance_id = instance_id
        self.init_pid = pid
        self._paths = paths
        self._record = record
        self._program = program
        self._cgroups = cgroups
        self._discard = discard
        self._pidfd = os.pidfd_open(pid)
        self._root = RootHandle(self._open_root(pid))
        self._drain = Drain()
        self._lingering: deque[str] = deque()
        self._exited: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().add_reader(self._pidfd, self._report_exit)
        self._terminated = False
        self._gone = False
        self._ending = anyio.Lock()
        self.files = ContainerFiles(self._root, record.first_host_id, file_limiter)

    def _open_root(self, pid: int) -> int:
        where = self._paths.rootfs if self._program.flavour.own_kernel else f"/proc/{pid}/root"
        try:
            root = os.open(where, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            os.close(self._pidfd)
            raise SandboxExitedError(f"{self.instance_id}: its init has ended", detail=str(error)) from error
        if not self.is_alive():  # The pid could have been somebody else's by the time its root was opened.
            os.close(root)
            os.close(self._pidfd)
            raise SandboxExitedError(f"{self.instance_id}: its init has ended")
        return root

    def is_alive(self) -> bool:
        """Whether the init process runs."""
        poller = select.poll()
        poller.register(self._pidfd, select.POLLIN)
        return not poller.poll(0)

    def command_groups(self) -> tuple[str, ...]:
        """Names of the groups that commands have now: those that run, and those that left something running."""
        return self._cgroups.children(self.instance_id)

    def _require_alive(self) -> None:
        if self._terminated or self._pidfd < 0:
            raise SandboxExitedError(f"{self.instance_id} has ended, or was let go")

    # -- commands -------------------------------------------------------------------------------------------------

    async def spawn(self, request: SpawnRequest) -> Process:
        self._require_alive()
        self._refuse_impossible(request)
        self._sweep()
        user = _ROOT if request.user == "0" else self._resolve_user(request.user)
        document = encode_document(self._document(request, user))
        group = self._group(request.process_id)
        group.create()
        try:
            return await self._spawn(request, document, group, self._record.first_host_id + user.uid)
        except OSError as error:
            await self._undo(group)
            raise host_error(error, f"cannot start {request.argv[0]!r}") from error
        except BaseException:
            await self._undo(group)
            raise

    def _refuse_impossible(self, request: SpawnRequest) -> None:
        flavour = self._program.flavour
        if request.control_fd and not flavour.passes_descriptors:
            raise CapabilityMissingError(
                f"{flavour.name} gives a command no descriptor beside its three streams", resolution="use crun or runc"
            )
        if flavour.needs_threads and self._cgroups.is_full(self.instance_id):
            raise process_limit_error()

    async def _spawn(self, request: SpawnRequest, document: bytes, group: CommandGroup, owner: int) -> Process:
        if request.durable:
            self._check_start(request)
            return DurableProcess.start(request, document, self._program, self._paths, self.instance_id, group, owner)
        if request.terminal is None:
            return self._spawn_piped(request, document, group, owner)
        if self._program.flavour.console_socket:
            return await self._spawn_terminal(request, document, group, owner)
        return self._spawn_copied_terminal(request, request.terminal, document, group, owner)

    async def _undo(self, group: CommandGroup) -> None:
        with anyio.CancelScope(shield=True):
            await group.kill()
            shutil.rmtree(self._paths.process(group.process_id), ignore_errors=True)

    def _group(self, process_id: str) -> CommandGroup:
        signals = self._program.flavour.sends_signals
        return CommandGroup(self._cgroups, self.instance_id, process_id, self._lingering.append, signals=signals)

    def _sweep(self) -> None:
        """Remove a few of the groups whose commands ended and left something running that has ended since."""
        for _ in range(min(_SWEPT_GROUPS, len(self._lingering))):
            child = self._lingering.popleft()
            if not self._cgroups.remove_child(self.instance_id, child):
                self._lingering.append(child)

    def _document(self, request: SpawnRequest, user: ResolvedUser) -> dict[str, object]:
        env = {"HOME": user.home, **request.env}
        identity = ProcessIdentity(uid=user.uid, gid=user.gid, groups=user.groups)
        return process_document(
            request.argv, env, request.cwd, identity, open_files=self._record.open_files, terminal=request.terminal
        )

    def _resolve_user(self, text: str) -> ResolvedUser:
        with self._root.hold() as root:
            return resolve_user(root, text)

    def _check_start(self, request: SpawnRequest) -> None:
        with self._root.hold() as root:
            check_start(root, request)

    def _spawn_piped(self, request: SpawnRequest, document: bytes, group: CommandGroup, owner: int) -> ContainerProcess:
        pipes = Pipes()
        try:
            if request.stdin:
                pipes.input("stdin", 0, owner)
            else:
                pipes.empty(0, owner)
            pipes.output("stdout", 1, owner)
            pipes.output("stderr", 2, owner)
            child = self._start(request, document, group, pipes, owner)
            sources = {Stream.STDOUT: pipes.take("stdout"), Stream.STDERR: pipes.take("stderr")}
            return self._process(request, child, group, OutputReader(sources, self._drain.add), pipes)
        finally:
            pipes.close()

    async def _spawn_terminal(
        self, request: SpawnRequest, document: bytes, group: CommandGroup, owner: int
    ) -> ContainerProcess:
        """Start a command on a terminal that the runtime makes inside and hands out."""
        directory = self._paths.process(request.process_id)
        directory.mkdir(parents=True)
        console = ConsoleSocket(directory / "console")
        pipes = Pipes()
        try:
            pipes.empty(0)
            pipes.sink(1)
            pipes.sink(2)
            child = self._start(request, document, group, pipes, owner, console)
            descriptor = await console.receive(child)
            return self._terminal_process(request, child, group, pipes, descriptor)
        finally:
            pipes.close()
            console.close()
            shutil.rmtree(directory, ignore_errors=True)

    def _spawn_copied_terminal(
        self, request: SpawnRequest, size: TerminalSize, document: bytes, group: CommandGroup, owner: int
    ) -> ContainerProcess:
        """Start a command on a terminal that the runtime makes inside and copies to and from one of ours."""
        pipes = Pipes()
        try:
            master, slave = open_terminal(size)
            pipes.ours["terminal"] = master
            pipes.child.update({0: slave, 1: os.dup(slave), 2: os.dup(slave)})
            child = self._start(request, document, group, pipes, owner)
            return self._terminal_process(request, child, group, pipes, pipes.take("terminal"))
        finally:
            pipes.close()

    def _terminal_process(
        self, request: SpawnRequest, child: HostChild, group: CommandGroup, pipes: Pipes, descriptor: int | None
    ) -> ContainerProcess:
        if descriptor is not None:
            pipes.ours["stdin"] = os.dup(descriptor)
        sources = {} if descriptor is None else {Stream.STDOUT: descriptor}
        output = OutputReader(sources, self._drain.add, terminal=True)
        return self._process(request, child, group, output, pipes, has_terminal=True)

    def _start(
        self,
        request: SpawnRequest,
        document: bytes,
        group: CommandGroup,
        pipes: Pipes,
        owner: int,
        console: ConsoleSocket | None = None,
    ) -> HostChild:
        """Start the runtime, move it into the command's group, and only then let it go on."""
        if request.control_fd:
            pipes.output("control", CONTROL_DESCRIPTOR, owner)
        pipes.output("log", LOG_DESCRIPTOR)
        pipes.input("document", DOCUMENT_DESCRIPTOR, blocking=True)
        arguments = self._program.exec_arguments(
            self._paths.runtime_state,
            self.instance_id,
            console=None if console is None else console.path,
            control=request.control_fd,
        )
        child = HostChild.start(self._program.executed, arguments, pipes.child, scratch=self._paths.directory)
        pipes.close_child()
        try:
            group.attach(child.pid)
            write_document(pipes.take("document"), document)
        except (ProcessLookupError, BrokenPipeError):
            pass  # It has ended already; its log says why, and `ContainerProcess` tells.
        except OSError:
            child.kill()
            raise
        return child

    def _process(
        self,
        request: SpawnRequest,
        child: HostChild,
        group: CommandGroup,
        output: OutputReader,
        pipes: Pipes,
        *,
        has_terminal: bool = False,
    ) -> ContainerProcess:
        return ContainerProcess(
            request.process_id,
            child,
            group,
            output,
            log=pipes.take("log"),
            stdin=pipes.ours.pop("stdin", None),
            has_terminal=has_terminal,
            control=pipes.ours.pop("control", None),
            program=request.argv[0],
            cwd=request.cwd,
        )

    async def reattach(self, process_id: str, *, kept: Mapping[Stream, int] | None = None) -> Process | None:
        self._require_alive()
        return DurableProcess.find(process_id, self._paths, self._group(process_id), kept)

    async def end_orphans(self, keep: frozenset[str]) -> None:
        self._require_alive()
        await self._end_children(keep)

    async def kill_processes(self) -> None:
        self._require_alive()
        await self._end_children(frozenset())
        if not self._cgroups.separates:
            self._cgroups.kill(self.instance_id, EVERYTHING)
            await wait_empty(self._cgroups, self.instance_id, EVERYTHING)
            self._cgroups.remove_child(self.instance_id, EVERYTHING)

    async def _end_children(self, keep: frozenset[str]) -> None:
        children = [child for child in self._cgroups.children(self.instance_id) if child not in keep]
        for child in children:
            self._cgroups.kill(self.instance_id, child)
        for child in children:
            await wait_empty(self._cgroups, self.instance_id, child)
            self._cgroups.remove_child(self.instance_id, child)
            shutil.rmtree(self._paths.process(child), ignore_errors=True)
        await wait_reaped(self._cgroups, self.instance_id)

    # -- the instance ---------------------------------------------------------------------------------------------

    async def pause(self) -> None:
        self._require_alive()
        self._cgroups.freeze(self.instance_id, frozen=True)
        await wait_frozen(self._cgroups, self.instance_id)

    async def resume(self) -> None:
        self._require_alive()
        self._cgroups.freeze(self.instance_id, frozen=False)

    async def release_memory(self) -> int:
        self._require_alive()
        if "memory" not in self._cgroups.controllers():
            raise CapabilityMissingError(_NOT_GIVEN_BACK, detail="its memory is not accounted")
        if not self._cgroups.is_frozen(self.instance_id):
            raise InvalidStateError(f"{self.instance_id} is not paused")
        writes = KernelWrites()
        try:
            return await anyio.to_thread.run_sync(
                self._cgroups.release_memory, self.instance_id, writes, abandon_on_cancel=True
            )
        except OSError as error:
            self._require_alive()
            raise CapabilityMissingError(
                _NOT_GIVEN_BACK, detail=str(error), resolution="cgroup v2 needs Linux 5.19 for it"
            ) from error
        finally:
            # A thread hears of no cancellation; this ends its work within a moment.
            writes.end()

    async def swappable_bytes(self) -> int | None:
        self._require_alive()
        return self._cgroups.swappable_bytes(self.instance_id)

    async def prefetch(self, timeout_s: float) -> None:
        self._require_alive()
        ended = threading.Event()
        try:
            await anyio.to_thread.run_sync(
                read_back, self._cgroups, self.instance_id, timeout_s, ended, abandon_on_cancel=True
            )
        finally:
            ended.set()

    async def statistics(self) -> SandboxStats:
        self._require_alive()
        usage = self._cgroups.usage(self.instance_id)
        return SandboxStats(
            cpu_s=usage.cpu_s,
            memory_bytes=usage.memory_bytes,
            memory_peak_bytes=usage.memory_peak_bytes,
            processes=usage.pids,
            cpu_pressure=usage.pressure.get("cpu"),
            memory_pressure=usage.pressure.get("memory"),
            io_pressure=usage.pressure.get("io"),
            oom_kills=usage.oom_kills,
            swap_bytes=self._cgroups.swapped_bytes(self.instance_id),
        )

    async def fingerprint(self) -> Fingerprint:
        self._require_alive()
        try:
            # In a thread: what is listed is the guest's, which can hold a directory's lock.
            return await anyio.to_thread.run_sync(self._read_fingerprint)
        except OSError as error:
            raise SandboxExitedError(f"{self.instance_id}: its init has ended", detail=str(error)) from error

    def _read_fingerprint(self) -> Fingerprint:
        with self._root.hold() as root:
            return read_fingerprint(
                self.init_pid,
                self._cgroups,
                self.instance_id,
                self._record.first_host_id,
                root_fd=None if self._program.flavour.own_kernel else root,
            )

    async def set_host_name(self, name: str) -> None:
        self._require_alive()
        if self._program.flavour.own_kernel:
            raise CapabilityMissingError(
                f"{self._program.flavour.name} gives an instance no other host name once it runs",
                resolution="use crun or runc",
            )
        try:
            set_host_name(self.init_pid, name)
        except OSError as error:
            raise host_error(error, f"cannot set the host name of {self.instance_id}") from error

    async def limit(self, resources: Resources) -> None:
        self._require_alive()
        limits = CgroupLimits(
            memory_bytes=resources.memory_bytes,
            swap_bytes=resources.swap_bytes,
            pids=resources.pids,
            cpu_millis=resources.cpu_millis,
        )
        try:
            self._cgroups.limit(self.instance_id, limits)
        except OSError as error:
            raise host_error(error, f"cannot set the limits of {self.instance_id}") from error

    async def wait_exited(self) -> str:
        self._require_alive()
        await asyncio.shield(self._exited)
        self._require_alive()
        if self._cgroups.oom_kills(self.instance_id):
            return "its init process was killed: the sandbox ran out of memory"
        return f"its init process ended (signal {signal.SIGKILL.value} from the host, or the runtime's failure)"

    def _report_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        if not self._exited.done():
            self._exited.set_result(None)

    async def terminate(self) -> None:
        async with self._ending:
            if self._gone:
                return
            self._terminated = True
            self.close()
            await self._discard(self.instance_id)
            self._gone = True

    def close(self) -> None:
        """Let go of descriptors; the instance lives on. Idempotent."""
        self._drain.close()
        self.files.close()
        if self._pidfd >= 0:
            self._report_exit()
            os.close(self._pidfd)
            self._pidfd = -1
