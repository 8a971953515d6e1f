"""Probe whether a directory can carry a swap file."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from dsec.linux import inodes
from dsec.linux.probe import Finding, found, missing, refused
from dsec.linux.swap import format_swap, swap_off, swap_on
from dsec.linux.userns import is_host_root

_TRIAL_BYTES = 1 << 20


def swap_file(directory: Path) -> Finding:
    """Can the file system of `directory` (or of its nearest parent that exists) carry a swap file? A small one is
    switched on and off again."""
    if not is_host_root():
        return missing("only root may switch swap on", "run the node as root; pauses with --keep-memory work without")
    place = next(path for path in (directory, *directory.parents) if path.is_dir())
    try:
        descriptor, name = tempfile.mkstemp(prefix=".dsec-probe-", dir=place)
    except OSError as error:
        return refused(error, str(place))
    try:
        inodes.change_flags(descriptor, add=inodes.NOCOW)
        os.posix_fallocate(descriptor, 0, _TRIAL_BYTES)
        format_swap(descriptor, _TRIAL_BYTES)
        os.fsync(descriptor)
        swap_on(name)
        swap_off(name)
    except OSError as error:
        return refused(error, str(place))
    finally:
        os.close(descriptor)
        # It must not be deleted while it is on: it would stay on until the host restarts.
        with suppress(OSError):
            swap_off(name)
        os.unlink(name)
    return found(str(place))
