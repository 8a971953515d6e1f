"""`exec`: run `true` in a live sandbox and learn how it ended, with both outputs collected."""

from __future__ import annotations

from contextlib import AsyncExitStack

import anyio

from dsec.bench.bare import BareExec
from dsec.bench.context import BenchContext, run_directory
from dsec.bench.distribution import Distribution, distribution, ratio
from dsec.bench.docker import SETTLE_S, DockerEngine
from dsec.bench.report import Report, make_report
from dsec.bench.sampling import Sample, alternate, timed
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxSpec
from dsec.node.sandbox import instance_name
from dsec.service.port import SandboxService

TRUE = CommandRequest(argv=("true",))
BARE = "crun exec"
_IN_PROCESS, _OVER_UNIX = "in process", "HTTP over a unix socket"


async def bench_exec(context: BenchContext) -> Report:
    """Measure a command over HTTP, in process and over the unix socket beside bare `crun exec` and Docker Engine."""
    async with AsyncExitStack() as stack:
        engine = stack.enter_context(context.docker())
        node = await stack.enter_async_context(context.workplace.embedded())
        served = await stack.enter_async_context(context.workplace.served())
        over_tcp = await stack.enter_async_context(served.over_tcp())
        over_unix = await stack.enter_async_context(served.over_unix_socket())
        spec = SandboxSpec(image=context.workplace.image)
        local, remote = await node.create(spec), await over_tcp.create(spec)
        bare = BareExec(run_directory(node), instance_name(local.sandbox_id, 0), context.workplace.directory)
        contestants: dict[str, Sample] = {
            "ours": _Command(over_tcp, remote.sandbox_id).sample,
            BARE: lambda: _bare_sample(bare),
            _IN_PROCESS: _Command(node, local.sandbox_id).sample,
            _OVER_UNIX: _Command(over_unix, remote.sandbox_id).sample,
            **_docker_contestant(engine, stack),
        }
        context.note(f"crun exec is: {' '.join(bare.argv)}")
        seconds = await alternate(contestants, rounds=context.options.samples, progress=context.progress, warm_ups=5)
    return _report(context, {name: distribution(values, scale=1e3) for name, values in seconds.items()})


class _Command:
    def __init__(self, service: SandboxService, sandbox_id: str) -> None:
        self._service, self._sandbox_id = service, sandbox_id

    async def sample(self) -> float:
        with timed() as watch:
            await self._service.run(self._sandbox_id, TRUE)
        return watch.seconds


async def _bare_sample(bare: BareExec) -> float:
    with timed() as watch:
        bare.run()
    return watch.seconds


def _docker_contestant(engine: DockerEngine | None, stack: AsyncExitStack) -> dict[str, Sample]:
    if engine is None:
        return {}
    container = engine.create()
    stack.callback(engine.remove, container)

    async def sample() -> float:
        with timed() as watch:
            engine.exec(container, ("true",))
        await anyio.sleep(SETTLE_S)
        return watch.seconds

    return {"Docker Engine API exec": sample}


def _report(context: BenchContext, summaries: dict[str, Distribution]) -> Report:
    bare = summaries[BARE]
    series = [
        {"what": name, "ms": summaries[name], "ratio_to_crun_exec": ratio(summaries[name].p50, bare.p50)}
        for name in (_IN_PROCESS, _OVER_UNIX)
    ]
    ours = summaries["ours"]
    references = {name: value for name, value in summaries.items() if name not in ("ours", _IN_PROCESS, _OVER_UNIX)}
    return make_report("exec", "ms", "lower", ours=ours, references=references, series=series, host=context.host)
