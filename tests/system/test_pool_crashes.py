"""A real node with a pool is killed at random lines while tasks are served from it: nobody is given what another had or
what two have, nothing is left, and what was acknowledged is there.

`DSEC_CRASH_SECONDS` makes it longer, `DSEC_CRASH_SEED` repeats a run's choices.
"""

from __future__ import annotations

import os
import random
import secrets
import sys
import time
from pathlib import Path

import anyio
import msgspec
import pytest

from dsec.base.errors import DsecError, NodeUnavailableError, UnknownOutcomeError
from dsec.model.pool import PoolChange
from dsec.model.process import CommandRequest
from dsec.model.sandbox import Resources, SandboxFilter, SandboxSpec, SandboxState
from dsec.sdk.http import HttpService
from dsec.sdk.pools import pools_of
from dsec.testing.leaks import Leaks
from dsec.testing.node_process import NodeProcess

SECONDS = min(600.0, float(os.environ.get("DSEC_CRASH_SECONDS", "45")) / 3)
pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(SECONDS + 600)]

SPEC = SandboxSpec(image="guest", resources=Resources(memory_bytes=128 << 20, disk_bytes=64 << 20, pids=64))
POOL = PoolChange(floor=2, maximum=6, spreads=0.0, concurrency_share=0.0, creations_at_once=2, recycles_at_once=2)
CLIENTS = 3
EVERY = SandboxFilter(states=tuple(SandboxState))
PATIENCE_S = 60.0
LEAST_SERVED = 5
MOST_KEPT = 2
"""Fewer than the pool's maximum without those that the clients have at once, or all would wait for nobody."""
LOOK = "hostname; ls /tmp; echo x > /tmp/mine-$(hostname)"


class Tasks:
    """What the clients know: which sandboxes were acknowledged and not yet given back."""

    def __init__(self, seed: int, node: NodeProcess) -> None:
        self.seed, self.node = seed, node
        self.chance = random.Random(seed)
        self.held: set[str] = set()
        self.unknown: set[str] = set()
        self.served = self.lives = self.made = self.kept = 0

    def new_name(self) -> str:
        self.made += 1
        return f"sbx-{self.seed % 0xFFFFFF:x}p{self.made}"

    async def live(self) -> None:
        self.lives += 1
        self.kept = 0
        assert self.node.start(die_after_lines=int(10 ** self.chance.uniform(2, 4.8)))
        await self.look()
        async with self.node.service() as service:
            await pools_of(service).set_pool(SPEC, POOL)
        self.node.arm()
        async with anyio.create_task_group() as group:
            for _ in range(CLIENTS):
                group.start_soon(self.use)
        self.node.kill()

    async def use(self) -> None:
        """Be one task after another until the node dies."""
        async with self.node.service() as service:
            for _ in range(20):
                name = self.new_name()
                self.unknown.add(name)
                try:
                    await self.one(service, name)
                except (NodeUnavailableError, UnknownOutcomeError):
                    return
                except DsecError as error:
                    raise AssertionError(f"{name}: {error!r}") from error

    async def one(self, service: HttpService, name: str) -> None:
        tight = msgspec.structs.replace(SPEC, resources=msgspec.structs.replace(SPEC.resources, pids=32))
        await service.create(self.chance.choice((SPEC, tight)), sandbox_id=name)
        self.held.add(name)
        self.unknown.discard(name)
        seen = await service.run(name, CommandRequest(argv=("sh", "-c", LOOK)))
        assert seen.stdout.decode().split() == [name], f"{name} sees {seen.stdout!r} {seen.stderr!r}"
        self.served += 1
        if self.chance.random() < 0.3:
            await service.start_process(name, CommandRequest(argv=("sleep", "31536000"), timeout_s=None))
        if self.chance.random() < 0.2:
            await service.rollback(name)
        if self.kept < MOST_KEPT and self.chance.random() < 0.3:
            self.kept += 1
        else:
            self.held.discard(name)
            self.unknown.add(name)
            if self.chance.random() < 0.3:
                await service.pause(name)
            await service.remove(name)
            self.unknown.discard(name)

    async def look(self) -> None:
        """What was acknowledged is there with its own files; what the cut left open is there or is not."""
        async with self.node.service() as service:
            listed = {info.sandbox_id: info for info in await service.list(EVERY)}
            assert self.held <= listed.keys() <= self.held | self.unknown
            for name in sorted(self.held):
                assert listed[name].state is SandboxState.READY, listed[name]
                seen = await service.run(name, CommandRequest(argv=("sh", "-c", "hostname; ls /tmp")))
                words = seen.stdout.decode().split()
                assert words in ([name], [name, f"mine-{name}"]), words
            for name in listed:
                await service.remove(name)
            self.held.clear()
            self.unknown.clear()

    async def end(self) -> None:
        assert self.node.start()
        await self.look()
        async with self.node.service() as service:
            for info in await pools_of(service).list_pools():
                await pools_of(service).remove_pool(info.pool_id)
        ends_at = anyio.current_time() + PATIENCE_S
        while left := Leaks.read(self.node.state_dir).described(swap=False):
            assert anyio.current_time() < ends_at, left
            await anyio.sleep(0.05)
        self.node.stop()


def test_a_pool_survives_kills_gives_nothing_twice_and_leaves_nothing(state_dir: Path) -> None:
    seed = int(os.environ.get("DSEC_CRASH_SEED") or secrets.randbits(32))
    tasks = Tasks(seed, NodeProcess(state_dir))
    try:
        anyio.run(_run, tasks)
    except BaseException as error:
        error.add_note(f"repeat with DSEC_CRASH_SEED={seed}; life {tasks.lives}, {tasks.served} tasks served")
        error.add_note(f"the node's log ends with:\n{tasks.node.log_tail()}")
        raise
    finally:
        tasks.node.kill()
    sys.stderr.write(f"{tasks.lives} lives, {tasks.served} tasks served; seed {seed}\n")


async def _run(tasks: Tasks) -> None:
    ends_at = time.monotonic() + SECONDS
    # On a busy host a life may end before anybody was served: that shows nothing.
    while time.monotonic() < ends_at or tasks.served < LEAST_SERVED:
        await tasks.live()
    await tasks.end()
