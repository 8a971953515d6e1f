"""Have an image's chunks brought beforehand, and show how far it is."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.distribution.prefetch import PrefetchProgress
from dsec.images.lazy.formats import manifest as manifest_documents
from dsec.images.lazy.serving.client import LayerDaemon
from dsec.images.lazy.serving.daemon_wire import Prefetch
from dsec.images.lazy.tracing.image_use import lazy_manifests
from dsec.images.lazy.tracing.traces import Trace, TraceShelf, window
from dsec.images.store import LocalImageStore
from dsec.model.image import ImageInfo

_LOOK_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefetchOrder:
    """What is to be brought.

    Attributes:
        image: the image.
        everything: all of it, behind what traces name.
        commands: programs whose traces count; none: those that there are, the first use before the others.
        is_limited: whether it keeps to the share of the bandwidth.
        waits: until it is done.
    """

    image: str
    everything: bool
    commands: tuple[str, ...]
    is_limited: bool
    waits: bool


def bring(images: LocalImageStore, daemon: LayerDaemon, order: PrefetchOrder) -> PrefetchProgress:
    """Have it brought, and return how it went.

    Raises:
        ImageNotFoundError: no such image.
        InvalidRequestError: there is no trace to go by.
        NodeUnavailableError: no layer daemon answers.
    """
    info = images.get(order.image)
    manifests = lazy_manifests(images, info)
    if not manifests:
        return PrefetchProgress()  # All of it is here.
    owner = f"prefetch {os.getpid()} {secrets.token_hex(4)}"
    request = window(owner, [[trace] for trace in _steps(images, info, order)], manifests, is_limited=order.is_limited)
    if order.everything:
        request = _with_all(request, images, manifests)
    images.mount([order.image])  # What is not mounted nobody keeps.
    progress = daemon.prefetch(request)
    if not order.waits:
        return progress
    try:
        with _shown(progress.wanted) as show:
            while not progress.is_over:
                time.sleep(_LOOK_S)
                latest = daemon.prefetch_progress(owner)
                if latest.is_over and not latest.wanted:
                    # The daemon's server was killed, and knows of nothing. Where its layer is gone, nothing is wanted.
                    latest = daemon.prefetch(request)
                progress = latest
                show(progress)
    except BaseException:
        daemon.stop_prefetch(owner)
        raise
    return progress


def _steps(images: LocalImageStore, info: ImageInfo, order: PrefetchOrder) -> list[Trace]:
    shelf = TraceShelf(images.root)
    if not order.commands:
        first = shelf.first(info.image_id)
        others = [trace for trace in shelf.of(info.image_id) if first is None or trace.command != first.command]
        found = others if first is None else [first, *others]
    else:
        found = [_trace(shelf, info, command) for command in order.commands]
    if not found and not order.everything:
        raise InvalidRequestError(
            f"image {info.name} has no trace",
            resolution=f"record one (dsec image trace {info.name} -- COMMAND), or bring all of it: --all",
        )
    return found


def _trace(shelf: TraceShelf, info: ImageInfo, command: str) -> Trace:
    found = shelf.get(info.image_id, command)
    if found is None:
        known = ", ".join(sorted(trace.command for trace in shelf.of(info.image_id) if trace.command))
        raise InvalidRequestError(
            f"image {info.name} has no trace of {command!r}",
            resolution=f"it has traces of: {known}" if known else f"dsec image trace {info.name} -- {command}",
        )
    return found


def _with_all(request: Prefetch, images: LocalImageStore, manifests: dict[str, str]) -> Prefetch:
    """Return the request with every chunk of every layer behind the rest."""
    layers = list(request.layers)
    runs = []
    for digest, manifest_id in manifests.items():
        path, _ = images.stored_layer(digest)
        manifest = manifest_documents.decode(path.read_bytes(), str(path), expected=manifest_id)
        if manifest_id not in layers:
            layers.append(manifest_id)
        runs.append((layers.index(manifest_id), 0, len(manifest.chunks)))
    first = tuple(run for step in request.steps for run in step)
    return msgspec.structs.replace(request, layers=tuple(layers), steps=(first, tuple(runs)))


@contextmanager
def _shown(total: int) -> Iterator[Callable[[PrefetchProgress], None]]:
    """Show on stderr how many chunks of how many are done: on a terminal as a bar, otherwise a line each tenth."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_terminal:
        told = 0

        def say(progress: PrefetchProgress) -> None:
            nonlocal told
            tenths = 10 * _done(progress) // max(1, total)
            if tenths > told:
                told = tenths
                console.print(f"bringing: {_done(progress)} of {total} chunks", highlight=False)

        yield say
        return
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task("chunks", total=total)
        yield lambda progress: bar.update(task, completed=_done(progress))


def _done(progress: PrefetchProgress) -> int:
    return progress.here + progress.brought + progress.failed
