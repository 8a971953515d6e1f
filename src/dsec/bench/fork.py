"""`fork`: many children of one sandbox at once, beside creating as many from its image.

A fork has to do all that the creations have to, and the branching besides; it saves admission and records one by one,
and what the children would have to do to get where their parent is, which is not counted here.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import anyio

from dsec.base.errors import RuntimeFailedError
from dsec.base.units import MIB
from dsec.bench.context import BenchContext
from dsec.bench.distribution import distribution
from dsec.bench.report import Report, make_report
from dsec.bench.sampling import alternate, timed
from dsec.bench.written import WRITTEN, write
from dsec.model.process import CommandRequest
from dsec.model.sandbox import Resources, SandboxSpec
from dsec.model.state import ForkRequest
from dsec.node.node import Node
from dsec.sdk.state import state_of

_CHILDREN = 100
_WRITTEN_BYTES = 16 * MIB
_CREATE = "create as many side by side"
_HAS_FILES = CommandRequest(argv=("test", "-s", f"{WRITTEN}/anew/0"))


class _Family:
    """A parent that has written something, and what is made of it or beside it."""

    def __init__(self, node: Node, spec: SandboxSpec, parent: str, count: int) -> None:
        self._node, self._spec, self._parent, self._count = node, spec, parent, count

    async def forked(self) -> float:
        """Fork all children; the last one has the parent's files."""
        with timed() as watch:
            children = await state_of(self._node).fork(self._parent, ForkRequest(count=self._count))
        seen = await self._node.run(children[-1].sandbox_id, _HAS_FILES)
        if seen.status.exit_code != 0:
            raise RuntimeFailedError("a child has not its parent's files")
        await self._remove([child.sandbox_id for child in children])
        return watch.seconds

    async def created(self) -> float:
        """Create as many, all asked for at once."""
        made: list[str] = []

        async def create() -> None:
            made.append((await self._node.create(self._spec)).sandbox_id)

        with timed() as watch:
            async with anyio.create_task_group() as group:
                for _ in range(self._count):
                    group.start_soon(create)
        await self._remove(made)
        return watch.seconds

    async def _remove(self, sandbox_ids: Sequence[str]) -> None:
        async with anyio.create_task_group() as group:
            for sandbox_id in sandbox_ids:
                group.start_soon(self._node.remove, sandbox_id)


async def bench_fork(context: BenchContext) -> Report:
    """Measure a fork of many beside as many creations."""
    count = context.options.count or _CHILDREN
    spec = SandboxSpec(image=context.workplace.image, resources=Resources(memory_bytes=64 * MIB, disk_bytes=256 * MIB))
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(context.workplace.embedded())
        parent = (await node.create(spec)).sandbox_id
        await write(node, parent, _WRITTEN_BYTES)
        family = _Family(node, spec, parent, count)
        seconds = await alternate(
            {"ours": family.forked, _CREATE: family.created},
            rounds=max(3, context.options.samples // 10),
            progress=context.progress,
            warm_ups=1,
        )
    series: list[dict[str, Any]] = [
        {"what": f"{name}, each", "children": count, "ms": distribution(values, scale=1e3 / count)}
        for name, values in seconds.items()
    ]
    return make_report(
        "fork",
        "ms",
        "lower",
        ours=distribution(seconds["ours"], scale=1e3),
        references={_CREATE: distribution(seconds[_CREATE], scale=1e3)},
        series=series,
        host=context.host,
    )
