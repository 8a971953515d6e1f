"""`migrate`: how long a sandbox that wrote a gigabyte stands still when it moves, beside copying all of it.

Two nodes on this host, each in a process of its own, talk HTTP over loopback: what a network would add to both sides of
the comparison is left out of both. While the sandbox is copied a process in it writes at one of several rates. The
references stand still for all of the copy: a client's download from one node poured into the other, and the same
migration less its downtime, which is the first round and the rounds that follow it.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import anyio

from dsec.base.units import MIB
from dsec.bench.context import BenchContext
from dsec.bench.distribution import distribution
from dsec.bench.report import Report, make_report
from dsec.bench.sampling import Sample, alternate, timed
from dsec.bench.workplace import Served
from dsec.bench.written import write
from dsec.model.process import CommandRequest
from dsec.model.sandbox import Resources, SandboxSpec
from dsec.model.state import MigrationReport, MigrationRequest
from dsec.sdk.http import HttpService
from dsec.sdk.keepalive import Endpoint
from dsec.sdk.state import state_of

_RATES = (0, 1, 10, 50)
"""MiB that the sandbox writes a second."""
_WRITER = "i=0; while :; do dd if=/dev/zero of=/home/user/writer bs={bytes} count=1 seek=$((i % 256)) conv=notrunc"
_WRITER += " 2>/dev/null; i=$((i + 1)); sleep 0.1; done"
_WARM_S = 0.5
_TARGET = "/home/user/copy"
_COPY = "download all files from one node and upload them to the other"
_ROUNDS = "the copying rounds of the same migrations, nothing written meanwhile"


@dataclass(slots=True)
class _Traveller:
    """A sandbox that goes to and fro, written to at one rate.

    Attributes:
        names: ids of the two nodes.
        clients: a client of each, that follows to the other.
        sandbox_id: which.
        rate: MiB a second.
        at: where it is: 0 or 1.
        reports: of its moves.
    """

    names: tuple[str, str]
    clients: tuple[HttpService, HttpService]
    sandbox_id: str
    rate: int
    at: int = 0
    reports: list[MigrationReport] = field(default_factory=list)

    async def move(self) -> float:
        """Move to the other node; return for how long it stood still."""
        client = self.clients[self.at]
        if self.rate:
            script = _WRITER.format(bytes=self.rate * MIB // 10)
            await client.start_process(self.sandbox_id, CommandRequest(argv=("sh", "-c", script)))
            await anyio.sleep(_WARM_S)
        request = MigrationRequest(node=self.names[1 - self.at])
        report = await state_of(client).migrate(self.sandbox_id, request)
        self.at = 1 - self.at
        self.reports.append(report)
        return report.downtime_s


async def bench_migrate(context: BenchContext) -> Report:
    """Measure the downtime of migrations by the rate of writing, beside copies of everything."""
    size = context.options.size_bytes
    spec = SandboxSpec(image=context.workplace.image, resources=Resources(disk_bytes=6 * size + 256 * MIB))
    async with AsyncExitStack() as stack:
        nodes = await stack.enter_async_context(context.workplace.served_pair())
        clients = (_client(nodes[0], nodes[1]), _client(nodes[1], nodes[0]))
        for client in clients:
            stack.push_async_callback(client.aclose)
        names = ((await clients[0].node()).node, (await clients[1].node()).node)
        travellers: dict[str, _Traveller] = {}
        for rate in _RATES:
            box = (await clients[0].create(spec)).sandbox_id
            await write(clients[0], box, size)
            travellers[f"{rate} MiB/s"] = _Traveller(names, clients, box, rate)
        waiting = (await clients[1].create(spec)).sandbox_id
        await clients[1].make_directory(waiting, _TARGET)
        still = (await clients[0].create(spec)).sandbox_id
        await write(clients[0], still, size)

        async def copied() -> float:
            with timed() as watch:
                archive = clients[0].download(still, "/home/user/written")
                await clients[1].upload(waiting, _TARGET, archive)
            await clients[1].remove_file(waiting, _TARGET, recursive=True)
            await clients[1].make_directory(waiting, _TARGET)
            return watch.seconds

        contestants: dict[str, Sample] = {name: each.move for name, each in travellers.items()}
        contestants[_COPY] = copied
        rounds = max(3, context.options.samples // 10)
        seconds = await alternate(contestants, rounds=rounds, progress=context.progress, warm_ups=1)
    return _report(context, seconds, travellers, size)


def _client(served: Served, other: Served) -> HttpService:
    """Return a client that follows: each node's token is its own here."""
    endpoint = Endpoint(url=served.url, token=served.token)
    return HttpService(endpoint, peers=[Endpoint(url=other.url, token=other.token)])


def _report(
    context: BenchContext, seconds: dict[str, list[float]], travellers: dict[str, _Traveller], size: int
) -> Report:
    series: list[dict[str, Any]] = []
    for name, each in travellers.items():
        reports = each.reports[-len(seconds[name]) :]
        series.append(
            {
                "written_bytes": size,
                "writing_mib_per_s": each.rate,
                "downtime_ms": distribution(seconds[name], scale=1e3),
                "whole_ms": distribution([report.duration_s for report in reports], scale=1e3),
                "rounds": distribution([float(report.rounds) for report in reports]),
                "copied_mib": distribution([sum(report.copied_bytes) / MIB for report in reports]),
            }
        )
    idle = f"{_RATES[0]} MiB/s"
    moving = [report.duration_s - report.downtime_s for report in travellers[idle].reports[-len(seconds[idle]) :]]
    return make_report(
        "migrate",
        "ms",
        "lower",
        ours=distribution(seconds[idle], scale=1e3),
        references={
            _COPY: distribution(seconds[_COPY], scale=1e3),
            _ROUNDS: distribution(moving, scale=1e3),
        },
        series=series,
        host=context.host,
    )
