"""Saved state: checkpoints (local, for rollback and branching), snapshots (durable, restorable on any node), forks.

Three kinds, three words, three costs. A *checkpoint* lives and dies with its sandbox on its node and takes
milliseconds. A *snapshot* is in the object store, content-addressed, and outlives sandbox and node. A *pause image*
(memory in swap) belongs to one paused sandbox and has no name. Files and what hooks exported are saved; processes of
a container are not: they begin anew, connections end at the saved point, and what was committed outside stays.
"""

from __future__ import annotations

import enum

from dsec.model.sandbox import SandboxInfo
from dsec.model.value import Value


class CheckpointRequest(Value, frozen=True):
    """What to save.

    Attributes:
        name: a name of one's own within the sandbox, such as ``snap-001``; empty: the id alone.
        hooks: whether the image's export hook runs.
    """

    name: str = ""
    hooks: bool = True


class CheckpointInfo(Value, frozen=True):
    """One checkpoint.

    Attributes:
        checkpoint_id: ``ckp-...``; unique on its node.
        sandbox_id: whose it is.
        name: the caller's own name for it; empty: none.
        parent: id of the checkpoint from which the saved state began; None: the clean state. These links are the tree.
        generation: generation of the sandbox in which it was made.
        created_at_s: wall-clock seconds since the epoch.
        frozen_s: how long the sandbox's processes stood still for it.
        written_bytes: what the writable layer had used at that moment, as its quota counts.
        exported_bytes: what the export hook gave; None: none ran.
        is_current: whether the sandbox's present state began here.
        branches: sandboxes forked from it that live on this node.
    """

    checkpoint_id: str
    sandbox_id: str
    name: str = ""
    parent: str | None = None
    generation: int = 0
    created_at_s: float = 0.0
    frozen_s: float = 0.0
    written_bytes: int = 0
    exported_bytes: int | None = None
    is_current: bool = False
    branches: tuple[str, ...] = ()


class ForkRequest(Value, frozen=True):
    """How to branch a sandbox.

    A child has the parent's files at the fork point, and an id, host name, seed, machine id and lifetime of its own.
    The parent does not notice. All children come to be, or none does.

    Attributes:
        count: how many children.
        checkpoint: id or name of the checkpoint to begin from; None: the present state.
        sandbox_ids: ids for the children, as idempotency keys; empty: the node chooses. Otherwise as many as `count`.
        seeds: seeds of the children; empty: derived from the parent's and the child's number, or none if it has none.
        env: added to each child's environment, such as credentials; a value of the parent's of the same name goes.
        metadata: added to the parent's metadata.
        spread: spread the children over this node and its peers instead of keeping all here.
    """

    count: int = 1
    checkpoint: str | None = None
    sandbox_ids: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    env: dict[str, str] = {}
    metadata: dict[str, str] = {}
    spread: bool = False


class SnapshotRequest(Value, frozen=True):
    """What to make durable.

    Attributes:
        checkpoint: id or name of a checkpoint; None: a checkpoint is made now, and kept as the base of the next one.
        name: a label to find it by; several snapshots may bear one name, the newest is meant.
        metadata: labels.
    """

    checkpoint: str | None = None
    name: str = ""
    metadata: dict[str, str] = {}


class SnapshotInfo(Value, frozen=True):
    """One durable snapshot.

    Attributes:
        snapshot_id: ``snp-`` and the first half of the BLAKE3 of its manifest: what it holds is its name.
        name, metadata: as asked.
        sandbox_id: where it was taken.
        image: name of the base image, for people; the manifest names its layers by digest.
        parent: the snapshot whose increment it is; None: complete in itself.
        depth: increments that reading it applies; 0: complete in itself, or merged.
        created_at_s: wall-clock seconds since the epoch.
        files: entries of the writable layer.
        content_bytes: bytes of their content.
        stored_bytes: bytes that this snapshot added to the store, all objects together.
        exported_bytes: state exported by the hook; None: none.
        duration_s: from the checkpoint to the acknowledgement.
    """

    snapshot_id: str
    name: str = ""
    metadata: dict[str, str] = {}
    sandbox_id: str = ""
    image: str = ""
    parent: str | None = None
    depth: int = 0
    created_at_s: float = 0.0
    files: int = 0
    content_bytes: int = 0
    stored_bytes: int = 0
    exported_bytes: int | None = None
    duration_s: float = 0.0


class RestoreRequest(Value, frozen=True):
    """A sandbox to make from a snapshot. Its spec is the saved one; fields given here replace it.

    Attributes:
        sandbox_id: id for it, as idempotency key; None: the node chooses.
        seed: another seed.
        env, metadata: added.
        timeout_s: for the whole restore; transfers of gigabytes take their time.
    """

    sandbox_id: str | None = None
    seed: int | None = None
    env: dict[str, str] = {}
    metadata: dict[str, str] = {}
    timeout_s: float = 600.0


class ScrubRules(Value, frozen=True):
    """What a pack leaves out, so that residue and answers do not ride along.

    Attributes:
        defaults: whether the rules of every pack apply: shell and tool histories, caches of package managers and
            compilers, temporary directories, logs, editor leftovers, credentials in well-known places, machine ids.
        remove: patterns of one's own, as in a .gitignore; relative ones match at any depth.
        keep: patterns that win over both.
    """

    defaults: bool = True
    remove: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()


class PackRequest(Value, frozen=True):
    """Turn what a session changed into a new layer.

    Attributes:
        name: name of the image that is made: the sandbox's layers and this one on top.
        checkpoint: id or name of a checkpoint; None: the present state.
        scrub: what is left out.
        dry_run: say what would go in and what would be left out, and make nothing.
    """

    name: str
    checkpoint: str | None = None
    scrub: ScrubRules = ScrubRules()
    dry_run: bool = False


class PackReport(Value, frozen=True):
    """What a pack made.

    Attributes:
        name: the image; empty for a dry run.
        layer: digest of the new layer; empty for a dry run.
        files: entries that it holds.
        content_bytes: bytes of their content.
        kept: of a dry run, paths that would go in, at most 1,000: files, ``... (removed)`` for what the session removed
            of the image, and directories, with a slash, in which nothing is named.
        removed: paths that were left out, each with the rule that did it, such as ``/root/.bash_history: histories``.
        removed_files, removed_bytes: how much that is in all; `removed` names at most 1,000.
    """

    name: str
    layer: str
    files: int
    content_bytes: int
    kept: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    removed_files: int = 0
    removed_bytes: int = 0


class FingerprintReport(Value, frozen=True):
    """One comparison.

    Attributes:
        sandbox_id: whose.
        fingerprint: ``blake3:...`` over what was seen.
        expected: the recorded one.
        differences: what differs, in words; empty when both are equal.
        duration_s: how long looking took.
    """

    sandbox_id: str
    fingerprint: str
    expected: str
    differences: tuple[str, ...] = ()
    duration_s: float = 0.0

    @property
    def is_clean(self) -> bool:
        return self.fingerprint == self.expected


class MigrationRequest(Value, frozen=True):
    """Move a sandbox to another node.

    Attributes:
        node: id or URL of the node to move to; it must be among the peers in this node's settings.
        maximum_rounds: of copying while the sandbox runs, before it is paused for the last difference.
        downtime_s: pause as soon as the last difference is expected to take no longer than this.
        reason: for the record: ``by hand``, ``drain``, ``load``.
    """

    node: str
    maximum_rounds: int = 5
    downtime_s: float = 0.2
    reason: str = "by hand"


class MigrationReport(Value, frozen=True):
    """A migration that succeeded. One that failed is an error, and the source goes on as before.

    Attributes:
        sandbox: as it is on the target now; its id is the same.
        source, target: ids of the nodes.
        rounds: copies made while it ran, and the last one.
        copied_bytes: of each round.
        downtime_s: from the moment its processes stood still to the moment the target had it ready.
        duration_s: the whole.
    """

    sandbox: SandboxInfo
    source: str
    target: str
    rounds: int
    copied_bytes: tuple[int, ...]
    downtime_s: float
    duration_s: float


class JobAction(enum.Enum):
    PAUSE = "pause"
    RESUME = "resume"


class JobInfo(Value, frozen=True):
    """The sandboxes of one job: those whose metadata say ``job: NAME``.

    Attributes:
        job: its name.
        sandboxes: ids by state.
        memory_bytes: resident memory of all.
        swap_bytes: what is in swap of all.
    """

    job: str
    sandboxes: dict[str, tuple[str, ...]]
    memory_bytes: int = 0
    swap_bytes: int = 0


class JobProgress(Value, frozen=True, tag="progress"):
    """How far an action on a job is.

    Attributes:
        done, total: sandboxes.
        sandbox_id: the one that was just done; empty at the beginning.
    """

    done: int
    total: int
    sandbox_id: str = ""


class JobFailure(Value, frozen=True):
    sandbox_id: str
    code: str
    brief: str


class JobReport(Value, frozen=True, tag="report"):
    """How an action on a job ended. Asking again does what is left.

    Attributes:
        job, action: what was asked.
        changed: sandboxes that the action changed.
        unchanged: those that already were as asked.
        ended: those that were stopped or failed meanwhile.
        failed: those that are not as asked, and why.
        released_bytes: memory given back (pause).
        duration_s: the whole.
    """

    job: str
    action: JobAction
    changed: tuple[str, ...]
    unchanged: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    failed: tuple[JobFailure, ...] = ()
    released_bytes: int = 0
    duration_s: float = 0.0


JobEvent = JobProgress | JobReport
"""What a stream of an action on a job carries; the last one is the report."""
