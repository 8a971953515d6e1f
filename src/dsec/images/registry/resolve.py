"""Find the image that a reference means: through indices, for this machine, and tell ours from an ordinary one."""

from __future__ import annotations

from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError
from dsec.images.registry import media
from dsec.images.registry.client import RegistryClient
from dsec.images.registry.reference import Reference, Repository

_MAXIMUM_DEPTH = 3
"""Of indices in indices."""


@dataclass(frozen=True, slots=True)
class FoundImage:
    """An image's manifest.

    Attributes:
        reference: what was asked for.
        digest: of the manifest.
        config: of the image.
        layers: from the lowest up; of ours, two for each layer.
        is_ours: its layers are manifests and chunks (docs/formats/registry-image.md).
        data: bytes of the manifest.
    """

    reference: Reference
    digest: str
    config: media.Descriptor
    layers: tuple[media.Descriptor, ...]
    is_ours: bool
    data: bytes

    @property
    def repository(self) -> Repository:
        return self.reference.repository

    @property
    def told(self) -> str:
        """The image by tag and digest, for people: which it was stays true when the tag moves."""
        tag = f":{self.reference.tag}" if self.reference.tag else ""
        return f"{self.repository}{tag}@{self.digest}"


async def find_image(client: RegistryClient, reference: Reference) -> FoundImage:
    """Return the manifest that a reference means on this machine.

    Raises:
        InvalidRequestError: it is none of an image, or for other machines.
        ObjectNotFoundError: the registry has not got it.
        StateCorruptedError, StoreUnavailableError, UnauthorizedError, PermissionDeniedError: as of its client.
    """
    found = await client.manifest(reference.repository, reference.target)
    for _ in range(_MAXIMUM_DEPTH):
        if found.document.manifests is None:
            break
        chosen = media.choose(found.document, str(reference))
        found = await client.manifest(reference.repository, chosen.digest)
    config = found.document.config
    if config is None:
        raise InvalidRequestError(f"{reference} is an index of indices that leads to no image")
    is_ours = config.media_type == media.OUR_CONFIG
    if not is_ours:
        _check_ordinary(reference, found.document)
    return FoundImage(reference, found.digest, config, tuple(found.document.layers), is_ours, found.data)


def _check_ordinary(reference: Reference, document: media.Document) -> None:
    if not 0 < len(document.layers) <= media.MAXIMUM_LAYERS:
        raise InvalidRequestError(f"{reference} has {len(document.layers)} layers: it is no image of a file system")
    for layer in document.layers:
        if not media.is_ordinary_layer(layer.media_type):
            raise InvalidRequestError(
                f"{reference} has a layer of type {layer.media_type[:80]!r}, which is no file system",
                resolution="name an image; signatures, charts and other artifacts are none, nor are encrypted ones",
            )
