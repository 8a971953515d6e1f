"""Make an image of OCI layers, wherever they come from: unpack each, merge small neighbours, name the result.

Layers that are here are not unpacked again, and neither are those that were merged before: a merged layer is known by
the diff ids of all that went into it, so that another image on the same base shares it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dsec.base.errors import InvalidRequestError
from dsec.images.history import LayerStory
from dsec.images.importers.oci_config import OciImageConfig, image_config, layer_history, layer_times, told_step
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
        for digest, run in _parts(store, request, diff_ids, blob):
            pinned.append(digest)
            stack = [] if hides_all_below(store, digest) else stack
            clean = without_vain_whiteouts(store, digest, [each for each, _ in stack])
            pinned += [clean] if clean != digest else []
            stack.append((clean, run))
        stack = _merged(store, request, config, stack[_left_out(request, stack) :], pinned)
        made = [digest for digest, _ in stack]
        settings, stories = request.settings(image_config(config)), _stories(config, stack)
        info = store.add_image(request.name, made, settings, source=request.told_source, stories=stories)
    left = [digest for digest in pinned if digest not in made]
    if left:
        store.let_go(left)
    return info


def _left_out(request: ImportRequest, stack: Sequence[Made]) -> int:
    """Return how many layers the image is made without, as the request says.

    Raises:
        InvalidRequestError: it would be made without any.
    """
    digests = tuple(digest for digest, _ in stack)
    count = max((len(base) for base in request.onto if digests[: len(base)] == base), default=0)
    if request.onto and count == len(digests):
        raise InvalidRequestError(
            f"image {request.name!r} adds nothing to what it is built on",
            resolution="let it add files, or make it an image of its own",
        )
    return count


def known_diffs(store: LocalImageStore, diff_ids: Sequence[str], rule: MergeRule) -> list[str]:
    """Return the diff ids of those layers whose blobs an import would not ask for now."""
    found: list[str] = []
    start = 0
    while start < len(diff_ids):
        stop = _longest_known(store, diff_ids, start, rule)
        found += diff_ids[start:stop]
        start = max(stop, start + 1)
    return found


def _longest_known(store: LocalImageStore, diff_ids: Sequence[str], start: int, rule: MergeRule) -> int:
    """Return where the longest run ends that begins at `start` and is here as one layer; `start`: there is none."""
    for stop in range(len(diff_ids) if rule.threshold_bytes else start + 1, start, -1):
        if store.has_diff(run_id(diff_ids, start, stop)):
            return stop
    return start


def _parts(
    store: LocalImageStore, request: ImportRequest, diff_ids: Sequence[str], blob: Callable[[int], Path]
) -> Iterator[Made]:
    """Yield the layers of the image from the lowest up, as they are here or were unpacked; each is protected."""
    start = 0
    while start < len(diff_ids):
        stop = _longest_known(store, diff_ids, start, request.merge)
        digest = store.layer_of_diff(run_id(diff_ids, start, stop)) if stop > start else None
        if digest is None:  # None of it is here, or not any more.
            stop = start + 1
            digest = import_layer(store, blob(start), diff_ids[start], request)
        yield digest, tuple(diff_ids[start:stop])
        start = stop


def _merged(
    store: LocalImageStore, request: ImportRequest, config: OciImageConfig, stack: Sequence[Made], pinned: list[str]
) -> list[Made]:
    """Merge what the request's rule says, note what the merged layers were made of, and return the final stack."""
    digests = [digest for digest, _ in stack]
    if len(set(digests)) < len(digests):
        return list(stack)  # Some layer is there twice: rare, and not worth a rule of its own.
    known = layer_times(config)
    times = {digest: known[run[-1]] for digest, run in stack if run[-1] in known}
    groups = plan_merges(candidates(store, digests, times=times, of=request.name), request.merge)
    made = merge_groups(store, groups, request.progress)
    pinned += [digest for digest in made if digest not in digests]
    runs, diff_ids = dict(stack), config.rootfs.diff_ids
    result: list[Made] = []
    # What an opaque root hid is not in the stack, but below all of it.
    stop = len(diff_ids) - sum(len(run) for _, run in stack)
    for group, digest in zip(groups, made, strict=True):
        start, stop = stop, stop + sum(len(runs[part]) for part in group.digests)
        result.append((digest, tuple(diff_ids[start:stop])))
        if len(group.digests) > 1:
            store.remember_diff(run_id(diff_ids, start, stop), digest)
    return result


def _stories(config: OciImageConfig, stack: Sequence[Made]) -> dict[str, LayerStory]:
    """Return what the image's history tells of its layers; of a merged one, what it tells of the last that is in it."""
    steps, times = layer_history(config), layer_times(config)
    return {
        digest: LayerStory(
            digest=digest,
            created_s=times.get(run[-1]),
            made_by=told_step(steps[run[-1]]) if run[-1] in steps else "",
        )
        for digest, run in stack
    }
