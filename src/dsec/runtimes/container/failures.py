"""Turn the words of an OCI runtime into typed errors. Pure.

The runtime writes its own errors to a log pipe that no guest holds (``--log-format json``: one object a line with
``level`` and ``msg``). What it says is matched here, once, and nowhere else.
"""

from __future__ import annotations

import errno
import json
import re

from dsec.base.errors import (
    CommandNotFoundError,
    DsecError,
    HostDiskFullError,
    HostOutOfMemoryError,
    InvalidRequestError,
    PathNotFoundError,
    PermissionDeniedError,
    RuntimeFailedError,
    SandboxExitedError,
    SandboxOutOfMemoryError,
    SandboxProcessLimitError,
)


def logged_errors(log: bytes) -> str:
    """Return the error messages of a JSON log, joined; a line that is not JSON is taken as it is."""
    messages = []
    for line in log.decode(errors="replace").splitlines():
        try:
            entry = json.loads(line)
        except ValueError:
            messages.append(line)
            continue
        if isinstance(entry, dict) and entry.get("level", "error") in ("error", "fatal"):
            messages.append(str(entry.get("msg", line)))
    return "; ".join(message for message in messages if message)


_RULES: tuple[tuple[re.Pattern[str], type[DsecError], str, str], ...] = (
    (
        re.compile(r"^chdir `|chdir to cwd \(|Cwd (must|property)|initial working directory"),
        PathNotFoundError,
        "{cwd}: the directory to run in does not exist or cannot be entered",
        "create it first, or give another cwd",
    ),
    (
        re.compile(r"argument list too long", re.I),
        InvalidRequestError,
        "the arguments and environment are longer than the kernel takes",
        "write them to a file in the sandbox instead",
    ),
    (
        re.compile(
            r"executable file (.* )?not found|finding executable .* in PATH"
            r"|(exec(ve)?[: ]|exec(ut.*)? failed|failed to load|executable: ).*(no such file|not a directory|too long)",
            re.I,
        ),
        CommandNotFoundError,
        "{program}: no such program in the sandbox",
        "check its name and the PATH of the command, or use an image that has it",
    ),
    (
        re.compile(
            r"(exec|failed to load).*(permission denied|not permitted|format error|is a directory)"
            r"|permission denied.*exec",
            re.I,
        ),
        PermissionDeniedError,
        "{program}: cannot be executed",
        "check its mode bits and format",
    ),
    (
        re.compile(
            r"(fork|clone|vfork).*(resource temporarily unavailable|EAGAIN)|resource temporarily unavailable", re.I
        ),
        SandboxProcessLimitError,
        "the sandbox has as many processes as it may",
        "end some of them, or create it with a higher pids limit",
    ),
    (
        re.compile(r"cannot allocate memory|out of memory", re.I),
        SandboxOutOfMemoryError,
        "the sandbox has no memory left to start a command",
        "end some of its processes, or create it with more memory",
    ),
    (
        re.compile(r"no space left on device|disk quota exceeded", re.I),
        HostDiskFullError,
        "the host has no room for the runtime's state",
        "free space in the state directory",
    ),
    (
        re.compile(r"not running|does not exist|container .*stopped|no such process|open .*status", re.I),
        SandboxExitedError,
        "the sandbox's processes are gone",
        "create a new sandbox",
    ),
)


def classify(message: str, *, program: str = "", cwd: str = "") -> DsecError:
    """Return the error that a runtime's message stands for; what no rule knows is a `RuntimeFailedError`."""
    for pattern, kind, brief, resolution in _RULES:
        if pattern.search(message):
            return kind(brief.format(program=repr(program), cwd=repr(cwd)), detail=message, resolution=resolution)
    return RuntimeFailedError("the OCI runtime failed", detail=message)


def process_limit_error() -> SandboxProcessLimitError:
    """Return the error for a start that failed without words because no process could be made."""
    return SandboxProcessLimitError(
        "the sandbox has as many processes as it may",
        resolution="end some of them, or create it with a higher pids limit",
    )


def host_error(error: OSError, brief: str) -> DsecError:
    """Return what an error of the host's own kernel stands for."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return HostDiskFullError(brief, detail=str(error), resolution="free space on the host")
    if error.errno in (errno.ENOMEM, errno.EMFILE, errno.ENFILE):
        return HostOutOfMemoryError(brief, detail=str(error), resolution="raise the node's limits, or run less on it")
    return RuntimeFailedError(brief, detail=str(error))
