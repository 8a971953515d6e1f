"""`density`: how many idle sandboxes a host holds, what each costs, and whether the last takes longer to make."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from typing import Any

from dsec.base.errors import DsecError
from dsec.base.units import KIB, MIB
from dsec.bench.context import BenchContext, run_directory
from dsec.bench.distribution import distribution
from dsec.bench.hardware import memory_bytes
from dsec.bench.processes import descriptors, proportional_bytes
from dsec.bench.report import Report, make_report
from dsec.bench.sampling import timed
from dsec.linux.mounts import mount_table
from dsec.model.sandbox import SandboxSpec
from dsec.node.node import Node
from dsec.node.sandbox import instance_name
from dsec.runtimes.container.paths import InstancePaths

DEFAULT_COUNT = 3200
_EDGE = 100
"""Creations at each end that are compared."""
_RESERVE_BYTES = 768 * MIB
"""Available memory at which no more sandboxes are made: the host's other processes need to live."""
_STEPS = 16


class Readings:
    """What sandboxes have cost since the first was made.

    Args:
        node: in this process.
    """

    def __init__(self, node: Node) -> None:
        self._run_directory = run_directory(node)
        self._sandboxes: list[str] = []
        gc.collect()
        self._start = self._absolute()

    def _absolute(self) -> dict[str, int]:
        return {
            "available": memory_bytes("MemAvailable"),
            "node_pss": proportional_bytes(os.getpid()),
            "descriptors": descriptors(os.getpid()),
            "mounts": len(mount_table()),
            "slab": memory_bytes("Slab"),
            "percpu": memory_bytes("Percpu"),
            "page_tables": memory_bytes("PageTables"),
            "kernel_stacks": memory_bytes("KernelStack"),
        }

    def add(self, sandbox_id: str) -> None:
        """Count one more sandbox."""
        self._sandboxes.append(sandbox_id)

    def init_bytes(self) -> int:
        """Return what the init processes of all sandboxes hold."""
        pids = (InstancePaths(self._run_directory / instance_name(name, 0)).pid for name in self._sandboxes)
        return sum(proportional_bytes(int(path.read_text())) for path in pids)

    def per_sandbox(self) -> dict[str, Any]:
        """Return what each sandbox has come to, on average."""
        now, count = self._absolute(), len(self._sandboxes)
        grown = {name: now[name] - value for name, value in self._start.items()}
        init = self.init_bytes()
        return {
            "sandboxes": count,
            "ours_mib_each": round((grown["node_pss"] + init) / count / MIB, 4),
            "node_process_kib_each": round(grown["node_pss"] / count / KIB, 1),
            "init_process_kib_each": round(init / count / KIB, 1),
            "all_mib_each": round(-grown["available"] / count / MIB, 4),
            **{f"{name}_kib_each": round(grown[name] / count / KIB, 1) for name in ("slab", "percpu", "page_tables")},
            "kernel_stacks_kib_each": round(grown["kernel_stacks"] / count / KIB, 1),
            "descriptors_each": round(grown["descriptors"] / count, 2),
            "host_mounts_each": round(grown["mounts"] / count, 3),
        }


async def bench_density(context: BenchContext) -> Report:
    """Fill the host with idle sandboxes."""
    count = context.options.count or DEFAULT_COUNT
    async with context.workplace.embedded() as node:
        readings = Readings(node)
        seconds, rows = await _fill(context, node, count, readings)
        edge = max(1, min(_EDGE, len(seconds) // 4))
        removal_s = await _remove_some(node, edge)
    return _report(context, seconds, edge, [*rows, {"what": "destroy", "ms": distribution(removal_s, scale=1e3)}])


async def _fill(
    context: BenchContext, node: Node, count: int, readings: Readings
) -> tuple[list[float], list[dict[str, Any]]]:
    """Create `count` sandboxes, or as many as the memory allows; return what each took, and rows at even steps."""
    spec = SandboxSpec(image=context.workplace.image)
    seconds: list[float] = []
    rows: list[dict[str, Any]] = []
    step = max(1, count // _STEPS)
    with context.progress.counting("sandboxes", count) as advance:
        while len(seconds) < count:
            try:
                if memory_bytes("MemAvailable") < _RESERVE_BYTES:
                    context.note(f"stopped at {len(seconds)} sandboxes: the host has no more memory to give")
                    break
                with timed() as watch:
                    info = await node.create(spec)
            except DsecError as error:
                context.note(f"stopped at {len(seconds)} sandboxes: {error.brief}")
                break
            readings.add(info.sandbox_id)
            seconds.append(watch.seconds)
            advance()
            if len(seconds) % step == 0 or len(seconds) == count:
                rows.append({**readings.per_sandbox(), "create_ms": distribution(seconds[-step:], scale=1e3)})
    return seconds, rows


async def _remove_some(node: Node, count: int) -> list[float]:
    seconds = []
    for info in list(await node.list())[:count]:
        with timed() as watch:
            await node.remove(info.sandbox_id)
        seconds.append(watch.seconds)
    return seconds


def _report(context: BenchContext, seconds: Sequence[float], edge: int, rows: list[dict[str, Any]]) -> Report:
    context.note(f"ours is the creation of the last {edge} of {len(seconds)} idle sandboxes")
    return make_report(
        "density",
        "ms",
        "lower",
        ours=distribution(seconds[-edge:], scale=1e3),
        references={f"the first {edge}": distribution(seconds[:edge], scale=1e3)},
        series=rows,
        host=context.host,
    )
