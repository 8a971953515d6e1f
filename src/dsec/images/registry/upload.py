"""Put blobs and manifests into a registry: what is there already is not sent, what breaks off goes on where it broke.

A blob is sent in parts to an upload that the registry opened, and gets its name, its digest, at the end. After a
failure the registry is asked how far it came, since what we sent may have arrived although nobody said so. An upload
that it has forgotten is begun anew; the distribution project's registry forgets one when a part arrived and its answer
did not. (OCI distribution specification 1.1, "Pushing blobs in chunks", "Mounting".)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import anyio.to_thread

from dsec.base.errors import ObjectNotFoundError, StateCorruptedError
from dsec.base.units import MIB
from dsec.images.registry.auth import Access
from dsec.images.registry.client import Ask, RegistryClient, digest_of, number_in
from dsec.images.registry.http import RegistryFailedError, Response, reported
from dsec.images.registry.reference import Repository

PART_BYTES = 8 * MIB
_MAXIMUM_PART_BYTES = 64 * MIB
"""The most that a registry may want at once (``OCI-Chunk-Min-Length``): it stands in our memory."""
_OCTETS = "application/octet-stream"
_SO_FAR = re.compile(r"(?:bytes=)?0-(\d{1,15})")
_ACCEPTED = frozenset({202, 204})

OnBytes = Callable[[int], None]
"""Told how many more bytes have arrived; fewer than none where an upload had to begin anew."""


def to_nobody(count: int) -> None:
    """Report progress to nobody."""


@dataclass(frozen=True, slots=True)
class BlobFile:
    """A blob that is to be put into a registry.

    Attributes:
        path: its content.
        digest, size_bytes: of it.
    """

    path: Path
    digest: str
    size_bytes: int


async def has_blob(
    client: RegistryClient, repository: Repository, digest: str, *, elsewhere: Repository | None = None
) -> bool:
    """Tell whether a repository has a blob; take it over from another one of the same registry if that has it.

    Raises:
        StoreUnavailableError, UnauthorizedError, PermissionDeniedError: as the registry answers.
    """
    if await client.blob_size(repository, digest) is not None:
        return True
    if elsewhere is None or elsewhere.host != repository.host or elsewhere == repository:
        return False
    ask = Ask(
        method="POST",
        url=f"/v2/{repository.path}/blobs/uploads/?mount={digest}&from={elsewhere.path}",
        access=Access(repository=repository, pushes=True, reads_also=elsewhere),
        headers={"Content-Length": "0"},
        expected=frozenset({201, 202}),
    )
    with reported():
        async with client.answered(ask) as response:
            if response.status == 201:
                return True
            opened = _place(client, response)
        await _cancel(client, repository, opened)
    return False


async def upload_blob(
    client: RegistryClient, repository: Repository, blob: BlobFile, *, on_bytes: OnBytes = to_nobody
) -> None:
    """Send a blob. `has_blob` tells whether that is needed.

    Raises:
        StateCorruptedError: the registry found other bytes than the digest says: the file changed.
        StoreUnavailableError, UnauthorizedError, PermissionDeniedError: as the registry answers.
    """
    with reported():
        await _Upload(client, repository, blob, on_bytes).carry_out()


async def put_manifest(
    client: RegistryClient, repository: Repository, target: str, media_type: str, data: bytes
) -> str:
    """Put a manifest under a tag or its digest, after all that it names, and return its digest.

    Raises:
        StateCorruptedError: the registry keeps something else than it was given.
        StoreUnavailableError, UnauthorizedError, PermissionDeniedError: as the registry answers.
    """
    ask = Ask(
        method="PUT",
        url=f"/v2/{repository.path}/manifests/{target}",
        access=Access(repository=repository, pushes=True),
        headers={"Content-Type": media_type},
        content=data,
        expected=frozenset({201, 202}),
    )
    with reported():
        async with client.answered(ask) as response:
            kept, digest = response.header("docker-content-digest"), digest_of(data)
    if kept not in (None, digest):
        raise StateCorruptedError(
            f"{client.host} keeps the manifest {digest} of {repository.path} as {str(kept)[:100]}",
            resolution="a registry that rewrites manifests keeps no image that its digest proves: use another",
        )
    return digest


class _Upload:
    """One blob under way."""

    def __init__(self, client: RegistryClient, repository: Repository, blob: BlobFile, on_bytes: OnBytes) -> None:
        self._client = client
        self._blob = blob
        self._on_bytes = on_bytes
        self._access = Access(repository=repository, pushes=True)
        self._uploads = f"/v2/{repository.path}/blobs/uploads/"
        self._part_bytes = PART_BYTES
        self._place = ""
        self._sent = 0

    async def carry_out(self) -> None:
        failures = 0
        while True:
            before = self._sent
            try:
                await self._go_on()
                return
            except (RegistryFailedError, ObjectNotFoundError) as error:
                failures = failures + 1 if self._sent <= before else 1
                failed = error if isinstance(error, RegistryFailedError) else RegistryFailedError(error.brief)
                await self._client.pause(failures, failed)
                if await self._client.blob_size(self._access.repository, self._blob.digest) is not None:
                    return  # It arrived, and only the answer did not.
                await self._find_out()

    async def _go_on(self) -> None:
        if not self._place:
            await self._begin()
        while self._sent < self._blob.size_bytes:
            await self._send_part()
        await self._name()

    async def _begin(self) -> None:
        ask = Ask(
            method="POST",
            url=self._uploads,
            access=self._access,
            headers={"Content-Length": "0"},
            expected=frozenset({202}),
        )
        async with self._client.answered(ask) as response:
            self._place = _place(self._client, response)
            wanted = number_in(response.header("oci-chunk-min-length"), otherwise=0)
            self._part_bytes = min(_MAXIMUM_PART_BYTES, max(PART_BYTES, wanted))

    async def _send_part(self) -> None:
        part = await anyio.to_thread.run_sync(_read, self._blob, self._sent, self._part_bytes)
        ask = Ask(
            method="PATCH",
            url=self._place,
            access=self._access,
            headers={"Content-Type": _OCTETS, "Content-Range": f"{self._sent}-{self._sent + len(part) - 1}"},
            content=part,
            expected=_ACCEPTED,
            is_repeatable=False,
        )
        async with self._client.answered(ask) as response:
            self._place = _place(self._client, response)
            self._arrived(self._sent + len(part))

    async def _name(self) -> None:
        """End the upload. A registry that did so and was not heard says that it has the blob."""
        separator = "&" if "?" in self._place else "?"
        ask = Ask(
            method="PUT",
            url=f"{self._place}{separator}digest={self._blob.digest}",
            access=self._access,
            headers={"Content-Length": "0", "Content-Type": _OCTETS},
            expected=frozenset({201, 204, 400}),
            is_repeatable=False,
        )
        async with self._client.answered(ask) as response:
            if response.status != 400:
                return
            said = await response.told()
        if "DIGEST" in said:
            raise StateCorruptedError(
                f"{self._client.host} found other bytes than {self._blob.digest} says",
                detail=said,
                resolution="push the image again; if it stays so, look at the memory and disks of both ends",
            )
        raise RegistryFailedError(f"{self._client.host} does not end an upload", detail=said)

    async def _find_out(self) -> None:
        """Ask how far an upload came; begin anew where nobody knows, or nothing has arrived."""
        so_far = 0
        if self._place:
            ask = Ask(method="GET", url=self._place, access=self._access, expected=_ACCEPTED)
            try:
                async with self._client.answered(ask) as response:
                    self._place = _place(self._client, response)
                    match = _SO_FAR.fullmatch((response.header("range") or "").strip())
                    # A range cannot say "nothing": registries say 0-0 for it, as for one byte.
                    so_far = 0 if match is None or match[1] == "0" else int(match[1]) + 1
            except ObjectNotFoundError:
                pass  # It was forgotten.
        if not 0 < so_far <= self._blob.size_bytes:
            self._place, so_far = "", 0
        self._arrived(so_far)

    def _arrived(self, count: int) -> None:
        self._on_bytes(count - self._sent)
        self._sent = count


def _place(client: RegistryClient, response: Response) -> str:
    """Return where an upload goes on, as the registry said."""
    location = response.header("location")
    if not location:
        raise RegistryFailedError(f"{response.where} does not say where the upload goes on", is_final=True)
    target = client.http.resolved(response.url, location)
    client.http.check_target(target)
    return target


async def _cancel(client: RegistryClient, repository: Repository, place: str) -> None:
    """Give up an upload that was opened in place of a mount. One that stays is collected by its registry."""
    access = Access(repository=repository, pushes=True)
    expected = frozenset({202, 204, 404, 405})
    async with client.answered(Ask(method="DELETE", url=place, access=access, expected=expected)):
        return


def _read(blob: BlobFile, start: int, length: int) -> bytes:
    wanted = min(length, blob.size_bytes - start)
    with blob.path.open("rb") as file:
        file.seek(start)
        data = file.read(wanted)
    if len(data) != wanted:
        raise StateCorruptedError(f"{blob.path} became shorter while it was sent")
    return data
