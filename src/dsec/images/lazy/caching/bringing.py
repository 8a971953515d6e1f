"""Bring all of a layer that is held in a cache, several chunks at a time."""

from __future__ import annotations

import math
from collections.abc import Callable

import anyio

from dsec.base.errors import DsecError, HostDiskFullError
from dsec.images.lazy.caching.cached_layer import CachedLayer
from dsec.images.lazy.formats.manifest import LayerManifest
from dsec.images.lazy.serving.fetching import FETCHES_AT_ONCE, Fetcher

Progress = Callable[[int, int], None]
"""Takes bytes that are here, and bytes in all."""
_AT_ONCE = FETCHES_AT_ONCE * 3 // 4
"""The rest is for those who read meanwhile."""
_AT_ONCE_WITH_PEERS = 3
"""Others wait for what a node fetches from an origin. Many at a time would share its link and all come late, and until
then nobody would have anything to give."""


def untold(here_bytes: int, total_bytes: int) -> None:
    """Tell nobody."""


async def bring_whole(
    fetcher: Fetcher,
    layer: CachedLayer,
    *,
    within_s: float = math.inf,
    progress: Progress = untold,
) -> bool:
    """Fetch what is missing of a held layer, several chunks at a time, for a while.

    Args:
        fetcher: of its cache.
        layer: the layer.
        within_s: for how long; what is under way then goes on by itself.
        progress: told after each chunk.

    Returns:
        Whether there is room for it. False: some chunk was fetched and not kept.

    Raises:
        DsecError: a chunk cannot be had; see `fetch_verified`.
    """
    missing = (position for position in fetcher.order(layer) if not layer.has(position))
    failures: list[DsecError] = []
    has_room = True

    async def work() -> None:
        nonlocal has_room
        for position in missing:
            try:
                await fetcher.bring(layer, [position])
            except DsecError as error:
                failures.append(error)
            has_room = has_room and layer.has(position)
            if failures or not has_room:
                return
            progress(layer.chunk_bytes, layer.manifest.size_bytes)

    with anyio.move_on_after(within_s):
        async with anyio.create_task_group() as group:
            for _ in range(_AT_ONCE if fetcher.neighbours is None else _AT_ONCE_WITH_PEERS):
                group.start_soon(work)
    if failures:
        raise failures[0]
    return has_room


def no_room(manifest: LayerManifest) -> HostDiskFullError:
    """Return the error that there is no room for a layer."""
    return HostDiskFullError(
        f"no space left while pulling layer {manifest.layer}",
        resolution="free space on the disk of the state directory, or remove images (dsec image rm)",
    )
