"""What is asked of a node about images as a whole, and what it says of it while it goes on.

Each of these is work that may take long. It tells progress, and its report last; asked for again while it goes on, it
is joined, and asked for again later, it finds what is done. So a request is what its work is known by.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from dsec.model.image import ImageInfo
from dsec.model.value import Value

_Name = Annotated[str, Meta(min_length=1, max_length=1000)]


class ImagePull(Value, frozen=True):
    """Make an image of a registry or of an object store known on a node.

    Attributes:
        reference: ``HOST[:PORT]/REPOSITORY:TAG`` or ``@sha256:...`` of a registry; or ``b3:...`` or a tag of the store.
        name: of the image there; empty: as `dsec image pull` names it.
        eager: fetch all of it now; otherwise chunks come when they are touched.
        store: URL of the object store that has it, as `--store` names it; empty: the node's.
    """

    reference: _Name
    name: Annotated[str, Meta(max_length=1000)] = ""
    eager: bool = False
    store: Annotated[str, Meta(max_length=1000)] = ""


class ImagePublish(Value, frozen=True):
    """Put an image of a node into an object store, in chunks.

    Attributes:
        image: its name.
        tag: what people may pull it by, too; it moves if it is there. Empty: nothing.
        by_traces: lay its layers out by its traces.
        store: URL of the object store, as `--store` names it; empty: the node's.
    """

    image: _Name
    tag: Annotated[str, Meta(max_length=1000)] = ""
    by_traces: bool = False
    store: Annotated[str, Meta(max_length=1000)] = ""


class ImagePush(Value, frozen=True):
    """Put an image of a node into a registry, with the node's credentials.

    Attributes:
        image: its name.
        reference: ``HOST[:PORT]/REPOSITORY[:TAG]``.
        by_traces: lay its layers out by its traces.
    """

    image: _Name
    reference: _Name
    by_traces: bool = False


class ImageVerify(Value, frozen=True):
    """Check an image of a node.

    Attributes:
        image: its name.
        full: read also every chunk that the origins of its layers have.
        repair: make good what can be.
    """

    image: _Name
    full: bool = False
    repair: bool = False


class ImageProgress(Value, frozen=True, tag="progress"):
    """How far work is. Not everything is told: what was superseded by the next is left out.

    Attributes:
        what: in words.
        done, total: bytes, of a pull; pieces, of a verification. 0 of 0: it is not known.
    """

    what: str
    done: int = 0
    total: int = 0


class ImageFinding(Value, frozen=True):
    """What was found about one part of an image.

    Attributes:
        part: ``manifest``, ``manifest of layer-1`` (the lowest), ``document``, ``layer-1``, ``layer-1 cache``,
            ``layer-1 peers``, ``layer-1 store`` or ``layer-1 registry``.
        ok: whether it is what it should be, or is so again.
        detail: in words.
        advice: what to do; empty: nothing.
        node: where that is: this node's id, or the URL of a store or registry.
        layer: the layer's digest; empty: it is about no single one.
        repaired: whether it was not, and was made good.
    """

    part: str
    ok: bool
    detail: str
    advice: str = ""
    node: str = ""
    layer: str = ""
    repaired: bool = False


class PublishedImage(Value, frozen=True):
    """What a publication of an image came to.

    Attributes:
        reference: what to pull it by.
        layers: how many.
        chunks: pieces of all layers, metadata included.
        new_chunks: those that the store did not hold.
        stored_bytes: bytes of the new ones.
        manifests: names of the layers' manifests, from the lowest up.
    """

    reference: str
    layers: int
    manifests: tuple[str, ...] = ()
    chunks: int = 0
    new_chunks: int = 0
    stored_bytes: int = 0


class PushedImage(Value, frozen=True):
    """What a push came to.

    Attributes:
        reference: the image by its digest, which proves what is pulled.
        layers: how many.
        sent_bytes: bytes of blobs that the registry had not got.
        present_bytes: of those that it had.
    """

    reference: str
    layers: int
    sent_bytes: int = 0
    present_bytes: int = 0


class ImageFound(Value, frozen=True, tag="finding"):
    """Something that a verification found."""

    finding: ImageFinding


class ImagePulled(Value, frozen=True, tag="pulled"):
    """What a pull came to."""

    image: ImageInfo


class ImagePublished(Value, frozen=True, tag="published"):
    """What a publication came to."""

    image: PublishedImage


class ImagePushed(Value, frozen=True, tag="pushed"):
    """What a push came to."""

    image: PushedImage


class ImageVerified(Value, frozen=True, tag="verified"):
    """What a verification came to.

    Attributes:
        ok: everything is what it should be, or is so again.
        findings: all, in the order in which they were found.
    """

    ok: bool
    findings: tuple[ImageFinding, ...]


ImageRequest = ImagePull | ImagePublish | ImagePush | ImageVerify
ImageReport = ImagePulled | ImagePublished | ImagePushed | ImageVerified
ImageEvent = ImageProgress | ImageFound | ImagePulled | ImagePublished | ImagePushed | ImageVerified
ImageWorkKind = Literal["pull", "publish", "push", "verify"]
_KINDS: dict[type[ImageRequest], ImageWorkKind] = {
    ImagePull: "pull",
    ImagePublish: "publish",
    ImagePush: "push",
    ImageVerify: "verify",
}


class ImageWorkInfo(Value, frozen=True):
    """Work on an image that goes on, or waits until other work is done.

    Attributes:
        work_id: by which it can be cancelled; the same for the same request.
        kind: what is done.
        image: what it is done with: the name of an image, or of a pull the reference.
        is_waiting: it has yet to begin.
        progress: how far it is; None: it has said nothing.
    """

    work_id: str
    kind: ImageWorkKind
    image: str
    is_waiting: bool
    progress: ImageProgress | None = None


def work_info(request: ImageRequest, *, is_waiting: bool, progress: ImageProgress | None) -> ImageWorkInfo:
    """Return what is told of the work on a request."""
    return ImageWorkInfo(
        work_id=work_id_of(request),
        kind=_KINDS[type(request)],
        image=request.reference if isinstance(request, ImagePull) else request.image,
        is_waiting=is_waiting,
        progress=progress,
    )


def work_id_of(request: ImageRequest) -> str:
    """Return by what the work on a request is known: anybody who has the request can tell."""
    said = msgspec.json.encode((_KINDS[type(request)], request))
    return hashlib.blake2b(said, digest_size=8).hexdigest()
