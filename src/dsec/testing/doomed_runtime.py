"""A process that uses a container runtime until it is killed: ``python -m dsec.testing.doomed_runtime <plan>``.

The plan is one JSON document (`Plan`). What the process wants to be known it prints, a line at a time.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec

from dsec.model.process import Stream
from dsec.model.sandbox import QosClass, Resources
from dsec.runtimes.container.runtime import ContainerRuntime, ContainerRuntimeSettings
from dsec.runtimes.port import Instance, LaunchRequest, Process, Runtime, SpawnRequest
from dsec.testing.countdown import Countdown

PROCESS_ID = "prc-durable"
ENVIRONMENT = {"PATH": "/usr/bin:/bin"}


class Plan(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What to do.

    Attributes:
        node_id, runtime: of the runtime.
        image: the one layer.
        layers: directory for writable layers.
        first_host_id: of every instance.
        script: run this in one durable command, spool what it prints, and wait; empty: launch, start commands, and
            terminate without end.
        spool: file for what the command prints; empty: read nothing.
        die_after_lines: SIGKILL at this line of the mechanism; 0: never.
    """

    node_id: str
    runtime: str
    image: str
    layers: str
    first_host_id: int
    script: str = ""
    spool: str = ""
    die_after_lines: int = 0

    def request(self, number: int) -> LaunchRequest:
        """A launch of the instance ``sbx-<number>-g0``."""
        layer = Path(self.layers) / str(number)
        (layer / "upper").mkdir(parents=True)
        (layer / "work").mkdir(mode=0o700)
        return LaunchRequest(
            instance_id=f"sbx-{number}-g0",
            layer_paths=[Path(self.image)],
            upper=layer / "upper",
            work=layer / "work",
            resources=Resources(memory_bytes=256 << 20),
            qos=QosClass.LATENCY_SENSITIVE,
            hostname="doomed",
            first_host_id=self.first_host_id,
        )


@contextmanager
def doomed(plan: Plan) -> Iterator[subprocess.Popen[str]]:
    """Run a plan in a process, which is dead when the block ends."""
    command = [sys.executable, "-m", __name__, msgspec.json.encode(plan).decode()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def command(script: str, **options: Any) -> SpawnRequest:
    """A command of a shell."""
    return SpawnRequest(**{"process_id": "prc", "argv": ("sh", "-c", script), "env": ENVIRONMENT, **options})


async def _keep_one(runtime: Runtime, plan: Plan) -> None:
    instance = await runtime.launch(plan.request(0))
    process = await instance.spawn(command(plan.script, process_id=PROCESS_ID, durable=True))
    _say("started")
    if plan.spool:
        await _spool(process, Path(plan.spool))
    await anyio.sleep_forever()


async def _spool(process: Process, target: Path) -> None:
    with open(target, "ab", buffering=0) as file:
        while (chunk := await process.read()) is not None:
            assert chunk[0] is Stream.STDOUT
            file.write(chunk[1])
            _say("spooled")


async def _use_without_end(runtime: Runtime, plan: Plan) -> None:
    for number in range(1 << 30):
        instance = await runtime.launch(plan.request(number))
        await _use(instance)
        await instance.terminate()


async def _use(instance: Instance) -> None:
    short = await instance.spawn(command("echo out", process_id="prc-short"))
    while await short.read() is not None:
        pass
    await short.close()
    left = await instance.spawn(command("setsid sleep 1000 & sleep 1000", process_id="prc-left"))
    kept = await instance.spawn(command("echo kept; exec sleep 1000", process_id=PROCESS_ID, durable=True))
    assert await kept.read() is not None
    await left.kill()
    for process in (left, kept):
        await process.close()


def _say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


async def _run(plan: Plan) -> None:
    runtime = ContainerRuntime(ContainerRuntimeSettings(node_id=plan.node_id, runtime=plan.runtime))
    await runtime.open()
    if plan.die_after_lines:
        Countdown(plan.die_after_lines, ("runtimes", "linux")).begin()
    work: Callable[[Runtime, Plan], Any] = _keep_one if plan.script else _use_without_end
    await work(runtime, plan)


if __name__ == "__main__":
    anyio.run(_run, msgspec.json.decode(sys.argv[1], type=Plan))
