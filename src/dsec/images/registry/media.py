"""What lies in registries: media types and the documents that we read of others. Pure.

Sources: OCI image specification 1.1 ("Image Index", "Image Manifest", "Content Descriptors"); Docker's image manifest
version 2, schema 2. Documents come from strangers: unknown fields are others' extensions and are passed over, and what
we use of the others is checked. Ours: docs/formats/registry-image.md.
"""

from __future__ import annotations

import platform
import re

import msgspec

from dsec.base.errors import InvalidRequestError, StateCorruptedError
from dsec.base.foreign_json import decode_foreign
from dsec.base.units import MIB
from dsec.images.registry.reference import is_digest

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DOCKER_INDEX = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
ACCEPTED = (OCI_MANIFEST, OCI_INDEX, DOCKER_MANIFEST, DOCKER_INDEX)

OUR_CONFIG = "application/vnd.dsec.image.v1+json"
OUR_LAYER_MANIFEST = "application/vnd.dsec.layer.manifest.v1+json"
OUR_LAYER_CHUNKS = "application/vnd.dsec.layer.chunks.v1"
OUR_TRACE = "application/vnd.dsec.trace.v1+json"
EMPTY = "application/vnd.oci.empty.v1+json"

MAXIMUM_MANIFEST_BYTES = 4 * MIB
"""Registries themselves bound manifests so."""
MAXIMUM_CONFIG_BYTES = 8 * MIB
MAXIMUM_BLOB_BYTES = 1 << 40
MAXIMUM_LAYERS = 500
"""What overlayfs stacks at most."""
_ORDINARY_LAYER = re.compile(
    r"application/vnd\.(?:oci\.image\.layer\.(?:nondistributable\.)?v1\.tar(?:\+gzip|\+zstd)?"
    r"|docker\.image\.rootfs\.(?:diff|foreign\.diff)\.tar(?:\.gzip|\.zstd)?)"
)
_ARCHITECTURES = {"x86_64": ("amd64", ""), "aarch64": ("arm64", "v8")}


class Platform(msgspec.Struct, frozen=True):
    """What a manifest of an index is for."""

    architecture: str = ""
    os: str = "linux"
    variant: str = ""


class Descriptor(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A pointer to a blob or a manifest."""

    media_type: str
    digest: str
    size: int
    platform: Platform | None = None
    annotations: dict[str, str] = {}


class Document(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A manifest, or an index when it has `manifests`."""

    schema_version: int = 0
    media_type: str = ""
    artifact_type: str = ""
    config: Descriptor | None = None
    layers: list[Descriptor] = []
    manifests: list[Descriptor] | None = None
    subject: Descriptor | None = None
    annotations: dict[str, str] = {}


def decode_document(data: bytes, whence: str) -> Document:
    """Read a manifest or an index.

    Raises:
        InvalidRequestError: it is of a kind that this program does not read.
        StateCorruptedError: it is none, or contradicts itself.
    """
    try:
        document = decode_foreign(data, Document)
    except msgspec.MsgspecError as error:
        raise damaged(whence, str(error)) from error
    if document.schema_version != 2:
        raise InvalidRequestError(
            f"the manifest of {whence} is of schema {document.schema_version}, which carries no digests of its layers",
            resolution="push the image again with a tool of this decade",
        )
    for descriptor in (*document.layers, *(document.manifests or []), *filter(None, [document.config])):
        if not is_digest(descriptor.digest):
            raise damaged(whence, f"{descriptor.digest[:100]!r} is no sha256 digest")
        if not 0 <= descriptor.size <= MAXIMUM_BLOB_BYTES:
            raise damaged(whence, f"{descriptor.digest[:19]} would have {descriptor.size} bytes")
    if document.manifests is None and document.config is None:
        raise damaged(whence, "it names neither a config nor manifests")
    if len(document.layers) > 2 * MAXIMUM_LAYERS:
        raise damaged(whence, f"it has {len(document.layers)} layers")
    return document


def encode_document(document: Document) -> bytes:
    """Return a manifest's bytes: the same for the same content."""
    return msgspec.json.encode(document, order="deterministic")


def choose(document: Document, whence: str) -> Descriptor:
    """Return the manifest of an index that is for this machine.

    Raises:
        InvalidRequestError: none is.
    """
    architecture, variant = _ARCHITECTURES.get(platform.machine(), (platform.machine(), ""))
    candidates = document.manifests or []
    fitting = [entry for entry in candidates if _fits(entry, architecture, variant)]
    # An index may list one platform twice, for variants or for attestations; the first is what its maker prefers.
    exact = [entry for entry in fitting if entry.platform is not None and entry.platform.variant == variant]
    if not fitting:
        offered = ", ".join(sorted({_told(entry) for entry in candidates})) or "nothing"
        raise InvalidRequestError(
            f"{whence} has no image for linux/{architecture}", detail=f"it is for: {offered}"[:500]
        )
    return (exact or fitting)[0]


def _fits(entry: Descriptor, architecture: str, variant: str) -> bool:
    if entry.platform is None:
        return entry.media_type in (OCI_MANIFEST, DOCKER_MANIFEST)
    wanted = entry.platform
    return wanted.os == "linux" and wanted.architecture == architecture and wanted.variant in ("", variant)


def _told(entry: Descriptor) -> str:
    found = entry.platform or Platform()
    return "/".join(filter(None, (found.os[:20], found.architecture[:20], found.variant[:20])))


def is_ordinary_layer(media_type: str) -> bool:
    """Tell whether a layer is a tar, perhaps compressed, as image builders make them."""
    return _ORDINARY_LAYER.fullmatch(media_type) is not None


def damaged(whence: str, detail: str) -> StateCorruptedError:
    """Return the error for a document that is not what it should be."""
    return StateCorruptedError(
        f"what {whence} gave does not verify",
        detail=detail,
        resolution="push the image again; if it stays so, do not trust this registry",
    )
