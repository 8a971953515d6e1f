"""Merge neighbouring layers of stored images, and of images that are being imported.

`dsec.images.merge_plan` says which, `dsec.images.overlay_merge` makes one tree of them. A merged layer is a layer like
any other: it has the digest of what is in it, and appears whole or not at all. The layers it was made of go when no
image has them any more.

An OCI layer is known again by its diff id, a merged one by the diff ids of all that went into it and of what lies below
(`run_id`), so that a second image on the same base has the same merged layers, and nothing is unpacked for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.images.below import Below
from dsec.images.command import Progress, silent
from dsec.images.history import repository_of
from dsec.images.merge_plan import DEFAULT_RULE, MergeCandidate, MergeGroup, MergeRule, plan_merges
from dsec.images.names import canonical_name
from dsec.images.opened import opened_layer
from dsec.images.overlay_merge import has_vain_whiteouts, merge_trees
from dsec.images.store import LocalImageStore
from dsec.images.tree_writer import TreeWriter
from dsec.model.image import ImageInfo
from dsec.model.value import Value


class MergeReport(Value, frozen=True):
    """What was merged.

    Attributes:
        image: the image that was made, or the one that stays as it is.
        before: number of layers that it had.
        reasons: why neighbours were left apart, from the lowest up.
    """

    image: ImageInfo
    before: int
    reasons: tuple[str, ...] = ()


def merge_layers(store: LocalImageStore, digests: Sequence[str], below: Sequence[str] = ()) -> str:
    """Store one layer that shows what several do, from the lowest up, and return its digest, protected until named.

    Args:
        below: the layers on which they stand, from the lowest up.

    Raises:
        StateCorruptedError: one of them is damaged, or not stored.
        HostDiskFullError: no space.
    """
    with store.work_directory() as work, ExitStack() as stack:
        roots = [stack.enter_context(opened_layer(store, digest, work)) for digest in (*below, *digests)]
        beneath = stack.enter_context(Below([Path(f"/proc/self/fd/{root}") for root in roots[: len(below)]]))
        with TreeWriter(work.path / "merged", keep_devices=True) as writer:
            merge_trees(roots[len(below) :], writer, beneath.shows)
        return store.take_layer(work.path / "merged")


def image_names(store: LocalImageStore) -> dict[str, tuple[str, ...]]:
    """Return the names of the images that have each layer, by its digest."""
    found: dict[str, list[str]] = {}
    for image in store.list():
        for digest in dict.fromkeys(layer.digest for layer in image.layers):
            found.setdefault(digest, []).append(image.name)
    return {digest: tuple(names) for digest, names in found.items()}


def without_vain_whiteouts(store: LocalImageStore, digest: str, below: Sequence[str]) -> str:
    """Return a layer without the whiteouts that hide nothing of the layers below: itself, or one made for that."""
    with store.work_directory() as work, ExitStack() as stack:
        root, *roots = [stack.enter_context(opened_layer(store, each, work)) for each in (digest, *below)]
        beneath = stack.enter_context(Below([Path(f"/proc/self/fd/{root}") for root in roots]))
        if not has_vain_whiteouts(root, beneath.shows):
            return digest
    return merge_layers(store, [digest], below)


def candidates(
    store: LocalImageStore, digests: Sequence[str], *, times: Mapping[str, float] = {}, of: str = ""
) -> list[MergeCandidate]:
    """Return what a plan needs to know of stored layers.

    Args:
        times: when layers were made, by digest.
        of: name of the image that is looked at; that it has them does not count.
    """
    users = image_names(store)
    own = canonical_name(of) if of else ""
    return [
        MergeCandidate(
            digest=digest,
            size_bytes=store.stored_layer(digest)[1].size_bytes,
            created_s=times.get(digest),
            shared_with=tuple(name for name in users.get(digest, ()) if name != own),
        )
        for digest in digests
    ]


def merge_groups(store: LocalImageStore, groups: Sequence[MergeGroup], progress: Progress = silent) -> list[str]:
    """Return the digest of the layer that each group becomes; those that were made are protected until named."""
    made: list[str] = []
    for group in groups:
        below = tuple(made)
        if len(group.digests) == 1:
            made.append(group.digests[0])
            continue
        progress(f"merging {len(group.digests)} layers")
        made.append(merge_layers(store, group.digests, below))
    return made


def merge_image(
    store: LocalImageStore,
    name: str,
    *,
    to: str = "",
    rule: MergeRule = DEFAULT_RULE,
    progress: Progress = silent,
) -> MergeReport:
    """Merge layers of an image that is here. Its name moves to the result; sandboxes that stand on the old one stay.

    Args:
        to: name of the result; empty: the image's own.
        rule: which layers.

    Raises:
        ImageNotFoundError: no such image.
        InvalidRequestError: the threshold is not positive.
    """
    if rule.threshold_bytes <= 0:
        raise InvalidRequestError("the threshold must be above 0 bytes")
    info = store.get(name)
    digests = [layer.digest for layer in info.layers]
    stories = {
        story.digest: story for version in store.history.versions(repository_of(info.name)) for story in version.layers
    }
    times = {digest: story.created_s for digest, story in stories.items() if story.created_s is not None}
    with store.protected(digests):
        groups = plan_merges(candidates(store, digests, times=times, of=name), rule)
        made: list[str] = []
        with store.undone_on_failure(made):
            made += merge_groups(store, groups, progress)
            named = to or info.name
            if made != digests or canonical_name(named) != info.name:
                told = {
                    digest: msgspec.structs.replace(stories[group.digests[-1]], digest=digest)
                    for digest, group in zip(made, groups, strict=True)
                    if group.digests[-1] in stories
                }
                info = store.add_image(named, made, info.config, source=info.source, stories=told)
    store.let_go(())
    return MergeReport(image=info, before=len(digests), reasons=tuple(group.reason for group in groups[:-1]))


def run_id(diff_ids: Sequence[str], start: int, stop: int) -> str:
    """Return the name under which one layer is known that was made of the OCI layers from `start` to before `stop`.

    Of one it is its diff id. Of several what lies below counts too: it decides which whiteouts a merged layer needs.
    """
    if stop - start == 1:
        return diff_ids[start]
    text = "".join(f"{each}\n" for each in (*diff_ids[:start], "", *diff_ids[start:stop]))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
