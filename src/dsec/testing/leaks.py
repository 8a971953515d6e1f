"""Everything that one node has on a host: what `HostState` reads, and what stands in and behind its state directory.

For tests that look from another process than the node's, while it runs or after it was killed.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from dsec.images.lazy.serving.client import LAZY, end_daemon
from dsec.linux import mounts
from dsec.linux.swap import swap_table
from dsec.node.state.swap import SWAP_FILE, SwapFile
from dsec.testing.host_state import HostState

_OWN_FILES = frozenset(
    {
        "node.id",
        "events.jsonl",
        "events.1.jsonl",
        "node.lock",
        "node.sock",
        "node.log",
        "node.settings",
        "token",
        "peer-token",
        "draining",
        "journal.sqlite",
        "journal.sqlite-reserve",
        "journal.sqlite-wal",
        "journal.sqlite-shm",
        "cache",
        "exports",
        "fingerprints",
        "images",
        "spool",
        "store",
        "swap",
        "volume",
        "volume.btrfs",
    }
)
"""What may stand in a state directory that has no sandboxes (ARCHITECTURE.md)."""


@dataclass(frozen=True, slots=True)
class Leaks:
    """What is left of a node's sandboxes; empty tuples where there is nothing.

    Attributes:
        processes: command lines of processes in the node's groups or started for its run directory; without those
            that have ended and wait for nobody but the host's init.
        groups: control groups below the node's own.
        mounts: mounts below the run directory.
        run_entries: names in the run directory.
        layers: writable layers, checkpoints and what is being made or discarded, on the state volume.
        spools: directories of output of background processes.
        files: names in the state directory that are not the node's own.
        image_files: names in the image store that no image owns: what builds and imports left.
        swap: areas of the state directory that are on, and what is in them; those whose file was deleted included.
    """

    processes: tuple[str, ...]
    groups: tuple[str, ...]
    mounts: tuple[str, ...]
    run_entries: tuple[str, ...]
    layers: tuple[str, ...]
    spools: tuple[str, ...]
    files: tuple[str, ...]
    image_files: tuple[str, ...]
    swap: tuple[str, ...]

    @classmethod
    def read(cls, state_dir: Path) -> Leaks:
        """Read what exists now."""
        node_id = (state_dir / "node.id").read_text().strip()
        host = HostState.read(node_id, Path("/run/dsec") / node_id)
        return cls(
            processes=tuple(sorted(process for process in host.processes if not _waits_for_init(process.split()[0]))),
            # The node's own group stays while the node may come back.
            groups=tuple(sorted(group for group in host.groups if Path(group).name != node_id)),
            mounts=tuple(sorted(host.mounts)),
            run_entries=tuple(sorted(host.run_entries)),
            layers=_names_two_deep(state_dir / "volume"),
            spools=_names(state_dir / "spool"),
            files=tuple(sorted(set(_names(state_dir)) - _OWN_FILES)),
            image_files=tuple(f"staging/{name}" for name in _names(state_dir / "images/staging")),
            swap=swap_of(state_dir),
        )

    def described(self, *, swap: bool = True) -> str:
        """Return what there is, one kind a line; empty when nothing is left.

        Args:
            swap: count areas that are on, too. A node's stays on from the first pause until it is destroyed.
        """
        names = [name for name in self.__slots__ if swap or name != "swap"]
        return "\n".join(f"{name}: {', '.join(getattr(self, name))}" for name in names if getattr(self, name))


def swap_of(state_dir: Path) -> tuple[str, ...]:
    """Return the swap areas whose file lies, or lay, in the state directory."""
    prefix = f"{os.path.realpath(state_dir)}/"
    return tuple(f"{area.path}: {area.used_bytes} bytes" for area in swap_table() if area.path.startswith(prefix))


def loop_devices_of(state_dir: Path) -> tuple[str, ...]:
    """Return the loop devices whose file lies in the state directory."""
    prefix = f"{os.path.realpath(state_dir)}/"
    found = []
    for device in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            backing = device.read_text()
        except OSError:
            continue  # It was detached meanwhile.
        if backing.startswith(prefix):
            found.append(f"{device.parent.parent.name} {backing.strip()}")
    return tuple(sorted(found))


def wait_loop_devices_gone(state_dir: Path, patience_s: float = 240.0) -> None:
    """Wait until no loop device has a file in the state directory. Raises `AssertionError` when one stays.

    The kernel lets go of a device after the last mount of it, and a container that starts elsewhere at this moment
    holds a copy of every mount until it has its own root. The file system itself ends after that: a btrfs first writes
    what was never asked for, and deletes the subvolumes that were given up, which on a busy disk takes minutes.
    """
    ends_at = time.monotonic() + patience_s
    while left := loop_devices_of(state_dir):
        assert time.monotonic() < ends_at, [f"{each}: {_held_by(each.partition(' ')[0])}" for each in left]
        time.sleep(0.05)


def _held_by(device: str) -> str:
    """Say what holds a loop device: a file system without a mount is held by the kernel, or by overlays over it."""
    mounted = [
        f"{file.parent.name} {_text(file.with_name('comm')).strip()}"
        for file in Path("/proc").glob("[0-9]*/mountinfo")
        if f"/dev/{device} " in _text(file)
    ]
    systems = [entry.parent.parent.name for entry in Path("/sys/fs/btrfs").glob(f"*/devices/{device}")]
    return f"btrfs {systems}, in the mount namespaces of {mounted}"


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""  # The process has ended.


def clear_away(state_dir: Path) -> None:
    """After a test that failed: end who still holds the directory, and take its mounts away before it is deleted."""
    try:
        pid = int((state_dir / "node.lock").read_text())
        if os.fsencode(state_dir) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            os.kill(pid, signal.SIGKILL)
    except (OSError, ValueError):
        pass  # Nobody does.
    end_daemon(state_dir / "images" / LAZY)
    # A deleted file would stay on until the host restarts.
    SwapFile(state_dir / SWAP_FILE, 0).remove()
    for entry in mounts.mounts_under(state_dir):
        mounts.unmount(entry.target, detach=True)


def _waits_for_init(pid: str) -> bool:
    """Whether a process has ended, or is a zombie whose parent is the host's init (proc_pid_stat(5))."""
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return True
    return (state, parent) == ("Z", "1")


def _names(directory: Path) -> tuple[str, ...]:
    return tuple(sorted(os.listdir(directory))) if directory.is_dir() else ()


def _names_two_deep(directory: Path) -> tuple[str, ...]:
    return tuple(f"{kind}/{name}" for kind in _names(directory) for name in _names(directory / kind))
