"""Import an OCI image layout, from a directory or from a tar of one.

Every blob is verified against the digest by which it is referred to before anything of it is used, and every layer's
content against its diff id. Source: OCI image specification 1.1, "Image Layout", "Image Index", "Image Manifest".
"""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import TypeVar

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.images.importers.documents import read_document
from dsec.images.importers.oci_config import OciImageConfig
from dsec.images.importers.oci_layer import check_blob
from dsec.images.importers.oci_stack import import_stack
from dsec.images.importers.request import ImportRequest
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageInfo

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_REF_NAME = "org.opencontainers.image.ref.name"
_FULL_NAME = "io.containerd.image.name"
_MAX_LAYERS = 500
"""What overlayfs stacks at most."""

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_Document = TypeVar("_Document")


class _Platform(msgspec.Struct, frozen=True):
    architecture: str = ""
    os: str = "linux"


class _Descriptor(msgspec.Struct, frozen=True, rename="camel"):
    digest: str
    media_type: str = ""
    size: int = -1
    platform: _Platform | None = None
    annotations: dict[str, str] = {}


class _Manifest(msgspec.Struct, frozen=True):
    """A manifest, or an index when it has `manifests`. Unknown fields are others' extensions and are passed over."""

    manifests: list[_Descriptor] | None = None
    config: _Descriptor | None = None
    layers: list[_Descriptor] = []


def import_oci_layout(store: LocalImageStore, request: ImportRequest) -> ImageInfo:
    """Import the layout in the directory `request.path`.

    Several images in it: the one whose reference is the requested name or its tag is taken.

    Raises:
        InvalidRequestError: damaged, ambiguous, or not for this machine.
    """
    layout = _Layout(request.path)
    manifest = layout.choose(request.name)
    assert manifest.config is not None
    config = layout.read(manifest.config, OciImageConfig)
    diff_ids = config.rootfs.diff_ids
    if len(diff_ids) != len(manifest.layers) or not 0 < len(diff_ids) <= _MAX_LAYERS:
        raise InvalidRequestError(
            f"the image has {len(manifest.layers)} layers and {len(diff_ids)} diff ids; both must be equal and "
            f"between 1 and {_MAX_LAYERS}",
            resolution="export the image again",
        )
    return import_stack(store, request, config, lambda number: layout.blob(manifest.layers[number]))


class _Layout:
    """A layout in a directory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def choose(self, name: str) -> _Manifest:
        """Return the manifest of the image `name`, for this machine."""
        index = read_document(self._root / "index.json", _Manifest)
        candidates = index.manifests or []
        if len(candidates) > 1 and not any(entry.platform for entry in candidates):
            candidates = [entry for entry in candidates if _is_named(entry, name)]
        while True:
            descriptor = self._only(candidates, index)
            manifest = self.read(descriptor, _Manifest)
            if manifest.manifests is None:
                break
            candidates = manifest.manifests
        if manifest.config is None:
            raise InvalidRequestError(f"manifest {descriptor.digest} has no config", resolution="export it again")
        return manifest

    def _only(self, candidates: list[_Descriptor], index: _Manifest) -> _Descriptor:
        machine = _ARCHITECTURES.get(platform.machine(), platform.machine())
        fitting = [entry for entry in candidates if entry.platform is None or _fits(entry.platform, machine)]
        if len(fitting) == 1:
            return fitting[0]
        refs = sorted(entry.annotations.get(_REF_NAME, entry.digest) for entry in index.manifests or [])
        raise InvalidRequestError(
            f"{self._root} holds {len(fitting)} images that could be meant",
            detail=f"images in it: {', '.join(refs) or 'none'}; this machine is linux/{machine}",
            resolution="give --name the reference of one of them, or export just one",
        )

    def blob(self, descriptor: _Descriptor) -> Path:
        """Return a blob's file, verified."""
        if not _DIGEST.fullmatch(descriptor.digest):
            raise InvalidRequestError(f"{descriptor.digest[:100]!r} is not a sha256 digest")
        path = self._root / "blobs" / "sha256" / descriptor.digest.removeprefix("sha256:")
        check_blob(path, descriptor.digest)
        return path

    def read(self, descriptor: _Descriptor, kind: type[_Document]) -> _Document:
        """Return a verified JSON document."""
        return read_document(self.blob(descriptor), kind)


def _is_named(descriptor: _Descriptor, name: str) -> bool:
    tag = name.rpartition(":")[2] if ":" in name.rpartition("/")[2] else "latest"
    names = {descriptor.annotations.get(_REF_NAME), descriptor.annotations.get(_FULL_NAME)}
    return bool(names & {name, tag, name.rpartition("/")[2]})


def _fits(wanted: _Platform, machine: str) -> bool:
    return wanted.os == "linux" and wanted.architecture in ("", machine)
