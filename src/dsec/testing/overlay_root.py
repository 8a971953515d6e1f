"""A real sandbox root for tests, without a sandbox: an overlay over ID-mapped layers, as the container driver mounts
it, and guest processes that live in it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dsec.linux import mounts, syscalls
from dsec.linux.identity import file_identity
from dsec.linux.userns import make_user_namespace

_PR_SET_PDEATHSIG = 1


@contextmanager
def overlay_root(
    directory: Path, *, first_host_id: int, lower: Path, tmpfs_options: str | None = None
) -> Iterator[Path]:
    """Mount an overlay for the block and yield where.

    Args:
        directory: an empty directory for everything.
        first_host_id: host id of the sandbox's user 0.
        lower: the read-only layer; owners in it are ids inside the sandbox.
        tmpfs_options: put the writable layer on a tmpfs of its own, such as ``size=4m``.
    """
    volume, target = directory / "volume", directory / "rootfs"
    volume.mkdir()
    target.mkdir()
    if tmpfs_options is not None:
        mounts.mount("tmpfs", volume, "tmpfs", 0, tmpfs_options)
    try:
        (volume / "upper").mkdir(mode=0o755)
        (volume / "work").mkdir(mode=0o700)
        _mount_overlay(lower, volume, target, first_host_id)
        try:
            yield target
        finally:
            mounts.unmount(target, detach=True)
    finally:
        if tmpfs_options is not None:
            mounts.unmount(volume, detach=True)


def _mount_overlay(lower: Path, volume: Path, target: Path, first_host_id: int) -> None:
    namespace = make_user_namespace(first_host_id)
    layers = [mounts.open_tree(lower), mounts.open_tree(volume)]
    try:
        for layer in layers:
            mounts.map_ids(layer, namespace)
        low, up = (f"/proc/self/fd/{layer}" for layer in layers)
        options = [("lowerdir+", low), ("upperdir", f"{up}/upper"), ("workdir", f"{up}/work")]
        with file_identity(first_host_id, first_host_id, privileged=True):
            mount = mounts.new_mount("overlay", options)
        try:
            mounts.move_mount(mount, target)
        finally:
            os.close(mount)
    finally:
        for fd in (namespace, *layers):
            os.close(fd)


def run_as_guest(root: Path, host_id: int, work: Callable[[], None]) -> None:
    """Do `work` in a process that is chrooted to `root` as the host user `host_id`, and wait for it."""
    pid = _fork_guest(root, host_id, work)
    _, status = os.waitpid(pid, 0)
    if status:
        raise AssertionError(f"the guest process failed: {os.waitstatus_to_exitcode(status)}")


@contextmanager
def guest_repeating(root: Path, host_id: int, work: Callable[[], None]) -> Iterator[None]:
    """Repeat `work` in such a process, whatever errors it meets, until the block ends."""

    def forever() -> None:
        while True:
            try:
                work()
            except OSError:
                continue  # It races with the test, and loses at times.

    pid = _fork_guest(root, host_id, forever)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _fork_guest(root: Path, host_id: int, work: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.chroot(root)
        os.chdir("/")
        os.setgroups([])
        os.setresgid(host_id, host_id, host_id)
        os.setresuid(host_id, host_id, host_id)
        # After the change of ids, which clears it: a guest must not outlive a test run that is killed.
        syscalls.libc_call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL)
        work()
        os._exit(0)
    finally:
        os._exit(1)
