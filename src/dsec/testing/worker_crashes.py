"""A worker of episodes that dies at any of its steps, with its node and its store: a history for the checker.

One episode is driven by one worker after another over a simulated disk, a node of fakes, a store and systems outside of
each kind. A step is an operation on the disk, a call of the node or the store, the moment before an effect outside
and the one behind it. At a drawn step the worker is dead: what it still does reaches nothing. The disk is then as a
kill or a loss of power leaves it; the node, the store and the world go on. Nodes die at steps of their own.

A trainer watches from where it was, asks what is unknown, and settles that by looking at the world. All of it is drawn
from one number; threads that wait for the disk run beside the event loop, so that the same number gives nearly, but not
always exactly, the same history.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec

from dsec.base.clock import ManualClock
from dsec.base.errors import DsecError, NodeUnavailableError, NotFoundError, StateCorruptedError
from dsec.episode.agent_calls import AgentCall, OutsideCall, ReadLines
from dsec.episode.content import Content
from dsec.episode.identity import operation_id
from dsec.episode.log_content import Completeness
from dsec.episode.log_events import Verdict
from dsec.episode.operations import Effect as Kind
from dsec.episode.spec import EpisodeEnvironment, EpisodeInfo, EpisodeSpec, EpisodeState, ScriptPolicy
from dsec.episode.tools import WriteFile
from dsec.model.sandbox import SandboxFilter, SandboxSpec
from dsec.node.node import Node
from dsec.stores.episode_log_remote import read_stored_log
from dsec.stores.episode_log_upload import UploadSettings
from dsec.stores.objects_memory import MemoryObjectStore
from dsec.testing.crash_plan import CrashPlan
from dsec.testing.episode_checker import Claim, History, Reported
from dsec.testing.episode_world import Fuse
from dsec.testing.faults import Killed
from dsec.testing.faulty_store import Faults, FaultyObjectStore
from dsec.testing.memory_node import MemoryHost
from dsec.testing.mortal_node import MortalNode
from dsec.testing.outside_witness import Witness, WitnessedSystem, answer
from dsec.testing.simulated_disk import DiskFaults, SimulatedDisk
from dsec.worker.episodes.parts import WorkerSettings
from dsec.worker.episodes.ports import Declared, Finished, Hands, LifeContext, LoopPolicy, Proposal, Turn
from dsec.worker.episodes.worker import EpisodeWorker
from dsec.worker.outside.hands import OutsideHands
from dsec.worker.outside.parameters import Parameter, arguments_type
from dsec.worker.outside.port import OutsideTool

EPISODE = "ep-crash"
DIRECTORY = Path("/simulated/worker")
LOG = "/tmp/work.log"
OUTSIDE = (Kind.ASKED, Kind.DEDUPLICATED, Kind.COMPENSATED, Kind.ONCE)
_SETTINGS = WorkerSettings(
    threads=1,
    store_lease_s=3600.0,
    backoff_s=(0.0,) * 30,
    upload=UploadSettings(interval_s=0.0, backoff_s=(0.0,), merge_at=4),
    upload_wait_s=5.0,
    segment_bytes=2000,
)


@dataclass(slots=True)
class _DrawnPolicy:
    """Decides something else each time it is asked, as a model does."""

    draw: random.Random
    rounds: int

    async def decide(self, turn: Turn) -> Proposal | Finished:
        if turn.number > self.rounds:
            return Finished(reason="done")
        calls = [self._call(turn, place) for place in range(self.draw.randint(0, 4))]
        return Proposal(calls=tuple(calls), message=f"{self.draw.random()}")

    def _call(self, turn: Turn, place: int) -> AgentCall:
        kind = self.draw.choice(list(Kind))
        if kind is Kind.NONE:
            return ReadLines(path=LOG)
        name = operation_id(EPISODE, number=turn.number, decision=turn.decision, call=place)
        if kind is Kind.WORKSPACE:
            return WriteFile(path=LOG, content=Content(text=f"{name}\n"), append=True)
        return OutsideCall(name=kind.value, arguments={"mark": f"{self.draw.random()}"})


def _declare(call: AgentCall) -> Declared:
    if isinstance(call, OutsideCall):
        return Declared(effect=Kind(call.name))
    return Declared(effect=Kind.WORKSPACE) if isinstance(call, WriteFile) else Declared(effect=Kind.NONE, parallel=True)


class Crashes:
    """One history. `run` is called once.

    Args:
        plan: what it may hold.
        directory: real and empty; the worker's lock lies there.
        enough_s: a life that takes longer hangs.
    """

    def __init__(self, plan: CrashPlan, directory: Path, *, enough_s: float = 120.0) -> None:
        self.plan = plan
        self.deaths = 0
        self.node_deaths = 0
        self._enough_s = enough_s
        self.witness = Witness()
        self._draw = random.Random(plan.seed)
        self._directory = directory
        self._host = MemoryHost()
        self._clock = ManualClock()
        self._objects = MemoryObjectStore(clock=self._clock)
        self._disk = SimulatedDisk()
        self._left: SimulatedDisk | None = None
        self._fuse = Fuse()
        self._effects = Fuse()
        self._scope = anyio.CancelScope()
        self._told: list[tuple[int, dict[str, Any]]] = []
        self._reported: list[Reported] = []
        self._claims: list[Claim] = []
        self._watermarks: list[tuple[int, dict[str, bytes]]] = []
        self._has_ended = False
        self.spec = EpisodeSpec(
            task="crash",
            policy=ScriptPolicy(rounds=()),
            environment=EpisodeEnvironment(sandbox=SandboxSpec(image="python"), cwd="/", keep=True),
            durability=plan.durability,
        )

    async def run(self) -> History:
        """Let one worker after another live until the episode has ended and its copy is whole."""
        keeper = MortalNode(self._host, self._draw, deaths=self.plan.node_deaths)
        async with keeper.running():
            for life in range(self.plan.deaths + 1):
                self._aim(life)
                with anyio.fail_after(self._enough_s):
                    if await self._live(keeper):
                        break
                self.deaths += 1
                await self._look_at_the_store()
            await self._look_at_the_store()
            files = await self._files(keeper)
            self.node_deaths = keeper.deaths
        return History(
            disk=self._log_files(self._disk),
            effects=self.witness.effects,
            told=self._told,
            ended=self._has_ended,
            reported=self._reported,
            claims=self._claims,
            watermarks=self._watermarks,
            files=files,
            crashed=bool(self.deaths or self.node_deaths or self.plan.trouble or self.plan.store or self.plan.disk),
        )

    @property
    def steps(self) -> int:
        """How many steps the last life had."""
        return self._fuse.steps

    # -- a life --------------------------------------------------------------------------------------------------------

    def _aim(self, life: int) -> None:
        """Choose where a life ends: at a step, near its beginning or far from it; or beside an effect."""
        is_last = life == self.plan.deaths
        if life < len(self.plan.kills):
            self._fuse, self._effects = Fuse(kill_at=self.plan.kills[life]), Fuse()
            return
        aimed = self._draw.random() < 0.5
        near = self._draw.randint(1, self._draw.choice([4, 12])), 0
        far = 0, self._draw.randint(1, self._draw.choice([20, 60, 200]))
        beside, anywhere = (0, 0) if is_last else near if aimed else far
        self._fuse, self._effects = Fuse(kill_at=anywhere), Fuse(kill_at=beside)

    async def _live(self, keeper: MortalNode) -> bool:
        """Let a worker live; return whether it lived to the end of the episode."""
        self._left, self._scope = None, anyio.CancelScope()
        loop = asyncio.get_running_loop()
        self._disk.on_operation = lambda operation, name: self._step_of_disk(operation, loop)
        self._disk.faults = self._disk_faults()
        store = FaultyObjectStore(self._objects, self._store_faults())
        worker = EpisodeWorker(
            self._directory,
            keeper.service(self._step),
            keeper.state(self._step),
            store,
            replace(_SETTINGS, state_bytes=self.plan.state_bytes, dear_s=self.plan.dear_s),
            policies=self._policy,
            hands=self._hands,
            clock=self._clock,
            disk=self._disk,
        )
        with self._scope:
            try:
                async with worker:
                    await self._train(worker)
            except DsecError:
                if self._left is None:
                    raise
        if self._left is None:
            self._disk.on_operation, self._disk.faults = lambda operation, name: None, DiskFaults()
            return True
        self._disk = self._left
        return False

    def _die(self) -> None:
        """Keep what the disk has at this instant; what the dying worker still does reaches nothing."""
        if self.plan.power and self._draw.random() < 0.5:
            self._left = self._disk.after_power_loss(lambda most: self._draw.randint(0, most))
        else:
            self._left = self._disk.after_kill()

    def _step_of_disk(self, operation: str, loop: asyncio.AbstractEventLoop) -> None:
        """A step in a thread that waits for the disk."""
        if self._left is not None:
            raise OSError(5, "the machine is gone")
        if operation == "exists":
            return
        try:
            self._fuse.step()
        except Killed:
            self._die()
            loop.call_soon_threadsafe(self._scope.cancel)
            raise OSError(5, "the machine is gone") from None

    async def _step(self) -> None:
        """A step in the event loop; a dead worker does not come back from it."""
        if self._left is None:
            try:
                self._fuse.step()
            except Killed:
                self._die()
        if self._left is not None:
            self._scope.cancel()
            await anyio.lowlevel.checkpoint()
            # What is cleaned up with a shield around it does not hear that it is dead otherwise.
            raise NodeUnavailableError("the worker is dead")

    async def _step_beside_effect(self) -> None:
        """A step before or after an effect outside."""
        if self._left is None:
            try:
                self._effects.step()
            except Killed:
                self._die()
        await self._step()

    def _disk_faults(self) -> DiskFaults:
        """Return what the disk does wrong in this life."""
        if self._draw.random() >= self.plan.disk:
            return DiskFaults()
        first = self._draw.randint(1, 40)
        last = first + self._draw.randint(1, 10)
        seen = itertools.count(1)
        if self._draw.random() < 0.5:
            return DiskFaults(failing=lambda operation, name: operation == "sync" and next(seen) == first)
        return DiskFaults(full=lambda operation, name: first <= next(seen) < last)

    def _store_faults(self) -> Faults:
        """Return what the store does wrong in this life. What a dead worker asks of it, it never hears."""
        gone = range(0)
        if self._draw.random() < self.plan.outages:
            first = self._draw.randint(1, 60)
            gone = range(first, first + self._draw.randint(5, 60))
        calls = itertools.count(1)

        def fails(action: str, key: str) -> bool:
            if next(calls) in gone:
                return True
            if self._left is None:
                try:
                    self._fuse.step()
                except Killed:
                    self._die()
                    self._scope.cancel()
            return self._left is not None or self._draw.random() < self.plan.store

        return Faults(
            fails=fails,
            fails_after=lambda action, key: self._left is not None or self._draw.random() < self.plan.store,
            loses=lambda key: key.endswith(".jsonl") and self._draw.random() < self.plan.store / 2,
        )

    async def _policy(self, context: LifeContext, endpoint: object) -> LoopPolicy:
        return LoopPolicy(policy=_DrawnPolicy(self._draw, self.plan.rounds), declare=_declare)

    def _hands(self, context: LifeContext, sandbox: Hands) -> Hands:
        tools = {
            kind.value: OutsideTool(
                name=kind.value,
                description="",
                arguments=arguments_type(kind.value, {"mark": Parameter()}),
                system=WitnessedSystem(self.witness, kind, self._draw, self.plan.trouble, self._step_beside_effect),
            )
            for kind in OUTSIDE
        }
        return OutsideHands(sandbox, tools, epoch=context.epoch)

    # -- the trainer ---------------------------------------------------------------------------------------------------

    async def _train(self, worker: EpisodeWorker) -> None:
        """Start the episode or find it, watch from where we were, settle, resume, until it has ended and is copied."""
        while not await self._tolerantly(worker.start(self.spec, episode_id=EPISODE)):
            pass
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._watch, worker)
            while await self._turn(worker):  # noqa: ASYNC110 - a trainer polls what no event tells.
                await anyio.sleep(0.0005)
            tasks.cancel_scope.cancel()

    async def _turn(self, worker: EpisodeWorker) -> bool:
        """Do what there is to do for a trainer; return whether there will be more."""
        info = await worker.get(EPISODE)
        if info.state is EpisodeState.WAITING and info.unknown:
            await self._settle(worker, info)
        elif info.state is EpisodeState.STOPPED or (info.state is EpisodeState.PAUSED and self._draw.random() < 0.1):
            await self._tolerantly(worker.resume(EPISODE))
        elif info.state is EpisodeState.ENDED and self._has_ended:
            return EPISODE in worker._drives
        elif self._draw.random() < self.plan.meddling:
            if self._draw.random() < 0.5:
                await self._tolerantly(worker.steer(EPISODE, f"{self._draw.random()}"))
            else:
                await self._tolerantly(worker.pause(EPISODE))
        return True

    async def _watch(self, worker: EpisodeWorker) -> None:
        while not self._has_ended:
            try:
                async with worker.events(EPISODE, len_told(self._told) + 1) as stream:
                    await self._hear(stream)
            except StateCorruptedError:
                raise
            except DsecError:
                await anyio.lowlevel.checkpoint()

    async def _hear(self, stream: AsyncIterator[Any]) -> None:
        async for heard in stream:
            if self._left is not None:
                return
            document = json.loads(msgspec.json.encode(heard.event))
            self._told.append((heard.sequence, document))
            self._has_ended = self._has_ended or document["event"] == "ended"

    async def _settle(self, worker: EpisodeWorker, info: EpisodeInfo) -> None:
        """Do what a person does: write down what is claimed, look at the world, and say what happened."""
        names = tuple(unknown.operation_id for unknown in info.unknown)
        if self._left is not None:
            return
        self._reported.append(Reported(operations=names, log=self._log_files(self._disk)))
        for name in names:
            self.witness.settle_down(name, self._draw)
            happened = self.witness.times[name] > 0
            verdict = Verdict.HAPPENED if happened else Verdict.DID_NOT_HAPPEN
            result = answer(name) if happened else None
            await self._tolerantly(worker.settle(EPISODE, name, verdict, result=result, by="a person"))

    async def _tolerantly(self, asked: Awaitable[object]) -> bool:
        """Ask, and say whether it worked; what does not work now is asked again in the next turn."""
        try:
            await asked
        except StateCorruptedError:
            raise
        except DsecError:
            await anyio.lowlevel.checkpoint()
            return False
        return True

    # -- what is left --------------------------------------------------------------------------------------------------

    def _log_files(self, disk: SimulatedDisk) -> dict[str, bytes]:
        directory = self._directory / "episodes" / EPISODE
        return {name: disk.read(directory / name) for name in disk.names(directory)}

    async def _look_at_the_store(self) -> None:
        """Write down what a reader says of the copy, as it is and with an object missing."""
        prefix = f"episodes/{EPISODE}/"
        objects = {info.key: await self._objects.get(info.key) async for info in self._objects.list(prefix)}
        if (mark := objects.get(f"{prefix}watermark.json")) is not None:
            self._watermarks.append((json.loads(mark)["sequence"], objects))
        await self._ask_reader(objects)
        segments = [key for key in objects if key.endswith(".jsonl")]
        if segments:
            missing = self._draw.choice(segments)
            await self._ask_reader({key: data for key, data in objects.items() if key != missing})

    async def _ask_reader(self, objects: dict[str, bytes]) -> None:
        store = MemoryObjectStore(clock=self._clock)
        for key, data in objects.items():
            await store.put(key, data)
        try:
            content = await read_stored_log(store, EPISODE)
        except NotFoundError:
            return
        words = {Completeness.COMPLETE: "complete", Completeness.OPEN: "open", Completeness.INCOMPLETE: "incomplete"}
        self._claims.append(Claim(word=words[content.completeness], rounds=len(content.rounds), objects=objects))

    async def _files(self, keeper: MortalNode) -> Sequence[str]:
        while True:
            try:
                # The node may have deaths left: what a dead one remembers is not what is kept.
                found = await keeper.call(lambda node: node.list(SandboxFilter(metadata={"episode": EPISODE})))
                assert len(found) == 1, f"one sandbox is kept, and no other is left: {found}"
                data: bytes = await keeper.call(partial(_read, sandbox_id=found[0].sandbox_id))
                return data.decode().split()
            except NotFoundError:
                return ()
            except NodeUnavailableError:
                await anyio.lowlevel.checkpoint()


async def _read(node: Node, *, sandbox_id: str) -> bytes:
    return b"".join([chunk async for chunk in node.read_file(sandbox_id, LOG)])


def len_told(told: Sequence[tuple[int, object]]) -> int:
    """Return the sequence of the last event that was told."""
    return told[-1][0] if told else 0


@dataclass(slots=True)
class Tally:
    """What many histories held, so that a test can see that it tested something."""

    histories: int = 0
    deaths: int = 0
    node_deaths: int = 0
    unknown: int = 0
    effects: int = 0
    undone: int = 0
    complete: int = 0
    incomplete: int = 0
    problems: dict[int, list[str]] = field(default_factory=dict)

    def add(self, crashes: Crashes, history: History, problems: list[str]) -> None:
        """Count a history."""
        self.histories += 1
        self.deaths += crashes.deaths
        self.node_deaths += crashes.node_deaths
        self.unknown += sum(len(reported.operations) for reported in history.reported)
        self.effects += len(history.effects)
        self.undone += sum(effect.by < 0 for effect in history.effects)
        self.complete += sum(claim.word == "complete" for claim in history.claims)
        self.incomplete += sum(claim.word == "incomplete" for claim in history.claims)
        if problems:
            self.problems[crashes.plan.seed] = problems
