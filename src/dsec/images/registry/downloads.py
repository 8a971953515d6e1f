"""Where blobs of registries lie while they come: each once, however many want it, and gone on with after anything.

Theory. A blob lies in ``downloads/<hex>`` as far as it came. Who works on it holds the file's lock (flock(2)), which
the kernel takes from the dead; whoever waited finds either the file, as far as it came, or that it is gone, since what
was made of it is stored. A file is deleted by who holds its lock, so that a holder who finds another file under the
name begins again. What nobody came back for is deleted after a day.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

DOWNLOADS = "downloads"
"""Name of their directory in an image store."""
KEPT_S = 86_400.0
_FIRST_POLL_S, _LONGEST_POLL_S = 0.02, 0.5


class Downloads:
    """The downloads of an image store.

    Args:
        root: their directory; made if missing.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(mode=0o700, exist_ok=True)

    @asynccontextmanager
    async def held(self, name: str, *, on_wait: Callable[[], None] = lambda: None) -> AsyncIterator[Path]:
        """Hold a file by its lock for the duration of the block, waiting for others. It is made if missing.

        Args:
            name: the file's.
            on_wait: called once if somebody else holds it.
        """
        path = self.root / name
        poll_s = _FIRST_POLL_S
        while (fd := _try_hold(path)) is None:
            if poll_s == _FIRST_POLL_S:
                on_wait()
            await anyio.sleep(poll_s)
            poll_s = min(_LONGEST_POLL_S, 2 * poll_s)
        try:
            yield path
        finally:
            os.close(fd)

    def discard(self, name: str) -> None:
        """Delete a file, unless somebody works on it, who then does so."""
        path = self.root / name
        if (fd := _try_hold(path)) is not None:
            path.unlink(missing_ok=True)
            os.close(fd)

    def sweep(self, *, older_than_s: float = KEPT_S, dry_run: bool = False) -> int:
        """Delete what nobody works on, and nobody has come back for; return how many bytes that frees."""
        freed_bytes = 0
        for path in list(self.root.iterdir()):
            try:
                if (fd := _try_hold(path, 0)) is None:
                    continue
            except OSError:
                continue  # It is gone, or no file, and then none of ours.
            status = os.fstat(fd)
            if time.time() - status.st_mtime >= older_than_s:
                freed_bytes += status.st_size
                if not dry_run:
                    path.unlink(missing_ok=True)
            os.close(fd)
        return freed_bytes


def _try_hold(path: Path, create: int = os.O_CREAT) -> int | None:
    """Return the locked descriptor of the file that is under this name now; None while somebody holds it."""
    while True:
        fd = os.open(path, os.O_RDWR | create | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        except BlockingIOError:
            os.close(fd)
            return None
        except FileNotFoundError:
            pass  # Who held it before has deleted it.
        os.close(fd)
