"""The volume: made once, found again, grown, and whole after a kill at any step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dsec.base.errors import InvalidRequestError, StateCorruptedError
from dsec.base.units import MIB
from dsec.linux import btrfs, loop, mounts
from dsec.state.btrfs import BtrfsWritableLayers
from dsec.state.volume import destroy_volume, open_volume

pytestmark = [pytest.mark.root, pytest.mark.slow]

SIZE = 256 * MIB

_KILLED = """
import os, signal, sys, traceback
from pathlib import Path
import dsec.linux.syscalls as syscalls
from dsec.state.btrfs import BtrfsWritableLayers
from dsec.state.volume import open_volume

WATCHED = {"os.mkdir", "os.rename", "open", "os.truncate", "subprocess.Popen", "os.remove", "os.chmod"}
plain = syscalls.libc_call

def work(state, step):
    seen = 0

    def count(event, arguments):
        # Every system call that Python audits, and every ioctl and mount through libc, is a step at which to die.
        nonlocal seen
        if event in WATCHED:
            seen += 1
            if seen == step:
                os.kill(os.getpid(), signal.SIGKILL)

    def call(name, *arguments, **named):
        count("open", ())
        return plain(name, *arguments, **named)

    sys.addaudithook(count)
    syscalls.libc_call = call
    layers = BtrfsWritableLayers(open_volume(state, size_bytes=256 << 20))
    layers.create("a", quota_bytes=8 << 20)
    layers.checkpoint("a", "point")
    layers.branch("point", "b", quota_bytes=8 << 20)
    layers.discard("a")
    layers.discard("point")
    layers.wait_removed(60)
    layers.close()

for line in sys.stdin:
    # A process of its own for each step, which begins with everything imported.
    pid = os.fork()
    if pid == 0:
        try:
            work(Path(sys.argv[1]), int(line))
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


@pytest.fixture
def run_killed(own_state: Path) -> Iterator[Callable[[int], int]]:
    """Return what has a process work and die at a step, and returns how it ended."""
    command = [sys.executable, "-c", _KILLED, str(own_state)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as forker:

        def run(step: int) -> int:
            assert forker.stdin is not None
            assert forker.stdout is not None
            forker.stdin.write(f"{step}\n")
            ended = int(forker.stdout.readline())
            assert ended in (0, -signal.SIGKILL)
            return ended

        yield run


def test_volume_is_made_mounted_and_found_again(own_state: Path) -> None:
    first = open_volume(own_state, size_bytes=SIZE)
    (first.path / "kept").write_bytes(b"x")
    assert open_volume(own_state) == first
    assert sum(entry.target == str(first.path) for entry in mounts.mount_table()) == 1
    (entry,) = mounts.mounts_under(first.path)
    assert (entry.kind, "nosuid" in entry.options, "nodev" in entry.options) == ("btrfs", True, True)
    mounts.unmount(first.path)
    assert loop.find(own_state / "volume.btrfs") is None
    assert (open_volume(own_state).path / "kept").read_bytes() == b"x"


def test_destroyed_volume_leaves_nothing(own_state: Path) -> None:
    open_volume(own_state, size_bytes=SIZE)
    destroy_volume(own_state)
    destroy_volume(own_state)
    assert list(own_state.iterdir()) == []


def test_volume_grows_while_it_is_in_use(own_state: Path) -> None:
    volume = open_volume(own_state, size_bytes=SIZE)
    (volume.path / "kept").write_bytes(b"x")
    open_volume(own_state, size_bytes=4 * SIZE)
    status = os.statvfs(volume.path)
    assert status.f_blocks * status.f_frsize == 4 * SIZE
    open_volume(own_state, size_bytes=SIZE)
    assert os.statvfs(volume.path).f_blocks == status.f_blocks
    assert (volume.path / "kept").read_bytes() == b"x"


def test_file_attached_already_is_not_attached_twice(own_state: Path) -> None:
    volume = open_volume(own_state, size_bytes=SIZE)
    before = loop.find(own_state / "volume.btrfs")
    holder = os.open(volume.path, os.O_RDONLY)
    mounts.unmount(volume.path, detach=True)  # As after a restart in another mount namespace.
    open_volume(own_state)
    assert loop.find(own_state / "volume.btrfs") == before
    assert os.fstat(holder).st_dev == volume.path.stat().st_dev
    os.close(holder)


def test_what_waits_in_memory_is_bounded_when_asked_and_only_then(own_state: Path) -> None:
    volume = open_volume(own_state, size_bytes=SIZE, unwritten_bytes=64 * MIB)
    fd = os.open(volume.path, os.O_RDONLY)
    setting = Path(f"/sys/fs/btrfs/{btrfs.file_system_id(fd)}/bdi/strict_limit")
    os.close(fd)
    assert setting.read_text() == "1\n"
    open_volume(own_state)
    assert setting.read_text() == "0\n"


def test_too_small_a_size_is_refused(own_state: Path) -> None:
    with pytest.raises(InvalidRequestError):
        open_volume(own_state, size_bytes=MIB)


def test_file_that_is_no_file_system_is_said_and_kept(own_state: Path) -> None:
    (own_state / "volume.btrfs").write_bytes(bytes(SIZE))
    with pytest.raises(StateCorruptedError):
        open_volume(own_state)
    assert (own_state / "volume.btrfs").stat().st_size == SIZE
    assert loop.find(own_state / "volume.btrfs") is None


@pytest.fixture
def foreign_mount(own_state: Path) -> Path:
    open_volume(own_state, size_bytes=SIZE)
    mounts.mount("tmpfs", own_state / "volume", "tmpfs")
    return own_state


def test_foreign_mount_in_its_place_is_refused(foreign_mount: Path) -> None:
    with pytest.raises(StateCorruptedError, match="mounted"):
        open_volume(foreign_mount)


def test_kill_at_any_step_is_recovered_from(own_state: Path, run_killed: Callable[[int], int]) -> None:
    step, ended = 1, int(-signal.SIGKILL)
    while ended:
        ended = run_killed(step)
        volume = open_volume(own_state, size_bytes=SIZE)
        layers = BtrfsWritableLayers(volume)
        for name in layers.names():
            layer = layers.get(name)
            assert layer is None or (layer.upper.is_dir() and layer.work.is_dir())
            layers.discard(name)
        layers.create("fresh", quota_bytes=8 * MIB)
        layers.discard("fresh")
        assert layers.wait_removed(60)
        layers.close()
        assert [
            path
            for name in ("layers", "checkpoints", "staging", "trash", "removing")
            for path in (volume.path / name).iterdir()
        ] == []
        if step % 5 == 0:
            destroy_volume(own_state)
        step += 1
    fd = os.open(open_volume(own_state).path, os.O_RDONLY)
    btrfs.wait_destroyed(fd)
    os.close(fd)
