"""The node's settings: one table for the file, the environment, the command line and `dsec config show`.

Each row of `SETTINGS` names a field of `NodeSettings` with its environment variable, unit and the reason for its
default; the defaults themselves stand in the struct, once.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.base.units import GIB, MIB, parse_duration, parse_size
from dsec.model.peer import parse_listen, parse_peers, parse_tracker
from dsec.model.value import Value


class NodeSettings(Value, frozen=True):
    """What can be set about a node.

    Attributes:
        state_dir: everything the node keeps; empty: see `default_state_dir`.
        store: URL of the object store that holds snapshots; empty: `store` in the state directory.
        peers: the nodes that sandboxes may move to, ``ID=URL`` separated by commas; this node's own entry is skipped.
        peer_token_file: file with the secret that nodes show each other; empty: `peer-token` in the state directory.
        runtime: OCI runtime program: its name, or its path.
        default_cpu_millis: processor time of a sandbox that asks for none, in thousandths of a core.
        default_memory_bytes: memory of a sandbox that asks for none.
        default_disk_bytes: writable layer of a sandbox that asks for none.
        default_pids: processes and threads of a sandbox that asks for none.
        default_open_files: open files of a process in a sandbox that asks for none.
        maximum_sandboxes: live sandboxes on this node.
        minimum_free_disk_bytes: below this much room nothing is created.
        minimum_free_memory_bytes: below this much available memory nothing is created.
        maximum_memory_some: share of the last 10 s in which some task waited for memory; above it nothing is created.
        maximum_memory_full: the same of all tasks.
        maximum_io_some: share in which some task waited for a read or write; 1: never refused for it.
        maximum_io_full: the same of all tasks.
        maximum_cpu_some: share in which some task waited for a processor; 1: never refused for it.
        maximum_pids: share of the host's processes above which nothing is created.
        pool_floor: ready sandboxes of a pool at least.
        pool_concurrency_share: ready sandboxes of a pool at least, as a share of those in use.
        pool_recycles_per_core: recycles of a pool in flight, for each core.
        pool_creations_per_core: creations of a pool in flight, for each core.
        maximum_events_bytes: size of the file of events, of which one older is kept.
        swap_bytes: size of the file that the memory of paused sandboxes goes to; 0: none, and pausing keeps it.
        release_timeout_s: longest time that one pause takes to give memory back; what is left then stays in memory.
        unwritten_bytes: what sandboxes wrote and may wait in memory before it goes to the volume, all of them together.
        maximum_checkpoints: checkpoints of one sandbox.
        maximum_exported_bytes: what hooks of one sandbox may export, all its checkpoints together.
        maximum_fork: children of one fork.
        balance_look_s: time between two looks whether sandboxes should move to peers that are less full; 0: none do.
        disk_full_look_s: time between two looks at sandboxes that are to be rolled back when their disk is full.
        prefetch_share: share of the bandwidth that goes into what was not asked for yet; 0: nothing is prefetched.
        bandwidth_bytes_s: bytes a second that layers can come with; 0: measured.
        trace_s: time for which what an image's first sandbox reads is kept as what its first use reads; 0: none is.
        layers_kept_s: time for which layers stay mounted that no sandbox uses any more.
        first_host_id: first host user id that sandboxes may use.
        maximum_command_timeout_s: longest timeout of a command, and the timeout of one that asks for none.
        maximum_output_limit_bytes: most output kept of one stream of one command.
        maximum_processes_kept: background processes remembered in one sandbox.
        maximum_sessions: open shell sessions in one sandbox.
        end_timeout_s: longest wait for the processes of a sandbox to be gone.
        rollback_timeout_s: longest rollback.
        migration_timeout_s: longest migration; after it the sandbox stays where it is.
        migration_lease_s: longest silence of a node that sends a sandbox; after it what was received is discarded.
        tracker: the node that says which peer has which chunk of a layer, ``ID=URL``; empty: no peer is asked.
        peer_listen: ``HOST:PORT`` at which this node gives chunks to its peers; empty: it gives none.
        peer_uploads: chunks that are sent to peers at a time.
        peer_upload_bytes_s: bytes that are sent to peers in a second, all together; 0: no bound.
        peer_shelf_bytes: stored chunks that are kept for peers, beside the cache.
        peer_patience_s: after so long with peers a chunk is taken from its origin.
        peer_stall_s: longest wait for the next bytes of a peer.
        peer_bandwidth_weight: of a tracker: how much the bandwidth of a peer counts when one is chosen.
        peer_load_weight: of a tracker: how much it counts that a peer has little to send.
    """

    state_dir: str = ""
    store: str = ""
    peers: str = ""
    peer_token_file: str = ""
    runtime: str = "crun"
    default_cpu_millis: int = 1000
    default_memory_bytes: int = 2 * GIB
    default_disk_bytes: int = 2 * GIB
    default_pids: int = 512
    default_open_files: int = 16_384
    maximum_sandboxes: int = 4096
    minimum_free_disk_bytes: int = 1 * GIB
    minimum_free_memory_bytes: int = 256 * MIB
    maximum_memory_some: float = 0.6
    maximum_memory_full: float = 0.3
    maximum_io_some: float = 1.0
    maximum_io_full: float = 0.9
    maximum_cpu_some: float = 1.0
    maximum_pids: float = 0.9
    pool_floor: int = 20
    pool_concurrency_share: float = 0.15
    pool_recycles_per_core: int = 2
    pool_creations_per_core: int = 2
    maximum_events_bytes: int = 16 * MIB
    swap_bytes: int = 16 * GIB
    release_timeout_s: float = 300.0
    unwritten_bytes: int = 64 * MIB
    maximum_checkpoints: int = 128
    maximum_exported_bytes: int = 256 * MIB
    maximum_fork: int = 1000
    balance_look_s: float = 0.0
    disk_full_look_s: float = 1.0
    prefetch_share: float = 0.3
    bandwidth_bytes_s: int = 0
    trace_s: float = 0.0
    layers_kept_s: float = 300.0
    first_host_id: int = 1 << 20
    maximum_command_timeout_s: float = 86_400.0
    maximum_output_limit_bytes: int = 64 * MIB
    maximum_processes_kept: int = 256
    maximum_sessions: int = 64
    end_timeout_s: float = 60.0
    rollback_timeout_s: float = 30.0
    migration_timeout_s: float = 3600.0
    migration_lease_s: float = 30.0
    tracker: str = ""
    peer_listen: str = ""
    peer_uploads: int = 4
    peer_upload_bytes_s: int = 64 * MIB
    peer_shelf_bytes: int = 1 * GIB
    peer_patience_s: float = 10.0
    peer_stall_s: float = 1.0
    peer_bandwidth_weight: float = 0.6
    peer_load_weight: float = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One row of the table: a field, where it can be set, and why its default is what it is."""

    name: str
    unit: str
    reason: str

    @property
    def variable(self) -> str:
        """Name of the environment variable."""
        return f"DSEC_{self.name.upper()}"

    @property
    def default(self) -> str | int | float:
        value: str | int | float = getattr(NodeSettings(), self.name)
        return value


_SHARE = "share, 0 to 1"


def _row(name: str, unit: str, reason: str) -> Setting:
    return Setting(name=name, unit=unit, reason=reason)


SETTINGS: tuple[Setting, ...] = (
    _row("state_dir", "path", "empty means /var/lib/dsec as root and ~/.local/share/dsec otherwise"),
    _row("store", "URL", "empty means the folder `store` in state_dir; nodes that exchange snapshots share one"),
    _row("peers", "ID=URL, ...", "no other node is trusted; one list may serve a whole fleet"),
    _row("peer_token_file", "path", "empty means the file `peer-token` in state_dir, the same on all nodes of a fleet"),
    _row("runtime", "name", "the fastest OCI runtime that was measured"),
    _row("default_cpu_millis", "1/1000 core", "one core: what a small agent task uses"),
    _row("default_memory_bytes", "bytes", "room for a test suite; a limit, not a reservation"),
    _row("default_disk_bytes", "bytes", "room for packages and build output of one task"),
    _row("default_pids", "processes", "more than a parallel build needs, far less than a fork bomb wants"),
    _row("default_open_files", "files", "what build tools expect; bounded, since each costs kernel memory"),
    _row("maximum_sandboxes", "sandboxes", "above the 3,200 that two cores and 24 GiB were shown to hold"),
    _row("minimum_free_disk_bytes", "bytes", "the journal and running sandboxes must be able to go on writing"),
    _row("minimum_free_memory_bytes", "bytes", "a creation on a host without memory kills somebody else's process"),
    _row("maximum_memory_some", _SHARE, "a host that often waits for memory has begun to reclaim what is in use"),
    _row(
        "maximum_memory_full", _SHARE, "when nothing runs for want of memory, one more makes all slower and none faster"
    ),
    _row("maximum_io_some", _SHARE, "some wait for the disk is normal: no bound"),
    _row("maximum_io_full", _SHARE, "when everything waits for the disk, a creation would time out"),
    _row("maximum_cpu_some", _SHARE, "waiting for a processor is the normal state of an overcommitted node: no bound"),
    _row("maximum_pids", _SHARE, "the node itself must be able to fork"),
    _row("pool_floor", "sandboxes", "the training report's floor"),
    _row("pool_concurrency_share", _SHARE, "the training report's share"),
    _row("pool_recycles_per_core", "recycles", "the training report's; more only queue for the processor"),
    _row("pool_creations_per_core", "creations", "as many as the container runtime starts side by side"),
    _row("maximum_events_bytes", "bytes", "about 100,000 events, hours of a busy node"),
    _row("swap_bytes", "bytes", "200 sandboxes of 64 MiB; made at the first pause, at most a quarter of the free disk"),
    _row("release_timeout_s", "seconds", "the default memory of a sandbox at a tenth of what a small disk writes"),
    _row("unwritten_bytes", "bytes", "a checkpoint of 1 GiB just written takes 16 to 40 ms, not 700; writing it 1.4x"),
    _row("maximum_checkpoints", "checkpoints", "one for each step of a long trajectory; each may hold a whole quota"),
    _row("maximum_exported_bytes", "bytes", "lies outside of the sandbox's own quota"),
    _row("maximum_fork", "sandboxes", "all come to be or none: the wider, the more is undone"),
    _row("balance_look_s", "seconds", "0: whether sandboxes may move by themselves is the operator's to say"),
    _row("disk_full_look_s", "seconds", "a look costs 0.1 ms for each sandbox that asked for it"),
    _row("prefetch_share", _SHARE, "the training report's; the rest is for what somebody waits for"),
    _row("bandwidth_bytes_s", "bytes", "0: a link is measured while something is fetched"),
    _row("trace_s", "seconds", "0: `dsec image trace` says more; ordinary use only tells which chunks it was"),
    _row("layers_kept_s", "seconds", "the next batch of tasks comes sooner, and a mount costs a tenth of a second"),
    _row("first_host_id", "user id", "above the ids of users and of the usual /etc/subuid ranges' beginning"),
    _row("maximum_command_timeout_s", "seconds", "every operation has a deadline; a day is the default lifetime"),
    _row("maximum_output_limit_bytes", "bytes", "kept output is held in the node's memory"),
    _row("maximum_processes_kept", "processes", "each keeps a buffer of its output"),
    _row("maximum_sessions", "sessions", "each is a process of ours to read from"),
    _row("end_timeout_s", "seconds", "the kernel ends processes in milliseconds; more means that it is stuck"),
    _row("rollback_timeout_s", "seconds", "as long as a creation may take"),
    _row("migration_timeout_s", "seconds", "2 GiB over a slow network; the sandbox runs on meanwhile"),
    _row("migration_lease_s", "seconds", "many times what a checkpoint under load takes between two rounds"),
    _row("tracker", "ID=URL", "empty: chunks come from their origins alone; any node of a fleet can be the tracker"),
    _row("peer_listen", "HOST:PORT", "empty: whether a host sends to others is its operator's to say"),
    _row("peer_uploads", "transfers", "more make each slower, and the first to end is what others wait for"),
    _row("peer_upload_bytes_s", "bytes", "half of a link of 1 Gbit/s: the other half is the sandboxes'"),
    _row("peer_shelf_bytes", "bytes", "the images of a burst, compressed; encoding one again takes 12 ms for 4 MiB"),
    _row("peer_patience_s", "seconds", "a chunk that comes through three peers at 10 Mbit/s each"),
    _row("peer_stall_s", "seconds", "many round trips of a network that works"),
    _row("peer_bandwidth_weight", _SHARE, "the training report's, found in the logs of its distribution"),
    _row("peer_load_weight", _SHARE, "the training report's; it weighs more where all links are alike"),
)


def default_state_dir(environment: Mapping[str, str] = os.environ) -> Path:
    """Return where a node keeps its state when nothing is set."""
    if os.geteuid() == 0:
        return Path("/var/lib/dsec")
    data = environment.get("XDG_DATA_HOME") or str(Path(environment.get("HOME", "/")) / ".local" / "share")
    return Path(data) / "dsec"


def secret_file(settings: NodeSettings) -> Path:
    """Return where the secret of a node's peers is; `settings.state_dir` is filled in."""
    return Path(settings.peer_token_file) if settings.peer_token_file else Path(settings.state_dir) / "peer-token"


def settings_from(values: Mapping[str, str]) -> NodeSettings:
    """Build settings from texts by field name; what is absent keeps its default.

    Raises:
        InvalidRequestError: a name is unknown or a text does not parse; names both.
    """
    known = {setting.name: setting for setting in SETTINGS}
    unknown = sorted(set(values) - set(known))
    if unknown:
        raise InvalidRequestError(f"there is no setting {unknown[0]!r}", resolution=f"known: {', '.join(known)}")
    parsed = {name: _parse(known[name], text) for name, text in values.items()}
    return msgspec.structs.replace(NodeSettings(), **parsed)


OTHER_VARIABLES = (
    "DSEC_URL",
    "DSEC_TOKEN",
    "DSEC_CONFIG",
    "DSEC_SEED",
    "DSEC_WORKER_URL",
    "DSEC_WORKER_TOKEN",
    "DSEC_WORKER_STATE_DIR",
)
"""Variables of ours that are no settings of a node."""
_OTHER_PREFIXES = ("DSEC_TEST_", "DSEC_CRASH_")
_ZERO_MEANS_SOMETHING = frozenset(
    {"swap_bytes", "balance_look_s", "bandwidth_bytes_s", "trace_s", "peer_upload_bytes_s"}
)
_ALIKE = 0.8
"""From here on a name is taken for a misspelling (difflib's ratio)."""


def unknown_variables(environment: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables ``DSEC_...`` that mean nothing to us, with the one that each was probably meant to be."""
    known = [*(row.variable for row in SETTINGS), *OTHER_VARIABLES]
    names = [name for name in environment if name.startswith("DSEC_") and not name.startswith(_OTHER_PREFIXES)]
    return {
        name: next(iter(get_close_matches(name, known, n=1, cutoff=_ALIKE)), None)
        for name in sorted(names)
        if name not in known
    }


def environment_values(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the texts that the environment sets, by field name.

    Raises:
        InvalidRequestError: a variable looks like one of ours and is misspelt: it would be a default in silence.
    """
    for name, meant in unknown_variables(environment).items():
        if meant is not None:
            raise InvalidRequestError(
                f"the environment sets {name}, which DSec does not know", resolution=f"did you mean {meant}?"
            )
    return {row.name: environment[row.variable] for row in SETTINGS if environment.get(row.variable)}


def _parse(setting: Setting, text: str) -> str | int | float:
    if setting.name == "peers":
        parse_peers(text)  # What is wrong is said where the list was written, not when a sandbox is to move.
    if setting.name == "tracker":
        parse_tracker(text)
    if setting.name == "peer_listen":
        parse_listen(text)
    if isinstance(setting.default, str):
        return text
    if setting.unit == _SHARE:
        return _share(setting, text)
    if setting.unit == "bytes":
        return _positive(setting, parse_size(text), text)
    if isinstance(setting.default, float):
        return _positive(setting, parse_duration(text), text)
    if not text.strip().isdigit():
        raise InvalidRequestError(f"{setting.name} must be a whole number, not {text!r}")
    return _positive(setting, int(text), text)


def _share(setting: Setting, text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise InvalidRequestError(f"{setting.name} must be a share from 0 to 1, or a percentage, not {text!r}")
    return share


def _positive(setting: Setting, value: float, text: str) -> float:
    zero_is_meant = setting.name.startswith("minimum_") or setting.name in _ZERO_MEANS_SOMETHING
    if value < 0 or (value == 0 and not zero_is_meant):
        raise InvalidRequestError(f"{setting.name} must be above zero, not {text!r}")
    return value
