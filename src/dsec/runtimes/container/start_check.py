"""Look from outside whether a command can start, for callers that will not hear of it later.

This is a courtesy, not a guard: the guest may change its files at any time, and the runtime decides in the end.
"""

from __future__ import annotations

import os
import stat

from dsec.base.errors import CommandNotFoundError, PathNotFoundError, PermissionDeniedError
from dsec.linux.openat2 import open_in_root
from dsec.runtimes.port import SpawnRequest

_DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def check_start(root_fd: int, request: SpawnRequest) -> None:
    """Check directory and program of a command below a sandbox's root.

    Raises:
        PathNotFoundError: the directory is not there.
        CommandNotFoundError: no such program.
        PermissionDeniedError: the program cannot be executed.
    """
    cwd = _mode(root_fd, request.cwd)
    if cwd is None or not stat.S_ISDIR(cwd):
        raise PathNotFoundError(
            f"{request.cwd!r}: the directory to run in does not exist",
            resolution="create it first, or give another cwd",
        )
    program = request.argv[0]
    modes = [mode for path in _candidates(request) if (mode := _mode(root_fd, path)) is not None]
    if not modes:
        raise CommandNotFoundError(
            f"{program!r}: no such program in the sandbox",
            resolution="check its name and the PATH of the command, or use an image that has it",
        )
    if not any(stat.S_ISREG(mode) and mode & 0o111 for mode in modes):
        raise PermissionDeniedError(f"{program!r}: cannot be executed", resolution="check its mode bits and format")


def _candidates(request: SpawnRequest) -> list[str]:
    program = request.argv[0]
    if "/" in program:
        return [f"{request.cwd}/{program}" if not program.startswith("/") else program]
    return [f"{directory}/{program}" for directory in request.env.get("PATH", _DEFAULT_PATH).split(":") if directory]


def _mode(root_fd: int, path: str) -> int | None:
    """Return the mode of what a path leads to; None when that is nothing."""
    try:
        descriptor = open_in_root(root_fd, os.fsencode(path), os.O_PATH)
    except OSError:
        return None
    try:
        return os.fstat(descriptor).st_mode
    finally:
        os.close(descriptor)
