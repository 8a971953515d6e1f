"""`checkpoint`: save a sandbox's files by the amount it has written, settled and just written.

Settled is what has reached the volume: saving it is one snapshot. What was just written waits in memory, and whoever
saves it waits until it is on its way; how much may wait is bounded by the node's `unwritten_bytes`, so that of large
amounts only the last part is written again for each sample (`dsec.bench.written`). The reference is
what one would do without: copy the files, inside the sandbox, by reading and writing them.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any

from dsec.base.errors import RuntimeFailedError
from dsec.base.units import GIB, MIB
from dsec.bench.by_size import amounts_up_to
from dsec.bench.context import BenchContext
from dsec.bench.distribution import distribution
from dsec.bench.report import Report, make_report
from dsec.bench.sampling import Sample, alternate, timed
from dsec.bench.written import lay, write_anew
from dsec.model.process import CommandRequest
from dsec.model.sandbox import Resources, SandboxSpec
from dsec.node.node import Node
from dsec.sdk.state import state_of

_SETTLED, _JUST_WRITTEN = "settled", "just written"
_COPIED_BYTES = GIB
"""Copying more would take most of the benchmark's time."""
_COPY = "copy the files, at most 1 GiB, inside the sandbox and sync"
_SYNC = CommandRequest(argv=("sync",), timeout_s=300)
# Not `cp` or `cat`: on btrfs they may share the extents instead of copying them.
_COPYING = CommandRequest(
    argv=(
        "sh",
        "-c",
        """set -e; mkdir /home/user/copy; n=0
    for file in /home/user/written/*/*; do
      dd if="$file" of="/home/user/copy/$n" bs=1048576 2>/dev/null; n=$((n + 1))
    done
    sync""",
    ),
    timeout_s=600,
)
_FORGET_COPY = CommandRequest(argv=("sh", "-c", "rm -r /home/user/copy; sync"), timeout_s=300)


class _Subject:
    """A sandbox that has written so much."""

    def __init__(self, node: Node, sandbox_id: str, size_bytes: int) -> None:
        self._node, self.sandbox_id, self._size_bytes = node, sandbox_id, size_bytes
        self.frozen_s: dict[str, list[float]] = {_SETTLED: [], _JUST_WRITTEN: []}

    async def run(self, request: CommandRequest) -> None:
        result = await self._node.run(self.sandbox_id, request)
        if result.status.exit_code != 0:
            raise RuntimeFailedError("the guest could not prepare", detail=result.stderr.decode(errors="replace"))

    async def settled(self) -> float:
        """Save what has reached the volume."""
        await self.run(_SYNC)
        return await self._save(_SETTLED)

    async def just_written(self) -> float:
        """Write the last part of it again, and save at once."""
        await write_anew(self._node, self.sandbox_id, self._size_bytes)
        return await self._save(_JUST_WRITTEN)

    async def copied(self) -> float:
        """Copy all of it."""
        await self.run(_SYNC)
        with timed() as watch:
            await self.run(_COPYING)
        await self.run(_FORGET_COPY)
        return watch.seconds

    async def _save(self, how: str) -> float:
        state = state_of(self._node)
        with timed() as watch:
            info = await state.checkpoint(self.sandbox_id)
        self.frozen_s[how].append(info.frozen_s)
        await state.remove_checkpoint(self.sandbox_id, info.checkpoint_id)
        return watch.seconds


async def bench_checkpoint(context: BenchContext) -> Report:
    """Measure checkpoints by the amount written, beside a copy of the same files."""
    options, sizes = context.options, amounts_up_to(context.options.size_bytes)
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(context.workplace.embedded())
        # What was removed counts until the file system has freed it, some seconds later.
        quota_bytes = 16 * options.size_bytes + 64 * MIB
        contestants: dict[str, Sample] = {}
        subjects: dict[int, _Subject] = {}
        for size in sizes:
            spec = SandboxSpec(image=context.workplace.image, resources=Resources(disk_bytes=quota_bytes))
            subject = subjects[size] = _Subject(node, (await node.create(spec)).sandbox_id, size)
            await lay(node, subject.sandbox_id, size)
            await subject.just_written()
            contestants[_name(_SETTLED, size)] = subject.settled
            contestants[_name(_JUST_WRITTEN, size)] = subject.just_written
            if size <= _COPIED_BYTES:
                contestants[_COPY] = subject.copied  # Of the largest of these, which comes last.
        rounds = max(3, options.samples // 5)
        seconds = await alternate(contestants, rounds=rounds, progress=context.progress, warm_ups=1)
    return _report(context, seconds, subjects)


def _name(how: str, size_bytes: int) -> str:
    return f"{how}, {size_bytes} bytes"


def _report(context: BenchContext, seconds: dict[str, list[float]], subjects: dict[int, _Subject]) -> Report:
    series: list[dict[str, Any]] = [
        {
            "written_bytes": size,
            "how": how,
            "checkpoint_ms": distribution(seconds[_name(how, size)], scale=1e3),
            "frozen_ms": distribution(subject.frozen_s[how], scale=1e3),
        }
        for size, subject in subjects.items()
        for how in (_SETTLED, _JUST_WRITTEN)
    ]
    return make_report(
        "checkpoint",
        "ms",
        "lower",
        ours=distribution(seconds[_name(_SETTLED, max(subjects))], scale=1e3),
        references={name: distribution(seconds[name], scale=1e3) for name in (_COPY,) if name in seconds},
        series=series,
        host=context.host,
    )
