"""`rollback`: back to a clean sandbox, whatever was written before.

Of large amounts all but the last part is written once and kept as a checkpoint, to which the sandbox goes back before
each sample (`dsec.bench.written`).
"""

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
from dsec.bench.written import ANEW_BYTES, WRITTEN, is_laid, lay, write_anew, writing_command
from dsec.model.process import CommandRequest
from dsec.model.sandbox import Resources, SandboxSpec
from dsec.node.node import Node
from dsec.sdk.state import state_of

_RECREATE = "destroy and create another sandbox"
_DOCKER = "Docker Engine: remove and create another container"


class Subject:
    """A sandbox that is written to and rolled back; keeps how long it took until a command ran again."""

    def __init__(self, node: Node, sandbox_id: str, size_bytes: int) -> None:
        self._service, self._sandbox_id, self._size_bytes = node, sandbox_id, size_bytes
        self._state = state_of(node)
        self._laid: str | None = None
        self.usable_s: list[float] = []

    async def lay(self) -> None:
        """Write what is written once, and keep it as a checkpoint."""
        await lay(self._service, self._sandbox_id, self._size_bytes)
        self._laid = (await self._state.checkpoint(self._sandbox_id)).checkpoint_id

    async def sample(self) -> float:
        """Write, roll back, run `true`; return the seconds of the rollback."""
        if self._laid is not None:
            await self._service.rollback(self._sandbox_id, snapshot=self._laid)
        await write_anew(self._service, self._sandbox_id, self._size_bytes)
        with timed() as usable:
            with timed() as rolling_back:
                await self._service.rollback(self._sandbox_id)
            await self._service.run(self._sandbox_id, TRUE)
        gone = await self._service.run(self._sandbox_id, CommandRequest(argv=("test", "!", "-e", WRITTEN)))
        if gone.status.exit_code != 0:
            raise RuntimeFailedError("a rollback left what had been written")
        self.usable_s.append(usable.seconds)
        return rolling_back.seconds


async def bench_rollback(context: BenchContext) -> Report:
    """Measure rollbacks by the amount written, beside what one would do without them."""
    options, image = context.options, context.workplace.image
    sizes = (0, *amounts_up_to(options.size_bytes))
    spec = SandboxSpec(image=image, resources=Resources(disk_bytes=2 * options.size_bytes + 64 * MIB))
    async with AsyncExitStack() as stack:
        engine = stack.enter_context(context.docker())
        node = await stack.enter_async_context(context.workplace.embedded())
        subjects = {size: Subject(node, (await node.create(spec)).sandbox_id, size) for size in sizes}
        for size, subject in subjects.items():
            if is_laid(size):
                await subject.lay()

        async def recreate() -> float:
            sandbox_id = (await node.create(spec)).sandbox_id
            await write_anew(node, sandbox_id, sizes[-1])  # What its removal frees, it frees behind the answer.
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
        if engine.exec(container, writing_command(min(size_bytes, ANEW_BYTES)).argv) != 0:
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
