"""`create`: from nothing to a sandbox that takes commands, the image resident."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from typing import Any

import anyio

from dsec.bench.bare import BareContainers
from dsec.bench.context import BenchContext
from dsec.bench.distribution import distribution
from dsec.bench.docker import SETTLE_S, DockerEngine
from dsec.bench.report import Report, make_report
from dsec.bench.sampling import Sample, alternate, timed
from dsec.model.sandbox import SandboxSpec
from dsec.service.port import SandboxService

_CONCURRENCIES = (1, 2, 4, 8)
_CYCLES_PER_SAMPLE = 2
"""Create+destroy cycles for a rate, per sample asked for."""


class Creation:
    """Creates and removes sandboxes of one service, and keeps what each took."""

    def __init__(self, service: SandboxService, image: str) -> None:
        self._service = service
        self._spec = SandboxSpec(image=image)
        self.removal_s: list[float] = []

    async def sample(self) -> float:
        """Create one and return how long that took; its removal counts apart."""
        with timed() as creating:
            info = await self._service.create(self._spec)
        with timed() as removing:
            await self._service.remove(info.sandbox_id)
        self.removal_s.append(removing.seconds)
        return creating.seconds

    async def rate(self, cycles: int, concurrency: int) -> float:
        """Return creations with removals per second, `concurrency` at a time."""
        left = iter(range(cycles))

        async def lane() -> None:
            for _ in left:
                info = await self._service.create(self._spec)
                await self._service.remove(info.sandbox_id)

        begin = time.perf_counter()
        async with anyio.create_task_group() as lanes:
            for _ in range(concurrency):
                lanes.start_soon(lane)
        return cycles / (time.perf_counter() - begin)


async def bench_create(context: BenchContext) -> Report:
    """Measure creation in process and over HTTP beside bare crun and Docker Engine."""
    async with AsyncExitStack() as stack:
        engine = stack.enter_context(context.docker())
        node = await stack.enter_async_context(context.workplace.embedded())
        served = await stack.enter_async_context(context.workplace.served())
        client = await stack.enter_async_context(served.over_tcp())
        bare = BareContainers(context.workplace.directory / "bare", context.workplace.layer_paths())
        stack.callback(bare.close)
        image = context.workplace.image
        embedded, remote = Creation(node, image), Creation(client, image)
        contestants: dict[str, Sample] = {
            "ours": embedded.sample,
            "http": remote.sample,
            "crun run --detach": lambda: _bare_sample(bare),
            **docker_contestants(engine),
        }
        seconds = await alternate(contestants, rounds=context.options.samples, progress=context.progress)
        cycles = _CYCLES_PER_SAMPLE * context.options.samples
        context.progress.say("create and destroy as fast as possible")
        rates = [{"concurrency": many, "per_s": await embedded.rate(cycles, many)} for many in _CONCURRENCIES]
    return _report(context, seconds, embedded, remote, rates)


def docker_contestants(engine: DockerEngine | None) -> dict[str, Sample]:
    """Return creation by Docker Engine's API and by its command line."""
    if engine is None:
        return {}

    async def by_api() -> float:
        with timed() as watch:
            container = engine.create()
        engine.remove(container)
        await anyio.sleep(SETTLE_S)
        return watch.seconds

    async def by_command_line() -> float:
        with timed() as watch:
            container = engine.run_detached()
        engine.remove(container)
        await anyio.sleep(SETTLE_S)
        return watch.seconds

    return {"Docker Engine API create+start": by_api, "docker run -d": by_command_line}


async def _bare_sample(bare: BareContainers) -> float:
    name = bare.prepare()
    with timed() as watch:
        bare.start(name)
    bare.remove(name)
    return watch.seconds


def _report(
    context: BenchContext,
    seconds: dict[str, list[float]],
    embedded: Creation,
    remote: Creation,
    rates: list[dict[str, Any]],
) -> Report:
    summaries = {name: distribution(values, scale=1e3) for name, values in seconds.items()}
    ours, over_http = summaries.pop("ours"), summaries.pop("http")
    series: list[dict[str, Any]] = [
        {"what": "create over HTTP", "ms": over_http},
        {"what": "destroy in process", "ms": distribution(embedded.removal_s, scale=1e3)},
        {"what": "destroy over HTTP", "ms": distribution(remote.removal_s, scale=1e3)},
        *({"what": "create+destroy in process", **row, "per_s": round(row["per_s"], 1)} for row in rates),
    ]
    return make_report("create", "ms", "lower", ours=ours, references=summaries, series=series, host=context.host)
