"""The one tree of errors.

Every error that leaves a public function of DSec is one of these. Each says in one line what was wrong
(`brief`), what was seen (`detail`) and what to do (`resolution`), and carries four facts that callers act on:

- ``code``: the stable name that travels over HTTP and into journals;
- ``exit_code``: what the command line exits with;
- ``http_status``: what the API answers with;
- ``retryable``: whether the same request may be sent again as it is;
- ``fault``: who has to change something: the caller, the guest (the code in the sandbox) or the platform.

::

    DsecError
    ├── CallerError                  fault: caller
    │   ├── InvalidRequestError
    │   │   ├── UnsafeArchiveError
    │   │   └── BodyTooLargeError
    │   ├── UnauthorizedError, BudgetExhaustedError
    │   ├── CapabilityMissingError
    │   ├── NotFoundError
    │   │   ├── SandboxNotFoundError
    │   │   │   └── WrongNodeError
    │   │   │       └── SandboxMovedError
    │   │   ├── ImageNotFoundError, ProcessNotFoundError, SnapshotNotFoundError
    │   │   ├── PathNotFoundError, UserNotFoundError, CommandNotFoundError
    │   │   ├── ObjectNotFoundError
    │   │   └── RecordingMissError
    │   ├── ConflictError
    │   │   ├── AlreadyExistsError, InvalidStateError, ImagesConflictError
    │   │   └── NotADirectoryInSandboxError, IsADirectoryInSandboxError, DirectoryNotEmptyError
    │   ├── PermissionDeniedError
    │   ├── UnsupportedFileError
    │   ├── TaskFormatError, BuildFailedError
    │   ├── DeadlineExceededError
    │   └── WorkCancelledError
    ├── GuestError                   fault: guest
    │   ├── SandboxDiskFullError, SandboxOutOfMemoryError, SandboxProcessLimitError
    │   ├── SandboxExitedError
    │   ├── HookFailedError, StateMismatchError
    │   └── LimitExceededError
    └── PlatformError                fault: platform
        ├── RuntimeFailedError, ExternalCommandError
        ├── HostDiskFullError, HostOutOfMemoryError, SwapFullError
        ├── StateCorruptedError, StateLockedError
        ├── LogSuspectError, WriterFencedError
        ├── NodeUnavailableError, ModelUnavailableError, StoreUnavailableError
        ├── MigrationFailedError
        ├── GatewayBusyError
        │   └── RateLimitedError
        ├── BackendFailedError
        │   ├── BackendRefusedError
    │   └── BackendTimeoutError
        ├── OutsideUnavailableError
        └── UnknownOutcomeError
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import ClassVar


class Fault(enum.Enum):
    """Who has to change something before the operation can succeed."""

    CALLER = "caller"
    GUEST = "guest"
    PLATFORM = "platform"


class DsecError(Exception):
    """Report a failure with its cause and its remedy.

    Args:
        brief: one line, what was wrong; names the thing (id, path, value).
        detail: what was seen: output of a command, an errno, a line of a file.
        resolution: what the reader can do about it.

    Attributes:
        retry_after_s: when asking again may help, if whoever refused knows.
    """

    retry_after_s: float | None = None
    code: ClassVar[str] = "internal"
    exit_code: ClassVar[int] = 70
    http_status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False
    fault: ClassVar[Fault] = Fault.PLATFORM

    def __init__(self, brief: str, *, detail: str = "", resolution: str = "") -> None:
        super().__init__(brief)
        self.brief = brief
        self.detail = detail
        self.resolution = resolution

    def __str__(self) -> str:
        parts = [self.brief]
        if self.detail:
            parts.append(self.detail)
        if self.resolution:
            parts.append(f"To resolve: {self.resolution}")
        return "\n".join(parts)


class CallerError(DsecError):
    code = "caller_error"
    exit_code = 64
    http_status = 400
    fault = Fault.CALLER


class InvalidRequestError(CallerError):
    """A value in the request is malformed or out of range."""

    code = "invalid_request"


class UnsafeArchiveError(InvalidRequestError):
    """An archive holds an entry that could escape its root, is of a refused type, or expands without bound."""

    code = "unsafe_archive"
    http_status = 422


class UnauthorizedError(CallerError):
    code = "unauthorized"
    exit_code = 77
    http_status = 401


class BodyTooLargeError(InvalidRequestError):
    """The body of a request is longer than the service takes."""

    code = "body_too_large"
    http_status = 413


class BudgetExhaustedError(CallerError):
    """A key or project has used up what it may spend: tokens, money or calls. Sending again does not help."""

    code = "budget_exhausted"
    exit_code = 75
    http_status = 429


class CapabilityMissingError(CallerError):
    """The request needs something that this host or backend cannot enforce. Nothing was created."""

    code = "capability_missing"
    exit_code = 69
    http_status = 422


class NotFoundError(CallerError):
    code = "not_found"
    exit_code = 66
    http_status = 404


class RecordingMissError(NotFoundError):
    """A replay has no answer to a call. It never asks the live service instead."""

    code = "recording_miss"


class SandboxNotFoundError(NotFoundError):
    code = "sandbox_not_found"


class WrongNodeError(SandboxNotFoundError):
    """The sandbox id names another node than the one that was asked. Nothing was done."""

    code = "wrong_node"
    http_status = 421


class SandboxMovedError(WrongNodeError):
    """The sandbox was here and has moved to another node, which the resolution names. Nothing was done.

    Attributes:
        url: where that node answers, for clients that follow; empty: not known.
    """

    code = "sandbox_moved"
    url: str = ""


class ImageNotFoundError(NotFoundError):
    code = "image_not_found"


class ProcessNotFoundError(NotFoundError):
    code = "process_not_found"


class SnapshotNotFoundError(NotFoundError):
    code = "snapshot_not_found"


class ObjectNotFoundError(NotFoundError):
    """An object store holds nothing under a key."""

    code = "object_not_found"


class PathNotFoundError(NotFoundError):
    """A path does not exist in the sandbox."""

    code = "path_not_found"


class UserNotFoundError(NotFoundError):
    """A user name or id cannot be resolved by the sandbox's own user database."""

    code = "user_not_found"


class CommandNotFoundError(NotFoundError):
    """The program to run does not exist in the sandbox or cannot be executed there."""

    code = "command_not_found"
    exit_code = 127


class ConflictError(CallerError):
    code = "conflict"
    exit_code = 75
    http_status = 409


class AlreadyExistsError(ConflictError):
    code = "already_exists"


class ImagesConflictError(ConflictError):
    """Images that are stacked on one another say or hold what cannot be merged."""

    code = "images_conflict"


class InvalidStateError(ConflictError):
    """The sandbox is in a state in which this operation is not possible."""

    code = "invalid_state"


class NotADirectoryInSandboxError(ConflictError):
    code = "not_a_directory"


class IsADirectoryInSandboxError(ConflictError):
    code = "is_a_directory"


class DirectoryNotEmptyError(ConflictError):
    code = "directory_not_empty"


class PermissionDeniedError(CallerError):
    """The chosen user may not do this in the sandbox."""

    code = "permission_denied"
    exit_code = 77
    http_status = 403


class UnsupportedFileError(CallerError):
    """The path names a FIFO, a socket or a device, which are neither read nor written from outside."""

    code = "unsupported_file"
    http_status = 422


class TaskFormatError(CallerError):
    """A task folder is broken; the brief names the file and, where there is one, the line."""

    code = "task_format"
    exit_code = 65
    http_status = 422


class BuildFailedError(CallerError):
    """A step of a Dockerfile failed, or it is none; the brief names the step, the detail holds its last words."""

    code = "build_failed"
    exit_code = 65
    http_status = 422


class DeadlineExceededError(CallerError):
    """The operation's own deadline passed before it finished. What it had begun was undone."""

    code = "deadline_exceeded"
    exit_code = 124
    http_status = 408
    retryable = True


class WorkCancelledError(CallerError):
    """Somebody cancelled the work that was waited for. What it had begun was undone."""

    code = "cancelled"
    exit_code = 75
    http_status = 409


class GuestError(DsecError):
    code = "guest_error"
    exit_code = 1
    http_status = 422
    fault = Fault.GUEST


class SandboxDiskFullError(GuestError):
    code = "sandbox_disk_full"
    http_status = 507


class SandboxOutOfMemoryError(GuestError):
    code = "sandbox_out_of_memory"


class SandboxProcessLimitError(GuestError):
    """The sandbox holds as many processes as its limit allows, so that not even this command could start."""

    code = "sandbox_process_limit"


class SandboxExitedError(GuestError):
    """The sandbox's processes ended while the operation ran."""

    code = "sandbox_exited"
    http_status = 410


class LimitExceededError(GuestError):
    """A declared bound (entries, path length, archive size, open sessions) was reached."""

    code = "limit_exceeded"


class HookFailedError(GuestError):
    """A hook of the image failed, hung or gave too much; the detail holds its last words."""

    code = "hook_failed"


class StateMismatchError(GuestError):
    """A sandbox that should be clean differs from its recorded state; the detail says in what. It was destroyed."""

    code = "state_mismatch"


class PlatformError(DsecError):
    code = "platform_error"
    exit_code = 70
    http_status = 500
    retryable = True
    fault = Fault.PLATFORM


class RuntimeFailedError(PlatformError):
    """The OCI runtime, or the kernel below it, refused for a reason that is not the caller's."""

    code = "runtime_failed"


class ExternalCommandError(PlatformError):
    """A program that we ran failed. The detail holds the exact line, its status and the tail of its stderr."""

    code = "external_command"


class HostDiskFullError(PlatformError):
    code = "host_disk_full"
    http_status = 507


class HostOutOfMemoryError(PlatformError):
    code = "host_out_of_memory"
    http_status = 503


class SwapFullError(PlatformError):
    """The memory of a sandbox does not fit into the swap that is free. It runs on."""

    code = "swap_full"
    http_status = 507


class StateCorruptedError(PlatformError):
    """Something on disk does not verify. Nothing was changed."""

    code = "state_corrupted"
    retryable = False


class StoreUnavailableError(PlatformError):
    """The object store does not answer, refuses, or has lost what it acknowledged."""

    code = "store_unavailable"
    exit_code = 69
    http_status = 503


class MigrationFailedError(PlatformError):
    """A sandbox could not be moved. It goes on where it was."""

    code = "migration_failed"


class StateLockedError(PlatformError):
    """Another node holds this state directory and does not answer."""

    code = "state_locked"
    http_status = 503


class LogSuspectError(PlatformError):
    """The disk failed while a log was synced: what was not acknowledged may or may not be there. The log is not written
    to any more; opening it anew finds out what is there."""

    code = "log_suspect"
    retryable = False


class WriterFencedError(PlatformError):
    """Another writer has taken the log over. What this one wrote since is not acknowledged and may not count."""

    code = "writer_fenced"
    http_status = 409
    retryable = False


class NodeUnavailableError(PlatformError):
    """The node cannot be reached or is shutting down."""

    code = "node_unavailable"
    exit_code = 69
    http_status = 503


class ModelUnavailableError(PlatformError):
    """Every backend that serves the model is full, at a limit, or failing."""

    code = "model_unavailable"
    exit_code = 69
    http_status = 503


class GatewayBusyError(PlatformError):
    """Every model service that could answer is full, and so is the queue before it. Nothing was sent."""

    code = "gateway_busy"
    exit_code = 69
    http_status = 503


class RateLimitedError(GatewayBusyError):
    """The limits per minute of every model service that could answer are used up."""

    code = "rate_limited"
    http_status = 429


class BackendFailedError(PlatformError):
    """A model service refused, broke off or answered with what cannot be understood.

    Attributes:
        calls: how often it was asked, if whoever asked counted.
        input_tokens, cached_tokens, output_tokens: that it said were used, for nothing.
    """

    calls: int = 1
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0

    code = "backend_failed"
    exit_code = 69
    http_status = 502


class BackendRefusedError(BackendFailedError):
    """A model service refused what it was asked: a wrong key, no such model, too long a conversation."""

    code = "backend_refused"
    retryable = False


class BackendTimeoutError(BackendFailedError):
    """A model service did not begin, or did not go on, in the time that it had."""

    code = "backend_timeout"
    http_status = 504


class OutsideUnavailableError(PlatformError):
    """A system outside the sandbox cannot be reached, or is too busy. What it was asked for did not happen."""

    code = "outside_unavailable"
    exit_code = 69
    http_status = 503


class UnknownOutcomeError(PlatformError):
    """The operation may or may not have happened; it is never repeated automatically."""

    code = "unknown_outcome"
    exit_code = 71
    retryable = False


def _walk(root: type[DsecError]) -> Iterator[type[DsecError]]:
    yield root
    for child in root.__subclasses__():
        yield from _walk(child)


def error_types() -> dict[str, type[DsecError]]:
    """Return every registered error type by its code; only these travel over HTTP."""
    return {error.code: error for error in _walk(DsecError)}


def error_from_code(code: str, brief: str, *, detail: str = "", resolution: str = "") -> DsecError:
    """Rebuild an error that travelled by its code; an unknown code becomes a plain `PlatformError`."""
    kind = error_types().get(code, PlatformError)
    return kind(brief, detail=detail, resolution=resolution)
