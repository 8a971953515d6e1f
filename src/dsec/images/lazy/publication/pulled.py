"""Where the images of this host were pulled from, and what their documents were: by their references these are found
again, and given back to who lost them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from dsec.images.durable import write_atomically

_VERSION = 1
_DIRECTORY = "pulled"


class PulledFrom(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The content of ``pulled/<image id>.json`` (docs/formats/image-store.md).

    Attributes:
        version: of this format.
        reference: of the published image; in a registry, with its digest.
        store: URL of the object store that it was pulled from last, or of the repository, without a digest
            (``oci://HOST/REPOSITORY``).
        document: the image's document, as it was there; empty: not kept.
        manifest: its manifest in a registry, as it was there.
    """

    version: int = _VERSION
    reference: str
    store: str
    document: str = ""
    manifest: str = ""


def note_pulled(images: Path, image_id: str, pulled: PulledFrom) -> None:
    """Note where an image was pulled from. Raises `OSError`."""
    directory = images / _DIRECTORY
    directory.mkdir(mode=0o700, exist_ok=True)
    write_atomically(_file(images, image_id), msgspec.json.encode(pulled))


def pulled_from(images: Path, image_id: str) -> PulledFrom | None:
    """Return where an image was pulled from; None: it was not, or that is not known any more."""
    try:
        found = msgspec.json.decode(_file(images, image_id).read_bytes(), type=PulledFrom)
    except (OSError, msgspec.MsgspecError):
        return None
    return found if found.version == _VERSION else None


def forget_others(images: Path, known: Callable[[], frozenset[str]]) -> None:
    """Forget where images were pulled from that are not here any more.

    Args:
        images: directory of the image store.
        known: returns the ids of all images. Asked after the notes were listed, since an image has its name first.
    """
    directory = images / _DIRECTORY
    files = list(directory.glob("*.json")) if directory.exists() else []
    for file in set(files) - {_file(images, image_id) for image_id in known()}:
        file.unlink(missing_ok=True)


def _file(images: Path, image_id: str) -> Path:
    return images / _DIRECTORY / f"{image_id.removeprefix('sha256:')}.json"
