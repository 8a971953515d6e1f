"""The state directory's lock and the node's id."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from dsec.base.errors import StateCorruptedError, StateLockedError
from dsec.base.ids import NODE_ID_LENGTH, RandomBytes, random_body


@contextlib.contextmanager
def hold_state(state_dir: Path) -> Iterator[None]:
    """Make the state directory if needed and hold its lock.

    The lock belongs to the open file, so that it ends with the process however that ends (flock(2)).

    Raises:
        StateLockedError: another process holds it.
    """
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(state_dir / "node.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _lock(descriptor, state_dir)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int, state_dir: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
        raise StateLockedError(
            f"another node holds {state_dir}",
            detail=f"process id of the holder: {holder}",
            resolution="talk to that node through its socket, end it (`dsec down`; sandboxes stay), "
            "or use another state directory",
        ) from error


def node_id(state_dir: Path, random_bytes: RandomBytes) -> str:
    """Return the node's id, making it on first use. The caller holds the lock.

    Raises:
        StateCorruptedError: the file holds something else.
    """
    path = state_dir / "node.id"
    if not path.exists():
        fresh = state_dir / "node.id.new"
        fresh.write_text(random_body(NODE_ID_LENGTH, random_bytes) + "\n")
        fresh.replace(path)
    text = path.read_text(errors="replace").strip()
    if not (text.isascii() and text.isalnum() and text == text.lower() and 1 <= len(text) <= 16):
        raise StateCorruptedError(
            f"{path} holds {text[:40]!r}, which is not a node id",
            resolution="restore it; every cgroup and sandbox id of this node carries it",
        )
    return text
