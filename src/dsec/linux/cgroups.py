"""Control groups: limits, usage, freezing and killing, on pure v2 and on v1-hybrid hosts.

Linux offers two trees of interfaces (cgroups(7)). On a *unified* host everything is in one v2 tree. On a *hybrid* host
the controllers (memory, pids, cpu) live in v1 hierarchies, and a v2 tree without controllers stands beside them; it
still freezes, kills and tells when a group is empty, and that is what we use it for. A `Cgroups` hides the difference:
a group is a path below our own parent group, and exists in every tree that it needs.

Only a group itself carries limits. Its children (one for each command) exist in the v2 tree alone, so that a
command can be killed with everything it started: on v2 a group whose `cgroup.subtree_control` is empty may hold
both processes and children.

Source: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/ of the kernel.
"""

from __future__ import annotations

import enum
import os
import select
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dsec.linux.kernel_write import KernelWrites
from dsec.linux.mounts import mount_table

CONTROLLERS = ("memory", "pids", "cpu")
CPU_PERIOD_US = 100_000
HOST_SWAPPINESS = "/proc/sys/vm/swappiness"
_SWAPPINESS = 60
"""The kernel's default. Where the host's is 0, memory that is no copy of a file would stay; version 2 can be told
otherwise since Linux 6.9, and gives back caches alone before."""


class CgroupMode(enum.Enum):
    UNIFIED = "unified"
    HYBRID = "hybrid"


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupLimits:
    """Limits of a group; None is unlimited."""

    memory_bytes: int | None = None
    swap_bytes: int | None = None
    pids: int | None = None
    cpu_millis: int | None = None
    idle: bool = False
    """Run only when nothing else wants the processor (cpu.idle)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupUsage:
    """A reading; None where the host does not account it."""

    cpu_s: float | None = None
    memory_bytes: int | None = None
    memory_peak_bytes: int | None = None
    pids: int | None = None
    oom_kills: int | None = None
    pressure: dict[str, float] = field(default_factory=dict)
    """Share of the last 10 s in which some task waited, by resource."""


@dataclass(frozen=True, slots=True)
class CgroupMounts:
    """Where the trees are mounted."""

    mode: CgroupMode
    unified: Path
    v1: dict[str, Path]

    @classmethod
    def find(cls) -> CgroupMounts | None:
        """Read the mount table; None when the host has no v2 tree."""
        unified: Path | None = None
        v1: dict[str, Path] = {}
        for entry in mount_table():
            if entry.kind == "cgroup2" and unified is None:
                unified = Path(entry.target)
            elif entry.kind == "cgroup":
                for option in entry.options.split(","):
                    v1.setdefault(option, Path(entry.target))
        if unified is None:
            return None
        wanted = {name: v1[name] for name in CONTROLLERS if name in v1}
        mode = CgroupMode.HYBRID if wanted else CgroupMode.UNIFIED
        return cls(mode, unified, wanted)


def _write(path: Path | str, value: int | str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, str(value).encode())
    finally:
        os.close(descriptor)


def _read(path: Path | str) -> str | None:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def _number(path: Path | str) -> int | None:
    text = _read(path)
    return int(text) if text is not None and text.strip().isdigit() else None


def _keyed(path: Path | str) -> dict[str, int]:
    """Read a file of `key value` lines."""
    pairs = (line.split() for line in (_read(path) or "").splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].lstrip("-").isdigit()}


class Cgroups:
    """The groups below one parent group, such as ``dsec/7k2m9``."""

    separates = True
    """The processes of each child are known apart from those of the others."""

    def __init__(self, mounts: CgroupMounts, parent: str) -> None:
        self.mounts = mounts
        self.mode = mounts.mode
        self._unified = mounts.unified / parent
        self._v1 = {name: root / parent for name, root in mounts.v1.items()}

    def open(self) -> None:
        """Make the parent group in every tree and, on a unified host, hand the controllers down to it."""
        for root in self._roots():
            root.mkdir(parents=True, exist_ok=True)
        if self.mode is CgroupMode.UNIFIED:
            self._delegate()

    def _delegate(self) -> None:
        top = self.mounts.unified
        for group in (top, *reversed(self._unified.relative_to(top).parents), Path(self._unified.relative_to(top))):
            if group != Path("."):
                self._enable_controllers(top / group)

    @staticmethod
    def _enable_controllers(group: Path) -> None:
        available = (_read(group / "cgroup.controllers") or "").split()
        for name in CONTROLLERS:
            if name in available:
                try:
                    _write(group / "cgroup.subtree_control", f"+{name}")
                except OSError:
                    # Not ours to change (a delegated subtree): `controllers` then tells that it is missing.
                    continue

    def controllers(self) -> frozenset[str]:
        """Names of the controllers whose limits groups here can carry."""
        if self.mode is CgroupMode.HYBRID:
            return frozenset(name for name, root in self._v1.items() if os.access(root, os.W_OK))
        return frozenset(CONTROLLERS) & frozenset((_read(self._unified / "cgroup.subtree_control") or "").split())

    def swap_is_accounted(self) -> bool:
        """Whether swap can be limited."""
        if self.mode is CgroupMode.HYBRID:
            return "memory" in self._v1 and (self._v1["memory"] / "memory.memsw.limit_in_bytes").exists()
        return "memory" in self.controllers() and Path("/proc/swaps").exists()

    def _roots(self) -> Iterator[Path]:
        yield self._unified
        yield from self._v1.values()

    def path(self, group: str) -> Path:
        """The group's directory in the v2 tree."""
        return self._unified / group

    # -- making and limiting --------------------------------------------------------------------------------------

    def create(self, group: str, limits: CgroupLimits) -> None:
        """Make a group with its limits."""
        for root in self._roots():
            os.mkdir(root / group)
        self.limit(group, limits)

    def limit(self, group: str, limits: CgroupLimits) -> None:
        """Set every limit that is not None."""
        for path, value in self._settings(group, limits):
            _write(path, value)

    def _settings(self, group: str, limits: CgroupLimits) -> Iterator[tuple[Path, int | str]]:
        if self.mode is CgroupMode.UNIFIED:
            yield from self._settings_v2(self._unified / group, limits)
        else:
            yield from self._settings_v1(group, limits)

    @staticmethod
    def _settings_v2(group: Path, limits: CgroupLimits) -> Iterator[tuple[Path, int | str]]:
        if limits.memory_bytes is not None:
            yield group / "memory.max", limits.memory_bytes
        if limits.swap_bytes is not None:
            yield group / "memory.swap.max", limits.swap_bytes
        if limits.pids is not None:
            yield group / "pids.max", limits.pids
        if limits.cpu_millis is not None:
            yield group / "cpu.max", f"{limits.cpu_millis * CPU_PERIOD_US // 1000} {CPU_PERIOD_US}"
        if limits.idle:
            yield group / "cpu.idle", 1

    def _settings_v1(self, group: str, limits: CgroupLimits) -> Iterator[tuple[Path, int | str]]:
        if limits.memory_bytes is not None:
            yield from self._memory_v1(self._v1["memory"] / group, limits.memory_bytes, limits.swap_bytes)
        if limits.pids is not None:
            yield self._v1["pids"] / group / "pids.max", limits.pids
        if limits.cpu_millis is not None:
            cpu = self._v1["cpu"] / group
            # The period is the kernel's default. Each of these files makes it look at all groups of the host.
            yield cpu / "cpu.cfs_quota_us", limits.cpu_millis * CPU_PERIOD_US // 1000
        if limits.idle:
            yield self._v1["cpu"] / group / "cpu.idle", 1

    def _memory_v1(self, group: Path, memory_bytes: int, swap_bytes: int | None) -> Iterator[tuple[Path, int]]:
        """Memory alone may never be more than memory and swap: raised, the latter goes first; lowered, the former."""
        memory, both = group / "memory.limit_in_bytes", group / "memory.memsw.limit_in_bytes"
        steps = [(memory, memory_bytes)]
        if swap_bytes is not None and self.swap_is_accounted():
            raised = memory_bytes > (_number(both) or 0)
            steps.insert(0 if raised else 1, (both, memory_bytes + swap_bytes))
        yield from steps

    def create_child(self, group: str, child: str) -> None:
        """Make a child group that only counts and kills."""
        os.mkdir(self._unified / group / child)

    def attach(self, pid: int, group: str, child: str | None = None) -> None:
        """Move a process, which must not have threads elsewhere yet, into a group (and one of its children)."""
        for root in self._v1.values():
            _write(f"{root}/{group}/cgroup.procs", pid)
        _write(f"{self._unified}/{group}/{child or '.'}/cgroup.procs", pid)

    # -- reading --------------------------------------------------------------------------------------------------

    def names(self) -> frozenset[str]:
        """Names of the groups that exist in any tree."""
        found: set[str] = set()
        for root in self._roots():
            if root.is_dir():
                found.update(entry.name for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False))
        return frozenset(found)

    def children(self, group: str) -> tuple[str, ...]:
        """Names of a group's children."""
        try:
            return tuple(entry.name for entry in os.scandir(self._unified / group) if entry.is_dir())
        except FileNotFoundError:
            return ()

    def contains(self, pid: int, group: str) -> bool:
        """Whether a process is in this group's v2 directory or below it."""
        inside = "/" + str((self._unified / group).relative_to(self.mounts.unified))
        for line in (_read(f"/proc/{pid}/cgroup") or "").splitlines():
            if line.startswith("0::"):
                where = line[3:]
                return where == inside or where.startswith(inside + "/")
        return False

    def usage(self, group: str) -> CgroupUsage:
        """Read what a group uses."""
        v2 = self._unified / group
        cpu = _keyed(v2 / "cpu.stat").get("usage_usec")
        readings = {name: _pressure(v2 / f"{name}.pressure") for name in ("cpu", "memory", "io")}
        if self.mode is CgroupMode.UNIFIED:
            memory, peak = v2 / "memory.current", v2 / "memory.peak"
            events = v2 / "memory.events"
        else:
            v1 = {name: root / group for name, root in self._v1.items()}
            none = Path("/nonexistent")
            memory = v1.get("memory", none) / "memory.usage_in_bytes"
            peak = v1.get("memory", none) / "memory.max_usage_in_bytes"
            events = v1.get("memory", none) / "memory.oom_control"
        return CgroupUsage(
            cpu_s=None if cpu is None else cpu / 1e6,
            memory_bytes=_number(memory),
            memory_peak_bytes=_number(peak),
            pids=self.processes(group),
            oom_kills=_keyed(events).get("oom_kill"),
            pressure={name: value for name, value in readings.items() if value is not None},
        )

    def processes(self, group: str) -> int | None:
        """How many processes and threads are in a group; None where nobody counts."""
        if self.mode is CgroupMode.UNIFIED:
            return _number(self._unified / group / "pids.current")
        return _number(self._v1.get("pids", Path("/nonexistent")) / group / "pids.current")

    def unreaped(self, group: str) -> int:
        """How many processes of a group have ended and still count, until their parent asks for their status; 0 where
        nobody counts.
        """
        counted = self.processes(group)
        if counted is None:
            return 0
        threads = (_read(self._unified / group / child / "cgroup.threads") for child in (".", *self.children(group)))
        return max(0, counted - sum(len((text or "").split()) for text in threads))

    def oom_kills(self, group: str) -> int:
        """How many processes of the group the kernel killed for memory; 0 where it does not count."""
        if self.mode is CgroupMode.UNIFIED:
            return _keyed(self._unified / group / "memory.events").get("oom_kill", 0)
        if "memory" not in self._v1:
            return 0
        return _keyed(self._v1["memory"] / group / "memory.oom_control").get("oom_kill", 0)

    def process_limit_hits(self, group: str) -> int:
        """How often a fork failed because the group held as many processes as it may."""
        root = self._unified if self.mode is CgroupMode.UNIFIED else self._v1.get("pids", self._unified)
        return _keyed(root / group / "pids.events").get("max", 0)

    def is_full(self, group: str) -> bool:
        """Whether the group holds as many processes as it may."""
        root = (self._unified if self.mode is CgroupMode.UNIFIED else self._v1.get("pids", self._unified)) / group
        current, limit = _number(root / "pids.current"), _number(root / "pids.max")
        return current is not None and limit is not None and current >= limit

    def is_populated(self, group: str, child: str | None = None) -> bool:
        """Whether any process is in the group or below it; False when the group does not exist."""
        return "populated 1" in (_read(self._events(group, child)) or "")

    def _events(self, group: str, child: str | None) -> str:
        return f"{self._unified}/{group}/{child or '.'}/cgroup.events"

    def watch_events(self, group: str, child: str | None = None) -> EventsWatch | None:
        """Watch for changes of `populated` and `frozen`; None if the group is gone.

        Read `is_populated` or `is_frozen` only after this call, or a change between the two is missed.
        """
        try:
            return EventsWatch(self._events(group, child))
        except FileNotFoundError:
            return None

    # -- giving memory back ---------------------------------------------------------------------------------------

    def release_memory(self, group: str, writes: KernelWrites) -> int:
        """Write the memory of a frozen group to swap and drop what files have cached; return the bytes given back.

        Blocks while the pages are written, seconds for a GiB, or until `writes` is ended. Gives back what there is room
        for in swap, and little more than caches where there is none; 0 where memory is not accounted. Version 1 counts
        memory and swap under one limit, which swapping leaves as full as it was. Version 2 counts swap apart, so its
        limit is raised for the time of the call; a group may keep more swap than a limit that is lowered afterwards
        (cgroup-v2.rst).
        """
        before = self._charged(group)
        if before is None:
            return 0
        if self.mode is CgroupMode.UNIFIED:
            self._reclaim_v2(self._unified / group, before, writes)
        else:
            self._reclaim_v1(self._v1["memory"] / group, writes)
        return max(0, before - (self._charged(group) or 0))

    @staticmethod
    def _reclaim_v1(group: Path, writes: KernelWrites) -> None:
        # A host whose vm.swappiness is 0 gives that to its groups, and then nothing of them would go to swap.
        unwilling = _number(group / "memory.swappiness") == 0
        if unwilling:
            _write(group / "memory.swappiness", _SWAPPINESS)
        try:
            writes.write(group / "memory.force_empty", 0)
        finally:
            if unwilling:
                _write(group / "memory.swappiness", 0)

    @staticmethod
    def _reclaim_v2(group: Path, size_bytes: int, writes: KernelWrites) -> None:
        limit = _number(group / "memory.swap.max")  # None: "max", or swap is not accounted.
        needed = (_number(group / "memory.swap.current") or 0) + size_bytes
        raised = limit is not None and limit < needed
        if raised:
            _write(group / "memory.swap.max", needed)
        try:
            # EAGAIN, less than all was given back, is usual: the charge tells how much it was.
            unwilling = _number(HOST_SWAPPINESS) == 0
            if not (unwilling and writes.write(group / "memory.reclaim", f"{size_bytes} swappiness={_SWAPPINESS}")):
                writes.write(group / "memory.reclaim", size_bytes)
        finally:
            if raised:
                _write(group / "memory.swap.max", f"{limit}\n")

    def swappable_bytes(self, group: str) -> int | None:
        """Return how much room in swap a group's memory needs: what is no copy of a file, without what has its place in
        swap already. None where the host does not account it, or offers no way to ask for it back."""
        if self.mode is CgroupMode.UNIFIED:
            root, anonymous, way = self._unified / group, "anon", "memory.reclaim"
        elif "memory" in self._v1:
            root, anonymous, way = self._v1["memory"] / group, "rss", "memory.force_empty"
        else:
            return None
        counted = _keyed(root / "memory.stat")
        if anonymous not in counted or not os.access(root / way, os.W_OK):
            return None
        return max(0, counted[anonymous] + counted.get("shmem", 0) - counted.get("swapcached", 0))

    def _charged(self, group: str) -> int | None:
        if self.mode is CgroupMode.UNIFIED:
            return _number(self._unified / group / "memory.current")
        return _number(self._v1["memory"] / group / "memory.usage_in_bytes") if "memory" in self._v1 else None

    def swapped_bytes(self, group: str) -> int | None:
        """Return how much of a group's memory is in swap; None where the host does not account it."""
        if self.mode is CgroupMode.UNIFIED:
            return _number(self._unified / group / "memory.swap.current")
        return _keyed(self._v1["memory"] / group / "memory.stat").get("swap") if "memory" in self._v1 else None

    def process_ids(self, group: str, maximum: int) -> tuple[int, ...]:
        """Return the first ids of the processes in a group and its children."""
        found: list[int] = []
        for child in (".", *self.children(group)):
            text = _read(self._unified / group / child / "cgroup.procs") or ""
            found.extend(int(line) for line in text.split()[: maximum - len(found)])
        return tuple(found)

    # -- ending ---------------------------------------------------------------------------------------------------

    def freeze(self, group: str, *, frozen: bool) -> None:
        """Freeze or thaw every process of a group; `cgroup.events` tells when it is done."""
        _write(self._unified / group / "cgroup.freeze", int(frozen))

    def is_frozen(self, group: str) -> bool:
        """Whether every process of the group is frozen now."""
        return "frozen 1" in (_read(self._unified / group / "cgroup.events") or "")

    def kill(self, group: str, child: str | None = None) -> None:
        """Kill every process in the group and below it. No error when the group is gone."""
        try:
            _write(f"{self._unified}/{group}/{child or '.'}/cgroup.kill", 1)
        except FileNotFoundError:
            return

    def remove_child(self, group: str, child: str) -> bool:
        """Remove an empty child group; return whether it is gone."""
        return _rmdir(self._unified / group / child)

    def remove(self, group: str) -> bool:
        """Remove an empty group and its children from every tree; return whether all of it is gone."""
        for child in self.children(group):
            _rmdir(self._unified / group / child)
        gone = [_rmdir(root / group) for root in self._roots()]
        return all(gone)


class EventsWatch:
    """Watches one cgroup.events file. kernfs announces a change as EPOLLPRI, which event loops do not ask for; an epoll
    descriptor that asks for it is itself readable then."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._epoll = select.epoll()
        self._epoll.register(self._file, select.EPOLLPRI)
        os.read(self._file, 4096)  # Arms the notification: changes count from the last read.

    def fileno(self) -> int:
        """A descriptor that is readable once something changed."""
        return self._epoll.fileno()

    def close(self) -> None:
        """End the watch."""
        self._epoll.close()
        os.close(self._file)


def _rmdir(path: Path) -> bool:
    try:
        os.rmdir(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _pressure(path: Path) -> float | None:
    """Return the share of the last 10 s from a PSI file's `some` line."""
    for line in (_read(path) or "").splitlines():
        if line.startswith("some avg10="):
            return float(line.split()[1].removeprefix("avg10=")) / 100
    return None
