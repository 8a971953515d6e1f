"""Layers and OCI layouts made by hand, for tests of what reads them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path


def tar_of(**files: str | None) -> bytes:
    """Return a tar; a value of None makes a directory, and ``__`` stands for a slash."""
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name.replace("__", "/").replace("WH", ".wh."))
            info.mtime = 1_600_000_000
            if text is None:
                info.type, info.mode = tarfile.DIRTYPE, 0o755
                tar.addfile(info)
            else:
                info.size = len(text)
                tar.addfile(info, io.BytesIO(text.encode()))
    return output.getvalue()


def write_layout(root: Path, layers: Sequence[bytes], *, days: Sequence[float] = (), **config: object) -> Path:
    """Write an OCI layout by hand.

    Args:
        layers: uncompressed, from the lowest up.
        days: when each was made, in days since 2026-01-01; empty: no history is told.
        config: what the image says about running in it.
    """
    blobs = root / "blobs/sha256"
    blobs.mkdir(parents=True)

    def put(kind: str, data: bytes) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (blobs / digest).write_bytes(data)
        return {"digest": f"sha256:{digest}", "size": len(data), "mediaType": f"application/vnd.oci.image.{kind}"}

    diff_ids = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    document: dict[str, object] = {
        "os": "linux",
        "architecture": "amd64",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
    }
    if days:
        times = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=day) for day in days]
        steps = [{"created": f"{time:%Y-%m-%dT%H:%M:%S}.123456789Z", "created_by": f"step {time}"} for time in times]
        document["history"] = [{"created_by": "ENV A=1", "empty_layer": True}, *steps]
    manifest = {
        "schemaVersion": 2,
        "layers": [put("layer.v1.tar+gzip", gzip.compress(layer)) for layer in layers],
        "config": put("config.v1+json", json.dumps(document).encode()),
    }
    named = {"annotations": {"org.opencontainers.image.ref.name": "latest"}}
    index = {"schemaVersion": 2, "manifests": [put("manifest.v1+json", json.dumps(manifest).encode()) | named]}
    (root / "index.json").write_text(json.dumps(index))
    (root / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return root
