"""Programs kept in memory: a copy of a file that nobody can change any more (memfd_create(2), file seals).

An OCI runtime that enters a sandbox runs a program of the host among guests, who may open it as ``/proc/<pid>/exe``. So
that they cannot overwrite it, runtimes first copy themselves into such a file and execute that. Whoever executes a
sealed copy in the first place saves them the copy and the second start.

Seals do not hold attributes: times, locks and extended attributes of the one copy would be words between all guests who
opened it. So its mode lets nobody open it but its owner; it is executed before its process enters a sandbox.
"""

from __future__ import annotations

import errno
import fcntl
import os

_MFD_EXEC = 0x10
_F_ADD_SEALS = 1033
_SEALS = 0b1111
"""F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_WRITE: exactly what runtimes look for."""


def sealed_program(path: str) -> int | None:
    """Return a descriptor of a sealed copy of a program; None where this host executes no such files.

    It is executed as ``/proc/self/fd/<descriptor>`` and lives until the last process that runs it has ended.
    """
    try:
        descriptor = _make(os.path.basename(path))
    except OSError:
        return None
    try:
        with open(path, "rb") as source:
            while os.sendfile(descriptor, source.fileno(), None, 1 << 30):
                pass
        os.fchmod(descriptor, 0o500)
        fcntl.fcntl(descriptor, _F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(descriptor)
        raise
    if os.access(f"/proc/self/fd/{descriptor}", os.X_OK):
        return descriptor
    os.close(descriptor)
    return None


def _make(name: str) -> int:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    try:
        return os.memfd_create(name, flags | _MFD_EXEC)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return os.memfd_create(name, flags)  # Before Linux 6.3 every such file can be executed.
