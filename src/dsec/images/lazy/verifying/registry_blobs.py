"""Put the blob of a layer into a registry again, out of what is here and what of it is still good.

Theory. A blob is named by the sha256 of its bytes, so that it can be made anew from anything and is either that blob or
is not sent. Its pieces are encoded from their contents; the same contents can be encoded in other bytes by another
version of Zstandard, and then those that the registry still gives are taken as they are.

What a registry lacks it takes. What it has and gives wrongly it may keep: the distribution project's looks whether
there is a file, not what is in it. So it is read again afterwards, and where it is still wrong its operator is told
what to remove. Nothing is deleted from here: until the new bytes are there, the old ones are better than none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import anyio
import anyio.to_thread

from dsec.base.errors import (
    DsecError,
    HostDiskFullError,
    PermissionDeniedError,
    UnauthorizedError,
)
from dsec.images.durable import full_disk_reported
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.formats.stored import decode, encode
from dsec.images.lazy.source import ChunkSource
from dsec.images.lazy.verifying.fetched import fetch_pieces
from dsec.images.lazy.verifying.findings import words
from dsec.images.lazy.verifying.pieces import Piece, pieces_of
from dsec.images.registry.client import ClientOptions, RegistryClient
from dsec.images.registry.http import Timeouts
from dsec.images.registry.reference import parse_blob_url
from dsec.images.registry.retrying import Backoff
from dsec.images.registry.upload import BlobFile, upload_blob

PROBE_TIMEOUT_S = 15.0
PROBE = ClientOptions(backoff=Backoff(tries=2), timeouts=Timeouts(connect_s=5.0, stall_s=7.0))
"""Asked once more where it does not answer, so that it is known in seconds that nobody is there."""


async def why_away(url: str) -> str:
    """Return why the registry of a blob says nothing of it at all; empty: it does, be it that it has not got it."""
    repository, digest = parse_blob_url(url)
    client = RegistryClient(repository.host, PROBE)
    try:
        with anyio.fail_after(PROBE_TIMEOUT_S):
            await client.blob_size(repository, digest)
    except TimeoutError:
        return f"{repository.host} said nothing for {PROBE_TIMEOUT_S:.0f} s"
    except DsecError as error:
        return words(error)
    finally:
        await client.aclose()
    return ""


def may_not_send(host: str, error: DsecError) -> str:
    """Return what is to be done about a registry that does not let us write."""
    return (
        f"this host has all of it and may not send it: {words(error)}. Log in (podman login {host}) as somebody who "
        "may push there, and repair again"
    )


class Contents(Protocol):
    """Where contents of pieces are had, other than from the blob."""

    async def __call__(self, piece: Piece) -> bytes | None:
        """Return the content of a piece, verified; None: nobody has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlobRepair:
    """One blob that is to be put anew.

    Attributes:
        url: of the blob.
        manifest: the layer's.
        source: gives what of the blob is good.
        bad: its pieces that are not.
        contents: where those are had.
        local: the content of a piece as this host has it, verified; None: it has not got it. Blocks.
    """

    url: str
    manifest: LayerManifest
    source: ChunkSource
    bad: Collection[Piece]
    contents: Contents
    local: Callable[[Piece], bytes | None]


class _UnmadeError(Exception):
    """The blob cannot be made here, for this reason."""


async def put_blob_anew(repair: BlobRepair, path: Path) -> str:
    """Make a blob anew and send it; return why it is still bad, and what is to be done; empty: it is good.

    Args:
        repair: what is to be done.
        path: where the blob is made; removed by the caller.
    """
    repository, digest = parse_blob_url(repair.url)
    try:
        with full_disk_reported("making a blob anew"):
            blob = await _made(repair, path, digest)
    except _UnmadeError as problem:
        return str(problem)
    except HostDiskFullError as error:
        return f"{words(error)}; {error.resolution}"
    client = RegistryClient(repository.host)
    try:
        await upload_blob(client, repository, blob)
    except (UnauthorizedError, PermissionDeniedError) as error:
        return (
            f"this host has all of it and may not send it: {words(error)}. Log in (podman login {repository.host}) as "
        )
        "somebody who may push there, and repair again"
    except DsecError as error:
        return f"this host has all of it, and it cannot be sent: {words(error)}"
    finally:
        await client.aclose()
    return await _look_again(repair)


async def _made(repair: BlobRepair, path: Path, digest: str) -> BlobFile:
    """Write the blob, from contents as far as possible; with what the registry has of it where they make another."""
    for as_sent in (False, True):
        blob = await _written(repair, path, as_sent=as_sent)
        if blob.digest == digest:
            return blob
    raise _UnmadeError(
        "what is here makes other bytes of the same chunks, as another version of DSec pushed it: push the image again"
    )


async def _written(repair: BlobRepair, path: Path, *, as_sent: bool) -> BlobFile:
    hasher, size_bytes = hashlib.sha256(), 0
    with path.open("wb") as file:
        for piece in pieces_of(repair.manifest):
            stored = await _stored(repair, piece, as_sent=as_sent)
            await anyio.to_thread.run_sync(file.write, stored)
            hasher.update(stored)
            size_bytes += len(stored)
    return BlobFile(path, f"sha256:{hasher.hexdigest()}", size_bytes)


async def _stored(repair: BlobRepair, piece: Piece, *, as_sent: bool) -> bytes:
    if any(bad.ref.id == piece.ref.id for bad in repair.bad):
        content = await repair.contents(piece)
        if content is None:
            raise _UnmadeError(f"{piece} is neither here nor in another origin")
        return (await anyio.to_thread.run_sync(encode, content))[1]
    content = None if as_sent else await anyio.to_thread.run_sync(repair.local, piece)
    if content is not None:
        stored = (await anyio.to_thread.run_sync(encode, content))[1]
        if len(stored) == piece.ref.stored_bytes:
            return stored
    stored = await repair.source.fetch(piece.ref)
    await anyio.to_thread.run_sync(decode, piece.ref, stored, repair.source.name)
    return stored


async def _look_again(repair: BlobRepair) -> str:
    """Return what is still wrong with the pieces that were bad."""

    async def ignore(piece: Piece, content: bytes) -> None:
        """It is good."""

    failures = await fetch_pieces([repair.source], list(repair.bad), ignore, lambda: None)
    if not failures:
        return ""
    if why := await why_away(repair.url):
        return f"it was sent and cannot be read: {why}"
    return kept_wrong(repair.url)


def kept_wrong(url: str) -> str:
    """Return what is to be done about a blob, given by its URL, that its registry keeps as it is."""
    repository, digest = parse_blob_url(url)
    name = digest.removeprefix("sha256:")
    return (
        f"{repository.host} was sent the right bytes and keeps the wrong ones, as registries do with a blob that they "
        f"have: its operator is to remove it from its storage (docker/registry/v2/blobs/sha256/{name[:2]}/{name}/data "
        "below the root directory, in the distribution project's) and restart it; then repair again from this host"
    )
