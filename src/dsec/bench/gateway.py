"""`gateway`: what a gateway adds to calls and streams, how many calls it takes, and what open streams weigh.

Everything runs on this host: a null service, our gateway before it with its ledger, and these callers, each a process
of its own, so that the figures are of a gateway that shares the processors with both its ends. LiteLLM's proxy, in one
process like ours, stands before the same service if it is asked for; it is installed into an environment of its own.

- *Overhead*: one call after the other, in turn directly and through each gateway; what is reported is how much longer
  a call took than the median of the direct ones.
- *Calls per second*: with 32 at a time.
- *Streams*: events carry the time at which they were written; reported is what a gateway adds to the direct median.
- *Open streams*: resident memory of the gateway's process while 2,000 streams are open, all of which have begun.
"""

from __future__ import annotations

import asyncio
import resource
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from dsec.base.errors import ExternalCommandError
from dsec.base.units import MIB
from dsec.bench.context import PureContext
from dsec.bench.distribution import Distribution, distribution, ratio
from dsec.bench.gateway_contestants import (
    Contestant,
    install_litellm,
    litellm_directory,
    litellm_proxy,
    null_service,
    our_gateway,
)
from dsec.bench.gateway_load import Connection, delays_s, rate, request
from dsec.bench.processes import resident_bytes
from dsec.bench.report import Report, make_report

_OVERHEAD_GOAL_MS = 3.0
_RATE_GOAL = 1_000
_EVENT_GOAL_MS = 1.0
_MEMORY_GOAL_BYTES = 500 * MIB
_AT_ONCE = 32
_RATE_S = 2.0
_RATE_ROUNDS = 3
_WARM_CALLS = 50
_STREAMS = (1, 16)
"""Side by side; sixteen are 800 events a second."""
_STREAM_EVENTS = 100
_EVENT_INTERVAL_S = 0.02
_OPEN_STREAMS = 2_000
_OPEN_INTERVAL_S = 2.0
_OPEN_AT_ONCE = 50
_OPEN_TIMEOUT_S = 120.0


async def bench_gateway(context: PureContext) -> Report:
    """Measure all of it."""
    _allow_descriptors()
    with tempfile.TemporaryDirectory(prefix="dsec-bench-") as scratch:
        async with _contestants(context, Path(scratch)) as (direct, gateways):
            added = await _added(context, direct, gateways)
            rates = await _rates(context, [direct, *gateways])
            events = {streams: await _events(context, direct, gateways, streams) for streams in _STREAMS}
            held = await _open_streams(context, gateways[0])
    ours, *others = gateways
    _say_goals(context, added[ours.name].p50, rates[ours.name].p50, events[_STREAMS[-1]][ours.name].p50, held)
    return make_report(
        "gateway",
        "ms added",
        "lower",
        ours=added[ours.name],
        references={other.name: added[other.name] for other in others},
        series=[
            *({"what": "calls per second", "service": name, "at_once": _AT_ONCE, "per_s": found}
              for name, found in rates.items()),
            *({"what": "ms added to an event of a stream", "service": name, "streams": streams, "added_ms": found}
              for streams, by_name in events.items() for name, found in by_name.items()),
            held,
        ],
        host=context.host,
    )  # fmt: skip


def _say_goals(context: PureContext, added_ms: float, per_s: float, event_ms: float, held: dict[str, Any]) -> None:
    context.note(
        f"added to a call: {added_ms:.3g} ms (goal: {_OVERHEAD_GOAL_MS:g} or less);"
        f" calls per second: {per_s:,.0f} (goal: {_RATE_GOAL:,} or more);"
        f" added to an event: {event_ms:.3g} ms (goal: {_EVENT_GOAL_MS:g} or less);"
        f" {held['streams']:,} open streams: {held['resident_bytes'] / MIB:.0f} MiB"
        f" (goal: {_MEMORY_GOAL_BYTES / MIB:.0f} or less)"
    )


def _allow_descriptors() -> None:
    """Take as many descriptors as the host allows: each open stream needs some."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 5 * _OPEN_STREAMS
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@asynccontextmanager
async def _contestants(context: PureContext, directory: Path) -> AsyncIterator[tuple[Contestant, list[Contestant]]]:
    async with AsyncExitStack() as stack:
        direct = await stack.enter_async_context(null_service(directory))
        gateways = [await stack.enter_async_context(our_gateway(directory, direct.url))]
        try:
            if context.options.install_reference:
                context.progress.say("installing LiteLLM's proxy into an environment of its own")
                await install_litellm()
            if (litellm_directory() / "complete").exists():
                context.progress.say("starting LiteLLM's proxy")
                gateways.append(await stack.enter_async_context(litellm_proxy(directory, direct.url)))
            else:
                context.note("no LiteLLM: it is not installed; --install-reference installs it")
        except (ExternalCommandError, TimeoutError) as error:
            context.note(f"no LiteLLM: {error}")
        yield direct, gateways


async def _added(context: PureContext, direct: Contestant, gateways: list[Contestant]) -> dict[str, Distribution]:
    """Return what each gateway adds to a call, in ms."""
    took: dict[str, list[float]] = {one.name: [] for one in (direct, *gateways)}
    samples = max(1, context.options.samples)
    async with AsyncExitStack() as stack:
        ways = [
            (one, request(one.url), await stack.enter_async_context(Connection(one.url))) for one in (direct, *gateways)
        ]
        with context.progress.counting("calls", samples + _WARM_CALLS) as advance:
            for number in range(samples + _WARM_CALLS):
                for one, wire, connection in ways:
                    begin_s = time.perf_counter()
                    await connection.whole(wire)
                    if number >= _WARM_CALLS:
                        took[one.name].append(time.perf_counter() - begin_s)
                advance()
    base_s = sorted(took[direct.name])[samples // 2]
    return {one.name: distribution([value - base_s for value in took[one.name]], scale=1e3) for one in gateways}


async def _rates(context: PureContext, services: list[Contestant]) -> dict[str, Distribution]:
    found: dict[str, list[float]] = {one.name: [] for one in services}
    with context.progress.counting("rates", _RATE_ROUNDS * len(services)) as advance:
        for _ in range(_RATE_ROUNDS):
            for one in services:
                found[one.name].append(await rate(one.url, _AT_ONCE, _RATE_S))
                advance()
    return {name: distribution(values) for name, values in found.items()}


async def _events(
    context: PureContext, direct: Contestant, gateways: list[Contestant], streams: int
) -> dict[str, Distribution]:
    """Return what each gateway adds to an event of a stream, in ms."""
    context.progress.say(f"streams through each, {streams} at a time")
    seen = {
        one.name: await delays_s(one.url, streams, _STREAM_EVENTS, _EVENT_INTERVAL_S) for one in (direct, *gateways)
    }
    base_s = sorted(seen[direct.name])[len(seen[direct.name]) // 2]
    return {one.name: distribution([value - base_s for value in seen[one.name]], scale=1e3) for one in gateways}


async def _open_streams(context: PureContext, gateway: Contestant) -> dict[str, Any]:
    """Open streams until all are there; return what the gateway's process weighs then."""
    count = context.options.count or _OPEN_STREAMS
    wire = request(gateway.url, stream=True, dsec_null={"events": 100_000, "interval_s": _OPEN_INTERVAL_S})
    before = resident_bytes(gateway.pid)
    began = 0
    all_began = asyncio.Event()
    opening = asyncio.Semaphore(_OPEN_AT_ONCE)

    async def caller() -> None:
        nonlocal began
        is_first = True

        def take(_: float) -> None:
            nonlocal began, is_first
            if is_first:
                is_first = False
                began += 1
                opening.release()
                if began == count:
                    all_began.set()

        await opening.acquire()
        async with Connection(gateway.url) as connection:
            await connection.events(wire, take)

    context.progress.say(f"{count} open streams")
    callers = [asyncio.ensure_future(caller()) for _ in range(count)]
    try:
        await asyncio.wait_for(all_began.wait(), _OPEN_TIMEOUT_S)
        await asyncio.sleep(2 * _OPEN_INTERVAL_S)  # Each has had some events by then.
        held = resident_bytes(gateway.pid)
    finally:
        for one in callers:
            one.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
    return {
        "what": "memory of open streams",
        "streams": count,
        "resident_bytes": held,
        "before_bytes": before,
        "bytes_per_stream": round((held - before) / count),
        "of_goal": ratio(held, _MEMORY_GOAL_BYTES),
    }
