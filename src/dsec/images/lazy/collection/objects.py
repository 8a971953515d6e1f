"""Keys and values of what keeps published images together (docs/formats/layer-store.md). Pure.

A chunk is named by its content, so that whoever publishes it anew writes to the key that a collector may be about to
delete: that is why a tombstone has states and a way back, other than that of a pack, whose name never comes back.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.images.lazy.formats.stored import is_name
from dsec.images.lazy.publication.conversion import manifest_key
from dsec.images.lazy.source import chunk_key
from dsec.images.names import canonical_name
from dsec.stores.objects import MAXIMUM_PART_LENGTH

MANIFESTS, CHUNKS, TAGS, PINS = "layers/manifests/", "layers/chunks/", "layers/tags/", "layers/pins/"
DOOMED, TRACES, CLOCK, FORMAT = "layers/doomed/", "layers/traces/", "layers/clock/", "layers/format.json"
DEFAULT_GRACE_S = 86_400.0
"""A day: longer than any publication of an image takes, and than a collector that runs daily waits for its next run."""
PIN_S = 7 * 86_400.0
"""A host that is off over a long weekend keeps what it holds."""
_LONGEST_WINDOW_S = 300.0
_PLAIN = re.compile(r"[A-Za-z0-9.-]")
_ESCAPED = re.compile(r"_([0-9a-f]{2})")


def window_s(grace_s: float) -> float:
    """Return how long after a tombstone was read a deletion that follows from it may still take place."""
    return min(grace_s / 16, _LONGEST_WINDOW_S)


class Kind(enum.Enum):
    """What can be deleted."""

    CHUNK = "chunks"
    MANIFEST = "manifests"


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """A chunk or a manifest of some image.

    Attributes:
        kind: value of a `Kind`; a text, so that parts have an order.
        name: BLAKE3, hexadecimal.
    """

    kind: str
    name: str

    @classmethod
    def chunk(cls, name: str) -> Part:
        return cls(Kind.CHUNK.value, name)

    @classmethod
    def manifest(cls, name: str) -> Part:
        return cls(Kind.MANIFEST.value, name)

    @property
    def key(self) -> str:
        """Where it lies."""
        return chunk_key(self.name) if self.kind == Kind.CHUNK.value else manifest_key(self.name)

    @property
    def tombstone_key(self) -> str:
        """Where its tombstone lies."""
        return f"{DOOMED}{self.kind}/{self.name}"


def part_of_key(key: str) -> Part | None:
    """Return the part whose key, or whose tombstone's, this is; None for anything else."""
    name = key.rpartition("/")[2].removesuffix(".json")
    if not is_name(name):
        return None
    for kind in Kind:
        part = Part(kind.value, name)
        if key in (part.key, part.tombstone_key):
            return part
    return None


class TombstoneState(enum.Enum):
    """What a tombstone says; the values are its contents, whose lengths tell them apart."""

    DOOMED = b"doomed"
    """Nobody needed it when this was written."""
    DELETED = b"deleted"
    """It was deleted; nobody may be deleting it any more once this is two windows old."""
    KEPT = b"kept"
    """Somebody needs it after all; nobody may be deleting it any more once this is a window old."""


_BY_LENGTH = {len(state.value): state for state in TombstoneState}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """The tombstone of a part.

    Attributes:
        state: what it says.
        since_s: since when, by the store's clock.
    """

    state: TombstoneState
    since_s: float


def read_tombstone(size_bytes: int, modified_at_s: float) -> Tombstone:
    """Return what a tombstone of so many bytes says; one that nobody wrote so counts as the one that harms nobody."""
    return Tombstone(state=_BY_LENGTH.get(size_bytes, TombstoneState.KEPT), since_s=modified_at_s)


class StoreFormat(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of ``layers/format.json``."""

    version: int
    grace_s: float


class Tag(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a tag.

    Attributes:
        version: of this format.
        name: what people pull the image by.
        reference: which image that is.
    """

    version: int
    name: str
    reference: str


def tag_key(name: str) -> str:
    """Return the key of a tag.

    Raises:
        InvalidRequestError: that is no name of an image, or too long a one.
    """
    known = canonical_name(name)
    escaped = "".join(character if _PLAIN.fullmatch(character) else f"_{ord(character):02x}" for character in known)
    part = f"{escaped}.json"
    if len(part) > MAXIMUM_PART_LENGTH:
        raise InvalidRequestError(f"the tag {known[:80]!r} is too long", resolution="give a shorter one")
    return f"{TAGS}{part}"


def tag_of_key(key: str) -> str:
    """Undo `tag_key`."""
    escaped = key.removeprefix(TAGS).removesuffix(".json")
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), escaped)


def pin_key(manifest: str, host: str) -> str:
    """Return the key of the pin with which a host holds a layer."""
    return f"{PINS}{manifest}.{host}"


def pinned_manifest(key: str) -> str | None:
    """Return the name of the manifest that a pin's key is about; None where it is no pin."""
    name, _, host = key.removeprefix(PINS).partition(".")
    return name if is_name(name) and host else None


def traced_subject(key: str) -> str | None:
    """Return the name of the document or manifest that a trace's key is about; None where it is about none."""
    name = key.removeprefix(TRACES).partition("/")[0]
    return name if is_name(name) else None
