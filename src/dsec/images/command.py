"""Run the external programs that make images, and say exactly what failed when one does."""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from dsec.base.errors import CapabilityMissingError, ExternalCommandError

Progress = Callable[[str], None]
"""Takes one line for people to read."""

_OWN_MOUNTS = ("unshare", "--mount", "--propagation", "private", "--")
"""A program that mounts the host's /proc and /sys into a directory of ours may be killed, and whoever then removes the
directory must not walk into them."""
_TAIL_LINES = 40
_FULL_DISK = os.strerror(errno.ENOSPC)
_MAX_LINE_BYTES = 4096


def silent(line: str) -> None:
    """Show nothing."""


def run(
    argv: Sequence[str],
    *,
    package: str,
    progress: Progress = silent,
    stdout: IO[bytes] | None = None,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    keep_fds: Sequence[int] = (),
    own_mounts: bool = False,
) -> None:
    """Run a program to its end, passing each line it says to `progress`.

    Args:
        argv: program and arguments.
        package: Debian package that has the program, for the error when it is missing.
        stdout: file for its output; None: its output counts as progress, like its stderr.
        env: its whole environment; None: ours.
        keep_fds: descriptors that it and its children keep open: locks that must outlive a killed caller.
        own_mounts: what it mounts is seen by it and its children alone, and gone with them; asks for root.

    Raises:
        CapabilityMissingError: the program is not installed.
        ExternalCommandError: it failed; the detail holds the line to run again, its status and its last words.
    """
    if shutil.which(argv[0]) is None:
        raise CapabilityMissingError(f"{argv[0]} is not installed", resolution=f"install the Debian package {package}")
    process = subprocess.Popen(
        [*_die_with_us(), *(_OWN_MOUNTS if own_mounts else ()), *argv],
        stdin=subprocess.DEVNULL,
        stdout=stdout if stdout is not None else subprocess.PIPE,
        stderr=subprocess.PIPE if stdout is not None else subprocess.STDOUT,
        env=env,
        cwd=cwd,
        pass_fds=tuple(keep_fds),
        start_new_session=True,
    )
    tail = _follow(process, progress)
    if process.returncode != 0:
        raise ExternalCommandError(
            f"{argv[0]} failed with {describe_status(process.returncode)}",
            detail=f"$ {shlex.join(argv)}\n" + "\n".join(tail),
            resolution="run the line above to see it fail",
        )


def _die_with_us() -> list[str]:
    """Return the prefix that has the kernel kill a program when the thread that started it dies, as by `kill -9`.

    The thread is the one that waits for the program. Without setpriv(1) the program goes on and ends by itself.
    """
    return ["setpriv", "--pdeathsig=KILL", "--"] if shutil.which("setpriv") else []


def _follow(process: subprocess.Popen[bytes], progress: Progress) -> Sequence[str]:
    """Pass on what the program says; return its last lines, behind the last one that told of a full disk: programs go
    on for long after that. Interrupted, end its whole process group first.
    """
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    full = ""
    said = process.stderr or process.stdout
    assert said is not None
    try:
        with said:
            while raw := said.readline(_MAX_LINE_BYTES):
                line = raw.decode(errors="replace").rstrip()
                tail.append(line)
                full = line if _FULL_DISK in line else full
                progress(line)
        process.wait()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return tail if not full or full in tail else [full, *tail]


def describe_status(returncode: int) -> str:
    """Return a text such as ``status 1`` or ``signal SIGKILL``."""
    return f"status {returncode}" if returncode >= 0 else f"signal {signal.Signals(-returncode).name}"
