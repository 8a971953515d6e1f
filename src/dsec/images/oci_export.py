"""Write a stored image as an OCI image layout, for the programs that read those."""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
from pathlib import Path
from typing import Any

import msgspec

from dsec.base.errors import AlreadyExistsError
from dsec.images.durable import full_disk_reported
from dsec.images.importers.oci_config import labels_of
from dsec.images.layer_tar import write_layer_tar
from dsec.images.staging import remove_tree
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageConfig

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_TYPE = "application/vnd.oci.image"


def export_image(store: LocalImageStore, name: str, target: Path) -> None:
    """Write the image `name` as the new directory `target`, whole or not at all.

    An import of it, on any host, gives an image with the same layers, by the same digests.

    Raises:
        AlreadyExistsError: there is something at the target.
        HostDiskFullError: no space there.
    """
    if os.path.lexists(target):
        raise AlreadyExistsError(f"{target} exists", resolution="name a directory that is to be made")
    target.parent.mkdir(parents=True, exist_ok=True)
    making = target.with_name(f".{target.name[:200]}.{secrets.token_hex(6)}")
    try:
        with full_disk_reported(f"exporting image {name!r}"):
            export_oci_layout(store, name, making)
            making.rename(target)
    finally:
        remove_tree(making)


def export_oci_layout(store: LocalImageStore, name: str, target: Path) -> None:
    """Write the image `name` into the new directory `target`, its only reference being ``latest``.

    The diff id of every layer is remembered, so that an image built upon this one shares its layers with it.
    """
    blobs = target / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    mounted = store.mount([name])
    layers = []
    for info, path in zip(mounted.info.layers, mounted.layer_paths, strict=True):
        descriptor = _write_layer(path, blobs)
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


def _write_layer(path: Path, blobs: Path) -> dict[str, Any]:
    temporary = blobs / ".layer"
    with temporary.open("w+b") as file:
        write_layer_tar(path, file)
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    temporary.rename(blobs / digest)
    size_bytes = (blobs / digest).stat().st_size
    return {"mediaType": f"{_TYPE}.layer.v1.tar", "digest": f"sha256:{digest}", "size": size_bytes}


def _write_document(blobs: Path, media_type: str, document: dict[str, Any]) -> dict[str, Any]:
    data = msgspec.json.encode(document)
    digest = hashlib.sha256(data).hexdigest()
    (blobs / digest).write_bytes(data)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}
