"""What an environment is made of, layer by layer; how it is found out: `dsec.images.composition`."""

from __future__ import annotations

import enum

from dsec.model.image import LayerFormat
from dsec.model.value import Value


class LayerKind(enum.Enum):
    BASE = "base"
    RUNTIME = "runtime"
    TOOLS = "tools"
    WORKSPACE = "workspace"


class LayerView(Value, frozen=True):
    """One layer of an environment.

    Attributes:
        digest: the layer's.
        image: name of the image that it comes from; the lowest one, if several have it.
        kind: see `dsec.images.composition`.
        format: how it is stored.
        size_bytes: of all of it.
        here_bytes: of what is on this host.
        entries: files, directories and links.
        created_s: when it was made, in seconds since the epoch; None: its image's history does not tell.
        made_by: the step that made it; empty likewise.
        changed: in how many of `versions` it was another layer than in the version before.
        versions: how many versions that have one before them are known, at most 10; 0: nothing is known.
        shared_with: other images on this host that have it.
    """

    digest: str
    image: str
    kind: LayerKind
    format: LayerFormat
    size_bytes: int
    here_bytes: int
    entries: int
    created_s: float | None
    made_by: str
    changed: int
    versions: int
    shared_with: tuple[str, ...]


class Composition(Value, frozen=True):
    """What an environment is made of.

    Attributes:
        images: names, from the base up.
        layers: from the lowest up.
        warnings: what could be better, with advice.
    """

    images: tuple[str, ...]
    layers: tuple[LayerView, ...]
    warnings: tuple[str, ...]
