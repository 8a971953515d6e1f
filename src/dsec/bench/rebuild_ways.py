"""The ways to make a version of a sandbox's files again, one by one: in place, as a child, and through the store."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, TypeVar

from dsec.base.units import MIB
from dsec.bench.distribution import distribution
from dsec.bench.sampling import timed
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxSpec
from dsec.model.state import CheckpointRequest, ForkRequest, SnapshotRequest
from dsec.node.node import Node

_FILES = "head -c 8388608 /dev/urandom > /tmp/large; for each in $(seq 200); do echo $each > /tmp/$each; done"
_CHANGE = "head -c 1048576 /dev/urandom > /tmp/changed"
Result = TypeVar("Result")


class _Ways:
    """Milliseconds, and memory afterwards, by way."""

    def __init__(self, node: Node, image: str) -> None:
        self._node = node
        self._image = image
        self._ms: dict[str, list[float]] = {}
        self._memory_mib: dict[str, float] = {}

    async def sample(self, number: int) -> None:
        """Take each way once, in a sandbox with 8 MiB and 200 small files, 1 MiB of which changed since last saved."""
        node, state = self._node, self._node.state
        box = (await node.create(SandboxSpec(image=self._image))).sandbox_id
        await self._run(box, _FILES)
        await state.snapshot(box, SnapshotRequest())
        await self._run(box, _CHANGE)
        version = f"ep-ways.r{number}"
        await state.checkpoint(box, CheckpointRequest(name=version))
        saved = await self._timed(
            "save in the store", state.snapshot(box, SnapshotRequest(checkpoint=version, name=version))
        )
        (child,) = await self._timed("fork a child", state.fork(box, ForkRequest(checkpoint=version)))
        await self._weigh("fork a child", child.sandbox_id)
        await node.remove(child.sandbox_id)
        await self._timed("put back in place", node.rollback(box, snapshot=version))
        await self._weigh("put back in place", box)
        await self._timed("remove", node.remove(box))
        restored = await self._timed("restore from the store", state.restore(saved.snapshot_id))
        await self._weigh("restore from the store", restored.sandbox_id)
        await node.remove(restored.sandbox_id)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row for each way."""
        return [
            {"operation": name, "ms": distribution(values), "memory_mib": self._memory_mib.get(name)}
            for name, values in self._ms.items()
        ]

    async def _run(self, sandbox_id: str, script: str) -> None:
        await self._node.run(sandbox_id, CommandRequest(argv=("sh", "-c", script)))

    async def _timed(self, name: str, act: Awaitable[Result]) -> Result:
        with timed() as watch:
            result = await act
        self._ms.setdefault(name, []).append(watch.seconds * 1e3)
        return result

    async def _weigh(self, name: str, sandbox_id: str) -> None:
        self._memory_mib[name] = round(((await self._node.statistics(sandbox_id)).memory_bytes or 0) / MIB, 2)


async def measure_ways(node: Node, image: str, *, rounds: int) -> list[dict[str, Any]]:
    """Return how long each way takes, and what stands in memory then."""
    ways = _Ways(node, image)
    for number in range(rounds):
        await ways.sample(number)
    return ways.rows()
