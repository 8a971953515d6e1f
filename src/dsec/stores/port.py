"""The port of the journal: what a node promised, in a form that survives its death.

Contract of every driver:

- A write that returned survives `kill -9` of the process. Writes become visible in the order in which they were asked
  for.
- Cancelling a write does not take it back.
- `load` is read once, at the start, and returns what the last writes left.
- What cannot be understood raises `StateCorruptedError`, and nothing is changed then.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from dsec.lifecycle.migration import SourcePhase, TargetPhase
from dsec.model.image import ImageConfig
from dsec.model.pool import PoolPolicy
from dsec.model.process import ExitStatus
from dsec.model.sandbox import SandboxSpec, SandboxState
from dsec.model.value import Value

REMEMBERED_IDS = 65_536
"""Ids of deleted sandboxes, and of removed checkpoints, that a journal remembers, so that removing twice is removing
once, also after a restart; and migrations that are over, so that nothing that comes late brings one back."""


class Tenancy(enum.Enum):
    """Who has an instance. Only what is `CLEAN` may be given to somebody."""

    OCCUPIED = "occupied"
    """It is a sandbox that was asked for."""
    CLEAN = "clean"
    """It belongs to a pool; nothing was ever run in this generation, and it passed its clean check."""
    USED = "used"
    """It belongs to a pool and was given back; nobody has made it clean yet."""


class SandboxRecord(Value, frozen=True):
    """One sandbox as the journal knows it (docs/formats/journal.md).

    Attributes:
        sandbox_id: its id.
        state: its state; a state that ends in "ing" says that an effect may be half done.
        requested: the spec as the caller sent it; what an idempotent create compares.
        spec: the spec with the node's defaults.
        image_config: settings of the image at creation.
        layer_paths: read-only layers from the lowest up; kept, since an image's name may move.
        generation: number of the instance; while rolling back that of the old one.
        slot: number of its range of host ids.
        layer: name of the writable layer; while rolling back that of the old one.
        rollback_to: layer name of the checkpoint that a rollback under way begins from; None: its clean state.
        created_wall_s: when, for people.
        boot_id: the boot in which the deadline below means something.
        deadline_boot_s: end of the maximum lifetime in boot time; None: never.
        cause: why it failed or stopped.
        cause_code: code of the error that operations on a failed sandbox raise.
        carrier: what its instances and layers are named after, when it came from a pool: the name stays while sandboxes
            with ids of their own come and go; empty: its own id.
        first_generation: generation in which it was given to its present owner.
        pool: the pool that it belongs to; empty: none.
        tenancy: who has it.
        current: the checkpoint from which its present state began; None: its clean state.
        origin: the checkpoint's layer that is its clean state, for one that did not begin empty; empty: nothing.
        parent: the sandbox it was forked from; empty: none.
        forked_from: the parent's checkpoint that it began from; empty: the state that the parent was in then.
        snapshot: the durable snapshot it was restored from; empty: none.
        paused_boot_s: when it was paused, in boot time; means something while it is.
        paused_s: how long it was paused before, all in all.
        keeps_memory: it was paused without giving its memory back, as asked.
    """

    sandbox_id: str
    state: SandboxState
    requested: SandboxSpec
    spec: SandboxSpec
    image_config: ImageConfig = ImageConfig()
    layer_paths: tuple[str, ...] = ()
    generation: int = 0
    slot: int = 0
    layer: str = ""
    rollback_to: str | None = None
    created_wall_s: float = 0.0
    boot_id: str = ""
    deadline_boot_s: float | None = None
    cause: str = ""
    cause_code: str = ""
    carrier: str = ""
    first_generation: int = 0
    pool: str = ""
    tenancy: Tenancy = Tenancy.OCCUPIED
    current: str | None = None
    origin: str = ""
    parent: str = ""
    forked_from: str = ""
    snapshot: str = ""
    paused_boot_s: float | None = None
    paused_s: float = 0.0
    keeps_memory: bool = False


class CheckpointRecord(Value, frozen=True):
    """One checkpoint as the journal knows it (docs/formats/journal.md). `parent` makes a tree of those of a sandbox.

    Attributes:
        checkpoint_id: its public id.
        sandbox_id: whose it is.
        layer: name of the frozen layer, and of what its hook exported.
        name: its owner's own name for it; empty: none.
        parent: the checkpoint from which the saved state began; None: the sandbox's clean state.
        generation: of the sandbox's instance in which it was made.
        created_wall_s: when, for people.
        frozen_s: how long processes stood still for it.
        written_bytes: what the writable layer had used.
        exported_bytes: of what the hook exported; None: none ran.
        saved: False announces it: whether the layer is whole is not known.
        snapshot: id of the durable snapshot that it became; empty: none. It is the base of the next one's difference.
        automatic: it was made for a snapshot, and goes when the next one has taken its place.
    """

    checkpoint_id: str
    sandbox_id: str
    layer: str
    name: str = ""
    parent: str | None = None
    generation: int = 0
    created_wall_s: float = 0.0
    frozen_s: float = 0.0
    written_bytes: int = 0
    exported_bytes: int | None = None
    saved: bool = False
    snapshot: str = ""
    automatic: bool = False


class MigrationRecord(Value, frozen=True):
    """One migration as one of its two sides knows it (docs/formats/migration.md). Given up, it has none.

    Attributes:
        migration_id: ``mig-...``.
        sandbox_id: what moves.
        source: phase, on the source's node; None on the target's.
        target: phase, on the target's node; None on the source's.
        peer: id of the other node.
        url: where clients reach the other node, for the source to tell them; empty: not known.
        paused: it was paused when it began to move, and stays so wherever it is.
        began_wall_s: when, for people.
    """

    migration_id: str
    sandbox_id: str
    source: SourcePhase | None = None
    target: TargetPhase | None = None
    peer: str = ""
    url: str = ""
    paused: bool = False
    began_wall_s: float = 0.0

    @property
    def is_over(self) -> bool:
        """Whether it is only remembered."""
        return self.source is SourcePhase.MOVED or self.target is TargetPhase.DONE


class PoolRecord(Value, frozen=True):
    """A pool that somebody set.

    Attributes:
        pool_id: its name.
        spec: what its sandboxes are made as.
        policy: what is set about it.
    """

    pool_id: str
    spec: SandboxSpec
    policy: PoolPolicy


class ProcessRecord(Value, frozen=True):
    """One background process as the journal knows it.

    Attributes:
        sandbox_id, process_id: whose it is, and its id.
        generation: the generation it belongs to.
        argv: what was run; undecodable bytes replaced.
        started_wall_s: when, for people.
        deadline_boot_s: when its tree is killed, in boot time without the time in which its sandbox was paused (all of
            `SandboxRecord.paused_s`); None: never.
        output_limit_bytes: kept per stream.
        status: how it ended, once that was seen.
    """

    sandbox_id: str
    process_id: str
    generation: int
    argv: tuple[str, ...]
    started_wall_s: float
    deadline_boot_s: float | None
    output_limit_bytes: int
    status: ExitStatus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalContent:
    """Everything that a journal holds.

    Attributes:
        sandboxes, processes: the records.
        removed: ids that were deleted, the oldest first; at most `REMEMBERED_IDS`.
        pools: the pools.
        checkpoints: of all sandboxes, also those that were only announced.
        removed_checkpoints: id and sandbox of those that were removed, the oldest first; at most `REMEMBERED_IDS`.
        migrations: under way, and remembered, those that began first before others; of the latter about
            `REMEMBERED_IDS`.
    """

    sandboxes: tuple[SandboxRecord, ...]
    processes: tuple[ProcessRecord, ...]
    removed: tuple[str, ...] = ()
    pools: tuple[PoolRecord, ...] = ()
    checkpoints: tuple[CheckpointRecord, ...] = ()
    removed_checkpoints: tuple[tuple[str, str], ...] = ()
    migrations: tuple[MigrationRecord, ...] = ()


class Journal(Protocol):
    """The journal of one node."""

    def load(self) -> JournalContent:
        """Read everything. Blocks; called once at the start."""

    async def put_sandbox(self, record: SandboxRecord) -> None:
        """Write a sandbox, replacing what had its id."""

    async def exchange(
        self,
        *records: SandboxRecord,
        erased: str | None = None,
        checkpoints: Sequence[CheckpointRecord] = (),
        dropped: Sequence[CheckpointRecord] = (),
        migrations: Sequence[MigrationRecord] = (),
        given_up: Sequence[MigrationRecord] = (),
    ) -> None:
        """Write sandboxes, checkpoints and migrations and forget others, all or nothing.

        Args:
            records: sandboxes to write.
            erased: a sandbox to forget whose id is not remembered: it was nobody's.
            checkpoints: to write.
            dropped: checkpoints to forget, but for their ids.
            migrations: to write.
            given_up: migrations to forget.
        """

    async def delete_sandbox(self, sandbox_id: str) -> None:
        """Forget a sandbox with its processes and checkpoints, but for the ids. Idempotent."""

    async def put_process(self, record: ProcessRecord) -> None:
        """Write a background process, replacing what had its ids."""

    async def delete_processes(self, sandbox_id: str) -> None:
        """Forget the processes of a sandbox. Idempotent."""

    async def put_pool(self, record: PoolRecord) -> None:
        """Write a pool, replacing what had its id."""

    async def delete_pool(self, pool_id: str) -> None:
        """Forget a pool; its sandboxes' records stay. Idempotent."""

    async def close(self) -> None:
        """Finish what was asked for and let go. Idempotent."""
