"""Renew the pins of what this host has of layers, for as long as whoever serves them lives
(docs/formats/layer-store.md)."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import anyio

from dsec.base.errors import DsecError
from dsec.images.lazy.collection.holder import holder_of, stored_lazily
from dsec.images.lazy.collection.objects import PIN_S
from dsec.images.lazy.collection.roots import pin
from dsec.images.lazy.origins import REGISTRY_SCHEME
from dsec.stores.opening import open_store

_FIRST_S = 60.0
_EVERY_S = PIN_S / 28
_AGAIN_S = 600.0

Held = Callable[[], Mapping[str, Sequence[str]]]
"""Returns the origins of each layer that is mounted, by the name of its manifest."""


def renew_pins(images: Path, held: Held) -> None:
    """Renew pins from a thread of its own until this process ends.

    Args:
        images: directory of the image store, which has this host's name.
        held: what is mounted now, whether or not it is stored still.
    """
    threading.Thread(target=_renew_forever, args=(images, held), name="pins", daemon=True).start()


def _renew_forever(images: Path, held: Held) -> None:
    never = threading.Event()
    wait_s = _FIRST_S
    while not never.wait(wait_s):
        wait_s = _EVERY_S
        with contextlib.suppress(OSError):  # Out of space, descriptors or memory at the moment: the next time.
            if not renew(images, stored_lazily(images) | dict(held())):
                wait_s = _AGAIN_S


def renew(images: Path, held: Mapping[str, Sequence[str]]) -> bool:
    """Renew the pins of layers in all object stores that they come from; return whether all of them could be."""
    by_store: dict[str, list[str]] = {}
    for manifest, origins in held.items():
        for url in origins:
            if not url.startswith(REGISTRY_SCHEME):
                by_store.setdefault(url, []).append(manifest)
    holder = holder_of(images)
    renewed = [anyio.run(_renew_in, url, holder, manifests) for url, manifests in by_store.items()]
    return all(renewed)


async def _renew_in(url: str, holder: str, manifests: Iterable[str]) -> bool:
    try:
        store = open_store(url)
        try:
            await pin(store, holder, manifests)
        finally:
            await store.aclose()
    except DsecError:
        return False  # It does not answer, or may be read only.
    return True
