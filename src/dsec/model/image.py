"""Images: named stacks of read-only layers with the settings that commands start from."""

from __future__ import annotations

import enum

from dsec.model.value import Value


class ImageConfig(Value, frozen=True):
    """What an image says about running in it.

    Attributes:
        env: environment of every command.
        workdir: directory of every command.
        user: user of every command: name, ``uid`` or ``uid:gid``.
    """

    env: dict[str, str] = {}
    workdir: str = "/"
    user: str = "0"


class LayerFormat(enum.Enum):
    EROFS = "erofs"
    DIRECTORY = "directory"


class LayerInfo(Value, frozen=True):
    """One read-only layer in the local store.

    Attributes:
        digest: ``sha256:...`` over the layer's canonical content listing (docs/formats/image-store.md).
        format: how it is stored.
        size_bytes: bytes on disk.
    """

    digest: str
    format: LayerFormat
    size_bytes: int


class ImageInfo(Value, frozen=True):
    """One image.

    Attributes:
        name: such as ``python`` or ``agent-runtime:v2.3`` (no tag means ``latest``).
        image_id: digest over layers and config.
        layers: from the lowest up.
        config: settings of commands.
        created_at_s: seconds since the epoch.
        source: where it came from, for people to read.
    """

    name: str
    image_id: str
    layers: tuple[LayerInfo, ...]
    config: ImageConfig = ImageConfig()
    created_at_s: float = 0.0
    source: str = ""
