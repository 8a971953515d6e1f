"""renameat2(2): rename without replacing."""

from __future__ import annotations

from dsec.linux import syscalls

RENAME_NOREPLACE = 1


def rename_no_replace(source_fd: int, source: bytes, target_fd: int, target: bytes) -> None:
    """Rename an entry of one directory to an entry of another; EEXIST when that exists."""
    syscalls.libc_call("renameat2", source_fd, source, target_fd, target, RENAME_NOREPLACE, path=target)
