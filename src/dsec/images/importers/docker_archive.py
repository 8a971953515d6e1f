"""Import what `docker save` (and `skopeo copy docker-archive:`) writes, unpacked into a directory."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.images.importers.documents import read_document
from dsec.images.importers.oci_config import OciImageConfig
from dsec.images.importers.oci_stack import import_stack
from dsec.images.importers.request import ImportRequest
from dsec.images.names import canonical_name
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageInfo


class _ArchivedImage(msgspec.Struct, frozen=True, rename="pascal"):
    """One element of ``manifest.json``."""

    config: str
    layers: list[str]
    repo_tags: list[str] | None = None


def import_docker_archive(store: LocalImageStore, request: ImportRequest) -> ImageInfo:
    """Import the archive whose content is in the directory `request.path`.

    Raises:
        InvalidRequestError: damaged, or several images and none has the requested name.
    """
    root = request.path
    image = _choose(root, request)
    config = read_document(_inside(root, image.config), OciImageConfig, f"{image.config[:200]} of the archive")
    diff_ids = config.rootfs.diff_ids
    if not diff_ids or len(diff_ids) != len(image.layers):
        raise InvalidRequestError(f"the archive has {len(image.layers)} layers and {len(diff_ids)} diff ids")
    return import_stack(store, request, config, lambda number: _inside(root, image.layers[number]))


def _choose(root: Path, request: ImportRequest) -> _ArchivedImage:
    images = read_document(_inside(root, "manifest.json"), list[_ArchivedImage], "the archive's manifest.json")
    wanted = canonical_name(request.name)
    named = [image for image in images if wanted in {tag.removesuffix(":latest") for tag in image.repo_tags or []}]
    chosen = images if len(images) == 1 else named
    if len(chosen) != 1:
        tags = sorted(tag for image in images for tag in image.repo_tags or [])
        raise InvalidRequestError(
            f"the archive holds {len(images)} images, and {len(chosen)} of them are named {request.name!r}",
            detail=f"images in it: {', '.join(tags)}",
            resolution="give --name one of these names, or save one image alone",
        )
    return chosen[0]


def _inside(root: Path, name: str) -> Path:
    """Return the file `name` of the archive. Old archives link equal layers; a link must not lead out.

    The directory is ours and nobody changes it now, so that a check before the use is enough.
    """
    base = os.path.realpath(root)
    path = Path(os.path.realpath(root / name.lstrip("/")))
    if not path.is_relative_to(base) or not path.is_file():
        raise InvalidRequestError(f"the archive names {name[:200]!r}, which is not a file in it")
    return path
