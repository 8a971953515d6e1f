"""Delete from an object store what no published image and no host needs (docs/formats/layer-store.md).

May be run beside publications, pulls, and other collectors, and be killed at any instruction: the next run goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dsec.base.errors import CapabilityMissingError, ObjectNotFoundError, StateCorruptedError
from dsec.images.lazy.collection.objects import (
    CHUNKS,
    CLOCK,
    DOOMED,
    MANIFESTS,
    PIN_S,
    PINS,
    TRACES,
    Kind,
    Part,
    Tombstone,
    TombstoneState,
    part_of_key,
    pinned_manifest,
    read_tombstone,
    traced_subject,
)
from dsec.images.lazy.collection.opened import LayerObjects, each
from dsec.images.lazy.collection.publishing import Say, parts_of, quiet
from dsec.images.lazy.collection.roots import fetch_document, references
from dsec.images.lazy.collection.rules import (
    Action,
    Delete,
    Doom,
    Forget,
    Keep,
    StoreView,
    decide,
    is_due,
    may_forget,
)
from dsec.images.lazy.publication.conversion import fetch_manifest
from dsec.model.value import Value
from dsec.stores.objects import ObjectInfo

_BATCH = 100
_MANIFESTS_AT_ONCE = 8
"""Each may have 64 MiB."""
_LONGEST_DELETE_S = 60.0
_SHOWN = 20


class LayerCollectionReport(Value, frozen=True):
    """What a collection came to.

    Attributes:
        images: documents, which keep what they need.
        manifests, chunks: that were there.
        pins: of hosts that hold layers.
        doomed: parts that were found unneeded and are to be deleted by a run after the grace period.
        waiting: those found so earlier whose grace period is not over.
        kept: those found so earlier that are needed after all.
        deleted: parts that were deleted.
        freed_bytes: of those.
        traces: that went with their images.
        damaged: documents and manifests that cannot be read; while there are any, nothing is doomed or deleted.
        is_dry_run: nothing of that was done.
    """

    images: int = 0
    manifests: int = 0
    chunks: int = 0
    pins: int = 0
    doomed: int = 0
    waiting: int = 0
    kept: int = 0
    deleted: int = 0
    freed_bytes: int = 0
    traces: int = 0
    damaged: tuple[str, ...] = ()
    is_dry_run: bool = False


@dataclass(slots=True)
class _Reached:
    parts: set[Part] = field(default_factory=set)
    subjects: set[str] = field(default_factory=set)
    """Names of documents and manifests that are needed, and may have traces."""
    images: int = 0
    pins: int = 0
    stale_pins: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)


async def collect_layers(objects: LayerObjects, *, dry_run: bool = False, say: Say = quiet) -> LayerCollectionReport:
    """Sweep what was doomed long enough ago, then doom what nothing needs.

    Raises:
        StoreUnavailableError: the store does not answer; what was done stays done.
    """
    now_s = objects.now_s()
    say("listing")
    tombstones, clocks = await _tombstones(objects)
    parts = await _parts(objects)
    traces = [info async for info in objects.store.list(TRACES)]
    reached = await _reached(objects, now_s, say)
    view = StoreView(
        now_s=now_s, grace_s=objects.grace_s, objects=parts, tombstones=tombstones, reachable=reached.parts
    )
    actions = [act for act in decide(view) if not (reached.damaged and isinstance(act, Delete | Doom))]
    stray = [] if reached.damaged else _stray_traces(traces, reached, now_s, objects.grace_s)
    deleted = [act.part for act in actions if isinstance(act, Delete)]
    if not dry_run:
        deleted = await _carry_out(objects, actions, now_s, say)
        await _delete_all(objects, [*stray, *clocks])
        await _delete_pins(objects, reached.stale_pins)
    kinds = [part.kind for part in parts]
    return LayerCollectionReport(
        images=reached.images,
        manifests=kinds.count(Kind.MANIFEST.value),
        chunks=kinds.count(Kind.CHUNK.value),
        pins=reached.pins,
        doomed=sum(isinstance(act, Doom) for act in actions),
        waiting=_waiting(tombstones, actions),
        kept=sum(isinstance(act, Keep) or (isinstance(act, Forget) and act.part in reached.parts) for act in actions),
        deleted=sum(part in parts for part in deleted),
        freed_bytes=sum(parts[part].size_bytes for part in deleted if part in parts),
        traces=len(stray),
        damaged=tuple(sorted(reached.damaged)[:_SHOWN]),
        is_dry_run=dry_run,
    )


def _waiting(tombstones: dict[Part, Tombstone], actions: Sequence[Action]) -> int:
    touched = {act.part for act in actions}
    return sum(
        tombstone.state is TombstoneState.DOOMED and part not in touched for part, tombstone in tombstones.items()
    )


async def _tombstones(objects: LayerObjects) -> tuple[dict[Part, Tombstone], list[str]]:
    """Return the tombstones, and keys of clocks that a killed process left."""
    found: dict[Part, Tombstone] = {}
    async for info in objects.store.list(DOOMED):
        if (part := part_of_key(info.key)) is not None:
            found[part] = read_tombstone(info.size_bytes, info.modified_at_s)
    old_s = objects.now_s() - objects.grace_s
    return found, [info.key async for info in objects.store.list(CLOCK) if info.modified_at_s < old_s]


async def _parts(objects: LayerObjects) -> dict[Part, ObjectInfo]:
    found: dict[Part, ObjectInfo] = {}
    for prefix in (MANIFESTS, CHUNKS):
        async for info in objects.store.list(prefix):
            if (part := part_of_key(info.key)) is not None:
                found[part] = info
    return found


async def _reached(objects: LayerObjects, now_s: float, say: Say) -> _Reached:
    """Find out what documents and pins need, after everything else was looked at."""
    reached = _Reached()
    wanted: dict[str, str] = {}
    say("reading images")
    for reference in [reference async for reference, _ in references(objects.store)]:
        try:
            document = await fetch_document(objects.store, reference)
        except ObjectNotFoundError:
            continue  # Unpublished meanwhile.
        except (StateCorruptedError, CapabilityMissingError) as error:
            reached.damaged.append(f"{reference}: {error.detail or error.brief}")
            continue
        reached.images += 1
        reached.subjects.add(reference.removeprefix("b3:"))
        wanted |= {layer.manifest: reference for layer in document.layers}
    async for info in objects.store.list(PINS):
        manifest = pinned_manifest(info.key)
        if manifest is None or now_s - info.modified_at_s >= PIN_S:
            reached.stale_pins.append(info.key)
            continue
        reached.pins += 1
        wanted.setdefault(manifest, "")
    say(f"reading {len(wanted)} manifests")
    await each(list(wanted.items()), lambda item: _reach(objects, reached, *item), at_once=_MANIFESTS_AT_ONCE)
    return reached


async def _reach(objects: LayerObjects, reached: _Reached, manifest_id: str, reference: str) -> None:
    try:
        manifest = await fetch_manifest(objects.store, manifest_id)
    except ObjectNotFoundError:
        if reference and await objects.store.head(f"layers/images/{reference.removeprefix('b3:')}.json") is not None:
            reached.damaged.append(f"{reference}: its manifest {manifest_id[:12]} is not there")
        return
    except (StateCorruptedError, CapabilityMissingError) as error:
        reached.damaged.append(f"manifest {manifest_id}: {error.detail or error.brief}")
        return
    reached.subjects.add(manifest_id)
    reached.parts.update(parts_of(manifest))


def _stray_traces(traces: Sequence[ObjectInfo], reached: _Reached, now_s: float, grace_s: float) -> list[str]:
    old = (info.key for info in traces if now_s - info.modified_at_s >= grace_s)
    return [key for key in old if traced_subject(key) not in reached.subjects]


async def _carry_out(objects: LayerObjects, actions: Sequence[Action], viewed_s: float, say: Say) -> list[Part]:
    """Do what was decided, and return what was deleted."""
    store = objects.store
    deleted: list[Part] = []

    async def keep(act: Action) -> None:
        await store.put(act.part.tombstone_key, TombstoneState.KEPT.value)

    async def doom(act: Action) -> None:
        await store.put(act.part.tombstone_key, TombstoneState.DOOMED.value, if_absent=True)

    await each([act for act in actions if isinstance(act, Keep)], keep)
    steps = [(Forget, Kind.MANIFEST), (Forget, Kind.CHUNK), (Delete, Kind.MANIFEST), (Delete, Kind.CHUNK)]
    for kind, of in steps:
        chosen = [act.part for act in actions if isinstance(act, kind) and act.part.kind == of.value]
        for start in range(0, len(chosen), _BATCH):
            if kind is Delete:
                say(f"deleting {of.value}: {start} of {len(chosen)}")
            batch = chosen[start : start + _BATCH]
            done = await _delete_batch(objects, batch, viewed_s, forget=kind is Forget)
            deleted += done if kind is Delete else []
    await each([act for act in actions if isinstance(act, Doom)], doom)
    return deleted


async def _delete_batch(objects: LayerObjects, parts: Sequence[Part], viewed_s: float, *, forget: bool) -> list[Part]:
    """Delete parts, or only their tombstones, whose tombstones still allow it, shortly after having read those. Return
    which.

    A part's has to have been due at the view already: a later one says nothing against who needs it since then.
    """
    boot_s, began_s = objects.times.clock.boot_s, objects.times.clock.boot_s()
    allowed: list[Part] = []

    async def read(part: Part) -> None:
        tombstone = await objects.tombstone(part)
        if forget:
            may = may_forget(tombstone, objects.now_s(), objects.grace_s)
        else:
            may = is_due(tombstone, viewed_s, objects.grace_s)
        if may:
            allowed.append(part)

    await each(parts, read)
    if not allowed:
        return []
    if boot_s() - began_s > objects.window_s / 4:
        # The host stood still, or the store is slow. What was read is too old to act upon; a smaller batch, or none.
        half = len(allowed) // 2
        return await _delete_batch(objects, allowed[:half], viewed_s, forget=forget) if half else []
    timeout_s = min(objects.window_s / 4, _LONGEST_DELETE_S)
    keys = [part.tombstone_key if forget else part.key for part in allowed]
    await objects.store.delete(keys, timeout_s=timeout_s)
    if not forget:

        async def say_deleted(part: Part) -> None:
            await objects.store.put(part.tombstone_key, TombstoneState.DELETED.value)

        await each(allowed, say_deleted)
    return allowed


async def _delete_all(objects: LayerObjects, keys: Sequence[str]) -> None:
    for start in range(0, len(keys), _BATCH):
        await objects.store.delete(keys[start : start + _BATCH])


async def _delete_pins(objects: LayerObjects, keys: Sequence[str]) -> None:
    async def delete(key: str) -> None:
        info = await objects.store.head(key)
        if info is not None and objects.now_s() - info.modified_at_s >= PIN_S:
            await objects.store.delete([key], timeout_s=_LONGEST_DELETE_S)

    await each(keys, delete)
