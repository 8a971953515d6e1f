"""Chunks of one layer in a blob of a registry: ``oci://HOST[:PORT]/REPOSITORY@sha256:DIGEST``
(docs/formats/registry-image.md). A driver of `ChunkSource`, and of `InOrderSource` where ranges are ignored."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager

import anyio
from anyio.lowlevel import RunVar

from dsec.base.errors import (
    DsecError,
    InvalidRequestError,
    PermissionDeniedError,
    StoreUnavailableError,
    UnauthorizedError,
)
from dsec.images.lazy.formats.stored import ChunkRef
from dsec.images.lazy.source import DEFAULT_TIMEOUT_S
from dsec.images.registry.blobs import MAXIMUM_SKIPPED_BYTES, RangesIgnoredError, resumed
from dsec.images.registry.client import ClientOptions, RegistryClient
from dsec.images.registry.http import RegistryFailedError, Timeouts, reported
from dsec.images.registry.reference import parse_blob_url

_clients: RunVar[dict[str, RegistryClient]] = RunVar("dsec_registry_clients")
"""By host, for each event loop: layers of one registry share connections, tokens, and patience where it asks for it."""

RESTING_S = 30.0
"""For so long after a registry gave nothing, other origins of a layer are asked before it."""
IN_ORDER_S = 300.0
"""For so long after it ignored a range, a registry is not asked for another of the same blob."""
_READ = Timeouts(connect_s=5.0, stall_s=10.0)
"""Somebody waits for what is read, so that a connection that stalls is given up while there is time for another."""


class RegistrySource:
    """Chunks of one layer in one blob.

    Args:
        url: ``oci://HOST[:PORT]/REPOSITORY@sha256:DIGEST``.
        client: of that registry, which the caller closes; None: one that all sources of an event loop share, made at
            the first fetch and never closed.
        maximum_skipped_bytes: what is read and thrown away to get at a chunk where ranges are ignored.

    Raises:
        InvalidRequestError: that is no such URL.
    """

    def __init__(
        self, url: str, client: RegistryClient | None = None, *, maximum_skipped_bytes: int = MAXIMUM_SKIPPED_BYTES
    ) -> None:
        self.name = url
        self._in_order_until_s = -math.inf
        self._first: anyio.Event | None = None
        self._repository, self._digest = parse_blob_url(url)
        self._client = client
        self._maximum_skipped_bytes = maximum_skipped_bytes

    @property
    def gives_in_order(self) -> bool:
        """See `InOrderSource`."""
        return time.monotonic() < self._in_order_until_s

    @property
    def is_resting(self) -> bool:
        """See `RestingSource`."""
        client = self._client or (_clients.get(None) or {}).get(self._repository.host)
        return client is not None and time.monotonic() < client.resting_until_s

    async def fetch(self, ref: ChunkRef, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        """See the port."""
        try:
            with anyio.fail_after(timeout_s), self._failures():
                await self._wait_for_first()
                self._check_order(ref)
                return b"".join([piece async for piece in self._pieces(ref.blob_start, ref.stored_bytes)])
        except TimeoutError as error:
            self._rest()
            raise StoreUnavailableError(
                f"{self.name} gave no chunk {ref.id[:12]} within {timeout_s:g} s",
                resolution="see whether the registry is up, and what is between it and this host",
            ) from error
        finally:
            if self._first is not None:
                self._first.set()  # Who failed to find it out keeps nobody waiting.

    def _check_order(self, ref: ChunkRef) -> None:
        if self.gives_in_order and ref.blob_start > self._maximum_skipped_bytes:
            raise StoreUnavailableError(
                f"{self.name} ignores ranges, and is read from its beginning",
                resolution="have the registry, or what is between it and this host, honour ranges (RFC 9110, 14)",
            )

    def _pieces(self, start: int, length: int, maximum_skipped_bytes: int | None = None) -> AsyncGenerator[bytes]:
        skipped = self._maximum_skipped_bytes if maximum_skipped_bytes is None else maximum_skipped_bytes
        client = self._client or _shared(self._repository.host)
        return resumed(
            client,
            self._repository,
            self._digest,
            start,
            start + length,
            maximum_skipped_bytes=skipped,
            on_answer=self._heard,
        )

    def _heard(self, is_ranged: bool) -> None:
        if not is_ranged:
            self._in_order_until_s = time.monotonic() + IN_ORDER_S
        if self._first is not None:
            self._first.set()

    async def _wait_for_first(self) -> None:
        """Let one ask before all others, until it has an answer: it tells whether the others are to ask at all."""
        if self._first is not None:
            await self._first.wait()
        else:
            self._first = anyio.Event()

    async def stream(self, start: int, end: int) -> AsyncGenerator[bytes]:
        """See `InOrderSource`: what breaks off is asked for again, and skipped over as far as it had come."""
        with self._failures():
            async with aclosing(self._pieces(start, end - start, end)) as pieces:
                async for piece in pieces:
                    yield piece

    @contextmanager
    def _failures(self) -> Iterator[None]:
        """Turn everything that a registry fails with into what the port says, and notice that it failed."""
        try:
            with reported():
                try:
                    yield
                except RangesIgnoredError:
                    raise  # It gave something, though not what was asked for.
                except RegistryFailedError:
                    self._rest()
                    raise
        except (InvalidRequestError, PermissionDeniedError, UnauthorizedError) as error:
            # A login may have ended, or a file of this host's be broken: nothing is wrong with the layer.
            raise StoreUnavailableError(error.brief, detail=error.detail, resolution=error.resolution) from error

    def _rest(self) -> None:
        (self._client or _shared(self._repository.host)).resting_until_s = time.monotonic() + RESTING_S

    def blame(self, ref: ChunkRef, error: DsecError) -> None:
        """See the port: there is nobody behind this source whom to shun."""


def _shared(host: str) -> RegistryClient:
    clients = _clients.get(None)
    if clients is None:
        clients = {}
        _clients.set(clients)
    if host not in clients:
        clients[host] = RegistryClient(host, ClientOptions(timeouts=_READ))
    return clients[host]


async def close_shared() -> None:
    """Close the clients that sources of this event loop share; for programs that end it."""
    for client in (_clients.get(None) or {}).values():
        await client.aclose()
    _clients.set({})


def open_registry_source(url: str) -> RegistrySource:
    """Open the blob of a layer as a source of chunks. Nothing is asked of the registry yet."""
    return RegistrySource(url)
