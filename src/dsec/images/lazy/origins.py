"""Where a lazy layer comes from: URLs in its record, each opened once by whoever serves it.

A layer is pulled from one place and served by a process that serves layers of many. Its record names its *origins* in
the order in which they are asked (docs/formats/image-store.md):

- ``file:///...`` and ``s3://...``: an object store, with each chunk an object of its own, and manifests.
- ``oci://HOST[:PORT]/REPOSITORY@sha256:DIGEST``: one blob of a registry, chunks one behind the other. It has no
  manifests: whoever pulled the layer kept its own.

An origin says where to ask and is trusted with nothing: chunks and manifests are verified by their names.
"""

from __future__ import annotations

import importlib
import sys
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol, cast, runtime_checkable

import anyio.to_thread

from dsec.base.errors import CapabilityMissingError, DsecError, ObjectNotFoundError, StoreUnavailableError
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.formats.stored import ChunkRef
from dsec.images.lazy.publication.conversion import fetch_manifest
from dsec.images.lazy.source import DEFAULT_TIMEOUT_S, ChunkSource, ObjectSource
from dsec.stores.opening import open_store

REGISTRY_SCHEME = "oci://"
_REGISTRY_SOURCE = "dsec.images.registry.source"
_OPEN_AT_ONCE = 256
"""Opened origins that are kept; the longest unused are opened again."""


def open_origin(url: str) -> ChunkSource:
    """Open an origin. Nothing is asked of it yet. May block for a moment.

    Raises:
        InvalidRequestError: the URL is malformed or of another kind.
        CapabilityMissingError: this installation has no driver for it.
        StoreUnavailableError: a folder that cannot be read.
    """
    if not url.startswith(REGISTRY_SCHEME):
        return ObjectSource(open_store(url))
    try:
        # Only layers that were pulled from a registry need its client, which is a large one.
        driver = importlib.import_module(_REGISTRY_SOURCE)
    except ModuleNotFoundError as error:
        raise CapabilityMissingError(
            f"{url} is a blob of a registry, and there is no client of registries here",
            detail=str(error),
            resolution="pull the image from an object store (dsec image publish puts it there)",
        ) from error
    return cast(ChunkSource, driver.open_registry_source(url))


async def close_origins() -> None:
    """Let go of the connections that origins opened in this event loop share."""
    driver = sys.modules.get(_REGISTRY_SOURCE)
    if driver is not None:
        await driver.close_shared()


@runtime_checkable
class RestingSource(Protocol):
    """A source that knows when it is better not to be asked first: a mirror that is down would delay each read."""

    @property
    def is_resting(self) -> bool: ...


class Origins:
    """The origins of a process, each opened when it is first needed. Used from one event loop.

    Args:
        default: stands for the origins of a layer whose record names none; empty: it has none.
    """

    def __init__(self, default: str = "") -> None:
        self._default = (default,) if default else ()
        self._opened: OrderedDict[str, ChunkSource] = OrderedDict()

    async def sources(self, urls: Sequence[str]) -> tuple[ChunkSource, ...]:
        """Return the sources of a layer's origins. One that cannot be opened is there as a source that says why; what
        gave nothing a moment ago comes last.
        """
        found = [await self._source(url) for url in urls or self._default]
        return tuple(sorted(found, key=lambda source: isinstance(source, RestingSource) and source.is_resting))

    async def _source(self, url: str) -> ChunkSource:
        source = self._opened.get(url)
        if source is None:
            try:
                source = await anyio.to_thread.run_sync(open_origin, url)
            except DsecError as error:
                return _Unopened(url, error)  # Not kept: a folder may be mounted yet.
            self._opened[url] = source
            if len(self._opened) > _OPEN_AT_ONCE:
                self._opened.popitem(last=False)
        self._opened.move_to_end(url)
        return source

    async def manifest(self, urls: Sequence[str], name: str) -> LayerManifest:
        """Return a manifest from the first object store among origins that has it, verified.

        Raises:
            DsecError: of the last one; see `fetch_manifest`.
            ObjectNotFoundError: there is no object store among them.
        """
        failure: DsecError = ObjectNotFoundError(
            f"layer manifest {name[:12]} is not here, and its layer has no origin with manifests",
            resolution="pull the image again",
        )
        for url in urls or self._default:
            if url.startswith(REGISTRY_SCHEME):
                continue
            try:
                return await fetch_manifest(await anyio.to_thread.run_sync(open_store, url), name)
            except DsecError as error:
                failure = error
        raise failure


class _Unopened:
    """An origin that could not be opened."""

    def __init__(self, name: str, error: DsecError) -> None:
        self.name = name
        self._error = error

    async def fetch(self, ref: ChunkRef, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> bytes:
        error = self._error
        raise StoreUnavailableError(error.brief, detail=error.detail, resolution=error.resolution) from error

    def blame(self, ref: ChunkRef, error: DsecError) -> None:
        """Nothing: it gave nothing."""
