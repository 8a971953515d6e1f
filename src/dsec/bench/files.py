"""`files`: small operations, and one large file in and out, alone and as an archive."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from typing import Any

from dsec.base.units import KIB, MIB
from dsec.bench.context import BenchContext
from dsec.bench.distribution import Distribution, distribution, ratio
from dsec.bench.report import Report, make_report
from dsec.bench.sampling import Sample, alternate, timed
from dsec.bench.transfers import COPY_IN, COPY_OUT, Material, Transfers, copies
from dsec.model.sandbox import Resources, SandboxSpec
from dsec.service.port import SandboxService

_SMALL = os.urandom(4 * KIB)
_SMALL_PATH = "/home/user/small"
_HTTP, _LOCAL = "HTTP", "in process"


class SmallFiles:
    """Operations on a file of 4 KiB."""

    def __init__(self, service: SandboxService, sandbox_id: str) -> None:
        self._service, self._sandbox_id = service, sandbox_id

    async def write(self) -> float:
        with timed() as watch:
            await self._service.write_file(self._sandbox_id, _SMALL_PATH, _SMALL)
        return watch.seconds

    async def read(self) -> float:
        with timed() as watch:
            content = b"".join([chunk async for chunk in self._service.read_file(self._sandbox_id, _SMALL_PATH)])
        assert content == _SMALL
        return watch.seconds

    async def stat(self) -> float:
        with timed() as watch:
            await self._service.stat_file(self._sandbox_id, _SMALL_PATH)
        return watch.seconds

    @classmethod
    async def ready(cls, service: SandboxService, sandbox_id: str, via: str) -> dict[str, Sample]:
        """Write the file, and return the operations on it by name."""
        small = cls(service, sandbox_id)
        await small.write()
        return {
            f"write 4 KiB, {via}": small.write,
            f"read 4 KiB, {via}": small.read,
            f"stat, {via}": small.stat,
        }


async def bench_files(context: BenchContext) -> Report:
    """Measure file operations in process and over HTTP beside cp(1)."""
    options, directory = context.options, context.workplace.directory
    spec = SandboxSpec(image=context.workplace.image, resources=Resources(disk_bytes=3 * options.size_bytes + 64 * MIB))
    context.progress.say("writing the file to send")
    material = Material.make(directory, options.size_bytes)
    async with AsyncExitStack() as stack:
        node = await stack.enter_async_context(context.workplace.embedded())
        served = await stack.enter_async_context(context.workplace.served())
        client = await stack.enter_async_context(served.over_tcp())
        local, remote = (await node.create(spec)).sandbox_id, (await client.create(spec)).sandbox_id
        small = await SmallFiles.ready(node, local, _LOCAL) | await SmallFiles.ready(client, remote, _HTTP)
        small_s = await alternate(small, rounds=options.samples, progress=context.progress)
        transfers = {
            _HTTP: Transfers(client, remote, material, directory, (served.pid, os.getpid())),
            _LOCAL: Transfers(node, local, material, directory, (os.getpid(),)),
        }
        large = copies(material, directory / "embedded" / "volume", directory)
        for via, transfer in transfers.items():
            await transfer.put_file()
            large |= {f"{name}, {via}": sample for name, sample in transfer.samples().items()}
        rounds = max(3, options.samples // 20)
        large_s = await alternate(large, rounds=rounds, progress=context.progress, warm_ups=1)
    return _report(context, small_s, large_s, transfers)


def _report(
    context: BenchContext,
    small_s: dict[str, list[float]],
    large_s: dict[str, list[float]],
    transfers: dict[str, Transfers],
) -> Report:
    size_mib = context.options.size_bytes / MIB
    speeds = {name: distribution([size_mib / value for value in values]) for name, values in large_s.items()}
    series: list[dict[str, Any]] = [
        {"what": name, "ms": distribution(values, scale=1e3)} for name, values in small_s.items()
    ]
    series += [_row(name, via, speeds, transfer) for via, transfer in transfers.items() for name in transfer.samples()]
    over_http = [f"{name}, {_HTTP}" for name in transfers[_HTTP].samples()]
    slowest = min(over_http, key=lambda name: _ratio(name, speeds))
    context.note(f"ours is the large transfer over HTTP that compares worst with its local copy: {slowest}")
    return make_report(
        "files",
        "MiB/s",
        "higher",
        ours=speeds[slowest],
        references={_copy_of(slowest): speeds[_copy_of(slowest)]},
        series=series,
        host=context.host,
    )


def _copy_of(name: str) -> str:
    return COPY_IN if name.startswith("upload") else COPY_OUT


def _ratio(name: str, speeds: dict[str, Distribution]) -> float:
    return ratio(speeds[name].p50, speeds[_copy_of(name)].p50)


def _row(name: str, via: str, speeds: dict[str, Distribution], transfers: Transfers) -> dict[str, Any]:
    full = f"{name}, {via}"
    growth = [round(value / MIB, 1) for value in transfers.memory[name].growth_bytes]
    row: dict[str, Any] = {
        "what": full,
        "mib_per_s": speeds[full],
        "ratio_to_cp": _ratio(full, speeds),
        "cp_mib_per_s": speeds[_copy_of(name)].p50,
    }
    if via == _HTTP:
        return {**row, "node_peak_growth_mib": growth[0], "client_peak_growth_mib": growth[1]}
    return {**row, "process_peak_growth_mib": growth[0]}
