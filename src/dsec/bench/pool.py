"""`pool`: hand out a ready sandbox, and make a used one ready again.

Ours is a hand-out in process: from the call of `create` to the sandbox that takes commands, while one stands ready.
The reference is the same call without a pool. The pool refills in the background between two samples, as it does
between two tasks; the rate of recycles is measured with nothing else to do.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from typing import Any

import anyio

from dsec.bench.context import BenchContext
from dsec.bench.distribution import distribution
from dsec.bench.execute import TRUE
from dsec.bench.report import Report, make_report
from dsec.bench.sampling import Sample, alternate, timed
from dsec.model.pool import PoolChange, PoolStatistics
from dsec.model.sandbox import Resources, SandboxSpec
from dsec.sdk.pools import pools_of
from dsec.service.port import SandboxService

_REFERENCE = "create a sandbox without a pool"
_CONCURRENCIES = (1, 2, 4, 8)
_READY = 12
_FULL_TIMEOUT_S = 60.0
_POLL_S = 0.005


class Pooled:
    """A service with one pool, and a shape beside it that no pool serves."""

    def __init__(self, service: SandboxService, image: str) -> None:
        self.service = service
        self.spec = SandboxSpec(image=image)
        self._other = SandboxSpec(image=image, resources=Resources(open_files=16_000))
        self.first_command_s: list[float] = []
        self.removal_s: list[float] = []

    async def begin(self) -> None:
        change = PoolChange(floor=_READY, concurrency_share=0.0, spreads=0.0, fixed_level=_READY)
        await pools_of(self.service).set_pool(self.spec, change)

    async def statistics(self) -> PoolStatistics:
        (info,) = await pools_of(self.service).list_pools()
        return info.statistics

    async def full(self) -> None:
        """Wait until as many stand ready as should."""
        with anyio.fail_after(_FULL_TIMEOUT_S):
            # Over HTTP nobody tells, so that this asks.
            while (await self.statistics()).ready < _READY:  # noqa: ASYNC110
                await anyio.sleep(_POLL_S)

    async def hand_out(self) -> float:
        """Take one that stands ready, use it, and give it back; return how long the first took."""
        await self.full()
        with timed() as creating:
            info = await self.service.create(self.spec)
        with timed() as running:
            await self.service.run(info.sandbox_id, TRUE)
        with timed() as removing:
            await self.service.remove(info.sandbox_id)
        self.first_command_s.append(running.seconds)
        self.removal_s.append(removing.seconds)
        return creating.seconds

    async def create(self) -> float:
        """Create one that no pool serves."""
        await self.full()
        with timed() as creating:
            info = await self.service.create(self._other)
        await self.service.remove(info.sandbox_id)
        return creating.seconds

    async def recycles(self, cycles: int, concurrency: int) -> dict[str, Any]:
        """Hand out and give back as fast as may be; return recycles per second, and how long a task waits for one."""
        await self.full()
        before, left, waits = await self.statistics(), iter(range(cycles)), []

        async def lane() -> None:
            for _ in left:
                with timed() as watch:
                    info = await self.service.create(self.spec)
                waits.append(watch.seconds)
                await self.service.remove(info.sandbox_id)

        begin = time.perf_counter()
        async with anyio.create_task_group() as lanes:
            for _ in range(concurrency):
                lanes.start_soon(lane)
        await self.full()
        seconds = time.perf_counter() - begin
        now = await self.statistics()
        return {
            "what": "recycles",
            "tasks_at_once": concurrency,
            "per_s": round((now.recycles - before.recycles) / seconds, 1),
            "made_anew": now.creations - before.creations,
            "not_clean": now.failed_checks - before.failed_checks,
            "create_ms": distribution(waits, scale=1e3),
        }

    async def anew(self, cycles: int, concurrency: int) -> dict[str, Any]:
        """Create and destroy as fast as may be, without a pool: what recycles are to be compared with."""
        left = iter(range(cycles))

        async def lane() -> None:
            for _ in left:
                info = await self.service.create(self._other)
                await self.service.remove(info.sandbox_id)

        begin = time.perf_counter()
        async with anyio.create_task_group() as lanes:
            for _ in range(concurrency):
                lanes.start_soon(lane)
        per_s = cycles / (time.perf_counter() - begin)
        return {"what": "create and destroy without a pool", "tasks_at_once": concurrency, "per_s": round(per_s, 1)}


async def bench_pool(context: BenchContext) -> Report:
    """Measure hand-outs in process and over HTTP beside creation, and recycles beside creating anew."""
    samples, image = context.options.samples, context.workplace.image
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(context.workplace.embedded())
        served = await stack.enter_async_context(context.workplace.served())
        client = await stack.enter_async_context(served.over_tcp())
        embedded, remote = Pooled(node, image), Pooled(client, image)
        await embedded.begin()
        await remote.begin()
        contestants: dict[str, Sample] = {
            "ours": embedded.hand_out,
            "http": remote.hand_out,
            _REFERENCE: embedded.create,
        }
        seconds = await alternate(contestants, rounds=samples, progress=context.progress)
        context.progress.say("recycle as fast as possible")
        rates = [
            row
            for many in _CONCURRENCIES
            for row in (await embedded.recycles(2 * samples, many), await embedded.anew(2 * samples, many))
        ]
    series: list[dict[str, Any]] = [
        {"what": "hand-out over HTTP", "ms": distribution(seconds["http"], scale=1e3)},
        {"what": "first command after a hand-out", "ms": distribution(embedded.first_command_s, scale=1e3)},
        {"what": "giving one back", "ms": distribution(embedded.removal_s, scale=1e3)},
        *rates,
    ]
    return make_report(
        "pool",
        "ms",
        "lower",
        ours=distribution(seconds["ours"], scale=1e3),
        references={_REFERENCE: distribution(seconds[_REFERENCE], scale=1e3)},
        series=series,
        host=context.host,
    )
