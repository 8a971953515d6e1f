"""`classes`: what a latency-sensitive sandbox loses to a neighbour that never rests, by the neighbour's processor
class.

The victim does a fixed piece of work and says how long it took, alone and beside a neighbour with as many busy
loops as the host has cores, first of its own class and then best effort. Each is measured in turn with the others,
so that what else the host does hits all alike.
"""

from __future__ import annotations

import os

from dsec.base.errors import RuntimeFailedError
from dsec.bench.context import BenchContext
from dsec.bench.distribution import distribution
from dsec.bench.report import Report, make_report
from dsec.bench.sampling import Sample, alternate
from dsec.model.process import CommandRequest
from dsec.model.sandbox import QosClass, Resources, SandboxSpec
from dsec.service.port import SandboxService

_LOOPS = 400_000
_WORK = f"""import time
begin = time.perf_counter()
for _ in range({_LOOPS}): pass
print(time.perf_counter() - begin)"""
_ALONE = "alone"
_SAME_CLASS = "beside a busy latency-sensitive neighbour"


class Neighbourhood:
    """A victim, and a neighbour of each class that is paused while it is not wanted."""

    def __init__(self, service: SandboxService, image: str) -> None:
        self._service = service
        self._image = image
        self._cores = os.cpu_count() or 1
        self._victim = ""
        self._neighbours: dict[QosClass, str] = {}

    async def open(self) -> None:
        # Twice the cores: the quota of a sandbox must not be what holds its loops back.
        plenty = Resources(cpu_millis=2000 * self._cores)
        victim = await self._service.create(SandboxSpec(image=self._image, resources=plenty))
        self._victim = victim.sandbox_id
        for qos in QosClass:
            info = await self._service.create(SandboxSpec(image=self._image, resources=plenty, qos=qos))
            for _ in range(self._cores):
                busy = CommandRequest(argv=("sh", "-c", "while :; do :; done"), timeout_s=None)
                await self._service.start_process(info.sandbox_id, busy)
            await self._service.pause(info.sandbox_id, keep_memory=True)
            self._neighbours[qos] = info.sandbox_id

    async def work(self, neighbour: QosClass | None) -> float:
        """Return the seconds that the victim's work took."""
        if neighbour is not None:
            await self._service.resume(self._neighbours[neighbour])
        try:
            result = await self._service.run(self._victim, CommandRequest(argv=("python3", "-c", _WORK)))
        finally:
            if neighbour is not None:
                await self._service.pause(self._neighbours[neighbour], keep_memory=True)
        if result.status.exit_code != 0:
            raise RuntimeFailedError("the victim could not work", detail=result.stderr.decode(errors="replace"))
        return float(result.stdout)


async def bench_classes(context: BenchContext) -> Report:
    """Measure the victim beside each class of neighbour."""
    async with context.workplace.embedded() as node:
        place = Neighbourhood(node, context.workplace.image)
        await place.open()
        contestants: dict[str, Sample] = {
            "ours": lambda: place.work(QosClass.BEST_EFFORT),
            _SAME_CLASS: lambda: place.work(QosClass.LATENCY_SENSITIVE),
            _ALONE: lambda: place.work(None),
        }
        seconds = await alternate(contestants, rounds=context.options.samples, progress=context.progress)
    context.note("ours: a latency-sensitive sandbox beside a best-effort one with a busy loop for each core")
    found = {name: distribution(values, scale=1e3) for name, values in seconds.items()}
    alone = found[_ALONE].p50
    return make_report(
        "classes",
        "ms",
        "lower",
        ours=found["ours"],
        references={name: found[name] for name in (_SAME_CLASS, _ALONE)},
        series=[
            {
                "what": "slowdown of the median",
                "neighbour": "best effort",
                "percent": _percent(found["ours"].p50, alone),
            },
            {
                "what": "slowdown of the median",
                "neighbour": "latency-sensitive",
                "percent": _percent(found[_SAME_CLASS].p50, alone),
            },
        ],
        host=context.host,
    )


def _percent(loaded: float, alone: float) -> float:
    return round(100 * (loaded / alone - 1), 1)
