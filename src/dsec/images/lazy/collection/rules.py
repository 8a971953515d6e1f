"""Which chunks and manifests of an object store live, are doomed, or go (docs/formats/layer-store.md). Pure.

Everything is decided from one view of the store. The order in which that view was taken is part of the theory: first
the store's time, then tombstones and objects, then what is reachable. So whoever was not seen to need something when
its tombstone was old enough will never rely on it without saying so in the tombstone first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass

from dsec.images.lazy.collection.objects import Kind, Part, Tombstone, TombstoneState, window_s
from dsec.stores.objects import ObjectInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreView:
    """What a collector saw.

    Attributes:
        now_s: the store's time, when the view was begun.
        grace_s: the store's grace period.
        objects: chunks and manifests that are there.
        tombstones: of such, there or not.
        reachable: what documents and pins need, looked up last.
    """

    now_s: float
    grace_s: float
    objects: Mapping[Part, ObjectInfo]
    tombstones: Mapping[Part, Tombstone]
    reachable: Set[Part]


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """Something to be done about one part.

    Attributes:
        part: which.
        reason: why, for people.
    """

    part: Part
    reason: str


class Doom(Action):
    """Write a tombstone, unless there is one."""


class Keep(Action):
    """Say in the tombstone that it is needed."""


class Delete(Action):
    """Delete it, after having read the tombstone again; then say so there."""


class Forget(Action):
    """Delete the tombstone, after having read it again."""


def decide(view: StoreView) -> tuple[Action, ...]:
    """Return what is to be done, in order: what saves before what deletes, manifests before chunks."""
    actions = [*_about_tombstones(view), *_about_objects(view)]
    order = (Keep, Forget, Delete, Doom)
    first = {Kind.MANIFEST.value: 0, Kind.CHUNK.value: 1}
    return tuple(sorted(actions, key=lambda each: (order.index(type(each)), first[each.part.kind], each.part)))


def is_due(tombstone: Tombstone | None, now_s: float, grace_s: float) -> bool:
    """Tell whether a collector may delete what has this tombstone, if nothing needed it at that time.

    Args:
        tombstone: as it is.
        now_s: when the view was begun. When the tombstone is read again, much later perhaps, that time stays: another
            one may be there by then, which is old enough too, and was written after somebody began to need the part.
        grace_s: the store's grace period.
    """
    return tombstone is not None and tombstone.state is TombstoneState.DOOMED and now_s - tombstone.since_s >= grace_s


def may_forget(tombstone: Tombstone | None, now_s: float, grace_s: float) -> bool:
    """Tell whether a tombstone may be deleted: nobody who acts upon it, or upon the one before it, can be under way."""
    if tombstone is None:
        return False
    age_s = now_s - tombstone.since_s
    return age_s < grace_s / 2 if tombstone.state is TombstoneState.DOOMED else age_s >= 2 * window_s(grace_s)


def may_rely(tombstone: Tombstone | None, now_s: float, grace_s: float) -> bool:
    """Tell whether a publisher may rely on what has this tombstone, and is there, for a quarter of the grace period."""
    if tombstone is None:
        return True
    age_s = now_s - tombstone.since_s
    if tombstone.state is TombstoneState.DOOMED:
        return age_s < grace_s / 2
    return tombstone.state is TombstoneState.KEPT and age_s >= window_s(grace_s)


def _about_tombstones(view: StoreView) -> Iterator[Action]:
    for part, tombstone in view.tombstones.items():
        if tombstone.state is TombstoneState.DOOMED:
            if part in view.reachable:
                # Nobody deletes what was doomed lately; saying "kept" would only have publishers wait.
                is_new = may_forget(tombstone, view.now_s, view.grace_s)
                yield (Forget if is_new else Keep)(part=part, reason="it is needed again")
            elif is_due(tombstone, view.now_s, view.grace_s):
                yield Delete(part=part, reason="nothing has needed it for the grace period")
        elif may_forget(tombstone, view.now_s, view.grace_s):
            yield Forget(part=part, reason="nobody can be deleting it any more")


def _about_objects(view: StoreView) -> Iterator[Action]:
    for part, info in view.objects.items():
        is_old = view.now_s - info.modified_at_s >= view.grace_s
        if is_old and part not in view.tombstones and part not in view.reachable:
            yield Doom(part=part, reason="nothing needs it")
