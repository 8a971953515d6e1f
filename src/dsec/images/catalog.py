"""The names of a store: one small file a name, replaced by one rename."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from dsec.base.errors import StateCorruptedError
from dsec.images.durable import sync_path, write_atomically
from dsec.images.names import file_name, name_of_file
from dsec.model.image import ImageConfig, ImageInfo, LayerInfo


class NameRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``names/<escaped name>.json``.

    Attributes:
        version: of this format; 1.
        image: the image.
    """

    version: int
    image: ImageInfo


def image_id(layers: Sequence[LayerInfo], config: ImageConfig) -> str:
    """Return the digest over an image's layers and config: equal images have equal ids, whatever their names."""
    document = {"layers": [layer.digest for layer in layers], "config": config}
    return "sha256:" + hashlib.sha256(msgspec.json.encode(document, order="sorted")).hexdigest()


class Catalog:
    """The directory of names. Reading needs no lock; writers hold the store's."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, name: str) -> Path:
        """Return the file of the canonical name `name`."""
        return self._root / file_name(name)

    def read(self, name: str) -> ImageInfo | None:
        """Return the image; None when there is no such name.

        Raises:
            StateCorruptedError: its file does not parse.
        """
        path = self.path(name)
        try:
            return msgspec.json.decode(path.read_bytes(), type=NameRecord).image
        except FileNotFoundError:
            return None
        except msgspec.MsgspecError as error:
            raise StateCorruptedError(
                f"the record of image {name!r} is damaged",
                detail=f"{path}: {error}",
                resolution="remove the file and import the image again",
            ) from error

    def write(self, image: ImageInfo) -> None:
        """Give an image its name, replacing what had it."""
        write_atomically(self.path(image.name), msgspec.json.encode(NameRecord(version=1, image=image)))

    def delete(self, name: str) -> bool:
        """Forget a name; return whether it was there."""
        try:
            self.path(name).unlink()
        except FileNotFoundError:
            return False
        sync_path(self._root)
        return True

    def names(self) -> tuple[str, ...]:
        """Return all names, sorted."""
        files = (entry.name for entry in self._root.iterdir())
        return tuple(sorted(name_of_file(file) for file in files if file.endswith(".json") and file[0] != "."))

    def images(self) -> Iterator[ImageInfo]:
        """Yield all images by name; one that is removed meanwhile is passed over."""
        for name in self.names():
            image = self.read(name)
            if image is not None:
                yield image
