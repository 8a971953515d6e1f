"""The documents that say what an image is, where it was pulled from: read them, and put them there again.

Whoever pulled an image has kept what its documents were (`pulled`). They are known by the reference, so that a host can
give one back to a store or registry that lost it and nobody need believe the host. In a store that is an image's
document; in a registry its manifest, its config (the same document) and the layers' manifests.

A document in a store is a root of what collectors keep: it is put again only when everything that it names may be
relied on (docs/formats/layer-store.md), after the layers were mended. One that is not there and that no tag means was
unpublished, and stays so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import anyio
import anyio.to_thread

from dsec.base.errors import (
    DsecError,
    ObjectNotFoundError,
    PermissionDeniedError,
    StateCorruptedError,
    StoreUnavailableError,
    UnauthorizedError,
)
from dsec.images.lazy.collection.opened import open_layer_objects
from dsec.images.lazy.collection.publishing import Publication, publish_document, publish_known_layer
from dsec.images.lazy.collection.roots import fetch_document, tags_of
from dsec.images.lazy.formats.document import ImageDocument, decode_document, reference_of
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.origins import REGISTRY_SCHEME
from dsec.images.lazy.publication.pulled import PulledFrom
from dsec.images.lazy.verifying.findings import Finding, words
from dsec.images.lazy.verifying.registry_blobs import PROBE, PROBE_TIMEOUT_S, kept_wrong, may_not_send
from dsec.images.registry import media
from dsec.images.registry.client import RegistryClient, digest_of
from dsec.images.registry.reference import Reference, parse_reference
from dsec.images.registry.upload import BlobFile, put_manifest, upload_blob
from dsec.images.staging import WorkDirectory
from dsec.stores.opening import open_existing

_PART = "document"


@dataclass(frozen=True, slots=True, kw_only=True)
class Documents:
    """What was found of an image's documents where it was pulled from.

    Attributes:
        origin: where, and what they were.
        document: the image's, verified; None: nobody has it.
        problems: what is wrong there; none: nothing, or it was unpublished.
        away: why nothing could be read there; empty: something could.
        was_unpublished: it is not there, and is not meant to be.
    """

    origin: PulledFrom
    document: ImageDocument | None
    problems: Sequence[str] = ()
    away: str = ""
    was_unpublished: bool = False

    @property
    def is_bad(self) -> bool:
        return bool(self.problems or self.away)

    def finding(self, left: str = "", *, was_repaired: bool = False) -> Finding:
        """Return what there is to say of it.

        Args:
            left: why a repair did not make it good.
            was_repaired: one did.
        """
        node, reference = self.origin.store, self.origin.reference
        if self.was_unpublished:
            detail = f"{reference} was unpublished; this host holds its layers there"
            return Finding(part=_PART, ok=True, detail=detail, node=node)
        if self.away:
            return Finding(part=_PART, ok=False, detail=self.away, advice=f"see that {node} can be reached", node=node)
        if not self.problems:
            return Finding(part=_PART, ok=True, detail=f"{reference}, hash matched", node=node)
        detail = "; ".join(self.problems)
        if was_repaired:
            return Finding(part=_PART, ok=True, detail=f"{detail}: put there anew", node=node, repaired=True)
        again = "push" if node.startswith(REGISTRY_SCHEME) else "publish"
        advice = f"{again} the image again" + ("" if left else ", or --repair: it is put there again from here")
        return Finding(part=_PART, ok=False, detail=f"{detail}. {left}" if left else detail, advice=advice, node=node)


async def look_at_documents(origin: PulledFrom) -> Documents:
    """Read the documents of an image where it was pulled from, and what of them is here. Raises nothing."""
    if origin.store.startswith(REGISTRY_SCHEME):
        return await _look_in_registry(origin)
    return await _look_in_store(origin)


async def put_documents(found: Documents, manifests: Mapping[str, LayerManifest], work: WorkDirectory) -> str:
    """Put what is wrong of an image's documents there again; return why it still is; empty: it is good.

    Args:
        found: what is wrong.
        manifests: those of the layers, by digest, as far as they are here.
        work: for files.
    """
    if found.document is None or not found.origin.document:
        return "What it was is not known here"
    missing = [layer.digest[:19] for layer in found.document.layers if layer.digest not in manifests]
    if missing:
        return f"The manifests of {', '.join(missing)} are not here"
    try:
        if found.origin.store.startswith(REGISTRY_SCHEME):
            return await _put_in_registry(found, manifests, work)
        return await _put_in_store(found, manifests)
    except (UnauthorizedError, PermissionDeniedError) as error:
        place = found.origin.store.removeprefix(REGISTRY_SCHEME).partition("/")[0]
        return f"But {may_not_send(place, error)}"
    except DsecError as error:
        return f"It cannot be put there again: {words(error)}"


def _known(origin: PulledFrom, reference: str) -> ImageDocument | None:
    """Return the document that this host kept, if it is the one."""
    try:
        return decode_document(origin.document.encode(), reference, "this host") if origin.document else None
    except DsecError:
        return None


# Object stores.


async def _look_in_store(origin: PulledFrom) -> Documents:
    known = _known(origin, origin.reference)
    try:
        store = await anyio.to_thread.run_sync(open_existing, origin.store)
        try:
            return Documents(origin=origin, document=await fetch_document(store, origin.reference))
        except ObjectNotFoundError:
            if tags := await tags_of(store, origin.reference):
                problem = f"{origin.reference} is not there, and is tagged {', '.join(tags[:5])}"
                return Documents(origin=origin, document=known, problems=(problem,))
            return Documents(origin=origin, document=known, was_unpublished=True)
        finally:
            await store.aclose()
    except (StoreUnavailableError, ObjectNotFoundError) as error:
        return Documents(origin=origin, document=known, away=words(error))
    except DsecError as error:
        return Documents(origin=origin, document=known, problems=(words(error),))


async def _put_in_store(found: Documents, manifests: Mapping[str, LayerManifest]) -> str:
    data = found.origin.document.encode()
    assert found.document is not None
    layers = [manifests[layer.digest] for layer in found.document.layers]
    store = await anyio.to_thread.run_sync(open_existing, found.origin.store)
    try:
        publication = Publication(await open_layer_objects(store))

        async def rely() -> None:
            for manifest in layers:
                if await publish_known_layer(publication, manifest) is None:
                    raise StateCorruptedError(f"layer {manifest.layer[:19]} is not whole there either")

        await publish_document(publication, rely, lambda _: data)
        await fetch_document(store, found.origin.reference)
    finally:
        await store.aclose()
    return ""


# Registries.


async def _look_in_registry(origin: PulledFrom) -> Documents:
    reference = parse_reference(origin.reference)
    known = _known(origin, reference_of(origin.document.encode()))
    client = RegistryClient(reference.repository.host, PROBE)
    try:
        with anyio.fail_after(PROBE_TIMEOUT_S):
            await client.blob_size(reference.repository, reference.digest)
        problems = await _problems(client, reference, origin)
    except TimeoutError:
        return Documents(origin=origin, document=known, away=f"it said nothing for {PROBE_TIMEOUT_S:.0f} s")
    except DsecError as error:
        return Documents(origin=origin, document=known, away=words(error))
    finally:
        await client.aclose()
    return Documents(origin=origin, document=known, problems=problems)


async def _problems(client: RegistryClient, reference: Reference, origin: PulledFrom) -> list[str]:
    """Return what of an image's documents its registry, which is there, has not got or has otherwise.

    Raises:
        UnauthorizedError, PermissionDeniedError: it does not say.
    """
    # What was damaged some registries cannot read themselves, and answer 500.
    damaged = (ObjectNotFoundError, StateCorruptedError, StoreUnavailableError)
    problems = []
    try:
        await client.manifest(reference.repository, reference.digest)
    except damaged as error:
        problems.append(f"image manifest {reference.digest[:19]}: {words(error)}")
    for what, descriptor in _small_blobs(origin):
        try:
            await client.document(reference.repository, descriptor, descriptor.size)
        except damaged as error:
            problems.append(f"{what} {descriptor.digest[:19]}: {words(error)}")
    return problems


def _small_blobs(origin: PulledFrom) -> list[tuple[str, media.Descriptor]]:
    """Return the config of an image and its layers' manifests, as the manifest that this host kept names them."""
    try:
        manifest = media.decode_document(origin.manifest.encode(), "this host")
    except DsecError:
        return []
    layers = [layer for layer in manifest.layers if layer.media_type == media.OUR_LAYER_MANIFEST]
    config = [] if manifest.config is None else [("config", manifest.config)]
    return config + [(f"manifest of layer-{number}", layer) for number, layer in enumerate(layers, 1)]


async def _put_in_registry(found: Documents, manifests: Mapping[str, LayerManifest], work: WorkDirectory) -> str:
    reference = parse_reference(found.origin.reference)
    data = found.origin.manifest.encode()
    if digest_of(data) != reference.digest:
        return "What its manifest was is not known here"
    contents = [found.origin.document.encode(), *(manifest.data for manifest in manifests.values())]
    by_digest = {digest_of(content): content for content in contents}
    client = RegistryClient(reference.repository.host)
    try:
        for number, (what, descriptor) in enumerate(_small_blobs(found.origin)):
            if descriptor.digest not in by_digest:
                return f"The {what} is not known here as it was pushed"
            path = work.path / f"document-{number}"
            await anyio.to_thread.run_sync(path.write_bytes, by_digest[descriptor.digest])
            blob = BlobFile(path, descriptor.digest, descriptor.size)
            await upload_blob(client, reference.repository, blob)
        # By its digest: what its tag means is not for us to say.
        await put_manifest(client, reference.repository, reference.digest, media.OCI_MANIFEST, data)
        left = await _problems(client, reference, found.origin)
    finally:
        await client.aclose()
    if not left:
        return ""
    digests = [descriptor.digest for _, descriptor in _small_blobs(found.origin)]
    bad = next((digest for digest in digests if any(digest[:19] in problem for problem in left)), reference.digest)
    return f"It is as it was ({'; '.join(left)}): {kept_wrong(reference.repository.blob_url(bad))}"
