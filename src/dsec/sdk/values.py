"""What the SDK takes and gives: options of commands, results, and output as it comes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypedDict

import msgspec

from dsec.base.errors import CommandNotFoundError, GuestError
from dsec.model.process import CommandRequest, CommandResult, ExitStatus, OutputEvent, Stream, TerminalSize
from dsec.model.sandbox import DiskFullAction, Lifetime, Network, QosClass, Resources, SandboxSpec
from dsec.model.state import CheckpointInfo

SHELL = "/bin/sh"


class SpecFields(TypedDict, total=False):
    """The fields of a `SandboxSpec` besides its image, as keyword arguments."""

    layers: Sequence[str]
    resources: Resources
    qos: QosClass
    user: str
    env: Mapping[str, str]
    workdir: str
    hostname: str
    network: Network
    lifetime: Lifetime
    metadata: Mapping[str, str]
    seed: int
    on_disk_full: DiskFullAction


class CommandOptions(TypedDict, total=False):
    """The fields of a `CommandRequest` besides its argv, as keyword arguments."""

    cwd: str
    env: Mapping[str, str]
    user: str
    stdin: bytes | str
    keep_stdin_open: bool
    timeout_s: float | None
    output_limit_bytes: int


Point = CheckpointInfo | str
"""A checkpoint: what `checkpoint` returned, its id, or its name within the sandbox."""


def point_id(point: Point | None) -> str | None:
    """Return how the service is told of a checkpoint; None: the present or the clean state, as the operation says."""
    return point.checkpoint_id if isinstance(point, CheckpointInfo) else point


CommandLine = str | Sequence[str]
"""Shell text, or program and arguments without a shell."""


def sandbox_spec(image: str, fields: SpecFields) -> SandboxSpec:
    """Build the spec; a field of the wrong type is an error that names it."""
    return msgspec.convert({"image": image, **_plain(fields)}, SandboxSpec)


def _plain(fields: Mapping[str, object]) -> dict[str, object]:
    return {
        name: dict(value) if isinstance(value, Mapping) else tuple(value) if isinstance(value, list) else value
        for name, value in fields.items()
    }


def command_request(
    command: CommandLine, options: CommandOptions, *, terminal: TerminalSize | None = None
) -> CommandRequest:
    """Build the request of one command."""
    argv = (SHELL, "-c", command) if isinstance(command, str) else tuple(command)
    fields = _plain(options)
    stdin = fields.get("stdin", b"")
    if isinstance(stdin, str):
        fields["stdin"] = stdin.encode()
    return msgspec.structs.replace(CommandRequest(argv=argv, terminal=terminal), **fields)


@contextmanager
def shell_explained(command: CommandLine) -> Iterator[None]:
    """Turn the absence of the shell itself into an error that says so."""
    try:
        yield
    except CommandNotFoundError as error:
        if not isinstance(command, str):
            raise
        raise CommandNotFoundError(
            error.brief,
            detail=error.detail,
            resolution=f"the image has no {SHELL}: give program and arguments as a list, which needs no shell",
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """Some bytes of a running command."""

    stream: Stream
    data: bytes

    @property
    def text(self) -> str:
        """The bytes as UTF-8; what is not UTF-8 shows as U+FFFD."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """A finished command.

    Attributes:
        exit_code: its exit code; 128 + n when signal n ended it.
        signal: the signal's number, if one ended it.
        timed_out: its timeout passed and its whole tree was killed.
        oom_killed: the kernel killed a process of the sandbox for memory meanwhile.
        duration_s: seconds from start to end.
        stdout_bytes, stderr_bytes: what was kept of its output.
        stdout_dropped_bytes, stderr_dropped_bytes: how many bytes are missing between head and tail.
    """

    exit_code: int
    signal: int | None
    timed_out: bool
    oom_killed: bool
    duration_s: float
    stdout_bytes: bytes
    stderr_bytes: bytes
    stdout_dropped_bytes: int
    stderr_dropped_bytes: int

    @classmethod
    def of(cls, result: CommandResult) -> RunResult:
        status = result.status
        return cls(
            exit_code=status.exit_code,
            signal=status.signal,
            timed_out=status.timed_out,
            oom_killed=status.oom_killed,
            duration_s=status.duration_s,
            stdout_bytes=result.stdout,
            stderr_bytes=result.stderr,
            stdout_dropped_bytes=result.stdout_dropped_bytes,
            stderr_dropped_bytes=result.stderr_dropped_bytes,
        )

    @property
    def stdout(self) -> str:
        """Standard output as UTF-8; what is not UTF-8 shows as U+FFFD."""
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        """Standard error as UTF-8; what is not UTF-8 shows as U+FFFD."""
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def truncated(self) -> bool:
        """Whether some output was dropped."""
        return bool(self.stdout_dropped_bytes or self.stderr_dropped_bytes)

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with status 0."""
        return self.exit_code == 0 and not self.timed_out

    def check(self) -> RunResult:
        """Return self.

        Raises:
            CommandFailedError: the command did not end with status 0; the error holds this result.
        """
        if not self.ok:
            raise CommandFailedError(self)
        return self


class CommandFailedError(GuestError):
    """A command that was to succeed did not. Raised by `RunResult.check` alone."""

    code = "command_failed"

    def __init__(self, result: RunResult | str, *, detail: str = "", resolution: str = "") -> None:
        if isinstance(result, str):  # Rebuilt from its code; only a caller of `check` has a result.
            super().__init__(result, detail=detail, resolution=resolution)
            self.result: RunResult | None = None
            return
        how = "timed out" if result.timed_out else f"ended with status {result.exit_code}"
        super().__init__(f"the command {how}", detail=(result.stderr or result.stdout)[-2000:], resolution=resolution)
        self.result = result


class _Kept:
    """Head and tail of one stream, and the count of what was between."""

    def __init__(self, limit_bytes: int) -> None:
        self._head_limit = limit_bytes - limit_bytes // 2
        self._tail_limit = limit_bytes // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.dropped_bytes = 0

    def add(self, data: bytes) -> None:
        room = self._head_limit - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        excess = len(self._tail) - self._tail_limit
        if excess > 0:
            del self._tail[:excess]
            self.dropped_bytes += excess

    def bytes(self) -> bytes:
        return bytes(self._head + self._tail)


class Collector:
    """Collect the output of a stream into a result, within the command's output limit."""

    def __init__(self, limit_bytes: int) -> None:
        self._kept = {stream: _Kept(limit_bytes) for stream in Stream}

    def add(self, output: Output | OutputEvent) -> None:
        self._kept[output.stream].add(output.data)

    def result(self, status: ExitStatus) -> RunResult:
        stdout, stderr = self._kept[Stream.STDOUT], self._kept[Stream.STDERR]
        return RunResult.of(
            CommandResult(
                status=status,
                stdout=stdout.bytes(),
                stderr=stderr.bytes(),
                stdout_dropped_bytes=stdout.dropped_bytes,
                stderr_dropped_bytes=stderr.dropped_bytes,
            )
        )
