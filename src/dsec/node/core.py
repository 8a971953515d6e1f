"""What the node's operations share: its parts, its sandboxes, and the two ways in which a sandbox's state changes.

The rule of the journal: a state that announces an effect is written before the effect, and the state after it once the
effect is complete. Memory follows the journal, so that nobody is told of what a `kill -9` could take back.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec

from dsec.base.errors import NodeUnavailableError, RuntimeFailedError
from dsec.lifecycle.machine import Event, next_state
from dsec.model.capability import Capability, CapabilityReport
from dsec.model.event import EventKind
from dsec.model.sandbox import SandboxInfo
from dsec.node.admission import NodeAdmission, refusal_error
from dsec.node.image_mounts import ImageMounts
from dsec.node.parts import NodeParts
from dsec.node.pools.recorder import Recorder
from dsec.node.prefetch import NodePrefetches
from dsec.node.registry import Registry
from dsec.node.sandbox import Generation, Sandbox, instance_of
from dsec.node.slots import SLOT_SIZE, HostIdSlots
from dsec.node.state.clean_states import CleanStates
from dsec.node.state.durable import Durable
from dsec.node.state.saved_layers import SavedLayers
from dsec.node.supervisor import Supervisor
from dsec.node.validation import Reports, merged_reports
from dsec.runtimes.port import Instance, LaunchRequest
from dsec.stores.port import REMEMBERED_IDS, CheckpointRecord, MigrationRecord, SandboxRecord

if TYPE_CHECKING:
    from dsec.node.pools.pools import Pools

SEED_FILE = "/dev/dsec-seed"
"""Holds the seed in decimal and a newline, in sandboxes that have one. It is the guest's to change, as the variables
are; each rollback writes it anew."""
_HOST_IDS_END = 1 << 32
_TRANSFERS_AT_ONCE = 16
"""Each holds a thread that mostly waits for the other side."""
_FREEZES_AT_ONCE = 8
"""Freezing is a few writes to control groups and a wait for the kernel; more only queue for a processor."""
_RELEASES_AT_ONCE = 2
_READINGS_AT_ONCE = 4
"""They use one disk; more only take processors from those that run, and threads from everybody."""


class Core:
    """The node's inner state.

    Attributes:
        vacant: what belongs to a pool and nobody has, by carrier.
        pools: the pools, once the node has recovered.
        saved: frozen layers, and who needs them.
        removed_checkpoints: whose checkpoint an id was that is removed.
        clean_states: what clean sandboxes look like.
        durable: the snapshots of the node's store.
        migrations: what the journal says of each, on either side, by id.
        sends, receipts: bound the threads through which layers are sent, and received. Two, since each send of one node
            waits for a receipt of another, which must not wait for a send.
        admission, recorder: who says whether one more is taken, and who keeps events.
        mounts: mount images, each once.
        prefetches: bring what sandboxes will read of their images.
        freezes, releases, readings: bound how many sandboxes at the same time are frozen, give their memory back, or
            read it back.
    """

    def __init__(self, parts: NodeParts, supervisor: Supervisor, durable: Durable | None = None) -> None:
        self.parts = parts
        self.settings = parts.settings
        self.supervisor = supervisor
        self.registry = Registry(parts.node_id)
        first = parts.settings.first_host_id
        self.slots = HostIdSlots(first, count=(_HOST_IDS_END - first) // SLOT_SIZE)
        self.reports: Reports = {}
        self.closing = False
        self.vacant: dict[str, Sandbox] = {}
        self.pools: Pools | None = None
        self.saved = SavedLayers(parts.layers, parts.exports)
        self.removed_checkpoints: OrderedDict[str, str] = OrderedDict()
        self.admission = NodeAdmission(parts.settings, parts.host, parts.clock)
        self.recorder = Recorder(parts.clock, parts.events_file, parts.settings.maximum_events_bytes)
        self.clean_states = CleanStates(parts)
        self.durable = durable or Durable(parts)
        self.prefetches = NodePrefetches(self)
        self.mounts = ImageMounts(self)
        self.migrations: OrderedDict[str, MigrationRecord] = OrderedDict()
        self.sends = anyio.CapacityLimiter(_TRANSFERS_AT_ONCE)
        self.receipts = anyio.CapacityLimiter(_TRANSFERS_AT_ONCE)
        self.freezes = anyio.CapacityLimiter(_FREEZES_AT_ONCE)
        self.releases = anyio.CapacityLimiter(_RELEASES_AT_ONCE)
        self.readings = anyio.CapacityLimiter(_READINGS_AT_ONCE)

    def read_capabilities(self) -> None:
        self.reports = merged_reports(self.parts.runtime.capabilities(), self.parts.layers.capabilities())
        self.reports[Capability.SWAP_FILE] = self._swap_report()

    def _swap_report(self) -> CapabilityReport:
        """Say whether paused sandboxes can give their memory back."""
        accounted = self.reports.get(Capability.MEMORY_LIMIT)
        if self.parts.swap is not None and accounted is not None and accounted.available:
            return self.parts.swap.report()
        reason = "this node has no swap" if self.parts.swap is None else "the memory of sandboxes is not accounted"
        return CapabilityReport(
            capability=Capability.SWAP_FILE,
            available=False,
            reason=reason,
            resolution="run the node as root, with control groups that account memory",
        )

    def now_boot_s(self) -> float:
        return self.parts.clock.boot_s()

    def check_open(self) -> None:
        if self.closing:
            raise NodeUnavailableError("the node is shutting down", resolution="try again when it is back")

    def remember_removed_checkpoint(self, record: CheckpointRecord) -> None:
        self.removed_checkpoints[record.checkpoint_id] = record.sandbox_id
        if len(self.removed_checkpoints) > REMEMBERED_IDS:
            self.removed_checkpoints.popitem(last=False)

    def admit(self, *, count: int = 1, for_pool: bool = False) -> None:
        """Raise the reason why no more sandboxes are taken now; pools then give up what they can.

        Args:
            count: how many are to be taken, all or none.
            for_pool: it is to stand ready; nothing that stands ready is given up for it.
        """
        refusal = self.admission.refusal(len(self.slots) + count - 1)
        if refusal is None:
            return
        self.recorder.add(EventKind.REFUSED, text=refusal.brief)
        if self.pools is not None and not for_pool:
            self.pools.shrink(refusal.brief)
        raise refusal_error(refusal)

    @contextmanager
    def activity(self, sandbox: Sandbox) -> Iterator[None]:
        """Count an operation: the sandbox is not idle while it runs, and idle from its end."""
        sandbox.active += 1
        try:
            yield
        finally:
            sandbox.active -= 1
            sandbox.idle_since_boot_s = self.now_boot_s()

    def info(self, sandbox: Sandbox) -> SandboxInfo:
        return sandbox.info(
            node=self.parts.node_id, runtime=self.parts.runtime.name, now_boot_s=self.parts.clock.boot_s()
        )

    async def move(self, sandbox: Sandbox, event: Event, **changes: object) -> None:
        """Let `event` happen: the journal first, then memory. The caller holds `sandbox.transition`."""
        state = next_state(sandbox.record.state, event, sandbox_id=sandbox.sandbox_id)
        record = msgspec.structs.replace(sandbox.record, state=state, **changes)
        await self.parts.journal.put_sandbox(record)
        sandbox.record = record

    async def put(self, sandbox: Sandbox, **changes: object) -> None:
        """Change what the journal says without a change of state. The caller holds `sandbox.transition`."""
        record = msgspec.structs.replace(sandbox.record, **changes)
        await self.parts.journal.put_sandbox(record)
        sandbox.record = record

    async def launch(self, record: SandboxRecord) -> Generation:
        """Launch the instance that `record` describes; its writable layer exists."""
        layer = self.parts.layers.get(record.layer)
        if layer is None:
            raise RuntimeFailedError(f"the writable layer {record.layer} is gone")
        instance = await self.parts.runtime.launch(
            LaunchRequest(
                instance_id=instance_of(record),
                layer_paths=tuple(map(Path, record.layer_paths)),
                upper=layer.upper,
                work=layer.work,
                # The quota is the writable layer's own: the runtime has nothing to enforce there.
                resources=msgspec.structs.replace(record.spec.resources, disk_bytes=None),
                qos=record.spec.qos,
                hostname=record.spec.hostname or record.sandbox_id,
                first_host_id=self.slots.first_host_id(record.slot),
            )
        )
        try:
            await write_seed(instance, record)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await instance.terminate()
            raise
        return Generation(record, instance)


async def write_seed(instance: Instance, record: SandboxRecord) -> None:
    """Put the seed where programs find it that are started without our environment: on a file system in memory, so that
    the writable layer stays empty."""
    if record.spec.seed is None:
        return
    await instance.files.put(SEED_FILE, f"{record.spec.seed}\n".encode(), permissions=0o444)


@contextmanager
def shielded(seconds: float, what: str) -> Iterator[None]:
    """Let the block finish although its caller was cancelled, for at most `seconds`.

    Raises:
        RuntimeFailedError: it took longer.
    """
    with anyio.CancelScope(shield=True, deadline=anyio.current_time() + seconds) as scope:
        yield
    if scope.cancelled_caught:
        raise RuntimeFailedError(
            f"{what} took longer than {seconds:.0f} s", resolution="look at the host's kernel log for stuck processes"
        )
