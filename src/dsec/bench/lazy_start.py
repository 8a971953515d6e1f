"""`lazy-start`: from `create` to the end of the first command, of an image that this host has nothing of.

The image lies in an object store behind a shaped link (`shaped`), at two rates. A sample begins with nothing of it on
this host: no chunk, no manifest, no page. It is made known by its reference (which is timed apart), and then the clock
runs from `create` to the end of the command. Beside it, from the same nothing: the whole image pulled and then used,
what users of Docker Engine and podman do (`lazy_references`), and stargz-snapshotter, if it is there; and the same
command where all of it was here before, on the disk and not in memory.

The image is there twice: as it is, and laid out by a trace of the same commands, which goes with it (``dsec image
publish --trace``), so that what they read lies together and comes while the sandbox is made.

What the command touches is measured apart (`touched`), so that what was fetched can be held against it: the promise is
a time beyond the transfer of that, at the rate that the link was measured to have.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio.to_thread

from dsec.base.errors import ExternalCommandError, RuntimeFailedError
from dsec.base.units import MIB
from dsec.bench.context import BenchContext
from dsec.bench.distribution import distribution, ratio
from dsec.bench.lazy_images import LazyImages, Wanted, lazy_images, make_image, warm
from dsec.bench.lazy_references import Loader, docker, podman, write_archive
from dsec.bench.report import Report, make_report
from dsec.bench.sampling import Sample, alternate, timed
from dsec.bench.shaped import FAST_BITS, SLOW_BITS, ShapedStore, shaped_store
from dsec.bench.stargz import NAME as STARGZ
from dsec.bench.stargz import Stargz, stargz
from dsec.bench.touched import Touched
from dsec.images.store import LocalImageStore
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxSpec
from dsec.node.node import Node

NAME = "bench-lazy"
COMMANDS: Mapping[str, tuple[str, ...]] = {"true": ("true",), "python3": ("python3", "-c", "pass")}
_MAIN = "python3"
_LAZY, _CACHED, _EAGER = "lazy", "all of it on this host's disk", "pulled whole, then created"
_TRACED = "lazy, published by its trace"
_SMALLEST_ADDED_BYTES = 2 * MIB
_EACH = 10
"""What loads the whole image is sampled once for so many samples of what does not."""
_GOAL_MS = 150.0
_Key = tuple[str, str]
"""Who, and which command."""
_Others = dict[str, Callable[[Sequence[str]], float]]
"""Other programs: each runs a command in the image, from nothing, and returns the seconds. They block."""


@dataclass(slots=True)
class _Start:
    """Starts sandboxes of one image.

    Attributes:
        node: makes them.
        images: its images.
        references: of its publications, by way.
        pull_s: how long it took to make the image known.
        fetched_bytes: content that each lazy start fetched, by way and command.
    """

    node: Node
    images: LazyImages
    references: Mapping[str, str]
    pull_s: list[float] = field(default_factory=list)
    fetched_bytes: dict[_Key, list[int]] = field(default_factory=dict)

    async def lazy(self, way: str, command: str) -> float:
        """Start from nothing, loading what is touched."""
        await self.images.forget()
        with timed() as pulling:
            await self.images.pull(self.references[way])
        self.pull_s.append(pulling.seconds)
        seconds = await self.first(command)
        status = await anyio.to_thread.run_sync(self.images.daemon.status)
        self.fetched_bytes.setdefault((way, command), []).append(status.fetched_bytes)
        return seconds

    async def eager(self, command: str, way: str = _LAZY) -> float:
        """Start from nothing, loading all."""
        await self.images.forget()
        with timed() as pulling:
            await self.images.pull(self.references[way], eager=True)
        return pulling.seconds + await self.first(command)

    async def cached(self, command: str) -> float:
        """Start with everything on the disk, and nothing in memory."""
        await self.images.chill()
        return await self.first(command)

    async def first(self, command: str) -> float:
        """Return the seconds from `create` to the end of a command."""
        with timed() as watch:
            sandbox_id = (await self.node.create(SandboxSpec(image=NAME))).sandbox_id
            result = await self.node.run(sandbox_id, CommandRequest(argv=COMMANDS[command]))
        await self.node.remove(sandbox_id)
        if result.status.exit_code != 0:
            raise RuntimeFailedError("the first command failed", detail=result.stderr.decode(errors="replace"))
        return watch.seconds


@dataclass(frozen=True, slots=True)
class _AtRate:
    """What was measured at one rate.

    Attributes:
        asked_bits, bits: what the link was shaped to, and measured to have.
        seconds: by contestant and command.
        pull_s: of making the image known.
        fetched_bytes: by way and command.
    """

    asked_bits: int
    bits: float
    seconds: Mapping[_Key, list[float]]
    pull_s: Sequence[float]
    fetched_bytes: Mapping[_Key, Sequence[int]]

    def rows(self, touched: Mapping[_Key, Sequence[Touched]]) -> Iterator[dict[str, Any]]:
        for (who, command), seconds in self.seconds.items():
            row = {"link": f"{self.asked_bits / 1e9:g} Gbit/s", "measured_gbit_s": round(self.bits / 1e9, 2)}
            row |= {"what": f"{who}: {' '.join(COMMANDS[command])}", "ms": distribution(seconds, scale=1e3)}
            yield row | (self._of_lazy((who, command), touched) if (who, command) in touched else {})

    def _of_lazy(self, key: _Key, touched_by: Mapping[_Key, Sequence[Touched]]) -> dict[str, Any]:
        touched = touched_by[key]
        transfer_ms = 8e3 * sum(each.stored_bytes for each in touched) / self.bits
        content_bytes = sum(each.content_bytes for each in touched)
        fetched = distribution(self.fetched_bytes[key], scale=1 / MIB)
        return {
            "touched_pages_mib": round(sum(each.page_bytes for each in touched) / MIB, 2),
            "touched_chunks_mib": round(content_bytes / MIB, 2),
            "fetched_mib": fetched.p50,
            "fetched_of_touched": ratio(fetched.p50 * MIB, content_bytes),
            "transfer_ms": round(transfer_ms, 1),
            "beyond_transfer_ms": distribution([1e3 * each - transfer_ms for each in self.seconds[key]]),
            "goal_beyond_transfer_ms": _GOAL_MS,
            "made_known_before_ms": distribution(self.pull_s, scale=1e3),
        }


async def bench_lazy_start(context: BenchContext) -> Report:
    """Measure the first command of a lazily loaded image beside eager pulls, archives that are loaded, and the same
    image resident.
    """
    workplace = context.workplace
    async with AsyncExitStack() as stack:
        store = stack.enter_context(shaped_store(workplace.directory / "far"))
        root = await anyio.to_thread.run_sync(workplace.images_root, "embedded")
        images = stack.enter_context(lazy_images(root, store))
        with workplace.images_of("references") as origin:
            size_bytes = await anyio.to_thread.run_sync(_make, context, origin)
            references = {_LAZY: await images.publish(origin, NAME)}
            await anyio.to_thread.run_sync(_trace, workplace.directory / "references")
            references[_TRACED] = await images.publish(origin, NAME, by_traces=True)
            others = stack.enter_context(_others(context, origin, store))
        await anyio.to_thread.run_sync(warm, store)
        node = await stack.enter_async_context(workplace.embedded(store=store.url))
        measured = []
        for bits in (FAST_BITS, SLOW_BITS):
            measured.append(await _measure(context, bits, store, _Start(node, images, references), others))
        touched = await _touched(_Start(node, images, references))
    return _report(context, size_bytes, measured, touched)


def _make(context: BenchContext, origin: LocalImageStore) -> int:
    """Make the image; return the bytes of its layers."""
    base = context.workplace.image
    added = context.options.size_bytes - sum(layer.size_bytes for layer in origin.get(base).layers)
    wanted = Wanted(name=NAME, base=base, added_bytes=max(_SMALLEST_ADDED_BYTES, added), seed=1)
    context.progress.say("making and publishing the image")
    return make_image(origin, context.workplace.directory, wanted)


@contextmanager
def _others(context: BenchContext, origin: LocalImageStore, store: ShapedStore) -> Iterator[_Others]:
    """Open what loads archives, and write the archive; and what else loads lazily."""
    found: _Others = {}
    if context.options.without_docker:
        context.note("no other programs: left out as asked")
        yield found
        return
    context.progress.say("writing the image as an archive")
    if (reason := write_archive(origin, NAME, store, context.workplace.directory)) is not None:
        context.note(f"no reference that loads archives: {reason}")
        yield found
        return
    with ExitStack() as stack:
        for name, opened in (("Docker Engine", docker), ("podman", podman)):
            loader = stack.enter_context(opened(context.workplace.directory))
            if isinstance(loader, Loader):
                found[loader.name] = partial(loader.sample, store)
            else:
                context.note(f"no reference {name}: {loader}")
        context.progress.say("converting the base image to eStargz, if that is installed")
        lazily = stack.enter_context(stargz(context.workplace.directory, store, origin, context.workplace.image))
        if isinstance(lazily, Stargz):
            found[STARGZ] = lazily.sample
        else:
            context.note(f"no reference stargz-snapshotter: {lazily}")
        yield found


async def _measure(
    context: BenchContext, asked_bits: int, store: ShapedStore, start: _Start, others: _Others
) -> _AtRate:
    """Measure everything at one rate. What needs nothing here comes first, and what needs all last."""
    store.link.shape(asked_bits)
    bits = await anyio.to_thread.run_sync(store.measure)
    context.progress.say(f"a link of {asked_bits / 1e9:g} Gbit/s carries {bits / 1e9:.2f}")
    rounds, progress = context.options.samples, context.progress
    warm_ups = min(1, rounds - 1)
    lazy = {(way, command): partial(start.lazy, way, command) for way in start.references for command in COMMANDS}
    seconds = await alternate(lazy, rounds=rounds, progress=progress, warm_ups=warm_ups)
    whole: dict[_Key, Sample] = {(name, _MAIN): partial(_sampled, sample) for name, sample in others.items()}
    whole[(_EAGER, _MAIN)] = partial(start.eager, _MAIN)
    seconds |= await alternate(whole, rounds=max(1, rounds // _EACH), progress=progress, warm_ups=0)
    await start.eager(_MAIN)
    cached = {(_CACHED, command): partial(start.cached, command) for command in COMMANDS}
    seconds |= await alternate(cached, rounds=rounds, progress=progress, warm_ups=warm_ups)
    return _AtRate(asked_bits, bits, seconds, start.pull_s, start.fetched_bytes)


async def _sampled(sample: Callable[[Sequence[str]], float]) -> float:
    return await anyio.to_thread.run_sync(sample, COMMANDS[_MAIN])


async def _touched(start: _Start) -> dict[_Key, tuple[Touched, ...]]:
    """Say what each command touches of each publication, of the image that is here whole."""
    found = {}
    for way, reference in start.references.items():
        await start.eager(_MAIN, way)
        for command in COMMANDS:
            await start.cached(command)
            found[(way, command)] = await start.images.touched(reference)
    return found


def _trace(state_dir: Path) -> None:
    """Record what the commands read, as a user does who publishes the image."""
    for command, argv in COMMANDS.items():
        options = ["--first"] if command == _MAIN else []
        call = [sys.executable, "-m", "dsec", "--state-dir", str(state_dir), "image", "trace", NAME, *options, "--"]
        done = subprocess.run([*call, *argv], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ExternalCommandError(
                f"{' '.join(call)} failed", detail=done.stderr[-500:], resolution="run it by hand"
            )


def _report(
    context: BenchContext, size_bytes: int, measured: Sequence[_AtRate], touched: Mapping[_Key, Sequence[Touched]]
) -> Report:
    context.note(f"the image has {size_bytes / MIB:.0f} MiB; links are shaped by tc tbf between network namespaces")
    fast = {who: each for (who, command), each in measured[0].seconds.items() if command == _MAIN}
    return make_report(
        "lazy-start",
        "ms",
        "lower",
        ours=distribution(fast.pop(_LAZY), scale=1e3),
        references={who: distribution(each, scale=1e3) for who, each in fast.items()},
        series=[row for each in measured for row in each.rows(touched)],
        host=context.host,
    )
