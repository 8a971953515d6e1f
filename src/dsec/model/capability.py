"""Capabilities: what a host and backend can enforce. Requests are matched against them and fail closed."""

from __future__ import annotations

import enum

from dsec.model.value import Value


class Capability(enum.Enum):
    """One thing that a request may depend on. The value is its stable name on the wire and in `dsec doctor`."""

    MEMORY_LIMIT = "memory_limit"
    SWAP_LIMIT = "swap_limit"
    CPU_LIMIT = "cpu_limit"
    PIDS_LIMIT = "pids_limit"
    DISK_QUOTA = "disk_quota"
    USER_NAMESPACE = "user_namespace"
    PRIVATE_ID_RANGE = "private_id_range"  # Each sandbox has 65,536 host ids of its own.
    SECCOMP = "seccomp"
    PAUSE = "pause"
    SWAP_FILE = "swap_file"  # A paused sandbox can give its memory back.
    PROCESS_TREE_KILL = "process_tree_kill"
    CONSTANT_TIME_ROLLBACK = "constant_time_rollback"
    CHECKPOINT = "checkpoint"
    PRESSURE = "pressure"  # PSI per sandbox.
    TERMINAL = "terminal"
    FILES_FROM_OUTSIDE = "files_from_outside"
    NETWORK_NONE = "network_none"
    NETWORK_ALLOW = "network_allow"
    BEST_EFFORT = "best_effort"  # A sandbox that runs only when nothing else wants the processor (cpu.idle).
    POOLS = "pools"  # A ready sandbox can be given another host name from outside.
    CORE_SCHEDULING = "core_scheduling"  # The kernel could keep strangers off a core's second thread.


LIMIT_CAPABILITIES = {
    "cpu_millis": Capability.CPU_LIMIT,
    "memory_bytes": Capability.MEMORY_LIMIT,
    "swap_bytes": Capability.SWAP_LIMIT,
    "disk_bytes": Capability.DISK_QUOTA,
    "pids": Capability.PIDS_LIMIT,
}
"""What each field of `dsec.model.sandbox.Resources` depends on."""


class CapabilityReport(Value, frozen=True):
    """Whether one capability is there.

    Attributes:
        capability: the capability's stable name.
        available: whether requests may depend on it.
        reason: what was found, or why it is missing.
        resolution: how to get it; empty when available.
    """

    capability: Capability
    available: bool
    reason: str = ""
    resolution: str = ""
