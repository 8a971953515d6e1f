"""What this host has written down of a layer: its record and its manifest. Check them, and write them anew.

Nothing of it is taken on anybody's word when it is written anew: a manifest is known by its name, which the record has,
or the image's document, which is known by the image's reference; a record of a whole layer follows from its file.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread
import msgspec

from dsec.base.errors import DsecError, StateCorruptedError
from dsec.images import erofs, layers
from dsec.images.durable import exclusive, write_atomically
from dsec.images.layers import EROFS_FILE, MANIFEST_FILE, RECORD, TREE, LayerRecord, hex_of, write_record
from dsec.images.lazy.formats import manifest as manifests
from dsec.images.lazy.formats.document import ImageDocument
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.origins import Origins
from dsec.images.lazy.serving.client import LAZY
from dsec.images.lazy.verifying.pieces import PieceFile
from dsec.images.listing import tree_digest
from dsec.images.store import LocalImageStore
from dsec.model.image import LayerFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLayer:
    """A layer as its record and manifest say, both of which are right.

    Attributes:
        path: its directory.
        record: its record.
        manifest: its manifest; None: it has none.
    """

    path: Path
    record: LayerRecord
    manifest: LayerManifest | None

    @property
    def file(self) -> Path:
        """The file, directory or manifest that it is stored as."""
        return layers.content_path(self.path, self.record)


def read_stored(images: LocalImageStore, digest: str) -> StoredLayer:
    """Read the record and the manifest of a layer. What it is stored as is not looked at.

    Raises:
        StateCorruptedError: one of them is damaged or missing, or they contradict each other.
    """
    path = images.root / "layers" / hex_of(digest)
    try:
        record = msgspec.json.decode((path / RECORD).read_bytes(), type=LayerRecord)
    except (OSError, msgspec.MsgspecError) as error:
        raise StateCorruptedError(f"{RECORD} cannot be read", detail=str(error)) from error
    if record.digest != digest:
        raise StateCorruptedError(f"{RECORD} is of another layer", detail=record.digest)
    if not record.manifest:
        return StoredLayer(path=path, record=record, manifest=None)
    return StoredLayer(path=path, record=record, manifest=_read_manifest(path / MANIFEST_FILE, record))


def _read_manifest(file: Path, record: LayerRecord) -> LayerManifest:
    try:
        data = file.read_bytes()
    except OSError as error:
        raise StateCorruptedError(f"{MANIFEST_FILE} cannot be read", detail=str(error)) from error
    return _of_layer(manifests.decode(data, str(file), expected=record.manifest), record.digest)


def _of_layer(manifest: LayerManifest, digest: str) -> LayerManifest:
    if manifest.layer != digest:
        raise StateCorruptedError(f"manifest {manifest.id[:12]} is of another layer", detail=manifest.layer)
    return manifest


async def restore(
    images: LocalImageStore, digest: str, document: ImageDocument | None, origins: tuple[str, ...]
) -> StoredLayer:
    """Write the record and the manifest of a layer anew, where they are damaged.

    Args:
        images: the image store.
        digest: the layer's.
        document: of the image, if it is known.
        origins: where its manifest may be had, beside what its record says.

    Raises:
        DsecError: that cannot be done; says why.
    """
    path = images.root / "layers" / hex_of(digest)
    record = await anyio.to_thread.run_sync(_record_or_none, path, digest)
    named = record.manifest if record is not None else _named_by(document, digest)
    manifest: LayerManifest | None = None
    if named:
        known = (record.origins if record is not None else ()) + origins
        manifest = await _find_manifest(images, path, named, digest, known)
    if record is None:
        record = await anyio.to_thread.run_sync(_new_record, images, path, digest, manifest, origins)
    await anyio.to_thread.run_sync(_write, images, path, record, manifest)
    return StoredLayer(path=path, record=record, manifest=manifest)


def _record_or_none(path: Path, digest: str) -> LayerRecord | None:
    try:
        record = msgspec.json.decode((path / RECORD).read_bytes(), type=LayerRecord)
    except (OSError, msgspec.MsgspecError):
        return None
    return record if record.digest == digest else None


def _named_by(document: ImageDocument | None, digest: str) -> str:
    if document is None:
        return ""
    return next((layer.manifest for layer in document.layers if layer.digest == digest), "")


async def _find_manifest(
    images: LocalImageStore, path: Path, name: str, digest: str, origins: tuple[str, ...]
) -> LayerManifest:
    """Return a manifest from this host if some file has it, or else from the origins."""
    for file in (path / MANIFEST_FILE, images.root / LAZY / "cache" / name / MANIFEST_FILE):
        with contextlib.suppress(OSError, DsecError):
            return _of_layer(manifests.decode(file.read_bytes(), str(file), expected=name), digest)
    return _of_layer(await Origins().manifest(tuple(dict.fromkeys(origins)), name), digest)


def _new_record(
    images: LocalImageStore, path: Path, digest: str, manifest: LayerManifest | None, origins: tuple[str, ...]
) -> LayerRecord:
    if (path / EROFS_FILE).exists():
        return _record_of_file(images, path / EROFS_FILE, digest, manifest, origins)
    if manifest is None:
        kind = "directory" if (path / TREE).exists() else "layer"
        raise StateCorruptedError(f"the record of this {kind} is lost, and nothing here says what it was")
    return LayerRecord(
        version=1,
        digest=digest,
        format=LayerFormat.LAZY,
        size_bytes=manifest.size_bytes,
        entries=manifest.entries,
        manifest=manifest.id,
        origins=origins,
    )


def _record_of_file(
    images: LocalImageStore, file: Path, digest: str, manifest: LayerManifest | None, origins: tuple[str, ...]
) -> LayerRecord:
    """Return the record of a whole layer. It names the manifest only if the file is cut as that says: by it the file is
    mended in place, and one that is laid out otherwise would be written over under its mounts.
    """
    size_bytes = file.stat().st_size
    found, entries = _content_of(images, file)
    record = LayerRecord(version=1, digest=digest, format=LayerFormat.EROFS, size_bytes=size_bytes, entries=entries)
    if manifest is not None and size_bytes == manifest.size_bytes:
        bad, total = len(PieceFile(file, manifest).bad(range(len(manifest.chunks)))), len(manifest.chunks)
        # One that rotted as well is mended next. Of a file that is laid out otherwise, hardly a chunk is the same.
        if not bad or (found != digest and 2 * bad < total):
            return msgspec.structs.replace(record, entries=manifest.entries, manifest=manifest.id, origins=origins)
    if found != digest:
        raise StateCorruptedError("its record is lost, and its file is another layer's, or rotten", detail=found)
    return record


def _content_of(images: LocalImageStore, file: Path) -> tuple[str, int]:
    """Return the digest of what is in a file, and how many entries; what is wrong with it in place of the digest."""
    try:
        with images.work_directory() as work, erofs.opened(file, work.path) as root_fd:
            return tree_digest(root_fd, file_bytes=file.stat().st_size)
    except (DsecError, OSError) as error:
        return str(error), 0


def _write(images: LocalImageStore, path: Path, record: LayerRecord, manifest: LayerManifest | None) -> None:
    with exclusive(images.root / "lock"):
        if not path.is_dir():
            raise StateCorruptedError("its directory is not there any more")
        if manifest is not None:
            write_atomically(path / MANIFEST_FILE, manifest.data)
        write_record(path, record)
