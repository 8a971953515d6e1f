"""What layers came to when they were cut for publication, so that one is not laid out and cut again for being asked.

A manifest follows from a layer and from how its file is laid out: whoever finds that a store or registry has all that
it names may rely on that, and need not look at the file. Where anything is missing the layer is cut as if nothing were
known. That goes for layers that were laid out by content alone; by traces each time comes to something else, and to
move traces along one has to lay out anyway. Of those there is a note apart, for who looks after what was published.

`<images>/cut/<hex>.json`, `<hex>.traced.json` (docs/formats/image-store.md): a note that is lost costs time, and that
what was published is looked after by those who pulled it only.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dsec.base.errors import DsecError
from dsec.images.durable import write_atomically
from dsec.images.layers import hex_of
from dsec.images.lazy.erofs.layout import LAYOUT
from dsec.images.lazy.formats import manifest as manifests
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.tracing.traces import TraceShelf
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageInfo

_VERSION = 1
_DIRECTORY = "cut"


@dataclass(frozen=True, slots=True)
class CutLayer:
    """A layer that was cut.

    Attributes:
        manifest: its manifest.
        blob: URL of a blob in a registry that all its chunks make (`dsec.images.lazy.origins`); empty: not known.
        blob_bytes: of that.
    """

    manifest: LayerManifest
    blob: str = ""
    blob_bytes: int = 0


class _Note(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    version: int
    layout: int
    id: str
    manifest: str
    blob: str = ""
    blob_bytes: int = 0


def cut_before(images: LocalImageStore, info: ImageInfo) -> dict[str, CutLayer]:
    """Return the layers of an image that were cut before, by digest: none where the image has traces. Blocks."""
    if TraceShelf(images.root).of(info.image_id):
        return {}
    read = {layer.digest: _read(images.root, layer.digest) for layer in info.layers}
    return {digest: cut for digest, cut in read.items() if cut is not None}


def cuts_of(images: LocalImageStore, digest: str) -> list[tuple[CutLayer, bool]]:
    """Return what a layer came to when it was cut last, by content alone and by traces, as far as that is known; with
    each, whether it was by traces. Of small layers both are the same, and it is there once. Blocks.
    """
    found: dict[str, tuple[CutLayer, bool]] = {}
    for by_traces in (False, True):
        cut = _read(images.root, digest, by_traces=by_traces)
        if cut is not None and (cut.manifest.id not in found or not found[cut.manifest.id][0].blob):
            found[cut.manifest.id] = cut, by_traces
    return list(found.values())


def note_cut(images: LocalImageStore, cut: CutLayer, *, by_traces: bool = False) -> None:
    """Note what a layer came to. Blocks; what cannot be noted is not."""
    digest = cut.manifest.layer
    known = _read(images.root, digest, by_traces=by_traces)
    if known is not None and known.manifest.id == cut.manifest.id and (known.blob or not cut.blob):
        return
    note = _Note(
        version=_VERSION,
        layout=LAYOUT,
        id=cut.manifest.id,
        manifest=cut.manifest.data.decode(),
        blob=cut.blob,
        blob_bytes=cut.blob_bytes,
    )
    with contextlib.suppress(OSError):
        file = _file(images.root, digest, by_traces=by_traces)
        file.parent.mkdir(mode=0o700, exist_ok=True)
        write_atomically(file, msgspec.json.encode(note))
        for other in list(file.parent.glob("*.json")):
            if not images.has_layer(f"sha256:{other.name.partition('.')[0]}"):
                other.unlink(missing_ok=True)


def _read(root: Path, digest: str, *, by_traces: bool = False) -> CutLayer | None:
    try:
        file = _file(root, digest, by_traces=by_traces)
        note = msgspec.json.decode(file.read_bytes(), type=_Note)
        manifest = manifests.decode(note.manifest.encode(), str(file), expected=note.id)
    except (OSError, msgspec.MsgspecError, DsecError):
        return None
    if (note.version, note.layout, manifest.layer) != (_VERSION, LAYOUT, digest):
        return None
    return CutLayer(manifest, note.blob, note.blob_bytes)


def _file(root: Path, digest: str, *, by_traces: bool) -> Path:
    return root / _DIRECTORY / f"{hex_of(digest)}{'.traced' if by_traces else ''}.json"
