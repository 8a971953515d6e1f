"""What a sandbox is asked to be (`SandboxSpec`) and what it is (`SandboxInfo`)."""

from __future__ import annotations

import enum

from dsec.base.units import GIB, MIB
from dsec.model.value import Value


class SandboxState(enum.Enum):
    """The states of a sandbox; `dsec.lifecycle.machine` holds the transitions."""

    PENDING = "pending"
    CREATING = "creating"
    READY = "ready"
    PAUSED = "paused"
    ROLLING_BACK = "rolling_back"
    MIGRATING = "migrating"
    STOPPING = "stopping"
    STOPPED = "stopped"
    FAILED = "failed"


class Resources(Value, frozen=True):
    """Limits of one sandbox. `None` means the node's default, which `dsec config show` tells.

    A limit that the host cannot enforce is an error at create time when it was asked for, and is named among
    the node's missing capabilities when it is only a default.

    Attributes:
        cpu_millis: processor time, in thousandths of one core.
        memory_bytes: resident memory including page cache and tmpfs.
        swap_bytes: swap on top of memory.
        disk_bytes: bytes in the writable layer.
        pids: processes and threads.
        open_files: RLIMIT_NOFILE of every process.
    """

    cpu_millis: int | None = None
    memory_bytes: int | None = None
    swap_bytes: int | None = None
    disk_bytes: int | None = None
    pids: int | None = None
    open_files: int | None = None


DEFAULT_RESOURCES = Resources(
    cpu_millis=1000, memory_bytes=2 * GIB, swap_bytes=0, disk_bytes=2 * GIB, pids=512, open_files=16_384
)
"""2 GiB of writable layer is the seed's default quota; memory and processor are those of a small agent task."""

MINIMUM_MEMORY_BYTES = 8 * MIB
"""Below this the OCI runtime itself is killed inside the sandbox's memory group before the first command starts."""


class QosClass(enum.Enum):
    LATENCY_SENSITIVE = "latency_sensitive"
    BEST_EFFORT = "best_effort"


class ExpiryAction(enum.Enum):
    """What happens to a sandbox whose lifetime ended."""

    STOP = "stop"
    PAUSE = "pause"


class DiskFullAction(enum.Enum):
    """What happens when the writable layer has reached its quota."""

    ERROR = "error"
    """The guest's writes fail with EDQUOT, and it may make room."""
    ROLLBACK = "rollback"
    """The sandbox is rolled back to its clean state; its generation and its cause say so."""


class Lifetime(Value, frozen=True):
    """How long a sandbox lives.

    Attributes:
        idle_timeout_s: seconds without any operation before `on_expiry` happens; None: never. A running
            foreground command counts as activity; a background process does not.
        maximum_s: seconds after creation before `on_expiry` happens, whatever runs; None: never. A sandbox that
            reaches its maximum while paused is stopped.
        on_expiry: stop the sandbox or pause it.
    """

    idle_timeout_s: float | None = 3600.0
    maximum_s: float | None = 86_400.0
    on_expiry: ExpiryAction = ExpiryAction.STOP


class Network(Value, frozen=True):
    """What a sandbox may reach. Default deny: an empty policy is loopback only.

    Attributes:
        rules: names of mirrors, domains, or CIDR:port/protocol rules. Needs `Capability.NETWORK_ALLOW`.
    """

    rules: tuple[str, ...] = ()

    @classmethod
    def none(cls) -> Network:
        """Loopback only."""
        return cls()

    @classmethod
    def allow(cls, *rules: str) -> Network:
        """Allow these mirrors, domains or addresses and nothing else."""
        return cls(rules=rules)


class SandboxSpec(Value, frozen=True):
    """What to create.

    Attributes:
        image: name of the base image, such as ``python`` or ``my-env:v2``.
        layers: further images stacked on top of the base in order: workspace, then toolkits, each by its own name and
            version. Files are merged and the images' settings too (docs/images.md, "Environments of several images").
        resources: limits.
        qos: processor class.
        user: default user of commands and files; None: the image's own.
        env: added to the image's environment.
        workdir: default directory of commands; None: the image's own.
        hostname: None: the sandbox id.
        network: egress policy.
        lifetime: idle timeout, maximum, and what then.
        metadata: labels for listing and filtering (job, task, ...); at most 64 pairs of 1 KiB.
        seed: reaches the guest as ``DSEC_SEED`` and ``PYTHONHASHSEED``; None: not set. It fits in 64 bits.
        on_disk_full: what a full writable layer leads to.
    """

    image: str = "python"
    layers: tuple[str, ...] = ()
    resources: Resources = Resources()
    qos: QosClass = QosClass.LATENCY_SENSITIVE
    user: str | None = None
    env: dict[str, str] = {}
    workdir: str | None = None
    hostname: str | None = None
    network: Network = Network()
    lifetime: Lifetime = Lifetime()
    metadata: dict[str, str] = {}
    seed: int | None = None
    on_disk_full: DiskFullAction = DiskFullAction.ERROR


class WritableUsage(Value, frozen=True):
    """Bytes in the writable (copy-on-write) layer.

    Attributes:
        used_bytes: bytes this sandbox wrote and still holds.
        quota_bytes: its limit; None when the host enforces none.
        driver: the writable-layer driver, such as ``btrfs``.
    """

    used_bytes: int
    quota_bytes: int | None
    driver: str


class SandboxInfo(Value, frozen=True):
    """What a sandbox is now.

    Attributes:
        sandbox_id: its id.
        state: its state.
        spec: as requested, node defaults filled in.
        created_at_s: wall-clock seconds since the epoch.
        expires_in_s: seconds until the lifetime ends if nothing happens; None: never.
        generation: how often it was rolled back or moved; commands and processes belong to one generation.
        cause: why it failed or stopped; empty while it lives.
        node: id of its node.
        runtime: name of the runtime driver, such as ``crun``.
        parent: the sandbox it was forked from; empty: none.
        snapshot: the snapshot it was restored from; empty: none.
        paused_s: how long it was paused, all in all.
        stays_because: in the answer to a fork that was to be spread: why this child is not on a peer.
    """

    sandbox_id: str
    state: SandboxState
    spec: SandboxSpec
    created_at_s: float
    expires_in_s: float | None = None
    generation: int = 0
    cause: str = ""
    node: str = ""
    runtime: str = ""
    parent: str = ""
    snapshot: str = ""
    paused_s: float = 0.0
    stays_because: str = ""


class SandboxStats(Value, frozen=True):
    """A reading of what a sandbox uses. A figure the host cannot give is None.

    Attributes:
        cpu_s: processor seconds since creation or the last rollback.
        memory_bytes: resident now.
        memory_peak_bytes: highest so far.
        writable: the writable layer.
        processes: processes and threads now.
        cpu_pressure, memory_pressure, io_pressure: share of the last 10 s in which some process waited, 0 to 1.
        oom_kills: processes killed for memory.
        swap_bytes: what of its memory is in swap.
    """

    cpu_s: float | None = None
    memory_bytes: int | None = None
    memory_peak_bytes: int | None = None
    writable: WritableUsage | None = None
    processes: int | None = None
    cpu_pressure: float | None = None
    memory_pressure: float | None = None
    io_pressure: float | None = None
    oom_kills: int | None = None
    swap_bytes: int | None = None


class SandboxFilter(Value, frozen=True):
    """Which sandboxes to list: all conditions must hold.

    Attributes:
        metadata: pairs that the sandbox's metadata must contain.
        states: states to include; empty: all but `stopped`.
    """

    metadata: dict[str, str] = {}
    states: tuple[SandboxState, ...] = ()
