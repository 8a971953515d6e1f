"""Probes of kernel interfaces other than mounts and cgroups, and of the sizes and limits of the host."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import shutil
import signal
import struct
import subprocess
from pathlib import Path

from dsec.linux import syscalls
from dsec.linux.probe import Finding, found, missing, refused

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_RESOLVE_IN_ROOT = 0x10
_SYS_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_CREATE_RULESET_VERSION = 1
_PR_SET_NO_NEW_PRIVS = 38
_PR_SCHED_CORE = 62
_PR_SCHED_CORE_CREATE = 1
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_KVM_GET_API_VERSION = 0xAE00
_CAP_SYS_ADMIN = 21
_CAP_SYS_RESOURCE = 24


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf8", errors="replace").strip()
    except OSError:
        return None


def kernel() -> Finding:
    """Which kernel is this?"""
    system = os.uname()
    return found(f"{system.sysname} {system.release} {system.machine}")


def root() -> Finding:
    """Is this user root, with the right to mount?"""
    if os.geteuid():
        return missing(f"user id {os.geteuid()}")
    return found("root") if _has_capability(_CAP_SYS_ADMIN) else missing("root without CAP_SYS_ADMIN")


def user_namespace_limit() -> Finding:
    """How many user namespaces may exist?"""
    limit = _read("/proc/sys/user/max_user_namespaces")
    if limit is None:
        return missing("the kernel has no user namespaces")
    if limit == "0":
        return missing("the limit is 0", "sysctl user.max_user_namespaces=100000")
    return found(limit)


def openat2() -> Finding:
    """Does openat2(2) resolve a path inside a root?"""
    root = os.open("/", os.O_PATH | os.O_CLOEXEC)
    how = struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_IN_ROOT)
    try:
        os.close(syscalls.call(syscalls.SYS_OPENAT2, root, b"../..", how, len(how)))
    except OSError as error:
        return refused(error)
    finally:
        os.close(root)
    return found()


def pidfd() -> Finding:
    """Can a process be held and signalled by descriptor?"""
    try:
        descriptor = os.pidfd_open(os.getpid())
    except OSError as error:
        return refused(error)
    try:
        signal.pidfd_send_signal(descriptor, signal.Signals.SIGCONT)
    except OSError as error:
        return refused(error)
    finally:
        os.close(descriptor)
    return found()


def landlock() -> Finding:
    """Which Landlock ABI does the kernel speak?"""
    try:
        version = syscalls.call(_SYS_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_CREATE_RULESET_VERSION)
    except OSError as error:
        return refused(error)
    return found(f"ABI {version}")


def kvm() -> Finding:
    """Does /dev/kvm open and answer? (Whether a guest boots is another question.)"""
    import fcntl

    try:
        with open("/dev/kvm", "r+b", buffering=0) as device:
            version = fcntl.ioctl(device, _KVM_GET_API_VERSION)
    except PermissionError as error:
        return missing(f"/dev/kvm: {error.strerror}", "add the user to the group kvm")
    except OSError as error:
        return refused(error, "/dev/kvm")
    return found(f"opens, API {version}; whether a guest boots was not tried")


def apparmor() -> Finding:
    """Is AppArmor enabled?"""
    enabled = _read("/sys/module/apparmor/parameters/enabled")
    return found("enabled") if enabled == "Y" else missing("not in this kernel" if enabled is None else "disabled")


def pressure() -> Finding:
    """Does the kernel tell system-wide pressure (PSI)?"""
    try:
        Path("/proc/pressure/memory").read_text()
    except OSError as error:
        return refused(error, "/proc/pressure/memory")
    return found("/proc/pressure")


def swap() -> Finding:
    """Is there any swap?"""
    total = _meminfo().get("SwapTotal", 0)
    return found(f"{total >> 20} MiB") if total else missing("no swap is on")


def _meminfo() -> dict[str, int]:
    lines = (_read("/proc/meminfo") or "").splitlines()
    pairs = (line.split(":") for line in lines)
    return {name: int(rest.split()[0]) * 1024 for name, rest in pairs if rest.strip().endswith("kB")}


def memory() -> Finding:
    """How much memory does the host have?"""
    sizes = _meminfo()
    return found(f"{sizes.get('MemTotal', 0) >> 20} MiB, {sizes.get('MemAvailable', 0) >> 20} MiB available")


def processors() -> Finding:
    """On how many processors may we run?"""
    return found(str(len(os.sched_getaffinity(0))))


def disk_space(directory: Path) -> Finding:
    """How much room does the file system of `directory` (or of its nearest parent that exists) have?"""
    place = next(path for path in (directory, *directory.parents) if path.exists())
    usage = shutil.disk_usage(place)
    seen = f"{usage.free >> 20} MiB free of {usage.total >> 20} MiB at {place}"
    return found(seen) if usage.free > 1 << 30 else missing(seen)


def inotify(wanted_instances: int, wanted_watches: int) -> Finding:
    """Are inotify's limits per user at least these?"""
    limits = {
        "max_user_instances": wanted_instances,
        "max_user_watches": wanted_watches,
    }
    values = {name: int(_read(f"/proc/sys/fs/inotify/{name}") or 0) for name in limits}
    seen = f"{values['max_user_instances']} instances, {values['max_user_watches']} watches"
    low = [f"fs.inotify.{name}={limit}" for name, limit in limits.items() if values[name] < limit]
    return missing(seen, "sysctl " + " ".join(low)) if low else found(seen)


def open_files(wanted: int) -> Finding:
    """May this process, or one that it gives a higher limit, open at least this many files?"""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= wanted:
        return found(str(hard))
    if _has_capability(_CAP_SYS_RESOURCE) and int(_read("/proc/sys/fs/nr_open") or 0) >= wanted:
        return found(f"{hard}, and can be raised")
    return missing(f"{hard}, and cannot be raised without CAP_SYS_RESOURCE")


def _has_capability(number: int) -> bool:
    lines = (_read("/proc/self/status") or "").splitlines()
    effective = next((line.split()[1] for line in lines if line.startswith("CapEff:")), "0")
    return bool(int(effective, 16) >> number & 1)


# -- trials: run by `dsec.linux.probe_trials` ----------------------------------------------------------------------


def try_user_namespace(_: Path) -> Finding:
    """Make a user namespace and become root in it."""
    uid, gid = os.geteuid(), os.getegid()
    syscalls.libc_call("unshare", _CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {uid} 1\n")
    Path("/proc/self/gid_map").write_text(f"0 {gid} 1\n")
    return found()


def try_network_namespace(scratch: Path) -> Finding:
    """Make a network namespace (in a user namespace, as an ordinary user must)."""
    if os.geteuid():
        try_user_namespace(scratch)
    syscalls.libc_call("unshare", _CLONE_NEWNET)
    return found()


def try_seccomp(_: Path) -> Finding:
    """Install a filter that refuses one system call, and see it refused."""
    allow, refuse = 0x7FFF0000, 0x00050000 | errno.ENOTTY
    load, jump_if_equal, give = 0x20, 0x15, 0x06
    getppid = {"x86_64": 110, "aarch64": 173}.get(os.uname().machine)
    if getppid is None:
        return missing(f"system call numbers of {os.uname().machine} are not known")
    program = (
        struct.pack("=HBBI", load, 0, 0, 0)
        + struct.pack("=HBBI", jump_if_equal, 0, 1, getppid)
        + struct.pack("=HBBI", give, 0, 0, refuse)
        + struct.pack("=HBBI", give, 0, 0, allow)
    )
    code = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("@HP", 4, ctypes.addressof(code))
    syscalls.libc_call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    syscalls.libc_call("prctl", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, header, 0, 0)
    try:
        syscalls.call(getppid)
    except OSError as error:
        return found("filters") if error.errno == errno.ENOTTY else refused(error)
    return missing("the filter was installed and had no effect")


def try_core_scheduling(_: Path) -> Finding:
    """Ask for a core-scheduling cookie of our own."""
    try:
        syscalls.libc_call("prctl", _PR_SCHED_CORE, _PR_SCHED_CORE_CREATE, 0, 0, 0)
    except OSError as error:
        siblings = _read("/sys/devices/system/cpu/smt/active")
        if siblings == "0":
            return missing(f"{error.strerror}; not needed, as no core has a second thread")
        return refused(error)
    return found()


def try_nftables(_: Path) -> Finding:
    """Load a rule into a network namespace of our own."""
    program = shutil.which("nft") or shutil.which("nft", path="/usr/sbin:/sbin")
    if program is None:
        return missing("nft is not installed")
    syscalls.libc_call("unshare", _CLONE_NEWNET)
    rules = b"add table inet probe\nadd chain inet probe out { type filter hook output priority 0; policy drop; }\n"
    subprocess.run([program, "-f", "-"], input=rules, check=True, capture_output=True, timeout=5)
    return found()
