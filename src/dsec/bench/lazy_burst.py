"""`lazy-burst`: many sandboxes of many images at once, on a host that has nothing of any of them.

The images are related, as the environments of one project are: the same base, and upon it a layer of their own. All
sandboxes are asked for at the same instant, images in turn, so that each image is wanted from the first moment on. Each
runs one short command, which reads some files of its image, and is removed. Three ways to the same burst take turns:
nothing is here and what is touched is loaded; nothing is here and each image is pulled whole before its sandboxes are
made (four images at a time, once the base is here); all images are here, on the disk and not in memory. One burst
differs from the next of its way by as much as the first way does from the third, so these have several in each round.

The time is that from the first `create` (or pull) to the end of the last command.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from dsec.base.errors import DeadlineExceededError, RuntimeFailedError
from dsec.base.units import KIB, MIB
from dsec.bench.context import BenchContext
from dsec.bench.distribution import distribution, percentile, ratio
from dsec.bench.lazy_images import DATA, LazyImages, Wanted, lazy_images, make_image, warm
from dsec.bench.report import Report, make_report
from dsec.bench.sampling import Sample
from dsec.bench.shaped import FAST_BITS, SLOW_BITS, ShapedStore, shaped_store
from dsec.bench.touched import Touched
from dsec.images.store import LocalImageStore
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxSpec
from dsec.node.node import Node

DEFAULT_COUNT = 200
_SANDBOXES_OF_AN_IMAGE = 10
_LAZY, _CACHED, _EAGER = "lazy", "all images on this host's disk", "pulled whole first"
_PULLS_AT_ONCE = 4
_SMALLEST_ADDED_BYTES = MIB
_FILES_READ, _SLICE_BYTES = 20, 256 * KIB
_SCRIPT = f"""
import json, os
read = 0
for name in sorted(os.listdir("/{DATA}/part-0"))[:{_FILES_READ}]:
    with open(f"/{DATA}/part-0/{{name}}", "rb") as file:
        read += len(file.read())
with open("/{DATA}/large-1", "rb") as file:
    read += len(file.read({_SLICE_BYTES}))
print(json.dumps(read))
"""
_ROUND = (_LAZY, _LAZY, _LAZY, _EAGER, _CACHED, _CACHED, _CACHED)
"""In this order, since the last need what the one before them brings."""
_STEPS = 20
"""The share of sandboxes that was done is told at so many points."""
_GOAL_OF_CACHED, _GOAL_OF_EAGER = 1.1, 1.6


@dataclass(slots=True)
class _Burst:
    """Bursts on one node.

    Attributes:
        node: makes the sandboxes.
        images: its images.
        references: by the images' names.
        count: sandboxes of a burst.
        done_s: when each sandbox of each burst was done, by way.
        fetched_bytes: content that each lazy burst fetched.
        late: creations that the host did not get to within their deadline.
    """

    node: Node
    images: LazyImages
    references: Mapping[str, str]
    count: int
    done_s: dict[str, list[list[float]]] = field(default_factory=dict)
    fetched_bytes: list[int] = field(default_factory=list)
    late: int = 0

    async def lazy(self) -> float:
        """Burst from nothing, loading what is touched."""
        await self.images.forget()
        for reference in self.references.values():
            await self.images.pull(reference)
        seconds = await self._run(_LAZY, dict.fromkeys(self.references, None))
        status = await anyio.to_thread.run_sync(self.images.daemon.status)
        self.fetched_bytes.append(status.fetched_bytes)
        return seconds

    async def eager(self) -> float:
        """Burst from nothing, pulling each image whole."""
        await self.images.forget()
        pulled = {name: anyio.Event() for name in self.references}
        async with anyio.create_task_group() as group:
            group.start_soon(self._pull_all, pulled)
            await self._run(_EAGER, pulled)
        return self.done_s[_EAGER][-1][-1]

    async def cached(self) -> float:
        """Burst with everything on the disk, and nothing in memory."""
        await self.images.chill()
        return await self._run(_CACHED, dict.fromkeys(self.references, None))

    async def _pull_all(self, pulled: Mapping[str, anyio.Event]) -> None:
        limiter = anyio.CapacityLimiter(_PULLS_AT_ONCE)

        async def pull(name: str) -> None:
            async with limiter:
                await self.images.pull(self.references[name], eager=True)
            pulled[name].set()

        first, *others = self.references
        await pull(first)  # Alone: the others would all fetch the base that it brings.
        async with anyio.create_task_group() as group:
            for name in others:
                group.start_soon(pull, name)

    async def _run(self, way: str, ready: Mapping[str, anyio.Event | None]) -> float:
        """Run all sandboxes, each once its image is ready; return the seconds until the last was done."""
        names, done = list(ready), self.done_s.setdefault(way, [])
        ends: list[float] = []
        begin = time.perf_counter()

        async def one(name: str) -> None:
            if (event := ready[name]) is not None:
                await event.wait()
            sandbox_id = await self._created(name)
            result = await self.node.run(sandbox_id, CommandRequest(argv=("python3", "-c", _SCRIPT)))
            ends.append(time.perf_counter() - begin)
            await self.node.remove(sandbox_id)
            if result.status.exit_code != 0:
                raise RuntimeFailedError("a command failed", detail=result.stderr.decode(errors="replace"))

        async with anyio.create_task_group() as group:
            for number in range(self.count):
                group.start_soon(one, names[number % len(names)])
        done.append(sorted(ends))
        return max(ends)

    async def _created(self, image: str) -> str:
        """Create a sandbox; one that the host did not get to within the deadline is asked for again, as clients do."""
        while True:
            try:
                return (await self.node.create(SandboxSpec(image=image))).sandbox_id
            except DeadlineExceededError:
                self.late += 1


@dataclass(frozen=True, slots=True)
class _AtRate:
    """What was measured at one rate.

    Attributes:
        asked_bits, bits: what the link was shaped to, and measured to have.
        seconds: by way.
        done_s: when each sandbox of each burst was done, by way.
        fetched_bytes: of each lazy burst.
        size_bytes: of all layers.
    """

    asked_bits: int
    bits: float
    seconds: Mapping[str, list[float]]
    done_s: Mapping[str, Sequence[Sequence[float]]]
    fetched_bytes: Sequence[int]
    size_bytes: int

    def rows(self, touched: Sequence[Touched]) -> Iterator[dict[str, Any]]:
        p50 = {way: distribution(seconds).p50 for way, seconds in self.seconds.items()}
        link = {"link": f"{self.asked_bits / 1e9:g} Gbit/s", "measured_gbit_s": round(self.bits / 1e9, 2)}
        content_bytes = sum(each.content_bytes for each in touched)
        fetched = distribution(self.fetched_bytes, scale=1 / MIB).p50
        yield link | {
            "what": "the whole burst",
            "lazy_of_cached": ratio(p50[_LAZY], p50[_CACHED]),
            "goal_of_cached": _GOAL_OF_CACHED,
            "eager_of_lazy": ratio(p50[_EAGER], p50[_LAZY]),
            "goal_of_eager": _GOAL_OF_EAGER,
            "touched_chunks_mib": round(content_bytes / MIB, 1),
            "touched_of_all": ratio(content_bytes, self.size_bytes),
            "fetched_mib": fetched,
            "fetched_of_touched": ratio(fetched * MIB, content_bytes),
            "transfer_s": round(8 * sum(each.stored_bytes for each in touched) / self.bits, 2),
        }
        for way, seconds in self.seconds.items():
            yield link | {"what": way, "s": distribution(seconds), "done_s": _steps(self.done_s[way])}


def _steps(done_s: Sequence[Sequence[float]]) -> list[float]:
    """Return when each twentieth of the sandboxes of a burst was done: of the burst in the middle."""
    middle = sorted(done_s, key=lambda ends: ends[-1])[len(done_s) // 2]
    return [round(percentile(middle, (step + 1) / _STEPS), 3) for step in range(_STEPS)]


async def bench_lazy_burst(context: BenchContext) -> Report:
    """Measure a burst of sandboxes over images that are loaded when touched, pulled whole, or here already."""
    workplace, count = context.workplace, context.options.count or DEFAULT_COUNT
    async with AsyncExitStack() as stack:
        store = stack.enter_context(shaped_store(workplace.directory / "far"))
        root = await anyio.to_thread.run_sync(workplace.images_root, "embedded")
        images = stack.enter_context(lazy_images(root, store))
        with workplace.images_of("references") as origin:
            references = await _publish(context, origin, images, -(-count // _SANDBOXES_OF_AN_IMAGE))
        await anyio.to_thread.run_sync(warm, store)
        node = await stack.enter_async_context(workplace.embedded(store=store.url))
        measured = []
        for bits in (FAST_BITS, SLOW_BITS):
            measured.append(await _measure(context, bits, store, _Burst(node, images, references, count)))
        # The last burst of each rate found all images here, so that the page cache tells what it touched.
        await _Burst(node, images, references, count).cached()
        touched = {each.layer: each for reference in references.values() for each in await images.touched(reference)}
    return _report(context, measured, list(touched.values()))


async def _publish(context: BenchContext, origin: LocalImageStore, images: LazyImages, how_many: int) -> dict[str, str]:
    added = context.options.size_bytes // how_many
    references = {}
    context.progress.say("making and publishing the images")
    with context.progress.counting("images", how_many) as advance:
        for number in range(how_many):
            wanted = Wanted(
                name=f"bench-burst-{number}",
                base=context.workplace.image,
                added_bytes=max(_SMALLEST_ADDED_BYTES, added),
                seed=number,
            )
            await anyio.to_thread.run_sync(make_image, origin, Path(context.workplace.directory), wanted)
            references[wanted.name] = await images.publish(origin, wanted.name)
            advance()
    return references


async def _measure(context: BenchContext, asked_bits: int, store: ShapedStore, burst: _Burst) -> _AtRate:
    store.link.shape(asked_bits)
    bits = await anyio.to_thread.run_sync(store.measure)
    context.progress.say(f"a link of {asked_bits / 1e9:g} Gbit/s carries {bits / 1e9:.2f}")
    seconds: dict[str, list[float]] = {_LAZY: [], _EAGER: [], _CACHED: []}
    ways: dict[str, Sample] = {_LAZY: burst.lazy, _EAGER: burst.eager, _CACHED: burst.cached}
    bursts = _ROUND * context.options.samples
    with context.progress.counting("bursts", len(bursts)) as advance:
        for way in bursts:
            seconds[way].append(await ways[way]())
            advance()
    if burst.late:
        context.note(f"the host did not get to {burst.late} creations within 30 s; they were asked for again")
    size_bytes = burst.images.size_bytes()
    return _AtRate(asked_bits, bits, seconds, burst.done_s, burst.fetched_bytes, size_bytes)


def _report(context: BenchContext, measured: Sequence[_AtRate], touched: Sequence[Touched]) -> Report:
    fast = dict(measured[0].seconds)
    return make_report(
        "lazy-burst",
        "s",
        "lower",
        ours=distribution(fast.pop(_LAZY)),
        references={way: distribution(seconds) for way, seconds in fast.items()},
        series=[row for each in measured for row in each.rows(touched)],
        host=context.host,
    )


def draw(report: Report, directory: Path) -> None:
    """Draw the share of sandboxes that was done over time, for each way, at the slower link.

    Raises:
        CapabilityMissingError: matplotlib is not installed.
    """
    from dsec.planner.picture import Caption, Curve, Curves
    from dsec.planner.pictures.drawing import write_pictures

    slow = f"{SLOW_BITS / 1e9:g} Gbit/s"
    rows = [row for row in report.series if row["link"] == slow and "done_s" in row]
    curves = tuple(
        Curve(
            label=str(row["what"]),
            role="fixed",
            points=((0.0, 0.0), *((done, 100 * (step + 1) / _STEPS) for step, done in enumerate(row["done_s"]))),
        )
        for row in rows
    )
    text = f"{report.host.get('cores', '?')} cores, link of {slow}, n={report.ours.n}; dsec bench {report.benchmark}"
    picture = Curves(
        caption=Caption(name="lazy-burst", title="A burst of sandboxes over images that are not here", text=text),
        x_label="time since the first create",
        x_unit="s",
        y_label="sandboxes that are done",
        y_unit="%",
        curves=curves,
    )
    write_pictures([picture], directory)
