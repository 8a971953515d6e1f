"""Prefetches of a host's images: from steps to traces, from those to chunks, and to the layer daemon.

What fails is logged and over: whoever reads what was not brought waits for it as if nobody had tried.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import structlog

from dsec.base.errors import DsecError
from dsec.distribution.prefetch import WINDOW, PrefetchProgress
from dsec.images.lazy.formats.manifest import BLOCK_BYTES
from dsec.images.lazy.formats.stored import CHUNK_BYTES
from dsec.images.lazy.serving.client import LayerDaemon
from dsec.images.lazy.tracing.image_use import lazy_manifests
from dsec.images.lazy.tracing.traces import (
    FIRST_USE,
    VERSION,
    Trace,
    TracedLayer,
    TraceShelf,
    command_of,
    in_common,
    window,
)
from dsec.images.store import LocalImageStore
from dsec.model.prefetch import PrefetchStep

_log = structlog.get_logger(__name__)
_BLOCKS_A_CHUNK = CHUNK_BYTES // BLOCK_BYTES


class ImagePrefetches:
    """Prefetches of the images of a store; see `dsec.images.prefetches.Prefetches`.

    Args:
        images: the store.
        daemon: serves its lazy layers, and brings their chunks.
    """

    def __init__(self, images: LocalImageStore, daemon: LayerDaemon) -> None:
        self._images = images
        self._daemon = daemon
        self._shelf = TraceShelf(images.root)

    def programs(self, images: Sequence[str]) -> frozenset[str] | None:
        try:
            if not self._manifests(images):
                return None
            traces = [trace for name in images for trace in self._shelf.of(self._images.get(name).image_id)]
        except DsecError as error:
            _told("finding traces", error)
            return None
        return frozenset(trace.command for trace in traces)

    def begin(self, owner: str, steps: Sequence[PrefetchStep], *, is_guess: bool = False) -> PrefetchProgress:
        manifests: dict[str, str] = {}
        chosen: list[list[Trace]] = []
        for place, step in enumerate(steps[:WINDOW]):
            try:
                found = self._traces(step)
                if is_guess and place == 0:
                    found = [in_common(trace, self._shelf.of(trace.image_id)) for trace in found]
                if found:
                    self._images.mount(step.images)  # What is not mounted nobody keeps.
                    manifests |= self._manifests(step.images)
                chosen.append(found)
            except DsecError as error:
                _told(f"prefetching for {owner}", error)
                chosen.append([])
        request = window(owner, chosen, manifests)
        if not request.layers:
            return PrefetchProgress()
        try:
            return self._daemon.prefetch(request)
        except DsecError as error:
            _told(f"prefetching for {owner}", error)
            return PrefetchProgress()

    def stop(self, owner: str) -> None:
        try:
            self._daemon.stop_prefetch(owner)
        except DsecError as error:
            _told(f"ending the prefetch of {owner}", error)

    def untouched(self, images: Sequence[str], ago_s: float) -> bool:
        asked_s = time.monotonic()
        try:
            uses = self._daemon.statistics(list(self._manifests(images).values()))
            touches = [(use, touch) for use in uses for touch in self._daemon.touched(use.manifest)]
        except DsecError as error:
            _told("looking at what was read", error)
            return False
        ago_s += time.monotonic() - asked_s
        return bool(uses) and all(touch.after_s >= use.age_s - ago_s for use, touch in touches)

    def keep_first_use(self, images: Sequence[str]) -> None:
        try:
            info = self._images.get(images[0])
            if self._shelf.get(info.image_id, FIRST_USE) is None:
                trace = self._first_use(images[0])
                if trace.reads:
                    self._shelf.put(trace)
        except (DsecError, OSError) as error:
            _told("keeping a trace", error)

    def _traces(self, step: PrefetchStep) -> list[Trace]:
        """Return what is known of a step: of each image the program's trace, or else that of its first use."""
        command = command_of(step.command.split()) if step.command else FIRST_USE
        found = []
        for name in step.images:
            image_id = self._images.get(name).image_id
            trace = (self._shelf.get(image_id, command) if command else None) or self._shelf.first(image_id)
            if trace is not None:
                found.append(trace)
        return found

    def _manifests(self, images: Iterable[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for name in images:
            found |= lazy_manifests(self._images, self._images.get(name))
        return found

    def _first_use(self, name: str) -> Trace:
        info = self._images.get(name)
        manifests = lazy_manifests(self._images, info)
        layers = tuple(
            TracedLayer(digest=layer.digest, size_bytes=layer.size_bytes, manifest=manifests.get(layer.digest, ""))
            for layer in info.layers
        )
        touched = sorted(
            (touch.after_s, place, touch.position)
            for place, layer in enumerate(layers)
            if layer.manifest
            for touch in self._daemon.touched(layer.manifest)
        )
        reads = []
        for after_s, place, position in touched:
            first = position * _BLOCKS_A_CHUNK
            blocks = min(_BLOCKS_A_CHUNK, -(-layers[place].size_bytes // BLOCK_BYTES) - first)
            reads.append((place, first, blocks, round(after_s * 1000)))
        return Trace(
            version=VERSION,
            image_id=info.image_id,
            command=FIRST_USE,
            argv=(),
            source="use",
            runs=1,
            recorded_at_s=time.time(),
            layers=layers,
            reads=tuple(reads),
        )


def _told(what: str, error: Exception) -> None:
    _log.warning("prefetch_failed", doing=what, error=str(error))
