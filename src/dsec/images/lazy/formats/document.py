"""The document of a published image (docs/formats/layer-manifest.md): its layers by digest and manifest. Pure.

It is named by the BLAKE3 of its bytes. That name, written ``b3:<64 hexadecimal digits>``, is the image's *reference*.
"""

from __future__ import annotations

import re

import msgspec

from dsec.base.errors import CapabilityMissingError, InvalidRequestError, StateCorruptedError
from dsec.base.foreign_json import decode_foreign, version_of
from dsec.base.units import MIB
from dsec.images.fingerprint_rules import check_rules
from dsec.images.lazy.formats.stored import is_name, name_of
from dsec.model.image import ImageConfig

VERSION = 1
MAXIMUM_LAYERS = 500
MAXIMUM_DOCUMENT_BYTES = 4 * MIB
SCHEME = "b3:"
IMAGES = "layers/images/"
_REFERENCE = re.compile(rf"{SCHEME}[0-9a-f]{{64}}")


class DocumentLayer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One layer of an image: its digest, and the name of its manifest."""

    digest: str
    manifest: str


class ImageDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published image.

    Attributes:
        version: of the format.
        name: it was published under.
        config: its settings.
        source: for people.
        layers: from the lowest up.
    """

    version: int
    name: str
    config: ImageConfig
    source: str
    layers: tuple[DocumentLayer, ...]


def image_key(name: str) -> str:
    """Return the key of an image's document in an object store."""
    return f"{IMAGES}{name}.json"


def is_reference(text: str) -> bool:
    """Tell whether a text has the form of a reference."""
    return _REFERENCE.fullmatch(text) is not None


def reference_of(data: bytes) -> str:
    """Return the reference of a document's bytes."""
    return SCHEME + name_of(data)


def name_in(reference: str) -> str:
    """Return the name of the document that a reference means.

    Raises:
        InvalidRequestError: it is no reference.
    """
    if not is_reference(reference):
        raise InvalidRequestError(
            f"{reference[:100]!r} is no reference of a published image",
            resolution=f"give what `dsec image publish` printed: {SCHEME} and 64 hexadecimal digits",
        )
    return reference.removeprefix(SCHEME)


def encode_document(document: ImageDocument) -> bytes:
    """Return a document's bytes: the same for the same image."""
    return msgspec.json.encode(document, order="sorted")


def decode_document(data: bytes, reference: str, whence: str) -> ImageDocument:
    """Read a document.

    Args:
        data: its bytes.
        reference: what was asked for.
        whence: where it comes from, for the error.

    Raises:
        StateCorruptedError: it is another one, or damaged, or contradicts itself.
        CapabilityMissingError: it is of a later version.
        InvalidRequestError: its fingerprint rules are none that a check can follow.
    """
    if (found := reference_of(data)) != reference:
        raise _damaged(whence, reference, f"its name is {found}")
    try:
        version = version_of(data)
        if version.isdigit() and (len(version) > 9 or int(version) > VERSION):
            raise CapabilityMissingError(
                f"the image {reference} of {whence} is of version {version[:20].decode()}; "
                f"this program knows {VERSION}",
                resolution="use the DSec version that published it, or a later one",
            )
        document = decode_foreign(data, ImageDocument)
    except msgspec.MsgspecError as error:
        raise _damaged(whence, reference, str(error)) from error
    if document.version != VERSION or not 0 < len(document.layers) <= MAXIMUM_LAYERS:
        raise _damaged(whence, reference, f"version {document.version}, {len(document.layers)} layers")
    for layer in document.layers:
        if not is_name(layer.manifest):
            raise _damaged(whence, reference, f"{layer.manifest[:80]!r} is no name of a manifest")
    check_rules(document.config.fingerprint, source=f"the image {reference} of {whence}")
    return document


def _damaged(whence: str, reference: str, detail: str) -> StateCorruptedError:
    return StateCorruptedError(
        f"the image {reference} of {whence} does not verify", detail=detail, resolution="publish it again"
    )
