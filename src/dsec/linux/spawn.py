"""Start programs, also from a process that holds thousands of descriptors.

Theory. A new process begins with a copy of its parent's descriptor table, and execve(2) closes what is not to be kept,
one by one: 5 ms for 7,000 descriptors, which a node with some thousand sandboxes has. No flag of posix_spawn(3) avoids
the copy. But a thread may leave the table that its process shares (unshare(2), CLONE_FILES) and have one of its own,
which stays small. So once there are many descriptors, programs are started from such a thread; it fetches the few that
a program is to get from the shared table by pidfd_getfd(2).

Whether there are many tells the number of a new descriptor, since the kernel gives the lowest that is free.
"""

from __future__ import annotations

import fcntl
import os
import queue
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from dsec.linux import syscalls
from dsec.linux.identity import starting_user

MANY = 512
"""From this descriptor on the detour over the other thread (0.1 ms) costs less than the copy."""
_FIRST_SAFE_DESCRIPTOR = 64
"""Descriptors handed to a child are first moved up here, so that placing one never overwrites another."""
_SIGNALS = signal.valid_signals()
"""All get their default action in a child: Python ignores some (SIGPIPE, SIGXFSZ), and others would inherit that."""
_CLONE_FILES = 0x400


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What to start.

    Attributes:
        path: absolute path; not one of /proc/self, which another thread's descriptors are not in.
        arguments: with the program's name.
        environment: the whole environment.
        descriptors: number in the child → descriptor of this process. 0, 1 and 2 should be among them.
        session: give it a session of its own.
        effective_user: see `starting_user`; None: this process's.
    """

    path: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    descriptors: Mapping[int, int]
    session: bool = True
    effective_user: int | None = None


def spawn(program: Program) -> int:
    """Start a program and return its pid; it is a child of this process. Any thread may call. Raises `OSError`."""
    if max(program.descriptors.values()) >= MANY and (apart := _apart.get()) is not None:
        return apart.spawn(program)
    return _spawn(program, lambda descriptor: fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_SAFE_DESCRIPTOR))


def _spawn(program: Program, fetch: Callable[[int], int]) -> int:
    """Start a program with descriptors that `fetch` brings into this thread's table, above all that the child gets."""
    with ExitStack() as stack:
        actions = []
        for target, source in program.descriptors.items():
            fetched = fetch(source)
            stack.callback(os.close, fetched)
            actions.append((os.POSIX_SPAWN_DUP2, fetched, target))
        if program.effective_user is not None:
            stack.enter_context(starting_user(program.effective_user))
        return os.posix_spawn(
            program.path,
            list(program.arguments),
            program.environment,
            file_actions=actions,
            setsid=program.session,
            setsigmask=(),
            setsigdef=_SIGNALS,
        )


_Answer = int | Exception


class _ThreadApart:
    """A thread with a descriptor table of its own, which starts programs for all others.

    Attributes:
        process: whose thread it is; a forked child has none of its parent's.
    """

    def __init__(self) -> None:
        self.process = os.getpid()
        self._requests: queue.SimpleQueue[tuple[Program, queue.SimpleQueue[_Answer]]] = queue.SimpleQueue()
        ready: queue.SimpleQueue[OSError | None] = queue.SimpleQueue()
        threading.Thread(target=self._serve, args=(ready,), name="spawn", daemon=True).start()
        if (error := ready.get()) is not None:
            raise error

    def spawn(self, program: Program) -> int:
        answer: queue.SimpleQueue[_Answer] = queue.SimpleQueue()
        self._requests.put((program, answer))
        result = answer.get()
        if isinstance(result, Exception):
            raise result
        return result

    def _serve(self, ready: queue.SimpleQueue[OSError | None]) -> None:
        try:
            syscalls.libc_call("unshare", _CLONE_FILES)
            syscalls.call(syscalls.SYS_CLOSE_RANGE, 3, 0xFFFF_FFFF, 0)
            shared = os.pidfd_open(os.getpid())
            os.close(_fetch(shared, 0))
        except OSError as error:
            ready.put(error)
            return
        ready.put(None)
        while True:
            program, answer = self._requests.get()
            try:
                answer.put(_spawn(program, lambda descriptor: _fetch(shared, descriptor)))
            except Exception as error:  # noqa: BLE001 - a thread that ended would leave all who ask later waiting.
                answer.put(error)


def _fetch(shared: int, descriptor: int) -> int:
    """Return a descriptor of this thread's table for one of the table that the process shares."""
    fetched = syscalls.call(syscalls.SYS_PIDFD_GETFD, shared, descriptor, 0)
    try:
        return fcntl.fcntl(fetched, fcntl.F_DUPFD_CLOEXEC, _FIRST_SAFE_DESCRIPTOR)
    finally:
        os.close(fetched)


class _OnDemand:
    """The one such thread of this process, made when it is needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: _ThreadApart | None = None
        self._is_refused = False

    def get(self) -> _ThreadApart | None:
        """Return it; None on a host that refuses one of its system calls."""
        with self._lock:
            if (self._thread is None or self._thread.process != os.getpid()) and not self._is_refused:
                try:
                    self._thread = _ThreadApart()
                except OSError:
                    self._is_refused = True
            return self._thread


_apart = _OnDemand()
