"""OCI documents: the runtime configuration of an instance and the process document of a command. Pure.

Source: OCI runtime specification 1.0.2 (config.md, config-linux.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dsec.linux.userns import IDS_PER_RANGE
from dsec.model.process import TerminalSize

INIT_PATH = "/dev/.init"
"""Where the init program is bound: on the tmpfs at /dev, so that the sandbox's own files show no trace of it."""

CAPABILITIES = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_NET_RAW",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
)
"""What root has inside, within its user namespace only: Docker's default set without MKNOD and AUDIT_WRITE, which do
nothing in a user namespace."""

OOM_SCORE_ADJUSTMENT = 500
"""When the host itself runs out of memory, guests go before anything else."""

MASKED_PATHS = (
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/kpagecgroup",
    "/proc/kpagecount",
    "/proc/kpageflags",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
    "/sys/fs/btrfs",
    "/sys/fs/erofs",
    "/sys/kernel/debug",
)
_READONLY_PATHS = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")

_NO_RIGHTS = ("nosuid", "noexec", "nodev")


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleRequest:
    """What the runtime configuration of an instance depends on.

    Attributes:
        rootfs: absolute path of the mounted root.
        hostname: host name inside.
        init: host path of the init program.
        first_host_id: first of the host ids.
        open_files: RLIMIT_NOFILE, or None for the runtime's own.
        seccomp: an OCI seccomp object, or None when `seccomp_program` is given.
        seccomp_program: a compiled filter (base64) that crun takes as it is.
        cgroups_path: for runtimes that must manage cgroups themselves.
        id_map: first id inside, first host id and length of each piece; None: one piece from `first_host_id` on.
        user_namespace: path of the user namespace to enter, which has that map; None: the runtime makes one.
        masks: those of `MASKED_PATHS` in whose place a directory of the host is mounted, with that directory.
    """

    rootfs: str
    hostname: str
    init: str
    first_host_id: int
    open_files: int | None
    seccomp: Mapping[str, Any] | None
    seccomp_program: str | None = None
    cgroups_path: str | None = None
    id_map: Sequence[tuple[int, int, int]] | None = None
    user_namespace: str | None = None
    masks: Mapping[str, str] = field(default_factory=dict)


def runtime_config(request: BundleRequest) -> dict[str, Any]:
    """Return config.json."""
    linux: dict[str, Any] = {
        "namespaces": _namespaces(request.user_namespace),
        "uidMappings": _id_map(request),
        "gidMappings": _id_map(request),
        "maskedPaths": [path for path in MASKED_PATHS if path not in request.masks],
        "readonlyPaths": list(_READONLY_PATHS),
    }
    if request.seccomp is not None:
        linux["seccomp"] = request.seccomp
    if request.cgroups_path is not None:
        linux["cgroupsPath"] = request.cgroups_path
    config: dict[str, Any] = {
        "ociVersion": "1.0.2",
        "process": {
            "args": [INIT_PATH, "-P"],
            "cwd": "/",
            "env": [],
            "user": {"uid": 0, "gid": 0},
            "noNewPrivileges": True,
            "oomScoreAdj": OOM_SCORE_ADJUSTMENT,
            # The init needs nothing; commands get their own set.
            "capabilities": _capability_sets(CAPABILITIES, granted=()),
            "rlimits": _rlimits(request.open_files),
        },
        "root": {"path": request.rootfs, "readonly": False},
        "hostname": request.hostname,
        "mounts": [*_mounts(request.init), *_masks(request)],
        "linux": linux,
    }
    if request.seccomp_program is not None:
        config["annotations"] = {"run.oci.seccomp_bpf_data": request.seccomp_program}
    return config


def _namespaces(user_namespace: str | None) -> list[dict[str, str]]:
    new = [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount", "cgroup")]
    return [*new, {"type": "user"} if user_namespace is None else {"type": "user", "path": user_namespace}]


def _id_map(request: BundleRequest) -> list[dict[str, int]]:
    pieces = request.id_map or ((0, request.first_host_id, IDS_PER_RANGE),)
    return [{"containerID": inside, "hostID": host, "size": size} for inside, host, size in pieces]


def _mounts(init: str) -> list[dict[str, Any]]:
    def entry(destination: str, kind: str, options: Sequence[str]) -> dict[str, Any]:
        return {"destination": destination, "type": kind, "source": kind, "options": list(options)}

    return [
        entry("/proc", "proc", _NO_RIGHTS),
        entry("/dev", "tmpfs", ("nosuid", "strictatime", "mode=755", "size=1m")),
        entry("/dev/pts", "devpts", ("nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5")),
        entry("/dev/shm", "tmpfs", (*_NO_RIGHTS, "mode=1777", "size=64m")),
        entry("/dev/mqueue", "mqueue", _NO_RIGHTS),
        entry("/sys", "sysfs", (*_NO_RIGHTS, "ro")),
        {"destination": INIT_PATH, "type": "bind", "source": init, "options": ["bind", "ro", "nosuid", "nodev"]},
    ]


def _masks(request: BundleRequest) -> list[dict[str, Any]]:
    options = ["bind", "ro", *_NO_RIGHTS]
    return [
        {"destination": path, "type": "bind", "source": source, "options": options}
        for path, source in request.masks.items()
    ]


def _rlimits(open_files: int | None) -> list[dict[str, Any]]:
    limits: list[dict[str, Any]] = [{"type": "RLIMIT_CORE", "soft": 0, "hard": 0}]
    if open_files is not None:
        limits.append({"type": "RLIMIT_NOFILE", "soft": open_files, "hard": open_files})
    return limits


def _capability_sets(bounding: Sequence[str], granted: Sequence[str]) -> dict[str, list[str]]:
    return {
        "bounding": list(bounding),
        "permitted": list(granted),
        "effective": list(granted),
        "inheritable": [],
        "ambient": [],
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """Numeric user of a command inside."""

    uid: int
    gid: int
    groups: tuple[int, ...] = ()


def process_document(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    identity: ProcessIdentity,
    *,
    open_files: int | None,
    terminal: TerminalSize | None = None,
) -> dict[str, Any]:
    """Return the document that `exec --process` reads."""
    granted = CAPABILITIES if identity.uid == 0 else ()
    document: dict[str, Any] = {
        "args": list(argv),
        "env": [f"{name}={value}" for name, value in env.items()],
        "cwd": cwd,
        "user": {"uid": identity.uid, "gid": identity.gid, "additionalGids": list(identity.groups)},
        "noNewPrivileges": True,
        "oomScoreAdj": OOM_SCORE_ADJUSTMENT,
        "capabilities": _capability_sets(CAPABILITIES, granted),
        "rlimits": _rlimits(open_files),
        "terminal": terminal is not None,
    }
    if terminal is not None:
        document["consoleSize"] = {"width": terminal.columns, "height": terminal.rows}
    return document
