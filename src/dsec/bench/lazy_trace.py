"""`lazy-trace`: what a trace of a command is worth to the next host that runs it.

The command's reads are recorded once, where the image is whole. Then the image is published twice, laid out as without
a trace and by it, and pulled behind a shaped link (`shaped`) by a host that has nothing of it. Each is started with and
without its trace, four contestants that take turns: without one nothing is brought beforehand.
The clock runs from `create` to the end of the command; what was fetched, touched and brought for nothing stands beside.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from dsec.base.errors import RuntimeFailedError
from dsec.base.units import MIB
from dsec.bench.context import BenchContext
from dsec.bench.distribution import distribution
from dsec.bench.lazy_images import LazyImages, lazy_images, warm
from dsec.bench.report import Report, make_report
from dsec.bench.sampling import alternate, timed
from dsec.bench.shaped import FAST_BITS, SLOW_BITS, ShapedStore, shaped_store
from dsec.images.lazy.tracing.image_use import ImageUse
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxSpec
from dsec.node.node import Node

COMMAND = ("python3", "-c", "import json, asyncio")
_RUNS = 2
_LATE_S = 0.2
"""What is under way when the command ends is counted too."""
_PLAIN, _LAID_OUT = "laid out for sharing", "laid out by its trace"
_Key = tuple[str, bool]
"""How it was published, and whether it has its trace."""


@dataclass(slots=True)
class _Start:
    """Starts sandboxes of an image of which nothing is here.

    Attributes:
        node: makes them.
        images: its images.
        image: the image's name.
        references: it was published by.
        uses: what came of each start.
    """

    node: Node
    images: LazyImages
    image: str
    references: Mapping[str, str]
    uses: dict[_Key, list[ImageUse]] = field(default_factory=dict)

    async def sample(self, layout: str, *, traced: bool) -> float:
        await self.images.forget()
        await self.images.pull(self.references[layout])
        if not traced:
            await anyio.to_thread.run_sync(self.images.forget_traces)
        with timed() as watch:
            sandbox_id = (await self.node.create(SandboxSpec(image=self.image))).sandbox_id
            result = await self.node.run(sandbox_id, CommandRequest(argv=COMMAND))
        await anyio.sleep(_LATE_S)
        use = await anyio.to_thread.run_sync(self.images.use, self.image)
        self.uses.setdefault((layout, traced), []).append(use)
        await self.node.remove(sandbox_id)
        if result.status.exit_code != 0:
            raise RuntimeFailedError("the command failed", detail=result.stderr.decode(errors="replace"))
        return watch.seconds


@dataclass(frozen=True, slots=True)
class _AtRate:
    """What was measured at one rate."""

    asked_bits: int
    bits: float
    seconds: Mapping[_Key, list[float]]
    uses: Mapping[_Key, Sequence[ImageUse]]

    def rows(self) -> Iterator[dict[str, Any]]:
        for (layout, traced), seconds in self.seconds.items():
            uses = self.uses[(layout, traced)]
            row: dict[str, Any] = {
                "link": f"{self.asked_bits / 1e9:g} Gbit/s",
                "measured_gbit_s": round(self.bits / 1e9, 2),
                "what": _named(layout, traced=traced),
                "ms": distribution(seconds, scale=1e3),
            }
            for name in ("fetched", "touched", "prefetched", "wasted"):
                row[f"{name}_mib"] = distribution([getattr(use, f"{name}_bytes") for use in uses], scale=1 / MIB)
            yield row


def _named(layout: str, *, traced: bool) -> str:
    return f"{layout}, {'prefetched' if traced else 'loaded when touched'}"


async def bench_lazy_trace(context: BenchContext) -> Report:
    """Measure the first command of an image with and without a trace of it."""
    workplace = context.workplace
    async with AsyncExitStack() as stack:
        store = stack.enter_context(shaped_store(workplace.directory / "far"))
        root = await anyio.to_thread.run_sync(workplace.images_root, "embedded")
        images = stack.enter_context(lazy_images(root, store))
        with workplace.images_of("references") as origin:
            context.progress.say("recording a trace, and publishing")
            await anyio.to_thread.run_sync(_trace, origin.root.parent, workplace.image)
            references = {
                layout: await images.publish(origin, workplace.image, by_traces=layout == _LAID_OUT)
                for layout in (_PLAIN, _LAID_OUT)
            }
        await anyio.to_thread.run_sync(warm, store)
        node = await stack.enter_async_context(workplace.embedded(store=store.url))
        measured = [
            await _measure(context, bits, store, _Start(node, images, workplace.image, references))
            for bits in (SLOW_BITS, FAST_BITS)
        ]
    return _report(context, measured)


def _trace(state_dir: Path, image: str) -> None:
    command = (sys.executable, "-m", "dsec", "--state-dir", str(state_dir), "image", "trace", image)
    done = subprocess.run(
        (*command, "--repeat", str(_RUNS), "--", *COMMAND), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeFailedError("the trace could not be recorded", detail=done.stderr)


async def _measure(context: BenchContext, asked_bits: int, store: ShapedStore, start: _Start) -> _AtRate:
    store.link.shape(asked_bits)
    bits = await anyio.to_thread.run_sync(store.measure)
    contestants = {
        (layout, traced): partial(start.sample, layout, traced=traced)
        for layout in start.references
        for traced in (False, True)
    }
    rounds = context.options.samples
    seconds = await alternate(contestants, rounds=rounds, progress=context.progress, warm_ups=1)
    return _AtRate(asked_bits, bits, seconds, {key: uses[-rounds:] for key, uses in start.uses.items()})


def _report(context: BenchContext, measured: Sequence[_AtRate]) -> Report:
    context.note(f"the command is {' '.join(COMMAND)}; links are shaped by tc tbf between network namespaces")
    slow = {_named(layout, traced=traced): each for (layout, traced), each in measured[0].seconds.items()}
    return make_report(
        "lazy-trace",
        "ms",
        "lower",
        ours=distribution(slow.pop(_named(_LAID_OUT, traced=True)), scale=1e3),
        references={what: distribution(each, scale=1e3) for what, each in slow.items()},
        series=[row for each in measured for row in each.rows()],
        host=context.host,
    )
