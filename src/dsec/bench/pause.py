"""`pause`: how much memory the paused sandboxes of a job give back, and how soon one of them answers again.

Each guest holds 64 MiB, which it touches page by page whenever it is asked. All are paused as one job; what was given
back is read twice, from their control groups and from the host's available memory. Then one after the other is asked
something, which resumes it, and is paused again. The reference is a process that holds as much, in a control group of
its own whose memory went to the same swap file in the same way, and that has nothing to do but to read its pages back:
no sandbox, no command to start, no journal; with and without the kernel told to read ahead, as it is for ours.

Beside that, small groups of guests hold other kinds of memory: a file in memory, dirty pages of a file on disk, and a
tree of processes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import cycle
from typing import Any

import anyio

from dsec.base.errors import RuntimeFailedError
from dsec.base.units import MIB
from dsec.bench.context import BenchContext
from dsec.bench.distribution import distribution
from dsec.bench.hardware import memory_bytes
from dsec.bench.pause_guest import ASK, READY, Held, command
from dsec.bench.pause_reference import paged_out_process
from dsec.bench.report import Report, make_report
from dsec.bench.sampling import Sample, alternate, timed
from dsec.model.process import CommandRequest
from dsec.model.sandbox import Resources, SandboxSpec
from dsec.model.state import JobAction, JobReport
from dsec.node.node import Node
from dsec.sdk.state import state_of

DEFAULT_COUNT = 200
_HELD_BYTES = 64 * MIB
_OVERHEAD_BYTES = 16 * MIB
"""The interpreter's own, and what the kernel keeps for a process."""
_CASE_COUNT = 4
_REFERENCE = "a bare process reads its pages back"
_AHEAD = "the same, read ahead"
_NOTHING = "answer_that_touches_nothing_ms"
_START_S = 120.0
_STARTS_AT_ONCE = 4


@dataclass(slots=True)
class _Group:
    """Sandboxes whose guests hold the same.

    Attributes:
        ids: their ids.
        pause_s, answer_s: how long pauses took, and how long it took until a paused one had answered.
    """

    node: Node
    held: Held
    ids: list[str] = field(default_factory=list)
    pause_s: list[float] = field(default_factory=list)
    answer_s: list[float] = field(default_factory=list)

    @property
    def job(self) -> str:
        return f"bench-{self.held.value}"

    async def fill(self, count: int, image: str, advance: Callable[[], None]) -> None:
        """Create `count` sandboxes and wait until their guests hold their memory."""
        limits = Resources(memory_bytes=4 * _HELD_BYTES, disk_bytes=4 * _HELD_BYTES)
        spec = SandboxSpec(image=image, resources=limits, metadata={"job": self.job})
        limiter = anyio.CapacityLimiter(_STARTS_AT_ONCE)

        async def one() -> None:
            async with limiter:
                sandbox_id = (await self.node.create(spec)).sandbox_id
                request = CommandRequest(argv=command(self.held, _HELD_BYTES), timeout_s=None)
                await self.node.start_process(sandbox_id, request)
                await self._run(sandbox_id, READY)
                self.ids.append(sandbox_id)
            advance()

        async with anyio.create_task_group() as group:
            for _ in range(count):
                group.start_soon(one)

    async def pause(self) -> JobReport:
        """Pause all of them as one job."""
        async with state_of(self.node).change_job(self.job, JobAction.PAUSE) as events:
            async for event in events:
                if isinstance(event, JobReport):
                    if event.failed:
                        raise RuntimeFailedError("a sandbox could not be paused", detail=event.failed[0].brief)
                    return event
        raise RuntimeFailedError("the job told no outcome")

    async def charged_bytes(self) -> int:
        """Return what their control groups are charged with."""
        return sum([(await self.node.statistics(each)).memory_bytes or 0 for each in self.ids])

    async def answer(self, sandbox_id: str, script: str = ASK) -> float:
        """Run a command in a paused sandbox, by default one that has it touch all it holds; pause it again. Returns the
        seconds of the first."""
        with timed() as answering:
            await self._run(sandbox_id, script)
        with timed() as pausing:
            await self.node.pause(sandbox_id)
        if script == ASK:
            self.answer_s.append(answering.seconds)
        self.pause_s.append(pausing.seconds)
        return answering.seconds

    async def _run(self, sandbox_id: str, script: str) -> None:
        request = CommandRequest(argv=("sh", "-c", script), timeout_s=_START_S)
        result = await self.node.run(sandbox_id, request)
        if result.status.exit_code != 0:
            raise RuntimeFailedError("the guest does not answer", detail=result.stderr.decode(errors="replace"))


async def bench_pause(context: BenchContext) -> Report:
    """Measure what pauses give back, and how soon a paused sandbox answers."""
    count, image = context.options.count or DEFAULT_COUNT, context.workplace.image
    everything = (count + len(Held) * _CASE_COUNT + 1) * (_HELD_BYTES + _OVERHEAD_BYTES)
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(context.workplace.embedded(swap_bytes=str(everything)))
        group = _Group(node, Held.ANONYMOUS)
        with context.progress.counting("sandboxes", count) as advance:
            await group.fill(count, image, advance)
        series = [await _pause_all(group)]
        reference = await stack.enter_async_context(paged_out_process(context.workplace.directory, _HELD_BYTES))
        following = cycle(group.ids)
        contestants: dict[str, Sample] = {
            "ours": lambda: group.answer(next(following)),
            _NOTHING: lambda: group.answer(next(following), "true"),
            _REFERENCE: reference.sample,
            _AHEAD: reference.sample_ahead,
        }
        seconds = await alternate(contestants, rounds=context.options.samples, progress=context.progress, warm_ups=1)
        series[0] |= _durations(group) | {_NOTHING: distribution(seconds[_NOTHING], scale=1e3)}
        series += [await _case(context, node, held) for held in Held if held is not Held.ANONYMOUS]
    return make_report(
        "pause",
        "ms",
        "lower",
        ours=distribution(seconds["ours"], scale=1e3),
        references={name: distribution(seconds[name], scale=1e3) for name in (_REFERENCE, _AHEAD)},
        series=series,
        host=context.host,
    )


async def _pause_all(group: _Group) -> dict[str, Any]:
    """Pause a group as one job; return a row of what it gave back."""
    charged, available = await group.charged_bytes(), memory_bytes("MemAvailable")
    with timed() as pausing:
        report = await group.pause()
    left = await group.charged_bytes()
    return {
        "held": group.held.value,
        "sandboxes": len(group.ids),
        "charged_mib": round(charged / MIB, 1),
        "charged_after_mib": round(left / MIB, 1),
        "given_back_share": round(1 - left / charged, 4),
        "given_back_share_by_host": round((memory_bytes("MemAvailable") - available) / charged, 4),
        "released_mib": round(report.released_bytes / MIB, 1),
        "job_pause_s": round(pausing.seconds, 3),
    }


def _durations(group: _Group) -> dict[str, Any]:
    return {
        "pause_one_ms": distribution(group.pause_s, scale=1e3),
        "answer_ms": distribution(group.answer_s, scale=1e3),
    }


async def _case(context: BenchContext, node: Node, held: Held) -> dict[str, Any]:
    """Measure a few sandboxes that hold another kind of memory."""
    group = _Group(node, held)
    with context.progress.counting(held.value, _CASE_COUNT) as advance:
        await group.fill(_CASE_COUNT, context.workplace.image, advance)
    row = await _pause_all(group)
    for sandbox_id in group.ids:
        await group.answer(sandbox_id)
    for sandbox_id in group.ids:
        await node.remove(sandbox_id)
    return row | _durations(group)
