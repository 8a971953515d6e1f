"""Make an image of OCI layers, wherever they come from: unpack each, merge small neighbours, name the result.

Layers that are here are not unpacked again, and neither are those that were merged before: a merged layer is known by
the diff ids of all that went into it, so that another image on the same base shares it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from dsec.images.importers.oci_config import OciImageConfig, image_config, layer_times
from dsec.images.importers.oci_layer import hides_all_below, import_layer
from dsec.images.importers.request import ImportRequest
from dsec.images.merge_plan import MergeRule, plan_merges
from dsec.images.merging import candidates, merge_groups, run_id, without_vain_whiteouts
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageInfo

Made = tuple[str, tuple[str, ...]]
"""Digest of a stored layer, and the diff ids of what it was made of."""


def import_stack(
    store: LocalImageStore, request: ImportRequest, config: OciImageConfig, blob: Callable[[int], Path]
) -> ImageInfo:
    """Store the layers of an OCI image and give the image its name: all or nothing.

    Args:
        config: the image's configuration, with the diff ids of its layers.
        blob: returns the file of the layer of this number, verified against the manifest; asked for those alone that
            are not here.

    Raises:
        UnsafeArchiveError: a layer could escape, or unfolds without bound.
        InvalidRequestError: a layer is damaged.
    """
    diff_ids = config.rootfs.diff_ids
    pinned: list[str] = []
    with store.undone_on_failure(pinned):
        stack: list[Made] = []
        for start, run in _runs(store, diff_ids, together=request.merge.threshold_bytes > 0):
            digest = store.layer_of_diff(run_id(run)) or import_layer(store, blob(start), run[0], request)
            pinned.append(digest)
            stack = [] if hides_all_below(store, digest) else stack
            clean = without_vain_whiteouts(store, digest, [each for each, _ in stack])
            pinned += [clean] if clean != digest else []
            stack.append((clean, tuple(run)))
        made = _merged(store, request, config, stack, pinned)
        info = store.add_image(request.name, made, request.settings(image_config(config)), source=request.told_source)
    left = [digest for digest in pinned if digest not in made]
    if left:
        store.let_go(left)
    return info


def known_diffs(store: LocalImageStore, diff_ids: Sequence[str], rule: MergeRule) -> list[str]:
    """Return the diff ids of those layers whose blobs an import would not ask for now."""
    runs = _runs(store, diff_ids, together=rule.threshold_bytes > 0)
    return [diff_id for _, run in runs if store.has_diff(run_id(run)) for diff_id in run]


def _runs(store: LocalImageStore, diff_ids: Sequence[str], *, together: bool) -> list[tuple[int, Sequence[str]]]:
    """Cut the layers into the longest runs that are known as one merged layer, and single ones."""
    found: list[tuple[int, Sequence[str]]] = []
    start = 0
    while start < len(diff_ids):
        longest = (stop for stop in range(len(diff_ids), start + 1, -1) if store.has_diff(run_id(diff_ids[start:stop])))
        stop = next(longest, start + 1) if together else start + 1
        found.append((start, diff_ids[start:stop]))
        start = stop
    return found


def _merged(
    store: LocalImageStore,
    request: ImportRequest,
    config: OciImageConfig,
    stack: Sequence[Made],
    pinned: list[str],
) -> list[str]:
    """Merge what the request's rule says, note what the merged layers were made of, and return the final stack."""
    digests = [digest for digest, _ in stack]
    if len(set(digests)) < len(digests):
        return digests  # Some layer is there twice: rare, and not worth a rule of its own.
    known = layer_times(config)
    times = {digest: known[run[-1]] for digest, run in stack if run[-1] in known}
    groups = plan_merges(candidates(store, digests, times=times, of=request.name), request.merge)
    made = merge_groups(store, groups, request.progress)
    pinned += [digest for digest in made if digest not in digests]
    runs = dict(stack)
    for group, digest in zip(groups, made, strict=True):
        if len(group.digests) > 1:
            store.remember_diff(run_id([each for part in group.digests for each in runs[part]]), digest)
    return made
