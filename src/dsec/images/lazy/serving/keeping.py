"""Processes that keep what a server needs, and have another follow when it is killed.

Theory. The kernel ends a FUSE connection with its last descriptor, and a socket likewise. So a *keeper* holds both,
forks the server, and then does nothing but wait: it has no thread, no event loop and no request that could bring it
down. It is not alone in that: a *second*, forked first, holds the same and waits for the keeper's death only, upon
which it is the keeper, and forks a second of its own. So any two of the three may be killed at one instant; only
together do they take the connection along.

A server dies with its keeper. One that dies again and again is given up after some tries, and the keepers end.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

from dsec.linux import syscalls
from dsec.linux.processes import ProcessIdentity, exit_status, is_dying

RESTART_STATUS = 3
"""A server that ends so asks for another in its place."""
_PR_SET_PDEATHSIG = 1
_TRIES = 5
_LONG_LIVED_S = 10.0
"""A server that lived that long may be replaced as often as the first."""
_LOOK_S = 0.5
"""So often it is looked whether a server is dying and cannot end, and whether the second lives."""
_DYING_S = 0.2
"""Who is killed and can end has ended after so long."""


class Keeping:
    """Keeps servers, one after the other.

    Args:
        lock: the file that names the keeper; the caller has locked it, and every keeper inherits that.
        become_server: serves in the process that calls it, and does not return; told whether it is the first.
    """

    def __init__(self, lock: Path, become_server: Callable[[bool], None]) -> None:
        self._lock = lock
        self._become_server = become_server
        self._is_first = True
        self._is_ending = False
        self._server = 0
        self._second = 0
        self._dying: list[int] = []
        """Servers that were killed and could not end."""

    def run(self) -> int:
        """Keep until SIGTERM, or until a server says that none is needed, or too many died; return an exit status.

        Returns in the last of the processes that kept, once the others have ended.
        """
        while True:
            try:
                signal.signal(signal.SIGTERM, self._end)
                return self._keep()
            except _KeeperDiedError:
                # We are the second of one that is dead.
                self._is_first, self._server, self._second, self._dying = False, 0, 0, []
                self._lock.write_text(str(ProcessIdentity.of(os.getpid())))
            finally:
                self._end_second()

    def _end(self, *_: object) -> None:
        self._is_ending = True
        if self._server:
            os.kill(self._server, signal.SIGTERM)

    def _keep(self) -> int:
        tries = _TRIES
        while tries and not self._is_ending:
            began = time.monotonic()
            self._have_second()
            # Held back until both know what to do about it: one that came in between would end neither.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
            if self._is_ending:
                return 0
            keeper = os.getpid()
            self._server = os.fork()
            if self._server == 0:
                _die_with(keeper)
                self._become_server(self._is_first)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            status = self._ended(self._server)
            self._server = 0
            if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
                return 0
            self._is_first = False
            if os.WIFEXITED(status) and os.WEXITSTATUS(status) == RESTART_STATUS:
                continue
            tries = _TRIES if time.monotonic() - began > _LONG_LIVED_S else tries - 1
        return 0 if self._is_ending else 1

    def _ended(self, server: int) -> int:
        """Wait until a server has ended, or cannot although it was killed; return its wait status."""
        process = os.pidfd_open(server)
        try:
            while not select.select([process], [], [], _LOOK_S)[0]:
                self._have_second()
                self._dying = [pid for pid in self._dying if not os.waitpid(pid, os.WNOHANG)[0]]
                if is_dying(server) and not select.select([process], [], [], _DYING_S)[0]:
                    self._dying.append(server)
                    return exit_status(server)
        finally:
            os.close(process)
        return os.waitpid(server, 0)[1]

    def _have_second(self) -> None:
        """Fork a second where none lives. Returns in the keeper only.

        Raises:
            _KeeperDiedError: in the second, when the keeper has died.
        """
        if self._second and not os.waitpid(self._second, os.WNOHANG)[0]:
            return
        keeper = os.pidfd_open(os.getpid())
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self._second = os.fork()
        if self._second == 0:
            # SIGTERM ends it, and the keeper forks another.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            select.select([keeper], [], [])
            os.close(keeper)
            raise _KeeperDiedError
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        os.close(keeper)

    def _end_second(self) -> None:
        if self._second:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._second, signal.SIGKILL)
                os.waitpid(self._second, 0)
            self._second = 0


class _KeeperDiedError(Exception):
    """The keeper of this second has died."""


def _die_with(keeper: int) -> None:
    """Have the kernel kill this process when the one that forked it dies."""
    syscalls.libc_call("prctl", _PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != keeper:
        os._exit(1)  # It died before we could say so.
