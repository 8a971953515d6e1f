"""Systems outside and workers that were given up: whatever they still send, on whichever host, does nothing there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import anyio
import pytest

from dsec.base.errors import LogSuspectError
from dsec.episode.agent_calls import OutsideCall
from dsec.episode.log_events import OperationsRunning
from dsec.episode.operations import Effect
from dsec.episode.spec import EpisodeEnvironment, EpisodeInfo, EpisodeSpec, EpisodeState, ScriptPolicy, ScriptRound
from dsec.episode.tools import OutsideAnswer, ToolFailed
from dsec.model.sandbox import SandboxSpec
from dsec.stores.objects_memory import MemoryObjectStore
from dsec.testing.faulty_store import Faults, FaultyObjectStore
from dsec.testing.memory_node import MemoryHost
from dsec.testing.memory_worker import MemoryWorker
from dsec.testing.simulated_disk import DiskFaults, SimulatedDisk
from dsec.worker.episodes.policies.registry import Policies
from dsec.worker.episodes.policies.tools import ToolSet
from dsec.worker.episodes.ports import Hands, LifeContext
from dsec.worker.episodes.worker import EpisodeWorker
from dsec.worker.outside.hands import OutsideHands
from dsec.worker.outside.memory import MemoryLedger, MemoryOutside
from dsec.worker.outside.parameters import arguments_type
from dsec.worker.outside.port import OutsideRequest, OutsideTool

pytestmark = pytest.mark.anyio
EPISODE = "ep-fenced"
SPEC = EpisodeSpec(
    task="t",
    policy=ScriptPolicy(rounds=(ScriptRound(calls=(OutsideCall(name="pay"),)),)),
    environment=EpisodeEnvironment(sandbox=SandboxSpec(image="python"), cwd="/"),
)


class SlowOutside(MemoryOutside):
    """What is sent takes a while to get there."""

    def __init__(self, ledger: MemoryLedger, *, is_slow: bool, outlives_sender: bool = True) -> None:
        super().__init__(ledger=ledger, effect=Effect.ASKED)
        self.outlives_sender = outlives_sender
        self.is_sent, self.arrives = anyio.Event(), anyio.Event()
        self.epochs: list[int] = []
        if not is_slow:
            self.arrives.set()

    async def send(self, request: OutsideRequest) -> OutsideAnswer | ToolFailed:
        self.epochs.append(request.epoch)
        self.is_sent.set()
        # It is on its way, whatever becomes of who sent it.
        with anyio.CancelScope(shield=self.outlives_sender):
            await self.arrives.wait()
            return await super().send(request)


def place(directory: Path, store: object, system: SlowOutside, host: MemoryHost | None = None) -> MemoryWorker:
    tool = OutsideTool(name="pay", description="", arguments=arguments_type("pay", {}), system=system)

    def hands(context: LifeContext, sandbox: Hands) -> Hands:
        return OutsideHands(sandbox, {"pay": tool}, epoch=context.epoch)

    policies = Policies(tools=lambda spec: ToolSet((), outside={"pay": system.effect}))
    options = {"hands": hands, "policies": policies}
    return MemoryWorker(directory, host=host or MemoryHost(), store=store, options=options)  # type: ignore[arg-type]


async def until(worker: EpisodeWorker, holds: Callable[[EpisodeInfo], bool]) -> None:
    while not holds(await worker.get(EPISODE)):  # noqa: ASYNC110 - a worker tells of events, not of what it knows.
        await anyio.sleep(0.01)


@pytest.mark.slow
async def test_what_a_worker_sent_before_another_took_over_does_nothing_when_it_arrives(tmp_path: Path) -> None:
    ledger, objects = MemoryLedger(), MemoryObjectStore()
    store = FaultyObjectStore(objects)
    slow, quick = SlowOutside(ledger, is_slow=True), SlowOutside(ledger, is_slow=False)
    first = place(tmp_path / "first", store, slow)
    second = place(tmp_path / "second", objects, quick, first.host)
    async with first.node() as node, first.worker(node) as one:
        await one.start(SPEC, episode_id=EPISODE)
        await slow.is_sent.wait()
        await until(one, lambda info: info.uploaded_sequence == info.next_sequence - 1)
        store.faults = Faults(fails=lambda action, key: True)
        async with second.worker(node) as two:
            await two.start(SPEC, episode_id=EPISODE)
            await until(two, lambda info: info.state is EpisodeState.ENDED)
            assert ledger.done.total() == 1
            slow.arrives.set()
        assert ledger.done.total() == 1
        store.faults = Faults()
    assert quick.epochs[-1] > slow.epochs[-1]


async def test_a_worker_that_knows_of_fewer_epochs_than_the_one_it_follows_is_the_newer_one(tmp_path: Path) -> None:
    host, objects = MemoryHost(), MemoryObjectStore()
    uploads_nothing = FaultyObjectStore(objects, Faults(fails=lambda action, key: action == "put" and "/log/" in key))
    epochs: list[int] = []
    for name, store in [("first", uploads_nothing)] * 3 + [("second", objects)]:
        lives = anyio.Event()
        where = place(tmp_path / name, store, SlowOutside(MemoryLedger(), is_slow=True, outlives_sender=False), host)
        where.options["hands"] = partial(noted, epochs, lives)
        async with where.node() as node, where.worker(node) as worker:
            await worker.start(SPEC, episode_id=EPISODE)
            await lives.wait()
    assert len(epochs) == 4
    assert epochs == sorted(set(epochs)), "each worker is newer than all before it"


def noted(epochs: list[int], lives: anyio.Event, context: LifeContext, sandbox: Hands) -> Hands:
    """Hands that are never used; what they would tell a system outside is noted."""
    epochs.append(context.epoch)
    lives.set()
    return sandbox


@pytest.mark.slow
async def test_who_takes_an_episode_over_knows_what_was_begun_on_the_host_that_is_lost(tmp_path: Path) -> None:
    """The operation must not run twice, and its host is gone behind the effect: nobody knows, somebody is asked."""
    ledger, objects = MemoryLedger(), MemoryObjectStore()
    store = FaultyObjectStore(objects)
    slow, quick = SlowOutside(ledger, is_slow=True), SlowOutside(ledger, is_slow=False)
    slow.effect = quick.effect = Effect.ONCE
    first = place(tmp_path / "first", store, slow)
    second = place(tmp_path / "second", objects, quick, first.host)
    async with first.node() as node, first.worker(node) as one:
        await one.start(SPEC, episode_id=EPISODE)
        await slow.is_sent.wait()
        store.faults = Faults(fails=lambda action, key: True)
        slow.arrives.set()
        async with second.worker(node) as two:
            await two.start(SPEC, episode_id=EPISODE)
            await until(two, lambda info: info.state in (EpisodeState.WAITING, EpisodeState.ENDED))
            assert (await two.get(EPISODE)).state is EpisodeState.WAITING
        assert ledger.done.total() == 1
        store.faults = Faults()


async def test_nothing_that_must_not_run_twice_begins_while_the_store_is_gone(tmp_path: Path) -> None:
    ledger = MemoryLedger()
    store = FaultyObjectStore(MemoryObjectStore(), Faults(fails=lambda action, key: action == "put" and "/log/" in key))
    system = SlowOutside(ledger, is_slow=False)
    where = place(tmp_path / "worker", store, system)
    where.settings = replace(where.settings, announce_s=0.02, backoff_s=())
    async with where.node() as node, where.worker(node) as worker:
        await worker.start(SPEC, episode_id=EPISODE)
        await until(worker, lambda info: info.state is EpisodeState.STOPPED)
        assert not system.epochs
        store.faults = Faults()
        await worker.resume(EPISODE)
        await until(worker, lambda info: info.state is EpisodeState.ENDED)
    assert ledger.done.total() == 1


async def test_a_disk_that_fails_while_an_announcement_is_on_its_way_ends_the_waiting(tmp_path: Path) -> None:
    """Who asks for the episode opens its log anew, and takes the copy away from under the loop that waits for it."""
    ledger, disk = MemoryLedger(), SimulatedDisk()
    store = FaultyObjectStore(MemoryObjectStore(), Faults(fails=lambda action, key: action == "put" and "/log/" in key))
    system = SlowOutside(ledger, is_slow=False)
    where = place(tmp_path / "worker", store, system)
    where.options["disk"] = disk
    assert where.settings.announce_s > 10
    async with where.node() as node, where.worker(node) as worker:
        await worker.start(SPEC, episode_id=EPISODE)
        async with worker.events(EPISODE) as saved:
            async for heard in saved:
                if isinstance(heard.event, OperationsRunning):
                    break  # It is announced, and waits for the store.
        disk.faults.failing = lambda operation, name: operation == "sync"
        with pytest.raises(LogSuspectError):
            await worker.pause(EPISODE)
        disk.faults = DiskFaults()
        with anyio.fail_after(60):
            await worker.pause(EPISODE)
        assert not system.epochs
        store.faults = Faults()
        await worker.resume(EPISODE)
        await until(worker, lambda info: info.state is EpisodeState.ENDED)
    assert ledger.done.total() == 1
