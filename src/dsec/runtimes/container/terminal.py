"""Terminals: the runtime makes one inside and hands its other end out over a socket."""

from __future__ import annotations

import array
import fcntl
import os
import socket
import struct
import termios
from pathlib import Path

from dsec.base.errors import RuntimeFailedError
from dsec.model.process import TerminalSize
from dsec.runtimes.container.child import HostChild
from dsec.runtimes.container.waiting import wait_readable


def resize_terminal(descriptor: int, size: TerminalSize) -> None:
    """Set the size; the foreground process group hears SIGWINCH."""
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", size.rows, size.columns, 0, 0))


def open_terminal(size: TerminalSize) -> tuple[int, int]:
    """Make a terminal on the host; return our end, non-blocking, and the other."""
    ours, theirs = os.openpty()
    os.set_blocking(ours, False)
    resize_terminal(ours, size)
    return ours, theirs


class ConsoleSocket:
    """The socket on which the runtime sends the terminal (its `--console-socket`)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._socket.bind(str(path))
        self._socket.listen(1)
        self._socket.setblocking(False)

    async def receive(self, child: HostChild) -> int | None:
        """Wait for the runtime and return the terminal's descriptor, non-blocking; None if it ends without one."""
        await wait_readable(self._socket.fileno(), child.ended)
        try:
            connection, _ = self._socket.accept()
        except BlockingIOError:
            return None
        with connection:
            connection.setblocking(False)
            await wait_readable(connection.fileno())
            descriptor = _received_descriptor(connection)
        os.set_blocking(descriptor, False)
        return descriptor

    def close(self) -> None:
        self._socket.close()
        self.path.unlink(missing_ok=True)


def _received_descriptor(connection: socket.socket) -> int:
    space = socket.CMSG_SPACE(struct.calcsize("i"))
    _, ancillary, _, _ = connection.recvmsg(4096, space, socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors = array.array("i", data[: struct.calcsize("i")])
            return descriptors[0]
    raise RuntimeFailedError("the OCI runtime sent no terminal")
