"""Commands: what to run, what is heard of it while it runs, and how it ended."""

from __future__ import annotations

import enum

from dsec.base.units import MIB
from dsec.model.value import Value

DEFAULT_OUTPUT_LIMIT_BYTES = 1 * MIB
MAXIMUM_OUTPUT_LIMIT_BYTES = 64 * MIB
DEFAULT_TIMEOUT_S = 60.0


class TerminalSize(Value, frozen=True):
    """Columns and rows of a terminal."""

    columns: int = 80
    rows: int = 24


class CommandRequest(Value, frozen=True):
    """One command.

    Attributes:
        argv: program and arguments; resolved through the sandbox's own PATH. No shell is involved.
        cwd: directory; None: the sandbox's default. Must exist.
        env: added to the sandbox's environment.
        user: name or ``uid`` or ``uid:gid``; None: the sandbox's default.
        stdin: bytes to feed; the input is closed after them unless `keep_stdin_open`.
        keep_stdin_open: leave the input open for `write` on the running process.
        timeout_s: seconds until the whole process tree is killed; None: no limit (background processes only).
        output_limit_bytes: kept per stream: the first half and the last half; the rest is counted and dropped.
        terminal: run on a terminal of this size; stdout and stderr are then one stream.
    """

    argv: tuple[str, ...]
    cwd: str | None = None
    env: dict[str, str] = {}
    user: str | None = None
    stdin: bytes = b""
    keep_stdin_open: bool = False
    timeout_s: float | None = DEFAULT_TIMEOUT_S
    output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES
    terminal: TerminalSize | None = None


class Stream(enum.Enum):
    STDOUT = "stdout"
    STDERR = "stderr"


class ExitStatus(Value, frozen=True):
    """How a command ended.

    Attributes:
        exit_code: its exit code; 128 + n when signal n ended it (a shell's convention).
        signal: the signal's number, if one ended it.
        timed_out: its timeout passed, and its tree was killed and seen to be gone.
        oom_killed: the kernel killed a process of the sandbox for memory while it ran.
        duration_s: seconds from start to end.
    """

    exit_code: int
    signal: int | None = None
    timed_out: bool = False
    oom_killed: bool = False
    duration_s: float = 0.0


class CommandResult(Value, frozen=True):
    """A finished command with what was kept of its output.

    Attributes:
        status: how it ended.
        stdout, stderr: kept bytes: all of them, or head and tail around a cut.
        stdout_dropped_bytes, stderr_dropped_bytes: exactly how many bytes the cut holds.
    """

    status: ExitStatus
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_dropped_bytes: int = 0
    stderr_dropped_bytes: int = 0


class OutputEvent(Value, frozen=True, tag="output"):
    """Bytes from a running command. `offset` counts the stream's bytes before these, so that a gap shows."""

    stream: Stream
    data: bytes
    offset: int = 0


class ExitEvent(Value, frozen=True, tag="exit"):
    """The last event of a command."""

    status: ExitStatus


class ErrorEvent(Value, frozen=True, tag="error"):
    """The stream ends with an error; the fields are those of `DsecError`, and `url` that of `SandboxMovedError`."""

    code: str
    brief: str
    detail: str = ""
    resolution: str = ""
    url: str = ""


ProcessEvent = OutputEvent | ExitEvent | ErrorEvent


class ProcessState(enum.Enum):
    RUNNING = "running"
    EXITED = "exited"
    UNKNOWN = "unknown"
    """It is gone and nobody saw how it ended."""


class ProcessInfo(Value, frozen=True):
    """A background process of a sandbox.

    Attributes:
        process_id: its id, such as ``prc-7k2m9x0qaz``.
        argv: what was run.
        state: running, exited or unknown.
        status: how it ended, once it did.
        started_at_s: wall-clock seconds since the epoch.
        stdout_bytes, stderr_bytes: bytes produced so far.
    """

    process_id: str
    argv: tuple[str, ...]
    state: ProcessState
    status: ExitStatus | None = None
    started_at_s: float = 0.0
    stdout_bytes: int = 0
    stderr_bytes: int = 0


class SessionInfo(Value, frozen=True):
    """A shell session: a shell that keeps its directory and variables between commands."""

    session_id: str
    shell: str
    cwd: str


class SessionRequest(Value, frozen=True):
    """What shell session to open."""

    cwd: str | None = None
    env: dict[str, str] = {}
    user: str | None = None


class SessionCommand(Value, frozen=True):
    """A line (or script) for a shell session.

    Attributes:
        script: shell text; its last command's status is the result.
        timeout_s: seconds; then everything the session runs is killed and the session closed.
        output_limit_bytes: as for `CommandRequest`.
    """

    script: str
    timeout_s: float = DEFAULT_TIMEOUT_S
    output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES
