"""The port of runtimes: the mechanism that turns a root file system and limits into running processes.

A `Runtime` launches `Instance`s. An instance is one generation of one sandbox: rolling back ends one instance
and launches the next on another writable layer. Policy (lifetimes, output caps, retries, sessions) is the node's.

Contract of every driver:

**States.** `launch` returns an instance whose processes run and whose root is mounted. `terminate` returns only when
every process of it has been *seen to be gone* and its cgroups, mounts and runtime state are removed; it is
idempotent and may be called at any time, also for an instance that half exists. After it every call raises
`SandboxExitedError`.

**Isolation.** Nothing of ours runs inside. The init process is a trusted program that only reaps; no program of the
image runs before the first command.

**Restarts.** Instances outlive the process that launched them. `instances` finds the ids of everything that exists in
part or in whole, `adopt` takes a live one over, `discard` removes what is left of a dead or half-made one.

**Cancellation.** Cancelling `launch` undoes it. Cancelling `Process.wait` or a read leaves the process alone.
Cancelling `spawn` kills what it started.

**Failures.** Guest-caused failures raise `GuestError`s, missing programs, users and directories `NotFoundError`s, and
everything else `RuntimeFailedError` with the runtime's own words; the node may retry only the last.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Protocol

from dsec.base.errors import DsecError
from dsec.linux.pipes import Pipe
from dsec.model.capability import CapabilityReport
from dsec.model.files import FileChange, FileInfo
from dsec.model.process import ExitStatus, Stream, TerminalSize
from dsec.model.sandbox import QosClass, Resources, SandboxStats


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """What to launch.

    Attributes:
        instance_id: unique on the node, a valid id; a sandbox's generation 0 is ``<sandbox_id>-g0``.
        layer_paths: read-only layers from the lowest up.
        upper, work: the writable layer's directories.
        resources: every limit; None means unlimited. A limit that cannot be enforced raises `CapabilityMissingError`.
        qos: processor class.
        hostname: host name inside.
        first_host_id: first of the 65,536 host user and group ids that this instance's ids map to.
    """

    instance_id: str
    layer_paths: Sequence[Path]
    upper: Path
    work: Path
    resources: Resources
    qos: QosClass
    hostname: str
    first_host_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnRequest:
    """One command in an instance.

    Attributes:
        process_id: unique in the instance.
        argv: program and arguments, resolved through PATH of `env` inside.
        env: the whole environment.
        cwd: directory inside; must exist.
        user: name, ``uid`` or ``uid:gid``, resolved by the instance's own user database.
        terminal: None, or the size of the terminal to run on. It is set beside the start of the program, which may hear
            of it by SIGWINCH.
        stdin: whether the caller will write to the input; otherwise it is empty.
        durable: the process, its output so far and its exit code survive the death of the caller.
        hold_stdin: the input of a durable command stays open when the caller dies, and who takes it over may go on
            writing. Otherwise it ends then.
        control_fd: give the process an extra pipe as descriptor 3, read through `Process.read_control`.
    """

    process_id: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str = "/"
    user: str = "0"
    terminal: TerminalSize | None = None
    stdin: bool = False
    durable: bool = False
    hold_stdin: bool = False
    control_fd: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What can be seen of an instance from outside; two clean ones on the same layers and limits have equal ones.

    Attributes:
        processes: processes and threads, the init included; None where nobody counts.
        command_groups: groups of commands that exist.
        mounts: where, of which kind, with which rights and options.
        init: environment, directory, identity, capabilities and limits of the init.
        ipc: System V objects.
        sockets: network interfaces and sockets, abstract ones included.
        volatile: entries of file systems in memory, such as /dev/shm and message queues.
    """

    processes: int | None
    command_groups: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    init: tuple[str, ...] = ()
    ipc: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    volatile: tuple[str, ...] = ()


class Process(Protocol):
    """One running command and everything it started."""

    process_id: str

    async def read(self) -> tuple[Stream, bytes] | None:
        """Return the next bytes (at most 64 KiB) of either stream, or None once the command itself has ended and all
        it wrote before that was read. Not reading stops the command when its pipe is full: that is the back-pressure.
        What descendants write later is discarded."""

    async def read_control(self) -> bytes:
        """Return bytes written to descriptor 3; empty at its end."""

    async def write(self, data: bytes) -> None:
        """Feed the input; waits while the command does not read. Raises `SandboxExitedError` when it is closed."""

    async def close_stdin(self) -> None:
        """End the input. Idempotent."""

    async def wait(self) -> ExitStatus:
        """Wait for the command itself (not for what it left running). May be called any number of times."""

    async def signal(self, number: int) -> None:
        """Send a signal to the command itself. No error when it has ended."""

    async def resize(self, size: TerminalSize) -> None:
        """Change the terminal's size. Raises `InvalidRequestError` without a terminal."""

    async def kill(self) -> None:
        """Kill the command and every descendant, daemons too, and return when all are seen to be gone."""

    async def close(self, *, forget: bool = True) -> None:
        """Let go of the process: descriptors are closed. A command that runs is left alone and its output discarded
        (a durable one can be found again). One that has ended is forgotten, unless it is durable and `forget` is False:
        for a caller that could not write down how it ended. Idempotent."""


class FileEvents(Protocol):
    """A stream of changes in a directory; an async context manager that ends the watch."""

    async def __aenter__(self) -> FileEvents: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def __aiter__(self) -> FileEvents: ...

    async def __anext__(self) -> FileChange: ...


class WriteMode(enum.Enum):
    REPLACE = "replace"
    APPEND = "append"
    CREATE = "create"
    """Fail with `AlreadyExistsError` when the path exists."""


class Reader(Protocol):
    """An open file being read."""

    size_bytes: int

    async def read(self, limit: int) -> bytes:
        """Return up to `limit` bytes; empty at the end."""

    async def fill(self, pipe: Pipe) -> int:
        """Move what comes next into an empty pipe, without copying where that is possible; return how many bytes it
        holds now, 0 at the end. After an error or a cancellation its content is undefined."""

    async def close(self) -> None: ...


class Writer(Protocol):
    """An open file being written."""

    async def write(self, data: bytes) -> None:
        """Write all of `data`. Raises `SandboxDiskFullError` when the sandbox's quota is reached."""

    async def drain(self, pipe: Pipe, count: int) -> None:
        """Write `count` bytes out of a pipe that holds them, without copying where that is possible. As `write`; after
        an error or a cancellation the pipe's content is undefined."""

    async def commit(self) -> None:
        """Make the content visible under its path (replace is atomic)."""

    async def abort(self) -> None:
        """Leave what was there before. Idempotent; a no-op after `commit`."""


@dataclass(frozen=True, slots=True)
class FileDigest:
    """What a file holds.

    Attributes:
        size_bytes: of all of it.
        blake3: of its beginning, as hexadecimal digits.
    """

    size_bytes: int
    blake3: str


class Files(Protocol):
    """The files of an instance, from outside.

    Every path is resolved inside the instance's root by the kernel (`openat2` with `RESOLVE_IN_ROOT`): absolute links,
    ``..`` and magic links cannot leave it. Only regular files and directories are opened: FIFOs, sockets and devices
    raise `UnsupportedFileError`. Work is done with the identity of `user` inside the sandbox (its permissions count),
    root's when None. Paths may hold surrogate escapes for bytes that are not UTF-8.
    """

    async def open_read(self, path: str, *, offset: int = 0, user: str | None = None) -> Reader: ...

    async def open_write(
        self,
        path: str,
        *,
        mode: WriteMode = WriteMode.REPLACE,
        permissions: int = 0o644,
        user: str | None = None,
    ) -> Writer:
        """Open for writing; missing parent directories are made (0o755). `permissions` are a new file's: one that is
        replaced or added to keeps its own."""

    async def stat(self, path: str, *, user: str | None = None) -> FileInfo:
        """Describe one entry; a final symbolic link is not followed."""

    async def put(self, path: str, data: bytes, *, permissions: int = 0o644, only_over_file: bool = False) -> bool:
        """Write a small file whole, as root and at once, as `open_write` does that replaces; missing parents are made.

        With `only_over_file` nothing is written, and False returned, unless the path itself is a regular file.
        """

    async def stat_all(self, paths: Sequence[str]) -> tuple[FileInfo | DsecError, ...]:
        """Describe many entries at once, as root; an error stands in the place of the path that it is about."""

    async def digest_all(self, paths: Sequence[str], *, limit_bytes: int) -> tuple[FileDigest | DsecError, ...]:
        """Hash the contents of many regular files at once, as root: of each the first `limit_bytes`. Links are followed
        inside the root. An error stands in the place of the path that it is about."""

    async def list(
        self, path: str, *, depth: int = 1, limit: int = 10_000, user: str | None = None
    ) -> tuple[FileInfo, ...]:
        """List a directory to `depth` levels. Raises `LimitExceededError` past `limit` entries."""

    async def make_directory(self, path: str, *, permissions: int = 0o755, user: str | None = None) -> bool:
        """Make a directory and its missing parents; return whether it is new."""

    async def move(self, source: str, target: str, *, user: str | None = None) -> None:
        """Rename, replacing a file at `target` but not another directory. Onto itself changes nothing."""

    async def remove(self, path: str, *, recursive: bool = False, user: str | None = None) -> None:
        """Remove a file, link or empty directory, or a whole tree when `recursive`."""

    async def download(self, path: str, *, user: str | None = None) -> Reader:
        """Return a tar stream (pax) of a directory or file; entries that are not files, directories or links are
        left out and named in a final pax comment `DSEC.left_out`."""

    async def upload(self, path: str, *, user: str | None = None) -> Writer:
        """Return a writer that unpacks a tar stream into the directory `path`. Raises `UnsafeArchiveError` for absolute
        or escaping names, device nodes, FIFOs and bombs; then nothing of the archive after the bad entry is written."""

    async def watch(self, path: str, *, recursive: bool = False, user: str | None = None) -> FileEvents: ...


class Instance(Protocol):
    """One launched generation of a sandbox."""

    instance_id: str

    @property
    def files(self) -> Files: ...

    async def spawn(self, request: SpawnRequest) -> Process:
        """Start a command.

        What prevents a start is often known only after `spawn` returned (the runtime takes milliseconds, and nobody
        waits for it): the same errors are then raised by `Process.read`, `wait` and `read_control`. For durable
        commands they are checked before, as far as that is possible from outside.

        Raises:
            CommandNotFoundError, PathNotFoundError (cwd), UserNotFoundError, PermissionDeniedError,
            SandboxProcessLimitError, SandboxOutOfMemoryError, SandboxExitedError, RuntimeFailedError.
        """

    async def reattach(self, process_id: str, *, kept: Mapping[Stream, int] | None = None) -> Process | None:
        """Take over a durable process that an earlier caller started; None when there is nothing of it.

        Reading begins after the first `kept` bytes of each stream, which that caller has put away: a chunk counts as
        put away when the next one is asked for. None: at the first byte that was not read when the process was let go.
        """

    async def end_orphans(self, keep: frozenset[str]) -> None:
        """Kill the trees of all commands whose process id is not in `keep`. For adoption."""

    async def pause(self) -> None:
        """Freeze every process. Idempotent."""

    async def resume(self) -> None:
        """Thaw. Idempotent."""

    async def release_memory(self) -> int:
        """Give the memory of a paused instance back, to swap where there is some; return the bytes given back.

        Takes seconds for a GiB. What it gives back comes back as the instance touches it, so it may be called again.
        Cancelling ends it at once with what was given back by then.

        Raises:
            InvalidStateError: it is not paused.
            CapabilityMissingError: its memory is not accounted, or this kernel gives none back on request.
        """

    async def swappable_bytes(self) -> int | None:
        """Return how much room in swap its memory needs: what is no copy of a file, without what has its place in swap
        already. None: it is not accounted, or cannot be given back."""

    async def prefetch(self, timeout_s: float) -> None:
        """Start reading back the memory that was given back, so that the instance waits less, paused or running.

        Only advice: it ends after `timeout_s`, or within milliseconds when it is cancelled, with less, and does nothing
        where the kernel takes none.
        """

    async def statistics(self) -> SandboxStats:
        """Read usage (the writable layer's is the node's to add)."""

    async def fingerprint(self) -> Fingerprint:
        """Look at what is there that a guest could have left. Cheap (about a millisecond), whatever it did."""

    async def set_host_name(self, name: str) -> None:
        """Give it another host name. Raises `CapabilityMissingError` where that is not possible from outside."""

    async def limit(self, resources: Resources) -> None:
        """Set the limits of processor, memory, swap and processes anew; None leaves one as it is, and the others are
        ignored. Raises `CapabilityMissingError` for one that cannot be enforced."""

    async def wait_exited(self) -> str:
        """Wait until the init process is gone without `terminate`; return what is known of why."""

    async def kill_processes(self) -> None:
        """Kill every command and daemon but keep the instance; return when all are seen to be gone."""

    async def terminate(self) -> None:
        """End everything and remove every trace but the writable layer."""


class Runtime(Protocol):
    """A way to run sandboxes on this host."""

    name: str

    async def open(self) -> None:
        """Check the host and prepare (idempotent). Raises `CapabilityMissingError` when nothing could run."""

    async def close(self) -> None:
        """Let go of descriptors; instances live on."""

    def capabilities(self) -> tuple[CapabilityReport, ...]: ...

    async def launch(self, request: LaunchRequest) -> Instance: ...

    async def instances(self) -> frozenset[str]:
        """Ids of all instances of this node that exist in part or in whole."""

    async def adopt(self, instance_id: str) -> Instance | None:
        """Take over a live instance; None when its init is gone (then `discard` it)."""

    async def discard(self, instance_id: str) -> None:
        """Remove whatever is left of an instance. Idempotent."""
