"""Know a process again: a pid is used anew once its process has ended, a pid with its start time on one boot is not.

Source: proc_pid_stat(5), fields 22 and 52; proc_pid_status(5); random(4).
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_FRAMES = 8
"""Functions of the kernel that are told of a process that waits."""


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """One process of this host, of any time.

    Attributes:
        pid: its process id.
        start_ticks: clock ticks from boot to its start.
        boot: id of the boot.
    """

    pid: int
    start_ticks: int
    boot: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity | None:
        """Return the identity of the process that has this pid now; None when there is none, or only a zombie."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf8", errors="replace")
        except OSError:
            return None
        # The program's name stands in parentheses and may hold any character.
        fields = stat.rpartition(")")[2].split()
        return None if fields[0] in "ZX" else cls(pid, int(fields[19]), _boot())

    @classmethod
    def parse(cls, text: str) -> ProcessIdentity | None:
        """Return what `str` wrote; None for anything else."""
        words = text.split()
        if len(words) != 3 or not (words[0].isdigit() and words[1].isdigit()):
            return None
        return cls(int(words[0]), int(words[1]), words[2])

    def __str__(self) -> str:
        return f"{self.pid} {self.start_ticks} {self.boot}"

    def open(self) -> int | None:
        """Return a pidfd of this very process; None when it has ended."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except OSError:
            return None
        # Looked at after the descriptor is open: from here on the pid cannot pass to somebody else unnoticed.
        if ProcessIdentity.of(self.pid) == self:
            return descriptor
        os.close(descriptor)
        return None

    def is_alive(self) -> bool:
        """Whether it runs."""
        return ProcessIdentity.of(self.pid) == self

    def send(self, number: int) -> None:
        """Send a signal to this very process. No error when it has ended."""
        descriptor = self.open()
        if descriptor is None:
            return
        try:
            signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            return
        finally:
            os.close(descriptor)


def is_dying(pid: int) -> bool:
    """Whether a process was killed, or ends by itself, so that it runs no more of its program; one of its threads may
    still wait in a call that hears no signal, for as long as that takes. True also for one that has ended.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text(encoding="utf8", errors="replace").splitlines()
    except OSError:
        return True
    said = dict(line.partition(":\t")[::2] for line in lines)
    return said["State"][0] in "ZX" or bool(int(said["SigPnd"], 16) >> (signal.SIGKILL - 1) & 1)


def has_ended(pid: int) -> bool:
    """Whether every thread of a process has ended, and with them what they held; also while its parent, which may be
    slow to ask for its status, leaves it a zombie.
    """
    try:
        return all(_state(task) in "ZX" for task in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return True


def _state(task: Path) -> str:
    return (_read(task / "stat").rpartition(")")[2].split() or "X")[0]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf8", errors="replace")
    except OSError:
        return ""


def describe(pid: int) -> str:
    """Say what a process is and, to root, where in the kernel it waits (innermost function first), for whoever has to
    find out why it does not end. Of its threads, one that no signal ends now is told about.
    """
    try:
        tasks = sorted(Path(f"/proc/{pid}/task").iterdir(), key=lambda task: int(task.name))
    except OSError:
        tasks = []
    task = min(tasks, key=lambda task: _state(task) != "D", default=None)
    if task is None or (state := _state(task)) == "X":
        return f"{pid} has ended"
    said = f"{pid} {_read(task / 'comm').strip()!r} in state {state}"
    # A line is "[<0>] function+0x1a/0x2b".
    frames = [line.partition("] ")[2].partition("+")[0] for line in _read(task / "stack").splitlines()[:_FRAMES]]
    return f"{said}, in {' < '.join(frames)}" if frames else said


def exit_status(pid: int) -> int:
    """Return the wait status of a process that is dying, also where wait(2) does not return yet; 0 of one that has
    none. May be asked by whoever may trace it.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf8", errors="replace")
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[49])


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def start_boot_s(pid: int) -> float | None:
    """Return when a process started, in seconds of CLOCK_BOOTTIME; None when there is none, or only a zombie."""
    identity = ProcessIdentity.of(pid)
    return None if identity is None else identity.start_ticks / os.sysconf("SC_CLK_TCK")


def shares_our_pids(pid: int) -> bool:
    """Whether a process is of our own PID namespace: none of a sandbox is, whatever it calls itself.

    Raises:
        OSError: there is none.
    """
    return os.stat(f"/proc/{pid}/ns/pid").st_ino == os.stat("/proc/self/ns/pid").st_ino
