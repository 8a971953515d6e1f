"""Tool calls and their results: what a policy may ask of a sandbox, and what it hears back.

A result is a value for the policy, whatever it says: a command that exits 1, a file that does not exist and a full
disk are all things a policy can react to. Errors that end the attempt (the platform's, or a lost sandbox) are
not results; see `dsec.verification.faults`.
"""

from __future__ import annotations

from dsec.base.errors import DsecError, InvalidRequestError
from dsec.base.units import KIB, MIB
from dsec.episode.content import Content, recordable
from dsec.model.process import CommandResult, ExitStatus
from dsec.model.value import Value

DEFAULT_CALL_TIMEOUT_S = 120.0
DEFAULT_CALL_OUTPUT_BYTES = 256 * KIB
"""Kept per stream. Trajectories hold every result, so that this is less than a command's own default."""
DEFAULT_READ_LIMIT_BYTES = 1 * MIB
MAXIMUM_ARCHIVE_BYTES = 64 * MIB


class Run(Value, frozen=True, tag="run", tag_field="tool", omit_defaults=True):
    """Run a command.

    Attributes:
        script: text for ``/bin/sh -c``; give this or `argv`.
        argv: program and arguments, without a shell.
        cwd, env, user: as for `CommandRequest`.
        stdin: fed to the command.
        timeout_s: seconds until its tree is killed; never longer than what is left of the policy's time.
        output_limit_bytes: kept per stream.
    """

    script: str = ""
    argv: tuple[str, ...] = ()
    cwd: str | None = None
    env: dict[str, str] = {}
    user: str | None = None
    stdin: Content = Content()
    timeout_s: float = DEFAULT_CALL_TIMEOUT_S
    output_limit_bytes: int = DEFAULT_CALL_OUTPUT_BYTES

    def __post_init__(self) -> None:
        if bool(self.script) == bool(self.argv):
            raise InvalidRequestError("a run call holds a script or an argv, and not both")

    @property
    def command(self) -> tuple[str, ...]:
        """The arguments to run."""
        return self.argv or ("/bin/sh", "-c", self.script)


class WriteFile(Value, frozen=True, tag="write_file", tag_field="tool", omit_defaults=True):
    """Write a file; missing directories are made."""

    path: str
    content: Content
    permissions: int = 0o644
    append: bool = False
    user: str | None = None


class ReadFile(Value, frozen=True, tag="read_file", tag_field="tool", omit_defaults=True):
    """Read a file's first `limit_bytes` bytes."""

    path: str
    limit_bytes: int = DEFAULT_READ_LIMIT_BYTES
    user: str | None = None


class UploadArchive(Value, frozen=True, tag="upload", tag_field="tool", omit_defaults=True):
    """Unpack a tar archive into a directory, in one round trip; at most 64 MiB, because trajectories hold it."""

    path: str
    archive: bytes
    user: str | None = None

    def __post_init__(self) -> None:
        if len(self.archive) > MAXIMUM_ARCHIVE_BYTES:
            raise InvalidRequestError(
                f"an archive of {len(self.archive)} bytes is too large for a tool call",
                resolution=f"keep it below {MAXIMUM_ARCHIVE_BYTES} bytes, or put the files into the task's image",
            )


ToolCall = Run | WriteFile | ReadFile | UploadArchive


class CommandOutput(Value, frozen=True, tag="ran", tag_field="result", omit_defaults=True):
    """How a command ended and what was kept of its output; the fields are those of `ExitStatus` and `CommandResult`."""

    exit_code: int
    stdout: Content = Content()
    stderr: Content = Content()
    stdout_dropped_bytes: int = 0
    stderr_dropped_bytes: int = 0
    signal: int | None = None
    timed_out: bool = False
    oom_killed: bool = False
    duration_s: float = 0.0

    @classmethod
    def of(cls, result: CommandResult) -> CommandOutput:
        """Turn a command's result into a record."""
        status = result.status
        return cls(
            exit_code=status.exit_code,
            stdout=Content.of(result.stdout),
            stderr=Content.of(result.stderr),
            stdout_dropped_bytes=result.stdout_dropped_bytes,
            stderr_dropped_bytes=result.stderr_dropped_bytes,
            signal=status.signal,
            timed_out=status.timed_out,
            oom_killed=status.oom_killed,
            duration_s=status.duration_s,
        )

    def status(self) -> ExitStatus:
        """Return how the command ended, without its output."""
        return ExitStatus(
            exit_code=self.exit_code,
            signal=self.signal,
            timed_out=self.timed_out,
            oom_killed=self.oom_killed,
            duration_s=self.duration_s,
        )


class FileWritten(Value, frozen=True, tag="wrote", tag_field="result"):
    """A file was written and is now `size_bytes` long."""

    size_bytes: int


class FileContent(Value, frozen=True, tag="read", tag_field="result", omit_defaults=True):
    """The beginning of a file; `truncated` when there was more."""

    content: Content = Content()
    truncated: bool = False


class Uploaded(Value, frozen=True, tag="uploaded", tag_field="result"):
    """An archive was unpacked."""


class OutsideAnswer(Value, frozen=True, tag="answered", tag_field="result", omit_defaults=True):
    """What a system outside the sandbox answered once it had done what it was asked for.

    Attributes:
        content: its answer; `truncated` when there was more.
        status: its own word for how it went, such as ``201`` or ``INSERT 0 1``.
    """

    content: Content = Content()
    status: str = ""
    truncated: bool = False


class ToolFailed(Value, frozen=True, tag="failed", tag_field="result", omit_defaults=True):
    """The call could not be carried out, through no fault of the platform; the fields are those of `DsecError`."""

    code: str
    brief: str
    detail: str = ""
    resolution: str = ""

    @classmethod
    def of(cls, error: DsecError) -> ToolFailed:
        """Turn an error into a record."""
        texts = (recordable(text) for text in (error.brief, error.detail, error.resolution))
        return cls(error.code, *texts)


ToolResult = CommandOutput | FileWritten | FileContent | Uploaded | OutsideAnswer | ToolFailed
