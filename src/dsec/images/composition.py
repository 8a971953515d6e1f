"""What an environment is made of, layer by layer: kinds, sizes, rates of change, who shares it, and what is here.

*Kinds* follow from where a layer stands, since nobody declares them: the lowest is the base; a layer above it that
other images have too is runtime; what an image has for itself are tools. Of several images the second may be a
workspace, the others are toolkits.

The *rate of change* is what can be seen: in how many of the last versions of the image's repository (all its tags, and
what these meant before) the layer at this place was another one than in the version before. Without a version before,
nothing is said. Places count from the bottom, so that a layer that is put between others moves all above it; that is a
change too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from dsec.images.history import LayerStory, Version, repository_of
from dsec.images.merge_plan import BEST_LAYERS
from dsec.images.merging import image_names
from dsec.images.stacking import stacked
from dsec.images.store import LocalImageStore
from dsec.model.image_layers import Composition as Composition
from dsec.model.image_layers import LayerKind as LayerKind
from dsec.model.image_layers import LayerView as LayerView

_LAST_VERSIONS = 10


def composition(
    store: LocalImageStore, base: str, workspace: str | None = None, toolkits: Sequence[str] = ()
) -> Composition:
    """Return what an image, or a stack of several, is made of.

    Raises:
        ImageNotFoundError: no such image.
        ImagesConflictError: they cannot be stacked.
        InvalidRequestError: more layers than can be stacked.
    """
    images = [store.get(name) for name in (base, *([workspace] if workspace else []), *toolkits)]
    names = tuple(image.name for image in images)
    of_workspace = images[1].name if workspace else ""
    users = image_names(store)
    versions = {image.name: known_versions(store, image.name) for image in images}
    layers = []
    for layer in stacked(images).layers:
        image = next(each for each in images if layer in each.layers)
        place = image.layers.index(layer)
        _, record = store.stored_layer(layer.digest)
        others = tuple(name for name in users.get(layer.digest, ()) if name not in names)
        story = _story(layer.digest, versions[image.name])
        changed, of = changes(versions[image.name], place)
        layers.append(
            LayerView(
                digest=layer.digest,
                image=image.name,
                kind=_kind(
                    place, is_base=image is images[0], is_workspace=image.name == of_workspace, is_shared=others != ()
                ),
                format=record.format,
                size_bytes=record.size_bytes,
                here_bytes=store.here_bytes(layer.digest),
                entries=record.entries,
                created_s=story.created_s,
                made_by=story.made_by,
                changed=changed,
                versions=of,
                shared_with=others,
            )
        )
    return Composition(images=names, layers=tuple(layers), warnings=tuple(_warnings(layers, names)))


def _kind(place: int, *, is_base: bool, is_workspace: bool, is_shared: bool) -> LayerKind:
    if is_workspace:
        return LayerKind.WORKSPACE
    if not is_base:
        return LayerKind.TOOLS
    if place == 0:
        return LayerKind.BASE
    return LayerKind.RUNTIME if is_shared else LayerKind.TOOLS


def known_versions(store: LocalImageStore, name: str) -> list[Version]:
    """Return the known versions of an image's repository, the oldest first: noted ones, and what is here now."""
    repository = repository_of(name)
    found = {(each.image_id, each.name): each for each in store.history.versions(repository)}
    for image in store.list():
        if repository_of(image.name) == repository:
            layers = tuple(LayerStory(digest=layer.digest) for layer in image.layers)
            found.setdefault(
                (image.image_id, image.name),
                Version(name=image.name, image_id=image.image_id, created_at_s=image.created_at_s, layers=layers),
            )
    return sorted(found.values(), key=lambda version: version.created_at_s)


def changes(versions: Sequence[Version], place: int) -> tuple[int, int]:
    """Return in how many of the last versions the layer at a place was another than before, and of how many.

    A version that is what the one before was, under another tag, is none. One without a layer at the place is passed
    over.
    """
    stacks = [tuple(story.digest for story in version.layers) for version in versions]
    different = [stack for before, stack in zip([(), *stacks], stacks, strict=False) if stack != before]
    digests = [stack[place] for stack in different if place < len(stack)][-_LAST_VERSIONS - 1 :]
    pairs = list(pairwise(digests))
    return sum(before != after for before, after in pairs), len(pairs)


def _story(digest: str, versions: Sequence[Version]) -> LayerStory:
    told = [story for version in versions for story in version.layers if story.digest == digest]
    return next((story for story in reversed(told) if story.made_by or story.created_s), LayerStory(digest=digest))


def _warnings(layers: Sequence[LayerView], names: Sequence[str]) -> Iterator[str]:
    if len(layers) > BEST_LAYERS:
        counts = {name: sum(layer.image == name for layer in layers) for name in names}
        most = max(counts, key=lambda name: counts[name])
        yield (
            f"{len(layers)} layers; more than {BEST_LAYERS} cost more than they give: "
            f"`dsec image merge {most}` makes fewer of those {counts[most]}"
        )
    for below, above in pairwise(layers):
        if below.versions > 1 and below.changed > above.changed and below.versions == above.versions:
            yield (
                f"layer {above.digest[7:19]} changed in {above.changed} of {above.versions} versions and lies above "
                f"{below.digest[7:19]}, which changed in {below.changed}: what changes least should lie lowest"
            )
