"""Probes of cgroups: what a host lets us bound, freeze and kill.

Three shapes of host exist. *Unified*: cgroup2 at /sys/fs/cgroup with all controllers. *Hybrid*: version 1 hierarchies
with the controllers, and a cgroup2 tree at /sys/fs/cgroup/unified for grouping, freezing and killing. *Legacy*: version
1 only, where a process tree cannot be killed for sure. See cgroups(7).
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dsec.linux.mounts import MountEntry, mount_table
from dsec.linux.probe import Finding, found, missing, refused, trial_cgroup_name

_WAIT_S = 2.0
LIMITS = {
    "memory": ("memory.max", "memory.limit_in_bytes"),
    "pids": ("pids.max", "pids.max"),
    "cpu": ("cpu.max", "cpu.cfs_quota_us"),
}
"""The file that bounds each controller in version 2 and in version 1."""


def unified_mount() -> Path | None:
    """Return where cgroup2 is mounted, or None."""
    return next((Path(entry.target) for entry in mount_table() if entry.kind == "cgroup2"), None)


def version_1_mount(controller: str) -> Path | None:
    """Return where the version 1 hierarchy of `controller` is mounted, or None."""
    entries = (entry for entry in mount_table() if entry.kind == "cgroup")
    return next((Path(entry.target) for entry in entries if controller in entry.options.split(",")), None)


def own_directory(root: Path, *, controller: str = "") -> Path:
    """Return where this user may make cgroups: at the top for root, below the own cgroup otherwise (delegation)."""
    if os.geteuid() == 0:
        return root
    return root / _own_path(controller).lstrip("/")


def _own_path(controller: str) -> str:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return path
    return "/"


def own_directories() -> tuple[Path, ...]:
    """Return every directory in which a trial may have made its cgroup."""
    roots = [(unified_mount(), "")] + [(version_1_mount(name), name) for name in LIMITS]
    return tuple(own_directory(root, controller=name) for root, name in roots if root is not None)


def remove_directory(directory: Path) -> None:
    """Kill what runs in a cgroup and remove it. Does nothing when it does not exist."""
    deadline = time.monotonic() + _WAIT_S
    while directory.is_dir() and time.monotonic() < deadline:
        with suppress(OSError):
            (directory / "cgroup.kill").write_text("1")
        with suppress(OSError):
            directory.rmdir()
            return
        time.sleep(0.002)


# -- read from here -----------------------------------------------------------------------------------------------


def unified() -> Finding:
    """Is a cgroup2 tree mounted?"""
    root = unified_mount()
    if root is None:
        return missing("no cgroup2 tree is mounted")
    shape = "hybrid" if version_1_mount("memory") else "unified"
    return found(f"{shape}, at {root}")


def controllers() -> frozenset[str]:
    """Return the controllers that the unified tree holds."""
    root = unified_mount()
    return frozenset((root / "cgroup.controllers").read_text().split()) if root else frozenset()


def stray_controllers() -> Finding:
    """On a hybrid host, is the unified tree free of controllers? crun refuses to run while it holds any (hugetlb)."""
    if version_1_mount("memory") is None:
        return found("not a hybrid host")
    held = sorted(controllers())
    if not held:
        return found("the unified tree holds no controller")
    commands = "; ".join(f"mount -t cgroup -o {name} none /sys/fs/cgroup/{name}" for name in held)
    return missing(
        f"the unified tree holds {', '.join(held)}", f"a node run by root does it when it starts: {commands}"
    )


def favordynmods() -> Finding:
    """Is any hierarchy mounted with `favordynmods`, which keeps moving processes between cgroups fast?"""
    fast = [entry.target for entry in mount_table() if entry.kind in ("cgroup", "cgroup2") and _favors(entry)]
    return found(f"at {fast[0]}") if fast else missing("no hierarchy has it")


def _favors(entry: MountEntry) -> bool:
    return "favordynmods" in entry.options.split(",")


def pressure() -> Finding:
    """Does every cgroup tell its own pressure (PSI)?"""
    root = unified_mount()
    if root is None:
        return missing("no cgroup2 tree is mounted")
    files = [own_directory(root) / f"{name}.pressure" for name in ("cpu", "memory", "io")]
    absent = [path.name for path in files if not path.exists()]
    return missing(f"{', '.join(absent)} not there") if absent else found("cpu, memory and io")


def swap_accounting() -> Finding:
    """Can swap be bounded per cgroup?"""
    hierarchy = version_1_mount("memory")
    if hierarchy is not None:
        path = own_directory(hierarchy, controller="memory") / "memory.memsw.limit_in_bytes"
        return found("memory.memsw (v1)") if path.exists() else missing("memory.memsw is not there")
    if "memory" not in controllers():
        return missing("no memory controller")
    return found("memory.swap.max") if Path("/proc/swaps").exists() else missing("the kernel has no swap")


# -- trials: run by `dsec.linux.probe_trials` ----------------------------------------------------------------------


@contextmanager
def _trial_cgroup(root: Path, controller: str = "") -> Iterator[Path]:
    directory = own_directory(root, controller=controller) / trial_cgroup_name(os.getpid())
    directory.mkdir()
    try:
        yield directory
    finally:
        remove_directory(directory)


@contextmanager
def _sleeper() -> Iterator[int]:
    """A child that does nothing until it is killed."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    try:
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _wait_event(directory: Path, line: str) -> bool:
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        if line in (directory / "cgroup.events").read_text().splitlines():
            return True
        time.sleep(0.0005)
    return False


def _with_process(act: Callable[[Path, int], Finding]) -> Finding:
    root = unified_mount()
    if root is None:
        return missing("no cgroup2 tree is mounted")
    try:
        with _trial_cgroup(root) as directory, _sleeper() as pid:
            (directory / "cgroup.procs").write_text(str(pid))
            return act(directory, pid)
    except OSError as error:
        return refused(error, str(error.filename or root))


def try_writable(_: Path) -> Finding:
    """Make a cgroup and move a process into it."""
    return _with_process(lambda directory, _: found(f"below {directory.parent}"))


def try_kill(_: Path) -> Finding:
    """Kill a cgroup and wait until the kernel says that it is empty."""

    def kill(directory: Path, _: int) -> Finding:
        if not (directory / "cgroup.kill").exists():
            return missing("no cgroup.kill")
        (directory / "cgroup.kill").write_text("1")
        return found() if _wait_event(directory, "populated 0") else missing("the cgroup did not become empty")

    return _with_process(kill)


def try_freeze(_: Path) -> Finding:
    """Freeze a cgroup and thaw it."""

    def freeze(directory: Path, _: int) -> Finding:
        (directory / "cgroup.freeze").write_text("1")
        frozen = _wait_event(directory, "frozen 1")
        (directory / "cgroup.freeze").write_text("0")
        return found() if frozen else missing("the cgroup did not freeze")

    return _with_process(freeze)


def try_controller(name: str) -> Finding:
    """Bound something with the controller `name`, in version 1 where it has a hierarchy, else in version 2."""
    hierarchy = version_1_mount(name)
    if hierarchy is not None:
        return _try_version_1(hierarchy, name)
    root = unified_mount()
    if root is None or name not in controllers():
        return missing("no hierarchy has this controller")
    parent = own_directory(root)
    held = (parent / "cgroup.controllers").read_text().split()
    if name not in held:
        return missing(f"not delegated to {parent}", f"systemctl set-property user-{os.geteuid()}.slice Delegate=yes")
    # Switching a controller on for children would change the host, so its limits are tried only where it is on already.
    if name not in (parent / "cgroup.subtree_control").read_text().split():
        return found("v2 (not yet switched on; the node does it)")
    return _try_limit(root, name, LIMITS[name][0], "v2")


def _try_version_1(hierarchy: Path, name: str) -> Finding:
    return _try_limit(hierarchy, name, LIMITS[name][1], f"v1, at {hierarchy}", controller=name)


def _try_limit(root: Path, name: str, file: str, seen: str, *, controller: str = "") -> Finding:
    value = {"memory": str(64 << 20), "pids": "64", "cpu": "50000" if controller else "50000 100000"}[name]
    try:
        with _trial_cgroup(root, controller) as directory:
            (directory / file).write_text(value)
    except OSError as error:
        return refused(error, str(error.filename or root))
    return found(seen)
