"""The system call filter: the maintained profile of containers/common, specialised for one host and tightened.

The profile file (``/usr/share/containers/seccomp.json``, from Debian's ``golang-github-containers-common`` or
``containers-common``) has rules that depend on the architecture and on granted capabilities. The OCI runtime wants them
decided; `specialise` does that. Four families that the profile leaves open are closed on top, because a guest
needs them only to widen the kernel's attack surface: making namespaces and mounts (a nested user namespace would hand
the guest every capability again), io_uring (its operations pass no filter), keyrings (kept by the kernel, past the
end of a process), and sockets of families other than those of `_FAMILIES` (a network namespace does not hold vsock:
through it a guest would reach the hypervisor and whatever listens there).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from dsec.base.errors import CapabilityMissingError

PROFILE_PATHS = (Path("/usr/share/containers/seccomp.json"), Path("/etc/containers/seccomp.json"))

_REMOVED = frozenset(
    """add_key clone clone3 fsconfig fsmount fsopen fspick io_uring_enter io_uring_register io_uring_setup keyctl mount
    mount_setattr move_mount open_tree pivot_root request_key setns socket umount umount2 unshare""".split()
)
_NAMESPACE_FLAGS = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET (clone(2) cannot make time namespaces)."""
_FAMILIES = {"unix": 1, "inet": 2, "inet6": 10, "packet": 17}
_NETLINK, _NETLINK_AUDIT = 16, 9
_EPERM = 1
_ENOSYS = 38


def _socket_rule(*arguments: tuple[int, int, str]) -> dict[str, Any]:
    """Allow socket(2) where each (index, value, operator) holds."""
    args = [{"index": index, "value": value, "op": f"SCMP_CMP_{operator}"} for index, value, operator in arguments]
    return {"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": args}


_CLOSED_RULES: tuple[dict[str, Any], ...] = (
    {
        "names": ["clone"],
        "action": "SCMP_ACT_ALLOW",
        "args": [{"index": 0, "value": _NAMESPACE_FLAGS, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}],
    },
    *(_socket_rule((0, family, "EQ")) for family in _FAMILIES.values()),
    _socket_rule((0, _NETLINK, "EQ"), (2, _NETLINK_AUDIT, "NE")),
    {"names": sorted(_REMOVED - {"clone", "clone3", "socket"}), "action": "SCMP_ACT_ERRNO", "errnoRet": _EPERM},
    # A filter cannot look into clone3's structure; with ENOSYS the C library falls back to clone.
    {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS},
)

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_NATIVE = {"amd64": "SCMP_ARCH_X86_64", "arm64": "SCMP_ARCH_AARCH64"}


def load_profile(paths: Collection[Path] = PROFILE_PATHS) -> dict[str, Any]:
    """Read the host's profile.

    Raises:
        CapabilityMissingError: no profile is installed; sandboxes do not start without one.
    """
    for path in paths:
        if path.is_file():
            profile: dict[str, Any] = json.loads(path.read_bytes())
            return profile
    raise CapabilityMissingError(
        "seccomp: no profile for the system call filter",
        detail=f"looked for {', '.join(map(str, paths))}",
        resolution="apt-get install golang-github-containers-common",
    )


def specialise(profile: Mapping[str, Any], machine: str, capabilities: Collection[str]) -> dict[str, Any]:
    """Return the OCI `linux.seccomp` object for one machine type and set of capabilities (pure)."""
    architecture = _ARCHITECTURES.get(machine, machine)
    rules = [
        rule for entry in profile["syscalls"] if _applies(entry, architecture, capabilities) if (rule := _rule(entry))
    ]
    return {
        "defaultAction": profile["defaultAction"],
        "defaultErrnoRet": profile.get("defaultErrnoRet", 1),
        "architectures": list(_runtime_architectures(profile, architecture)),
        "syscalls": [*rules, *_CLOSED_RULES],
    }


def _applies(entry: Mapping[str, Any], architecture: str, capabilities: Collection[str]) -> bool:
    includes, excludes = entry.get("includes") or {}, entry.get("excludes") or {}
    if includes.get("arches") and architecture not in includes["arches"]:
        return False
    if any(name not in capabilities for name in includes.get("caps", ())):
        return False
    if architecture in excludes.get("arches", ()):
        return False
    return not any(name in capabilities for name in excludes.get("caps", ()))


def _rule(entry: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the rule in OCI form without the names that are closed; None when nothing is left."""
    names = [name for name in entry["names"] if name not in _REMOVED]
    if not names:
        return None
    rule: dict[str, Any] = {"names": names, "action": entry["action"]}
    if entry.get("errnoRet") is not None:
        rule["errnoRet"] = entry["errnoRet"]
    if entry.get("args"):
        rule["args"] = entry["args"]
    return rule


def _runtime_architectures(profile: Mapping[str, Any], architecture: str) -> Iterator[str]:
    for entry in profile.get("archMap", ()):
        if entry["architecture"] == _NATIVE.get(architecture):
            yield entry["architecture"]
            yield from entry.get("subArchitectures") or ()
