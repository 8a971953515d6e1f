"""Snapshots: a checkpoint becomes an object of the store, and travels as the difference to what is there already.

Order: a checkpoint is made, or one is taken that there is; while its layer is held, the store is given what it has not
yet, and the snapshot exists with the last object that is put; then the journal is told which snapshot the checkpoint
became. Commands run on all the time, but for the freeze of the checkpoint. A node that is killed leaves no snapshot or
the whole one; a checkpoint that it had made for this stays only if the journal says that it became one.

**The base.** What travels is the difference to the closest frozen layer that already is a snapshot: a checkpoint that
the saved state began from, further up its tree, or the clean state of a sandbox that was restored or forked. Without
one all files are read, and the store still takes only chunks that it does not hold.

A checkpoint that was made for a snapshot goes when the next one has taken its place, or when its room is needed
(`dsec.node.state.base_room`), so that a sandbox which is saved each hour does not collect them. Those that somebody
asked for stay.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import structlog

from dsec.base.errors import DsecError, InvalidRequestError, SnapshotNotFoundError, StateCorruptedError
from dsec.images.port import layer_digest
from dsec.model.capability import Capability
from dsec.model.state import CheckpointRequest, SnapshotInfo, SnapshotRequest
from dsec.node.core import Core, shielded
from dsec.node.sandbox import Sandbox
from dsec.node.state import checkpoints
from dsec.node.state.base_room import BaseRoom
from dsec.node.validation import check_metadata, require_capability
from dsec.state.manifest import SnapshotHeader
from dsec.state.snapshots import MERGE_DEPTH, SnapshotStore
from dsec.stores.port import CheckpointRecord

_log = structlog.get_logger(__name__)
SNAPSHOT_PREFIX = "snp-"
_SAVES_AT_ONCE = 4
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Snapshots:
    """The durable snapshots of a node.

    Args:
        core: the node's inner state.
        room: the quotas of sandboxes that keep a base.
    """

    def __init__(self, core: Core, room: BaseRoom) -> None:
        self._core = core
        self._room = room
        self._saves = anyio.CapacityLimiter(_SAVES_AT_ONCE)
        self._merges = anyio.CapacityLimiter(1)
        self._merging: set[str] = set()
        self._under_way: set[str] = set()
        self._swept = False

    async def take(self, sandbox: Sandbox, request: SnapshotRequest) -> SnapshotInfo:
        """Make a state durable; see `dsec.service.state.StateService.snapshot`."""
        core = self._core
        require_capability(Capability.CHECKPOINT, "a snapshot", core.reports)
        _check(request)
        store = await self._store()
        began_s = core.now_boot_s()
        is_new = request.checkpoint is None
        point = await self._point(sandbox, request)
        self._under_way.add(point.checkpoint_id)
        saved = False
        try:
            with core.saved.held(point.layer):
                info = await self._save(store, sandbox, point, request, began_s)
            saved = True
        finally:
            with shielded(core.settings.end_timeout_s, f"ending a snapshot of {sandbox.sandbox_id}"):
                if saved:
                    await self._remember(sandbox, point, info.snapshot_id)
                self._under_way.discard(point.checkpoint_id)
                if is_new:
                    await self._drop_superseded(sandbox, point, saved=saved)
        self._merge_if_long(store, info)
        return info

    async def _point(self, sandbox: Sandbox, request: SnapshotRequest) -> CheckpointRecord:
        if request.checkpoint is not None:
            return checkpoints.find(self._core, sandbox, request.checkpoint)
        info = await checkpoints.checkpoint(self._core, sandbox, CheckpointRequest(), automatic=True)
        await self._room.grant(sandbox)
        return sandbox.checkpoints[info.checkpoint_id]

    async def _save(
        self, store: SnapshotStore, sandbox: Sandbox, point: CheckpointRecord, request: SnapshotRequest, began_s: float
    ) -> SnapshotInfo:
        core = self._core
        header = _header(core, sandbox, point, request)
        async with self._saves:
            exported = await anyio.to_thread.run_sync(core.parts.exports.get, point.layer)
            with ExitStack() as stack:
                tree = stack.enter_context(core.parts.layers.open_frozen(point.layer))
                below, base = None, _base(core, sandbox, point)
                if base is not None:
                    # Nothing is awaited between finding it and holding it: another snapshot may be dropping it.
                    stack.enter_context(core.saved.held(base.layer))
                    below = stack.enter_context(core.parts.layers.open_frozen(base.layer))
                return await store.save(
                    tree,
                    header,
                    exported=exported,
                    parent=None if base is None else base.snapshot,
                    base=below,
                    checkpointed_s=began_s,
                )

    async def _remember(self, sandbox: Sandbox, point: CheckpointRecord, snapshot_id: str) -> None:
        """Note which snapshot a checkpoint became, unless it is gone by now."""
        async with sandbox.transition:
            record = sandbox.checkpoints.get(point.checkpoint_id)
            if record is not None:
                marked = msgspec.structs.replace(record, snapshot=snapshot_id)
                await self._core.parts.journal.exchange(checkpoints=[marked])
                sandbox.checkpoints[record.checkpoint_id] = marked

    async def _drop_superseded(self, sandbox: Sandbox, point: CheckpointRecord, *, saved: bool) -> None:
        """Remove the checkpoints that snapshots made, those of killed nodes too, but for this one if it is saved."""
        for record in list(sandbox.checkpoints.values()):
            is_this = record.checkpoint_id == point.checkpoint_id
            if record.automatic and is_this != saved and record.checkpoint_id not in self._under_way:
                try:
                    await checkpoints.remove(self._core, sandbox, record.checkpoint_id)
                except SnapshotNotFoundError:
                    continue  # It went with its sandbox.

    # -- what the store holds --------------------------------------------------------------------------------------

    async def list_all(self) -> Sequence[SnapshotInfo]:
        """Return what the store holds, the oldest first."""
        return await (await self._store()).list_all()

    async def remove(self, reference: str) -> None:
        """Forget a snapshot. Idempotent by id; of several with one name the newest goes."""
        store = await self._store()
        is_id = reference.startswith(SNAPSHOT_PREFIX)
        await store.remove(reference if is_id else (await store.find(reference)).snapshot_id)

    async def _store(self) -> SnapshotStore:
        store = await self._core.durable.store()
        if not self._swept:
            self._swept = True
            self._core.supervisor.start("look for long chains", lambda: self._sweep(store))
        return store

    # -- merging ---------------------------------------------------------------------------------------------------

    async def _sweep(self, store: SnapshotStore) -> None:
        """Merge what an earlier node was killed over, of the chains that may grow on: those of live sandboxes."""
        for snapshot_id in sorted(self._bases()):
            try:
                self._merge_if_long(store, await store.find(snapshot_id))
            except (SnapshotNotFoundError, StateCorruptedError):
                continue  # Nothing can be made upon it.

    def _bases(self) -> set[str]:
        """Snapshots that the next ones may be made upon."""
        sandboxes = list(self._core.registry)
        known = {record.snapshot for sandbox in sandboxes for record in sandbox.checkpoints.values()}
        return (known | {sandbox.record.snapshot for sandbox in sandboxes if sandbox.generation is not None}) - {""}

    def _merge_if_long(self, store: SnapshotStore, info: SnapshotInfo) -> None:
        name = info.snapshot_id
        if info.depth > MERGE_DEPTH and name not in self._merging:
            self._merging.add(name)
            self._core.supervisor.start(f"merge {name}", lambda: self._merge(store, name))

    async def _merge(self, store: SnapshotStore, snapshot_id: str) -> None:
        try:
            async with self._merges:
                await store.merge(snapshot_id)
        except DsecError as error:
            # It stays as it was, readable; the next snapshot or the next start tries again.
            _log.warning("not_merged", snapshot_id=snapshot_id, error=str(error))
        finally:
            self._merging.discard(snapshot_id)


class _Base(msgspec.Struct, frozen=True):
    """A frozen layer and the snapshot that it became, or was made from."""

    layer: str
    snapshot: str


def _base(core: Core, sandbox: Sandbox, point: CheckpointRecord) -> _Base | None:
    """Return the closest frozen layer that is a snapshot already."""
    record: CheckpointRecord | None = sandbox.checkpoints.get(point.checkpoint_id, point)
    while record is not None:
        if record.snapshot:
            return _Base(record.layer, record.snapshot)
        record = sandbox.checkpoints.get(record.parent or "")
    return _base_at_origin(core, sandbox) or _newest(sandbox)


def _base_at_origin(core: Core, sandbox: Sandbox) -> _Base | None:
    """The clean state: of a restored sandbox it is that snapshot, of a fork's child it may be one of its parent's."""
    origin, record = sandbox.record.origin, sandbox.record
    if not origin:
        return None
    if record.snapshot and not record.parent:
        return _Base(origin, record.snapshot)
    known = (each for other in core.registry for each in other.checkpoints.values())
    return next((_Base(origin, each.snapshot) for each in known if each.layer == origin and each.snapshot), None)


def _newest(sandbox: Sandbox) -> _Base | None:
    saved = [record for record in sandbox.checkpoints.values() if record.snapshot]
    return _Base(saved[-1].layer, saved[-1].snapshot) if saved else None


def _header(core: Core, sandbox: Sandbox, point: CheckpointRecord, request: SnapshotRequest) -> SnapshotHeader:
    record = sandbox.record
    return SnapshotHeader(
        sandbox_id=sandbox.sandbox_id,
        node=core.parts.node_id,
        requested=record.requested,
        spec=record.spec,
        image_config=record.image_config,
        layers=tuple(layer_digest(Path(path)) for path in record.layer_paths),
        checkpoint_id=point.checkpoint_id,
        created_at_s=core.parts.clock.wall_s(),
        name=request.name,
        metadata=request.metadata,
    )


def _check(request: SnapshotRequest) -> None:
    if request.name and (not _NAME.fullmatch(request.name) or request.name.startswith(SNAPSHOT_PREFIX)):
        raise InvalidRequestError(
            f"{request.name[:80]!r} cannot name a snapshot",
            resolution="use letters, digits, dots, dashes and underscores, at most 128, and no id for a name",
        )
    check_metadata(request.metadata)
