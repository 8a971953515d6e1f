"""A ring of real processes: a node is killed at the n-th call of a mechanism, and the next one is looked at.

What may be there after a death is said by plain dictionaries (`dsec.testing.forest_model`): what stood before, what was
asked, or what an interruption may leave. Then the operation is asked for again and must lead to what was asked; then
all is removed. After each of these the host is compared with what the sandboxes need: instances, control groups,
mounts, layers, frozen layers, spools, files.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import anyio

from dsec.base.errors import NodeUnavailableError, UnknownOutcomeError
from dsec.sdk.http import HttpService
from dsec.sdk.pools import pools_of
from dsec.sdk.state import state_of
from dsec.service.port import SandboxService
from dsec.testing.forest_model import EVERY, Forest, differing, look
from dsec.testing.leaks import Leaks
from dsec.testing.node_process import NodeProcess

HOME = "/home/user"
PATIENCE_S = 60.0
CLEANING_STEPS = 9
"""A node that cleans up dies at one of so many steps."""
Act = Callable[[SandboxService], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Scene:
    """What stands before an operation, and how it comes to be.

    Attributes:
        forest: what stands.
        make: how it comes to be.
        is_pooled: its sandboxes come from a pool, so that what they have on the host is named after the pool's.
    """

    forest: Forest
    make: Act
    is_pooled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One operation.

    Attributes:
        name: for the test's id.
        scene: what stands before.
        act: the operation.
        after: what it leads to.
        between: what an interruption may leave besides.
        repeats: whether the operation, made again after it was done, changes nothing.
        steps: about how many there are, from which one is drawn.
        frozen: layers that are frozen afterwards and no checkpoints: what children, or what was restored, began from.
        probe: has to succeed after each death.
    """

    name: str
    scene: Scene
    act: Act
    after: Forest
    between: tuple[Forest, ...] = ()
    repeats: bool = True
    steps: int
    frozen: int = 0
    probe: Act | None = None


class Ring:
    """Lives of a node, one after another: each sees what the one before left, and dies in an operation of its own.

    Args:
        state_dir: where.
        nothing: what is there when everything was removed.
        chance: draws steps.
        environment: settings of the nodes.

    Attributes:
        struck: at what steps nodes died.
    """

    def __init__(
        self,
        state_dir: Path,
        nothing: Forest,
        chance: random.Random | None = None,
        environment: dict[str, str] | None = None,
    ) -> None:
        self.node = NodeProcess(state_dir, environment)
        self.nothing, self.chance = nothing, chance or random.Random(0)
        self.case: Case | None = None
        self.struck: list[str] = []

    async def draw(self, cases: Sequence[Case]) -> None:
        """Die at one step of each case."""
        for case in cases:
            await self._live(case, self.chance.randint(1, case.steps))
        await self._end()

    async def walk(self, case: Case) -> None:
        """Die at every step of a case."""
        for step in count(1):
            if not await self._live(case, step):
                break
            if self.node.start(die_at_step=self.chance.randint(1, CLEANING_STEPS), armed=True):
                self.node.kill()
        await self._end()

    async def _live(self, case: Case, step: int) -> bool:
        """See what the last death left, make a scene, and die at a step of the operation; return whether it did."""
        assert self.node.start(die_at_step=step)
        log = self.node.state_dir / "node.log"
        async with self.node.service() as service:
            await self.see(service)
            self.case = case
            await case.scene.make(service)
            await self.quiet(case.scene.forest)
            said = len(log.read_text(errors="replace"))
            self.node.arm()
            try:
                await case.act(service)
                await self.quiet(case.after)
            except (NodeUnavailableError, UnknownOutcomeError):
                pass
        self.node.kill()
        # It says so before it dies; that it did can be seen a moment later only.
        told = re.findall(r"killed at (step \d+: .*)", log.read_text(errors="replace")[said:])
        self.struck += [f"{case.name}: {where}" for where in told]
        return bool(told)

    async def _end(self) -> None:
        assert self.node.start()
        async with self.node.service() as service:
            await self.see(service)
        self.node.stop()

    async def see(self, service: HttpService) -> None:
        """See what a death left; ask again, which must lead to what was asked; and remove everything."""
        if self.case is not None:
            found = await self._recognised(service, self.case)
            if self.case.repeats or found != self.case.after:
                await self.case.act(service)
                await self._shows(service, self.case.after)
            if self.case.probe is not None:
                await self.case.probe(service)
        await self._remove_all(service)

    async def _remove_all(self, service: HttpService) -> None:
        for pool in await pools_of(service).list_pools():
            await pools_of(service).remove_pool(pool.pool_id)
        for info in await service.list(EVERY):
            await service.remove(info.sandbox_id)
        for saved in await state_of(service).list_snapshots():
            await state_of(service).remove_snapshot(saved.snapshot_id)
        for image in await service.images():
            if (name := image.name.removesuffix(":latest")) not in self.nothing.images:
                command = [sys.executable, "-m", "dsec", "--state-dir", str(self.node.state_dir), "image", "rm", name]
                await anyio.run_process(command)
        self.case = None
        await self.quiet(self.nothing)

    async def _recognised(self, service: SandboxService, case: Case) -> Forest:
        possible = (case.scene.forest, *case.between, case.after)
        shown = await look(service, HOME)
        true = [each for each in possible if each.shown() == shown]
        assert true, "\n".join(differing(shown, each.shown()) for each in possible)
        await self.quiet(true[-1])
        return true[-1]

    async def _shows(self, service: SandboxService, wanted: Forest) -> None:
        differences = differing(await look(service, HOME), wanted.shown())
        assert not differences, differences
        await self.quiet(wanted)

    async def quiet(self, wanted: Forest) -> None:
        """Wait until the host holds what these sandboxes need and nothing else, or the node is dead."""
        ends_at = anyio.current_time() + PATIENCE_S
        while self.node.is_running and (left := self._superfluous(wanted)):
            assert anyio.current_time() < ends_at, left
            await anyio.sleep(0.01)

    def _superfluous(self, wanted: Forest) -> str:
        """Say what the host holds that it should not, or lacks."""
        is_pooled = self.case is not None and self.case.scene.is_pooled
        boxes = {} if is_pooled else wanted.boxes
        live = {f"{name}-g{box.generation}" for name, box in boxes.items() if box.is_live}
        left = Leaks.read(self.node.state_dir)
        groups = {part for group in left.groups for part in group.split("/") if part.startswith("sbx-")}
        layers = {name.removeprefix("layers/") for name in left.layers if name.startswith("layers/")}
        # What is discarded is gone with a later commit of the file system; the fixture waits for that.
        rest = [name for name in left.layers if name.startswith("staging/")]
        frozen = [name for name in left.layers if name.startswith("checkpoints/")]
        expected = sum(len(box.points) for box in wanted.boxes.values())
        if self.case is not None and wanted == self.case.after:
            expected += self.case.frozen
        told: dict[str, Collection[str]] = {
            "instances": set(left.run_entries) ^ live,
            "groups": groups ^ live,
            "layers": layers ^ live,
            "unfinished": rest,
            "frozen layers": frozen if len(frozen) != expected else [],
            "mounts": left.mounts,
            "files": left.files,
            "spools": set(left.spools) - live,
        }
        if is_pooled:
            # What stands ready comes and goes.
            told = {what: [name for name in found if "pool-" not in name] for what, found in told.items()}
        return "; ".join(f"{what}: {found}" for what, found in told.items() if found)
