"""A real node is killed at random moments while clients use it: what was acknowledged is there after the next start,
and nothing is there by half, or left.

`DSEC_CRASH_SECONDS` makes it long (20 by default), `DSEC_CRASH_SEED` repeats a run's choices (times differ from run to
run, so that it repeats the kind of a run, not each step). A failure tells the seed, what was done to the sandbox, and
at which lines of the node's own code the kills came.
"""

from __future__ import annotations

import os
import random
import secrets
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import pytest

from dsec.model.sandbox import SandboxFilter, SandboxState
from dsec.testing.crash_model import ORPHAN_MARK, NodeDiedError, Sandbox
from dsec.testing.leaks import Leaks
from dsec.testing.node_process import NodeProcess

SECONDS = float(os.environ.get("DSEC_CRASH_SECONDS", "20"))
pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.timeout(SECONDS + 600)]

CLIENTS = 3
STEPS_A_LIFE = 25
EVERY = SandboxFilter(states=tuple(SandboxState))
PATIENCE_S = 60.0


@dataclass(slots=True)
class History:
    """One run: the node's lives one after another, and the clients' sandboxes."""

    seed: int
    node: NodeProcess
    image: str = "guest"
    chance: random.Random = field(init=False)
    sandboxes: list[Sandbox] = field(default_factory=list)
    made: int = 0
    lives: int = 0
    steps: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        for _ in range(CLIENTS):
            self.sandboxes.append(self.new_sandbox())

    def new_sandbox(self) -> Sandbox:
        self.made += 1
        name = f"sbx-{self.seed % 0xFFFFFF:x}n{self.made}"
        return Sandbox(name, random.Random(self.chance.random()), self.image)

    # -- one life ---------------------------------------------------------------------------------------------------

    async def live(self) -> None:
        """Let a node start, see what it shows, use it, and let it die."""
        self.lives += 1
        if self.chance.random() < 0.25:
            self._die_while_starting()
        lines = int(10 ** self.chance.uniform(1, 4.3)) if self.chance.random() < 0.75 else None
        assert self.node.start(die_after_lines=lines)
        await self.look()
        async with anyio.create_task_group() as group:
            if lines is None:
                group.start_soon(self._kill_later, 10 ** self.chance.uniform(-3, 0.3))
            else:
                self.node.arm()
            for index in range(CLIENTS):
                group.start_soon(self._use, index)
        self.node.kill()

    def _die_while_starting(self) -> None:
        if self.node.start(die_after_lines=int(10 ** self.chance.uniform(1, 4.2)), armed=True):
            self.node.kill()

    async def _kill_later(self, after_s: float) -> None:
        await anyio.sleep(after_s)
        self.node.kill()

    async def _use(self, index: int) -> None:
        """Be the client of one sandbox after another until the node dies."""
        async with self.node.service() as service:
            for _ in range(STEPS_A_LIFE):
                sandbox = self.sandboxes[index]
                try:
                    await sandbox.step(service)
                except NodeDiedError:
                    return
                self.steps += 1
                if sandbox.gone() and not sandbox.children:
                    self.sandboxes[index] = self.new_sandbox()

    # -- what the next node shows -----------------------------------------------------------------------------------

    async def look(self) -> None:
        async with self.node.service() as service:
            listed = {info.sandbox_id: info for info in await service.list(EVERY)}
            for sandbox in self.sandboxes:
                await sandbox.recognise_family(service, listed)
            assert not listed, f"nobody asked for {listed}"
            live = {info.sandbox_id: info for info in await service.list()}
            self.check_host({f"{name}-g{info.generation}" for name, info in live.items()})
        for index, sandbox in enumerate(self.sandboxes):
            if sandbox.gone() and not sandbox.children and sandbox.trace:
                self.sandboxes[index] = self.new_sandbox()

    def check_host(self, live: set[str]) -> None:
        """The host holds the live instances and nothing else of this node."""
        left = Leaks.read(self.node.state_dir)
        assert set(left.run_entries) == live
        groups = {part for group in left.groups for part in group.split("/") if part.startswith("sbx-")}
        assert groups == live
        layers = {name.removeprefix("layers/") for name in left.layers if name.startswith("layers/")}
        assert layers == live
        assert not [name for name in left.layers if name.startswith("staging/")]
        assert set(left.spools) <= live
        assert not left.mounts
        assert not left.files
        orphans = [process for process in left.processes if ORPHAN_MARK in process]
        assert not orphans, orphans

    async def end(self) -> None:
        """Remove everything; nothing is left."""
        assert self.node.start()
        await self.look()
        async with self.node.service() as service:
            for info in await service.list(EVERY):
                await service.remove(info.sandbox_id)
        await nothing_is_left(self.node.state_dir)
        self.node.stop()
        await nothing_is_left(self.node.state_dir)


async def nothing_is_left(state_dir: Path) -> None:
    """Wait for what goes in the background and is announced to nobody: discarded layers, processes being reaped."""
    ends_at = anyio.current_time() + PATIENCE_S
    while left := Leaks.read(state_dir).described(swap=False):
        assert anyio.current_time() < ends_at, left
        await anyio.sleep(0.05)


def test_acknowledged_work_survives_kills_and_nothing_is_left(state_dir: Path) -> None:
    seed = int(os.environ.get("DSEC_CRASH_SEED") or secrets.randbits(32))
    history = History(seed, NodeProcess(state_dir))
    try:
        # Not a test of anyio's plugin, whose time limit is for tests that are not asked to run long.
        anyio.run(_run, history)
    except BaseException as error:
        error.add_note(f"repeat with DSEC_CRASH_SEED={seed}; life {history.lives}, {history.steps} operations")
        error.add_note(f"the node's log ends with:\n{history.node.log_tail()}")
        raise
    finally:
        history.node.kill()
    sys.stderr.write(f"{history.lives} lives, {history.steps} operations, {history.made} sandboxes; seed {seed}\n")


async def _run(history: History) -> None:
    ends_at = time.monotonic() + SECONDS
    while time.monotonic() < ends_at:
        await history.live()
    await history.end()
