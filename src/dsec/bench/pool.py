"""`pool`: give a used sandbox to the next task.

There is no pool of ready sandboxes yet. What one will be made of is measured: a used sandbox is rolled back and runs
its first command.
"""

from __future__ import annotations

import time
from typing import Any

import anyio

from dsec.bench.context import BenchContext
from dsec.bench.distribution import distribution
from dsec.bench.execute import TRUE
from dsec.bench.report import Report, make_report
from dsec.bench.sampling import alternate, timed
from dsec.model.sandbox import SandboxSpec
from dsec.service.port import SandboxService

_CONCURRENCIES = (1, 2, 4, 8)
_REFERENCE = "create a sandbox, run true, destroy it"


async def recycle(service: SandboxService, sandbox_id: str) -> None:
    """Make a sandbox clean, and see that it runs."""
    await service.rollback(sandbox_id)
    await service.run(sandbox_id, TRUE)


async def bench_pool(context: BenchContext) -> Report:
    """Measure recycling beside creating anew."""
    context.note(
        "there is no pool of ready sandboxes yet: ours is recycling, which is a rollback and the first command"
    )
    samples, spec = context.options.samples, SandboxSpec(image=context.workplace.image)
    async with context.workplace.embedded() as node:
        first = (await node.create(spec)).sandbox_id

        async def recycled() -> float:
            with timed() as watch:
                await recycle(node, first)
            return watch.seconds

        async def anew() -> float:
            with timed() as watch:
                sandbox_id = (await node.create(spec)).sandbox_id
                await node.run(sandbox_id, TRUE)
                await node.remove(sandbox_id)
            return watch.seconds

        seconds = await alternate({"ours": recycled, _REFERENCE: anew}, rounds=samples, progress=context.progress)
        series = [await _rate(node, spec, 2 * samples, concurrency) for concurrency in _CONCURRENCIES]
    return make_report(
        "pool",
        "ms",
        "lower",
        ours=distribution(seconds["ours"], scale=1e3),
        references={_REFERENCE: distribution(seconds[_REFERENCE], scale=1e3)},
        series=series,
        host=context.host,
    )


async def _rate(node: SandboxService, spec: SandboxSpec, cycles: int, concurrency: int) -> dict[str, Any]:
    sandboxes = [(await node.create(spec)).sandbox_id for _ in range(concurrency)]
    left = iter(range(cycles))

    async def lane(sandbox_id: str) -> None:
        for _ in left:
            await recycle(node, sandbox_id)

    begin = time.perf_counter()
    async with anyio.create_task_group() as lanes:
        for sandbox_id in sandboxes:
            lanes.start_soon(lane, sandbox_id)
    per_s = cycles / (time.perf_counter() - begin)
    for sandbox_id in sandboxes:
        await node.remove(sandbox_id)
    return {"what": "recycled sandboxes", "concurrency": concurrency, "per_s": round(per_s, 1)}
