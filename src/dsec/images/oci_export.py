"""Write a stored image as an OCI image layout, for the programs that read those."""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, Any

import msgspec

from dsec.base.errors import AlreadyExistsError
from dsec.images.durable import full_disk_reported
from dsec.images.importers.oci_config import labels_of
from dsec.images.layer_tar import write_layer_tar
from dsec.images.staging import remove_tree
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageConfig
from dsec.model.value import Value

Progress = Callable[[int, int], None]
"""Told how many bytes of how many are done."""
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_TYPE = "application/vnd.oci.image"


class ExportedImage(Value, frozen=True):
    """An image that was written as an OCI layout.

    Attributes:
        image: its name.
        directory: where the layout is.
        digest: of its manifest.
        layers: how many.
        size_bytes: of their archives.
    """

    image: str
    directory: str
    digest: str
    layers: int
    size_bytes: int


def untold(done_bytes: int, total_bytes: int) -> None:
    """Tell nobody."""


def export_image(store: LocalImageStore, name: str, target: Path, *, progress: Progress = untold) -> ExportedImage:
    """Write the image `name` as the new directory `target`, whole or not at all.

    An import of it, on any host, gives an image with the same layers, by the same digests.

    Args:
        progress: told how many bytes of how many are done, about.

    Raises:
        AlreadyExistsError: there is something at the target.
        HostDiskFullError: no space there.
    """
    if os.path.lexists(target):
        raise AlreadyExistsError(f"{target} exists", resolution="name a directory that is to be made")
    target.parent.mkdir(parents=True, exist_ok=True)
    making = target.with_name(f".{target.name[:200]}.{secrets.token_hex(6)}")
    try:
        with full_disk_reported(f"exporting image {name!r}", f"free space on the disk of {target.parent}"):
            exported = export_oci_layout(store, name, making, progress=progress)
            making.rename(target)
    finally:
        remove_tree(making)
    return msgspec.structs.replace(exported, directory=str(target))


def export_oci_layout(store: LocalImageStore, name: str, target: Path, *, progress: Progress = untold) -> ExportedImage:
    """Write the image `name` into the new directory `target`, its only reference being ``latest``.

    The diff id of every layer is remembered, so that an image built upon this one shares its layers with it.
    """
    blobs = target / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    mounted = store.mount([name])
    layers = []
    done_bytes, total_bytes = 0, sum(info.size_bytes for info in mounted.info.layers)
    for info, path in zip(mounted.info.layers, mounted.layer_paths, strict=True):
        # An archive is about as long as its layer, and for people that is near enough.
        of_layer = partial(_tell, progress, done_bytes, info.size_bytes, total_bytes)
        descriptor = _write_layer(path, blobs, of_layer)
        done_bytes += info.size_bytes
        progress(done_bytes, total_bytes)
        store.remember_diff(descriptor["digest"], info.digest)
        layers.append(descriptor)
    config = _write_document(blobs, f"{_TYPE}.config.v1+json", _config(mounted.info.config, layers))
    manifest = _write_document(
        blobs,
        f"{_TYPE}.manifest.v1+json",
        {"schemaVersion": 2, "mediaType": f"{_TYPE}.manifest.v1+json", "config": config, "layers": layers},
    )
    manifest["annotations"] = {"org.opencontainers.image.ref.name": "latest"}
    (target / "index.json").write_bytes(msgspec.json.encode({"schemaVersion": 2, "manifests": [manifest]}))
    (target / "oci-layout").write_bytes(b'{"imageLayoutVersion":"1.0.0"}')
    return ExportedImage(
        image=mounted.info.name,
        directory=str(target),
        digest=manifest["digest"],
        layers=len(layers),
        size_bytes=sum(layer["size"] for layer in layers),
    )


def _tell(progress: Progress, before_bytes: int, size_bytes: int, total_bytes: int, written_bytes: int) -> None:
    progress(before_bytes + min(written_bytes, size_bytes), total_bytes)


def _config(config: ImageConfig, layers: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {
            "Env": [f"{key}={value}" for key, value in config.env.items()],
            "WorkingDir": config.workdir,
            "User": "" if config.user == "0" else config.user,
            # What is built on it keeps the hooks and the rules of its base, unless the Dockerfile says otherwise.
            "Labels": labels_of(config),
        },
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]},
        "history": [{"created_by": "dsec"} for _ in layers],
    }


class _Hashed:
    """A file that is written from front to back, hashed meanwhile."""

    def __init__(self, file: IO[bytes], progress: Callable[[int], None]) -> None:
        self._file = file
        self._progress = progress
        self.hasher = hashlib.sha256()
        self.size_bytes = 0

    def write(self, data: bytes) -> int:
        self.hasher.update(data)
        self.size_bytes += len(data)
        self._progress(self.size_bytes)
        return self._file.write(data)


def _write_layer(path: Path, blobs: Path, progress: Callable[[int], None]) -> dict[str, Any]:
    temporary = blobs / ".layer"
    with temporary.open("wb") as file:
        output = _Hashed(file, progress)
        write_layer_tar(path, output)
    digest = output.hasher.hexdigest()
    temporary.rename(blobs / digest)
    return {"mediaType": f"{_TYPE}.layer.v1.tar", "digest": f"sha256:{digest}", "size": output.size_bytes}


def _write_document(blobs: Path, media_type: str, document: dict[str, Any]) -> dict[str, Any]:
    data = msgspec.json.encode(document)
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}
