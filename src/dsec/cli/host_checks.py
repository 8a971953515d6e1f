"""The table of what a host should have: each row says what it is needed for and how to get it.

The probes in `dsec.linux` only report; this table is where a report becomes advice. A row that an ordinary user can do
without has its own, lower need for them: their sandboxes are made by user namespaces alone and name what they lack.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dsec.linux import probe_cgroups, probe_kernel, probe_swap, probe_tools
from dsec.linux.probe import Finding, Probe, trial
from dsec.model.capability import Capability

_C = Capability
_PROBES_AT_ONCE = 4
"""Trials are processes that mostly wait for the kernel."""


class Need(enum.Enum):
    """How much depends on a row."""

    NEEDED = "needed"
    RECOMMENDED = "recommended"
    OPTIONAL = "optional"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One row.

    Attributes:
        name: stable name, as in `dsec doctor --json`.
        title: what is looked for.
        enables: what it is good for.
        resolution: how to get it; empty when a host either has it or not.
        need: for root.
        need_as_user: for an ordinary user; None: the same.
        probe: looks for it.
        capabilities: what requests may depend on when it is there.
    """

    name: str
    title: str
    enables: str
    resolution: str
    need: Need
    need_as_user: Need | None = None
    probe: Probe
    capabilities: tuple[Capability, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A row with what was found; `need` is that of the user who asked."""

    check: Check
    need: Need
    finding: Finding

    @property
    def resolution(self) -> str:
        """What to do about a thing that is missing; empty when it is there."""
        return "" if self.finding.present else self.finding.resolution or self.check.resolution


def _install(*packages: str) -> str:
    return f"apt-get install {' '.join(packages)}"


_DELEGATE = "run as root, or have the cgroup delegated (systemd-run --user --scope -p Delegate=yes)"
_CONTROLLER = "boot with cgroup_enable={0}; as an ordinary user have it delegated"
_CGROUP2 = "mount -t cgroup2 none /sys/fs/cgroup/unified, or boot with systemd.unified_cgroup_hierarchy=1"

_CGROUPS = (
    Check(
        name="cgroup_unified", title="unified cgroup tree", need=Need.NEEDED, need_as_user=Need.RECOMMENDED,
        resolution=_CGROUP2, enables="grouping, freezing and killing processes", probe=probe_cgroups.unified,
    ),
    Check(
        name="cgroup_writable", title="cgroups of our own", need=Need.NEEDED, need_as_user=Need.RECOMMENDED,
        resolution=_DELEGATE, enables="a cgroup for every sandbox and command", probe=partial(trial, "cgroup_writable"),
    ),
    Check(
        name="cgroup_kill", title="cgroup.kill", need=Need.NEEDED, need_as_user=Need.RECOMMENDED,
        resolution="Linux 5.14 or later, and cgroups of our own",
        enables="ending a whole process tree for sure", probe=partial(trial, "cgroup_kill"),
        capabilities=(_C.PROCESS_TREE_KILL,),
    ),
    Check(
        name="cgroup_freeze", title="cgroup.freeze", need=Need.RECOMMENDED,
        resolution="Linux 5.2 or later, and cgroups of our own",
        enables="pausing a sandbox", probe=partial(trial, "cgroup_freeze"), capabilities=(_C.PAUSE,),
    ),
    Check(
        name="cgroup_stray_controllers", title="no stray controllers (hybrid)", need=Need.RECOMMENDED,
        need_as_user=Need.NEEDED,
        resolution="a node run by root does it when it starts",
        enables="crun on hybrid hosts", probe=probe_cgroups.stray_controllers,
    ),
    Check(
        name="controller_memory", title="memory controller", need=Need.RECOMMENDED,
        resolution=_CONTROLLER.format("memory"), enables="memory limits",
        probe=partial(trial, "controller_memory"), capabilities=(_C.MEMORY_LIMIT,),
    ),
    Check(
        name="controller_pids", title="pids controller", need=Need.RECOMMENDED,
        resolution=_CONTROLLER.format("pids"), enables="surviving a fork bomb",
        probe=partial(trial, "controller_pids"), capabilities=(_C.PIDS_LIMIT,),
    ),
    Check(
        name="controller_cpu", title="cpu controller", need=Need.RECOMMENDED,
        resolution=_CONTROLLER.format("cpu"), enables="processor limits, best effort",
        probe=partial(trial, "controller_cpu"), capabilities=(_C.CPU_LIMIT, _C.BEST_EFFORT),
    ),
    Check(
        name="swap_accounting", title="swap accounting", need=Need.RECOMMENDED, resolution="boot with swapaccount=1",
        enables="swap limits", probe=probe_cgroups.swap_accounting, capabilities=(_C.SWAP_LIMIT,),
    ),
    Check(
        name="pressure_cgroup", title="pressure per cgroup (PSI)", need=Need.OPTIONAL,
        resolution="a kernel with CONFIG_PSI, booted with psi=1",
        enables="pressure in a sandbox's statistics", probe=probe_cgroups.pressure, capabilities=(_C.PRESSURE,),
    ),
    Check(
        name="pressure", title="pressure of the host (PSI)", need=Need.OPTIONAL,
        resolution="a kernel with CONFIG_PSI, booted with psi=1",
        enables="admission by how busy the host is", probe=probe_kernel.pressure,
    ),
    Check(
        name="favordynmods", title="favordynmods", need=Need.OPTIONAL,
        resolution="Linux 6.0 or later; a node run by root mounts a hierarchy that has it",
        enables="moving processes between cgroups in 2 ms instead of 15 ms (p95)",
        probe=probe_cgroups.favordynmods,
    ),
)  # fmt: skip


_ISOLATION = (
    Check(
        name="root", title="root", need=Need.NEEDED, need_as_user=Need.OPTIONAL,
        resolution="run the node as root, for example by a system service",
        enables="limits, disk quotas, private ids and EROFS layers", probe=probe_kernel.root,
    ),
    Check(
        name="user_namespace", title="user namespaces", need=Need.NEEDED,
        resolution="sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=100000",
        enables="root in a sandbox that is nobody outside", probe=partial(trial, "user_namespace"),
        capabilities=(_C.USER_NAMESPACE,),
    ),
    Check(
        name="user_namespace_limit", title="user namespaces allowed", need=Need.NEEDED,
        resolution="sysctl user.max_user_namespaces=100000",
        enables="one for every sandbox", probe=probe_kernel.user_namespace_limit,
    ),
    Check(
        name="network_namespace", title="network namespaces", need=Need.NEEDED,
        resolution="a kernel with CONFIG_NET_NS", enables="sandboxes with loopback only",
        probe=partial(trial, "network_namespace"), capabilities=(_C.NETWORK_NONE,),
    ),
    Check(
        name="subordinate_ids", title="ranges of user ids", need=Need.NEEDED,
        resolution=_install("uidmap"), enables="more than one user in a sandbox",
        probe=probe_tools.subordinate_ids,
    ),
    Check(
        name="seccomp", title="seccomp filters", need=Need.NEEDED, resolution="a kernel with CONFIG_SECCOMP_FILTER",
        enables="refusing dangerous system calls", probe=partial(trial, "seccomp"), capabilities=(_C.SECCOMP,),
    ),
    Check(
        name="seccomp_profile", title="seccomp profile", need=Need.NEEDED,
        resolution=_install("golang-github-containers-common"),
        enables="the maintained default list of system calls", probe=probe_tools.seccomp_profile,
        capabilities=(_C.SECCOMP,),
    ),
    Check(
        name="openat2", title="openat2", need=Need.NEEDED, resolution="Linux 5.6 or later",
        enables="file operations that no guest can mislead", probe=probe_kernel.openat2,
        capabilities=(_C.FILES_FROM_OUTSIDE,),
    ),
    Check(
        name="pidfd", title="process descriptors", need=Need.RECOMMENDED, resolution="Linux 5.3 or later",
        enables="waiting for an adopted process without polling", probe=probe_kernel.pidfd,
    ),
    Check(
        name="apparmor", title="AppArmor", need=Need.OPTIONAL, resolution="boot with lsm=...,apparmor",
        enables="a second wall around container sandboxes", probe=probe_kernel.apparmor,
    ),
    Check(
        name="landlock", title="Landlock", need=Need.OPTIONAL, resolution="Linux 5.13 or later, with lsm=landlock,...",
        enables="confining helper programs of the node", probe=probe_kernel.landlock,
    ),
    Check(
        name="core_scheduling", title="core scheduling", need=Need.OPTIONAL,
        resolution="a kernel with CONFIG_SCHED_CORE, or switch SMT off",
        enables="no two tenants on one core",
        probe=partial(trial, "core_scheduling"), capabilities=(_C.CORE_SCHEDULING,),
    ),
    Check(
        name="nftables", title="nftables", need=Need.OPTIONAL, resolution=_install("nftables"),
        enables="firewall rules per network namespace", probe=partial(trial, "nftables"),
    ),
    Check(
        name="kvm", title="/dev/kvm", need=Need.OPTIONAL, resolution="a host with hardware virtualisation",
        enables="virtual machine sandboxes at full speed", probe=probe_kernel.kvm,
    ),
)  # fmt: skip


_FILES = (
    Check(
        name="overlay", title="overlayfs", need=Need.NEEDED,
        resolution="modprobe overlay; Linux 5.11 or later for ordinary users",
        enables="many sandboxes on one image", probe=partial(trial, "overlay"),
    ),
    Check(
        name="overlay_detached", title="overlay of detached ID-mapped layers", need=Need.RECOMMENDED,
        need_as_user=Need.OPTIONAL, resolution="Linux 6.8 or later, as root (older kernels attach the layers first)",
        enables="creation without a chown, in 0.3 ms", probe=partial(trial, "overlay_detached"),
        capabilities=(_C.PRIVATE_ID_RANGE,),
    ),
    Check(
        name="erofs", title="EROFS", need=Need.RECOMMENDED, need_as_user=Need.OPTIONAL,
        resolution="a kernel with CONFIG_EROFS_FS (6.12 mounts files themselves), as root",
        enables="compact read-only layers", probe=partial(trial, "erofs"),
    ),
    Check(
        name="idmap_erofs", title="ID-mapped EROFS", need=Need.RECOMMENDED, need_as_user=Need.OPTIONAL,
        resolution="Linux 5.19 or later, as root", enables="private ids on image layers",
        probe=partial(trial, "idmap_erofs"), capabilities=(_C.PRIVATE_ID_RANGE,),
    ),
    Check(
        name="idmap_btrfs", title="ID-mapped btrfs", need=Need.RECOMMENDED, need_as_user=Need.OPTIONAL,
        resolution="Linux 5.15 or later, as root", enables="private ids on writable layers",
        probe=partial(trial, "idmap_btrfs"), capabilities=(_C.PRIVATE_ID_RANGE,),
    ),
    Check(
        name="btrfs", title="btrfs subvolumes", need=Need.RECOMMENDED, need_as_user=Need.OPTIONAL,
        resolution=f"a kernel with CONFIG_BTRFS_FS, as root; {_install('btrfs-progs')}",
        enables="rollback and checkpoints in constant time", probe=partial(trial, "btrfs"),
        capabilities=(_C.CONSTANT_TIME_ROLLBACK, _C.CHECKPOINT),
    ),
    Check(
        name="btrfs_quota", title="btrfs quotas", need=Need.RECOMMENDED, need_as_user=Need.OPTIONAL,
        resolution="Linux 6.7 or later for simple quotas, as root", enables="a disk limit for every sandbox",
        probe=partial(trial, "btrfs_quota"), capabilities=(_C.DISK_QUOTA,),
    ),
    Check(
        name="mkfs_btrfs", title="mkfs.btrfs", need=Need.RECOMMENDED, need_as_user=Need.OPTIONAL,
        resolution=_install("btrfs-progs"), enables="making the state volume",
        probe=partial(probe_tools.tool, "mkfs.btrfs"),
    ),
    Check(
        name="loop", title="loop devices", need=Need.RECOMMENDED, need_as_user=Need.OPTIONAL,
        resolution="modprobe loop, as root", enables="a state volume in a file", probe=partial(trial, "loop"),
    ),
    Check(
        name="fuse", title="FUSE", need=Need.OPTIONAL, resolution="modprobe fuse",
        enables="images that load as they are read", probe=partial(trial, "fuse"),
    ),
)  # fmt: skip


def _program(name: str, need: Need, package: str, enables: str, *, as_user: Need | None = None) -> Check:
    return Check(
        name=name.replace(".", "_"), title=name, need=need, need_as_user=as_user, resolution=_install(package),
        enables=enables, probe=partial(probe_tools.tool, name),
    )  # fmt: skip


_TOOLS = (
    Check(
        name="oci_runtime", title="an OCI runtime", need=Need.NEEDED, resolution=_install("crun"),
        enables="starting sandboxes and commands", probe=partial(probe_tools.oci_runtimes, ("crun", "runc", "runsc")),
    ),
    _program("crun", Need.RECOMMENDED, "crun", "the fast runtime, and the default", as_user=Need.NEEDED),
    _program("runc", Need.OPTIONAL, "runc", "an alternative runtime"),
    _program("runsc", Need.OPTIONAL, "runsc", "sandboxes whose system calls a second kernel serves (gVisor)"),
    Check(
        name="catatonit", title="catatonit", need=Need.NEEDED, resolution=_install("catatonit"),
        enables="a trusted init that only reaps", probe=probe_tools.catatonit,
    ),
    _program("mmdebstrap", Need.RECOMMENDED, "mmdebstrap", "building the default image"),
    _program("buildah", Need.OPTIONAL, "buildah", "building images from Dockerfiles"),
    _program("mkfs.erofs", Need.RECOMMENDED, "erofs-utils", "storing layers as EROFS", as_user=Need.OPTIONAL),
    _program("nsenter", Need.OPTIONAL, "util-linux", "ending sandboxes of ordinary users", as_user=Need.NEEDED),
)  # fmt: skip


def _size_checks(state_dir: Path) -> tuple[Check, ...]:
    return (
        Check(
            name="kernel", title="kernel", need=Need.OPTIONAL, resolution="",
            enables="everything", probe=probe_kernel.kernel,
        ),
        Check(
            name="processors", title="processors", need=Need.OPTIONAL, resolution="",
            enables="commands at the same time", probe=probe_kernel.processors,
        ),
        Check(
            name="memory", title="memory", need=Need.OPTIONAL, resolution="",
            enables="sandboxes at the same time", probe=probe_kernel.memory,
        ),
        Check(
            name="disk_space", title="room for state (1 GiB or more)", need=Need.NEEDED,
            resolution="free some, or choose another place with --state-dir",
            enables="images and writable layers", probe=partial(probe_kernel.disk_space, state_dir),
        ),
        Check(
            name="swap_file", title="a swap file in the state directory", need=Need.RECOMMENDED,
            need_as_user=Need.OPTIONAL,
            resolution="a state directory on ext4, XFS, or btrfs with its data on one device",
            enables="pauses that give memory back", probe=partial(probe_swap.swap_file, state_dir),
            capabilities=(_C.SWAP_FILE,),
        ),
        Check(
            name="swap", title="swap of the host", need=Need.OPTIONAL, resolution="swapon a file or a zram device",
            enables="more idle sandboxes than fit into memory", probe=probe_kernel.swap,
        ),
        Check(
            name="inotify", title="inotify limits", need=Need.OPTIONAL, resolution="raise fs.inotify.*",
            enables="watching files in many sandboxes", probe=partial(probe_kernel.inotify, 1024, 65_536),
        ),
        Check(
            name="open_files", title="open file limit (65,536 or more)", need=Need.RECOMMENDED,
            resolution="ulimit -n 1048576, or LimitNOFILE= of the service",
            enables="thousands of sandboxes on one node", probe=partial(probe_kernel.open_files, 65_536),
        ),
    )  # fmt: skip


def checks(state_dir: Path) -> tuple[Check, ...]:
    """Return the whole table, for a node that keeps its state in `state_dir`."""
    return (*_ISOLATION, *_CGROUPS, *_FILES, *_TOOLS, *_size_checks(state_dir))


def run_checks(table: Sequence[Check], *, as_root: bool) -> tuple[Result, ...]:
    """Run every probe, a few at a time, and return the results in the table's order."""
    with ThreadPoolExecutor(_PROBES_AT_ONCE) as pool:
        findings = list(pool.map(lambda check: check.probe(), table))
    return tuple(
        Result(check=check, need=_need(check, as_root=as_root), finding=finding)
        for check, finding in zip(table, findings, strict=True)
    )


def _need(check: Check, *, as_root: bool) -> Need:
    return check.need if as_root or check.need_as_user is None else check.need_as_user


def can_run(results: Sequence[Result]) -> bool:
    """Tell whether sandboxes can run here: everything needed is there."""
    return all(result.finding.present for result in results if result.need is Need.NEEDED)
