"""List a tree that somebody hostile may be changing: metadata only, bounded, and never out of it.

Every directory is opened by openat2(2) from the top, beneath it, through no link and on no other mount; so whatever is
renamed meanwhile, what is listed was in the tree. Entries are described by lstat(2), which blocks on nothing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from dsec.linux.openat2 import open_child

_READ = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def walk(top_fd: int, *, limit: int) -> Iterator[tuple[bytes, os.stat_result]]:
    """Yield path and status of at most `limit` entries below a directory; those that vanish meanwhile are left out."""
    left, count = [b"."], 0
    while left and count < limit:
        directory = left.pop()
        for name, status in _entries(top_fd, directory, limit - count):
            count += 1
            path = name if directory == b"." else directory + b"/" + name
            yield path, status
            if (status.st_mode & 0o170000) == 0o040000:
                left.append(path)


def _entries(top_fd: int, directory: bytes, limit: int) -> list[tuple[bytes, os.stat_result]]:
    try:
        fd = open_child(top_fd, directory, _READ)
    except OSError:
        # It was renamed or replaced meanwhile, or is a mount of its own.
        return []
    found: list[tuple[bytes, os.stat_result]] = []
    try:
        with os.scandir(fd) as entries:
            for entry, _ in zip(entries, range(limit), strict=False):
                try:
                    found.append((os.fsencode(entry.name), entry.stat(follow_symlinks=False)))
                except OSError:
                    continue
    finally:
        os.close(fd)
    return found
