"""`rollback`: back to a clean sandbox, whatever was written before."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from dsec.base.errors import RuntimeFailedError
from dsec.base.units import MIB
from dsec.bench.by_size import amounts_up_to
from dsec.bench.context import BenchContext
from dsec.bench.distribution import distribution
from dsec.bench.docker import DockerEngine
from dsec.bench.execute import TRUE
from dsec.bench.report import Report, make_report
from dsec.bench.sampling import Sample, alternate, timed
from dsec.model.process import CommandRequest
from dsec.model.sandbox import Resources, SandboxSpec
from dsec.service.port import SandboxService

_MARKER = "/home/user/written"
_RECREATE = "destroy and create another sandbox"
_DOCKER = "Docker Engine: remove and create another container"


def write_command(size_bytes: int) -> CommandRequest:
    """Return what the guest runs to write so much, in new files of 64 MiB.

    One that is emptied and written anew begins to go to disk when it is closed, which would make the rest easier.
    """
    script = f"""set -e; rm -rf {_MARKER}; mkdir -p {_MARKER}; left={size_bytes}; n=0
    while [ $left -gt 0 ]; do part=$((left < {64 * MIB} ? left : {64 * MIB}))
    head -c $part /dev/urandom > {_MARKER}/$n; left=$((left - part)); n=$((n + 1)); done"""
    return CommandRequest(argv=("sh", "-c", script), timeout_s=300)


class Subject:
    """A sandbox that is written to and rolled back; keeps how long it took until a command ran again."""

    def __init__(self, service: SandboxService, sandbox_id: str, size_bytes: int) -> None:
        self._service, self._sandbox_id, self._size_bytes = service, sandbox_id, size_bytes
        self.usable_s: list[float] = []

    async def sample(self) -> float:
        """Write, roll back, run `true`; return the seconds of the rollback."""
        await write(self._service, self._sandbox_id, self._size_bytes)
        with timed() as usable:
            with timed() as rolling_back:
                await self._service.rollback(self._sandbox_id)
            await self._service.run(self._sandbox_id, TRUE)
        gone = await self._service.run(self._sandbox_id, CommandRequest(argv=("test", "!", "-e", _MARKER)))
        if gone.status.exit_code != 0:
            raise RuntimeFailedError("a rollback left what had been written")
        self.usable_s.append(usable.seconds)
        return rolling_back.seconds


async def write(service: SandboxService, sandbox_id: str, size_bytes: int) -> None:
    """Let the guest write random bytes."""
    result = await service.run(sandbox_id, write_command(size_bytes))
    if result.status.exit_code != 0:
        raise RuntimeFailedError("the guest could not write", detail=result.stderr.decode(errors="replace"))


async def bench_rollback(context: BenchContext) -> Report:
    """Measure rollbacks by the amount written, beside what one would do without them."""
    options, image = context.options, context.workplace.image
    sizes = (0, *amounts_up_to(options.size_bytes))
    spec = SandboxSpec(image=image, resources=Resources(disk_bytes=2 * options.size_bytes + 64 * MIB))
    async with AsyncExitStack() as stack:
        engine = stack.enter_context(context.docker())
        node = await stack.enter_async_context(context.workplace.embedded())
        subjects = {size: Subject(node, (await node.create(spec)).sandbox_id, size) for size in sizes}

        async def recreate() -> float:
            sandbox_id = (await node.create(spec)).sandbox_id
            await write(node, sandbox_id, sizes[-1])
            with timed() as watch:
                await node.remove(sandbox_id)
                sandbox_id = (await node.create(spec)).sandbox_id
            await node.remove(sandbox_id)
            return watch.seconds

        contestants: dict[str, Sample] = {str(size): subject.sample for size, subject in subjects.items()}
        contestants |= {_RECREATE: recreate, **_docker_contestant(engine, sizes[-1])}
        rounds = max(3, options.samples // 5)
        seconds = await alternate(contestants, rounds=rounds, progress=context.progress, warm_ups=1)
    return _report(context, seconds, subjects)


def _docker_contestant(engine: DockerEngine | None, size_bytes: int) -> dict[str, Sample]:
    if engine is None:
        return {}

    async def sample() -> float:
        container = engine.create()
        if engine.exec(container, write_command(size_bytes).argv) != 0:
            raise RuntimeFailedError("the reference container could not write")
        with timed() as watch:
            engine.remove(container)
            container = engine.create()
        engine.remove(container)
        return watch.seconds

    return {_DOCKER: sample}


def _report(context: BenchContext, seconds: dict[str, list[float]], subjects: dict[int, Subject]) -> Report:
    series: list[dict[str, Any]] = [
        {
            "written_bytes": size,
            "rollback_ms": distribution(seconds[str(size)], scale=1e3),
            "until_true_ran_ms": distribution(subject.usable_s, scale=1e3),
        }
        for size, subject in subjects.items()
    ]
    references = {name: distribution(seconds[name], scale=1e3) for name in (_RECREATE, _DOCKER) if name in seconds}
    return make_report(
        "rollback",
        "ms",
        "lower",
        ours=distribution(seconds[str(max(subjects))], scale=1e3),
        references=references,
        series=series,
        host=context.host,
    )
