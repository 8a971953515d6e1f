"""What keeps published images: their documents, the tags that people pull them by, and the pins of hosts.

See docs/formats/layer-store.md. Nothing here is locked: whoever writes looks afterwards at what another may have done.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

import msgspec

from dsec.base.errors import DsecError, InvalidRequestError, ObjectNotFoundError, StateCorruptedError
from dsec.base.foreign_json import decode_foreign
from dsec.images.lazy.collection.objects import PINS, TAGS, Tag, pin_key, tag_key, tag_of_key
from dsec.images.lazy.collection.opened import each
from dsec.images.lazy.formats.document import (
    IMAGES,
    MAXIMUM_DOCUMENT_BYTES,
    SCHEME,
    ImageDocument,
    decode_document,
    image_key,
    is_reference,
    name_in,
    reference_of,
)
from dsec.images.lazy.formats.stored import is_name
from dsec.images.names import canonical_name
from dsec.model.value import Value
from dsec.stores.objects import ObjectStore

_VERSION = 1
_MAXIMUM_TAG_BYTES = 65_536
_ROUNDS = 10


class PublishedListing(Value, frozen=True):
    """An image of a store.

    Attributes:
        reference: what proves it.
        tags: what people pull it by.
        name: it was published under.
        layers: how many.
        published_at_s: when, by the store's clock.
        problem: why its document cannot be read; empty: it can.
    """

    reference: str
    tags: tuple[str, ...] = ()
    name: str = ""
    layers: int = 0
    published_at_s: float = 0.0
    problem: str = ""


async def fetch_document(store: ObjectStore, reference: str) -> ImageDocument:
    """Return the document of a published image, verified.

    Raises:
        InvalidRequestError: that is no reference.
        ObjectNotFoundError: the store has not got it.
        StateCorruptedError: what it has is something else, or contradicts itself.
        StoreUnavailableError: the store does not answer.
    """
    name = name_in(reference)
    try:
        data = await store.get_range(image_key(name), 0, MAXIMUM_DOCUMENT_BYTES + 1)
    except ObjectNotFoundError as error:
        raise ObjectNotFoundError(
            f"{store.url} has no image {reference}",
            resolution="publish it there, or name the right --store; "
            f"`dsec image ls --store {store.url}` lists what is there",
        ) from error
    return decode_document(data, reference, store.url)


async def put_document(store: ObjectStore, data: bytes, *, tag: str | None = None) -> str:
    """Make an image known that is there with all its parts, and return its reference.

    Args:
        store: where.
        data: of its document.
        tag: what people are to pull it by, too; it moves if it is there. None: nothing.

    Raises:
        InvalidRequestError: the tag is no name of an image.
        StoreUnavailableError: the store does not answer.
    """
    reference = reference_of(data)
    key = image_key(name_in(reference))
    tag_document = None if tag is None else (tag_key(tag), _encode_tag(canonical_name(tag), reference))
    for _ in range(_ROUNDS):
        # Also where it is there: when it was published last is its age.
        await store.put(key, data)
        if tag_document is None:
            return reference
        await store.put(*tag_document)
        # Somebody who unpublished it meanwhile may not have seen the tag: whoever looks last finds the other.
        if await store.head(key) is not None:
            return reference
    raise InvalidRequestError(f"image {reference} is being unpublished again and again", resolution="see who does it")


async def resolve_tag(store: ObjectStore, name: str) -> str:
    """Return the reference that a tag means now.

    Raises:
        InvalidRequestError: that is no name.
        ObjectNotFoundError: there is no such tag.
        StateCorruptedError: what is there is no tag, or another's.
    """
    try:
        data = await store.get_range(tag_key(name), 0, _MAXIMUM_TAG_BYTES)
    except ObjectNotFoundError as error:
        raise ObjectNotFoundError(
            f"{store.url} has no image tagged {canonical_name(name)!r}",
            resolution=f"`dsec image ls --store {store.url}` lists what is there; `dsec image publish IMAGE --tag "
            f"{canonical_name(name)}` tags; --store names another store",
        ) from error
    return _decode_tag(data, canonical_name(name), store.url).reference


async def resolve(store: ObjectStore, image: str) -> str:
    """Return the reference of an image that is named by its reference or by a tag. Raises as `resolve_tag`."""
    if image.startswith(SCHEME):
        name_in(image)  # Nobody means a tag by what looks like a reference and is none.
        return image
    return await resolve_tag(store, image)


async def unpublish(store: ObjectStore, image: str) -> str:
    """Make an image unknown: by a tag, that tag, and the image too unless another tag means it; or by its reference.

    What it consists of stays for the grace period, and for as long as hosts hold it.

    Returns:
        The reference that was forgotten; empty: other tags mean it, and it stays.

    Raises:
        ObjectNotFoundError: there is no such tag or image.
        InvalidRequestError: tags mean the image that was given by its reference.
    """
    reference = await resolve(store, image)
    if not is_reference(image):
        await store.delete([tag_key(image)])
    elif tags := await tags_of(store, reference):
        raise InvalidRequestError(
            f"{image} is tagged {', '.join(tags[:5])}", resolution="unpublish its tags: it goes with the last one"
        )
    key = image_key(name_in(reference))
    if await tags_of(store, reference):
        return ""
    try:
        data = await store.get_range(key, 0, MAXIMUM_DOCUMENT_BYTES + 1)
    except ObjectNotFoundError:
        if is_reference(image):
            raise ObjectNotFoundError(
                f"{store.url} has no image {image}",
                resolution=f"`dsec image ls --store {store.url}` lists what is there",
            ) from None
        return reference
    await store.delete([key])
    if await tags_of(store, reference):
        # Somebody tagged it while we looked away. They look for it too; between us, it is there again.
        await store.put(key, data)
        return ""
    return reference


async def tags_of(store: ObjectStore, reference: str) -> tuple[str, ...]:
    """Return the tags that mean an image."""
    return tuple(sorted([tag.name async for tag in _tags(store) if tag.reference == reference]))


async def list_published(store: ObjectStore) -> tuple[PublishedListing, ...]:
    """Return the images of a store, the latest first, and tags that mean none."""
    tags: dict[str, list[str]] = {}
    async for tag in _tags(store):
        tags.setdefault(tag.reference, []).append(tag.name)
    found = [each_ async for each_ in _listed(store, tags)]
    known = {listing.reference for listing in found}
    found += [
        PublishedListing(reference=reference, tags=tuple(sorted(names)), problem="it is not there")
        for reference, names in sorted(tags.items())
        if reference not in known
    ]
    return tuple(sorted(found, key=lambda listing: -listing.published_at_s))


async def _listed(store: ObjectStore, tags: dict[str, list[str]]) -> AsyncIterator[PublishedListing]:
    async for reference, published_at_s in references(store):
        listing = PublishedListing(
            reference=reference, tags=tuple(sorted(tags.get(reference, ()))), published_at_s=published_at_s
        )
        try:
            document = await fetch_document(store, reference)
        except ObjectNotFoundError:
            continue  # Unpublished meanwhile.
        except DsecError as error:
            yield msgspec.structs.replace(listing, problem=error.detail or error.brief)
            continue
        yield msgspec.structs.replace(listing, name=document.name, layers=len(document.layers))


async def references(store: ObjectStore) -> AsyncIterator[tuple[str, float]]:
    """Yield the reference of every document, readable or not, and when it was put."""
    async for info in store.list(IMAGES):
        name = info.key.removeprefix(IMAGES).removesuffix(".json")
        if is_name(name) and info.key == image_key(name):
            yield f"{SCHEME}{name}", info.modified_at_s


async def pin(store: ObjectStore, host: str, manifests: Iterable[str]) -> None:
    """Say that a host holds layers, for seven days from now on. Idempotent."""

    async def put(manifest: str) -> None:
        await store.put(pin_key(manifest, host), b"")

    await each(sorted(set(manifests)), put)


async def pinned(store: ObjectStore, host: str) -> frozenset[str]:
    """Return the manifests that a host has pinned."""
    pins = [info.key.removeprefix(PINS).partition(".") async for info in store.list(PINS)]
    return frozenset(manifest for manifest, _, holder in pins if holder == host)


async def unpin(store: ObjectStore, host: str, manifests: Iterable[str]) -> None:
    """Take back pins of a host."""
    if gone := [pin_key(manifest, host) for manifest in sorted(manifests)]:
        await store.delete(gone)


async def _tags(store: ObjectStore) -> AsyncIterator[Tag]:
    async for info in store.list(TAGS):
        try:
            data = await store.get_range(info.key, 0, _MAXIMUM_TAG_BYTES)
            yield _decode_tag(data, tag_of_key(info.key), store.url)
        except (ObjectNotFoundError, StateCorruptedError):
            continue  # It went meanwhile, or means nothing.


def _encode_tag(name: str, reference: str) -> bytes:
    return msgspec.json.encode(Tag(version=_VERSION, name=name, reference=reference))


def _decode_tag(data: bytes, name: str, whence: str) -> Tag:
    try:
        tag = decode_foreign(data, Tag)
    except msgspec.MsgspecError as error:
        raise _no_tag(name, whence, str(error)) from error
    if tag.version != _VERSION or tag.name != name or not is_reference(tag.reference):
        raise _no_tag(name, whence, f"version {tag.version}, of {tag.name[:80]!r}, means {tag.reference[:80]!r}")
    return tag


def _no_tag(name: str, whence: str, detail: str) -> StateCorruptedError:
    return StateCorruptedError(
        f"the tag {name!r} of {whence} does not say an image", detail=detail, resolution="publish with that tag again"
    )
