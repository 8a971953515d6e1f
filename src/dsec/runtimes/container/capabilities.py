"""What this host lets a container runtime enforce."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from dsec.base.errors import CapabilityMissingError
from dsec.linux import core_scheduling
from dsec.model.capability import Capability, CapabilityReport
from dsec.runtimes.container.flavour import Flavour
from dsec.runtimes.container.groups import Groups
from dsec.runtimes.container.ungrouped import GET_GROUPS, NO_GROUPS

_T = TypeVar("_T")
_NO_CONTROLLER = "the {controller} controller is not in any hierarchy that this node may write"
_GET_CONTROLLER = "run as root, or have the controller delegated (systemd: Delegate=yes for the user's slice)"

_SHARED_IDS = "all sandboxes of an ordinary user's node share the user's subordinate ids"
_NEED_GROUPS = {
    Capability.MEMORY_LIMIT: "nothing bounds memory",
    Capability.SWAP_LIMIT: "nothing bounds swap",
    Capability.CPU_LIMIT: "nothing bounds processor time",
    Capability.BEST_EFFORT: "nothing makes processes wait for others",
    Capability.PIDS_LIMIT: "nothing bounds the number of processes",
    Capability.PRESSURE: "nobody counts",
    Capability.PAUSE: "nothing freezes all processes at once",
    Capability.PROCESS_TREE_KILL: "daemons of one command cannot be told from those of another, so that killing one"
    " command ends every process of its sandbox",
}

_ALWAYS = (
    Capability.USER_NAMESPACE,
    Capability.PRIVATE_ID_RANGE,
    Capability.SECCOMP,
    Capability.PAUSE,
    Capability.PROCESS_TREE_KILL,
    Capability.TERMINAL,
    Capability.FILES_FROM_OUTSIDE,
    Capability.NETWORK_NONE,
    Capability.POOLS,
)


def require(found: _T | None, what: str, resolution: str) -> _T:
    """Return what was found, or raise `CapabilityMissingError`: without it no sandbox can run."""
    if found is None:
        raise CapabilityMissingError(f"{what} is not on this host", resolution=resolution)
    return found


def report_capabilities(
    groups: Groups, flavour: Flavour, *, ordinary_user: bool = False
) -> tuple[CapabilityReport, ...]:
    """Return a report for every capability that a container runtime can have.

    Args:
        groups: the node's.
        flavour: the OCI runtime's.
        ordinary_user: whether the node is root in a user namespace only.
    """
    lacks = {capability: (reason, "") for capability, reason in flavour.missing}
    if flavour.own_kernel:
        lacks[Capability.POOLS] = ("a running instance's host name cannot be changed from outside", "use crun or runc")
    if ordinary_user:
        lacks[Capability.PRIVATE_ID_RANGE] = (_SHARED_IDS, "run as root, who may ID-map layers")
    if not groups.separates:
        lacks |= {capability: (f"{NO_GROUPS}: {why}", GET_GROUPS) for capability, why in _NEED_GROUPS.items()}
    return tuple(
        report if report.capability not in lacks else _missing(report.capability, *lacks[report.capability])
        for report in _reports(groups)
    )


def _reports(cgroups: Groups) -> Iterator[CapabilityReport]:
    for capability in _ALWAYS:
        yield CapabilityReport(capability=capability, available=True)
    controllers = cgroups.controllers()
    for capability, controller in (
        (Capability.MEMORY_LIMIT, "memory"),
        (Capability.CPU_LIMIT, "cpu"),
        (Capability.PIDS_LIMIT, "pids"),
    ):
        if controller in controllers:
            yield CapabilityReport(capability=capability, available=True, reason=f"cgroup {cgroups.mode.value}")
        else:
            yield _missing(capability, _NO_CONTROLLER.format(controller=controller), _GET_CONTROLLER)
    if cgroups.swap_is_accounted():
        yield CapabilityReport(capability=Capability.SWAP_LIMIT, available=True)
    elif "memory" not in controllers:
        yield _missing(Capability.SWAP_LIMIT, _NO_CONTROLLER.format(controller="memory"), _GET_CONTROLLER)
    else:
        yield _missing(Capability.SWAP_LIMIT, "the kernel does not account swap", "boot with swapaccount=1")
    if cgroups.path("cgroup.pressure").exists() or cgroups.path("cpu.pressure").exists():
        yield CapabilityReport(capability=Capability.PRESSURE, available=True)
    else:
        yield _missing(Capability.PRESSURE, "the kernel keeps no pressure figures", "boot with psi=1")
    yield from _processor_classes(cgroups)
    yield _missing(Capability.NETWORK_ALLOW, "this runtime gives sandboxes a loopback only", "")


def _processor_classes(cgroups: Groups) -> Iterator[CapabilityReport]:
    if "cpu" in cgroups.controllers():
        yield CapabilityReport(capability=Capability.BEST_EFFORT, available=True, reason="cpu.idle")
    else:
        yield _missing(Capability.BEST_EFFORT, _NO_CONTROLLER.format(controller="cpu"), _GET_CONTROLLER)
    absence = core_scheduling.missing_because()
    if absence:
        resolution = "boot a kernel with CONFIG_SCHED_CORE, or switch hyperthreads off"
        yield _missing(Capability.CORE_SCHEDULING, absence, resolution)
    else:
        yield CapabilityReport(capability=Capability.CORE_SCHEDULING, available=True)


def _missing(capability: Capability, reason: str, resolution: str) -> CapabilityReport:
    return CapabilityReport(capability=capability, available=False, reason=reason, resolution=resolution)
