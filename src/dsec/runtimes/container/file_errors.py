"""What the kernel says about a sandbox's files, as typed errors: the one table."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from dsec.base.errors import (
    AlreadyExistsError,
    ConflictError,
    DirectoryNotEmptyError,
    DsecError,
    HostOutOfMemoryError,
    InvalidRequestError,
    IsADirectoryInSandboxError,
    LimitExceededError,
    NotADirectoryInSandboxError,
    PathNotFoundError,
    PermissionDeniedError,
    RuntimeFailedError,
    SandboxDiskFullError,
    UnsupportedFileError,
)

_TABLE: dict[int, tuple[type[DsecError], str, str]] = {
    errno.ENOENT: (PathNotFoundError, "{path} does not exist", "check the path; parents of a moved file must exist"),
    errno.EEXIST: (AlreadyExistsError, "{path} exists already", "remove it first or choose another name"),
    errno.ENOTDIR: (NotADirectoryInSandboxError, "{path} or a parent of it is not a directory", "check the path"),
    errno.EISDIR: (IsADirectoryInSandboxError, "{path} is a directory", "name a file"),
    errno.ENOTEMPTY: (DirectoryNotEmptyError, "{path} is not empty", "remove it with recursive, or empty it first"),
    errno.EACCES: (PermissionDeniedError, "permission denied at {path}", "use another user or change its permissions"),
    errno.EPERM: (PermissionDeniedError, "operation not permitted at {path}", "use another user"),
    errno.EROFS: (PermissionDeniedError, "{path} is on a read-only file system", "write elsewhere"),
    errno.EXDEV: (
        ConflictError,
        "{path} cannot be reached or renamed across file systems",
        "a directory that comes from the image, or lies on another mount, is moved by a command (mv) or copied",
    ),
    errno.ELOOP: (
        InvalidRequestError,
        "{path} leads through too many symbolic links or a link of /proc",
        "name the file itself",
    ),
    errno.ENAMETOOLONG: (InvalidRequestError, "{path} is too long", "a name has at most 255 bytes, a path 4096"),
    errno.EINVAL: (InvalidRequestError, "{path} is not possible here", "check both paths"),
    errno.EBUSY: (ConflictError, "{path} is in use (a mount stands there)", "choose another path"),
    errno.EAGAIN: (ConflictError, "{path} is being moved or leased by the sandbox without end", "try again"),
    errno.ETXTBSY: (ConflictError, "{path} is a program that runs", "replace it instead of changing it"),
    errno.EMLINK: (LimitExceededError, "{path} has too many links", "copy the file instead"),
    errno.EFBIG: (LimitExceededError, "{path} would be larger than a file can be", "write less"),
    errno.ENXIO: (UnsupportedFileError, "{path} is a socket, FIFO or device", "read and write it with a command"),
    errno.ENODEV: (UnsupportedFileError, "{path} is a device", "read and write it with a command"),
    errno.EOPNOTSUPP: (UnsupportedFileError, "{path} does not support this", "use a command"),
    errno.ENOSPC: (SandboxDiskFullError, "no space left for {path}", "remove files or ask for more disk_bytes"),
    errno.EDQUOT: (SandboxDiskFullError, "no quota left for {path}", "remove files or ask for more disk_bytes"),
    errno.ENOMEM: (HostOutOfMemoryError, "no memory for work at {path}", "try again later"),
}  # fmt: skip

_MAXIMUM_SHOWN = 200


def show(path: bytes | str) -> str:
    """Return a path for people: printable, bounded, undecodable bytes as U+FFFD."""
    raw = path.encode("utf-8", "replace") if isinstance(path, str) else path
    text = raw.decode("utf-8", "replace")
    text = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
    if len(text) <= _MAXIMUM_SHOWN:
        return text
    half = _MAXIMUM_SHOWN // 2
    return f"{text[:half]}...{text[-half:]}"


def file_error(error: OSError, path: bytes | str, *, disk: str = "") -> DsecError:
    """Return the typed error for an OSError.

    Args:
        error: what the kernel said.
        path: the path in the sandbox that the request named.
        disk: shown when the disk is full, such as ``the quota is 2.0 GiB``.
    """
    name = errno.errorcode.get(error.errno or 0, str(error.errno))
    detail = f"{name}: {os.strerror(error.errno or 0)}"
    kind, brief, resolution = _TABLE.get(
        error.errno or 0, (RuntimeFailedError, "the kernel refused work at {path}", "see the detail")
    )
    if disk and kind is SandboxDiskFullError:
        detail = f"{detail}; {disk}"
    return kind(brief.format(path=show(path)), detail=detail, resolution=resolution)


@contextmanager
def typed_errors(path: bytes | str, *, disk: str = "") -> Iterator[None]:
    """Translate OSErrors of the block."""
    try:
        yield
    except OSError as error:
        raise file_error(error, path, disk=disk) from error
