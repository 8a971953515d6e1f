"""A worker of episodes that dies, is doubled, runs out of disk, loses its lease: what its episodes make of it."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from dsec.base.clock import ManualClock
from dsec.base.errors import (
    BackendFailedError,
    CapabilityMissingError,
    HostDiskFullError,
    ImageNotFoundError,
    InvalidRequestError,
    InvalidStateError,
    LimitExceededError,
    NodeUnavailableError,
    PlatformError,
    SandboxExitedError,
    StateCorruptedError,
    StateLockedError,
)
from dsec.episode.agent_calls import Submit
from dsec.episode.content import Content
from dsec.episode.endpoint import ModelEndpoint
from dsec.episode.identity import ModelIdentity
from dsec.episode.log_events import EpisodeEnded, LifeBegan, ModelChanged, ModelFailed, StateSaved, Verdict
from dsec.episode.operations import Operation, TokenUsage
from dsec.episode.spec import (
    AgentPolicy,
    EpisodeEnvironment,
    EpisodeGrade,
    EpisodeInfo,
    EpisodeLimits,
    EpisodeSpec,
    EpisodeState,
    PluginPolicy,
    ScriptPolicy,
    ScriptRound,
)
from dsec.episode.tools import CommandOutput, Run, ToolFailed, ToolResult
from dsec.model.image import ImageInfo
from dsec.model.sandbox import SandboxFilter, SandboxSpec, SandboxState
from dsec.node.node import Node
from dsec.stores.episode_log_reading import read_episode_log
from dsec.stores.objects_memory import MemoryObjectStore
from dsec.testing.episodes_suite import LONG, begun, collected, ended, is_in, outputs, script, until
from dsec.testing.faulty_store import Faults, FaultyObjectStore
from dsec.testing.memory_worker import QUICK, MemoryWorker
from dsec.testing.simulated_disk import DiskFaults, SimulatedDisk
from dsec.worker.episodes.policies.tools import standard_tools
from dsec.worker.episodes.ports import Finished, Hands, LifeContext, LoopPolicy, Proposal, Turn
from dsec.worker.episodes.worker import EpisodeWorker

pytestmark = pytest.mark.anyio
RUNNING, WAITING, PAUSED = EpisodeState.RUNNING, EpisodeState.WAITING, EpisodeState.PAUSED
STOPPED, ENDED, QUEUED = EpisodeState.STOPPED, EpisodeState.ENDED, EpisodeState.QUEUED


@pytest.fixture
def place(tmp_path: Path) -> MemoryWorker:
    return MemoryWorker(tmp_path / "worker")


def spec(*commands: str, **fields: Any) -> EpisodeSpec:
    fields.setdefault("policy", script(*commands))
    fields.setdefault("environment", EpisodeEnvironment(cwd="/tmp"))
    return EpisodeSpec(**{"task": "t", **fields})


Decide = Callable[[Turn], Coroutine[Any, Any, Proposal | Finished]]


@dataclass
class Deciding:
    """A policy factory: plug-ins decide what the test says."""

    decide: Decide
    endpoints: list[str] = field(default_factory=list)

    async def __call__(self, context: LifeContext, endpoint: ModelEndpoint | None) -> LoopPolicy:
        self.endpoints.append(endpoint.name if endpoint is not None else "")
        return LoopPolicy(policy=self, declare=standard_tools().declare)


DECIDED = spec(policy=PluginPolicy(name="a-test"))


async def sandboxes(node: Node) -> list[str]:
    return [info.sandbox_id for info in await node.list(SandboxFilter())]


# -- a death -----------------------------------------------------------------------------------------------------------


async def test_an_episode_goes_on_in_the_next_worker_and_each_command_counts_once(place: MemoryWorker) -> None:
    async with place.node() as node:
        async with place.worker(node) as worker:
            await worker.start(spec("echo one >> log", f"echo two >> log; {LONG}", "cat log"), episode_id="ep-a")
            await until(worker, "ep-a", lambda now: now.rounds == 1)
            await anyio.sleep(0.02)
            (box,) = await sandboxes(node)
        assert await sandboxes(node) == [box], "a worker that ends leaves its sandboxes to the next"
        async with place.worker(node) as worker:
            info = await until(worker, "ep-a", is_in(RUNNING))
            assert (info.rounds, info.lives, info.sandbox_id) == (1, 2, box)
            await worker.cancel("ep-a")
            assert await sandboxes(node) == []
        async with place.worker(node) as worker:
            info = await worker.get("ep-a")
            assert (info.state, info.error_code) == (ENDED, "cancelled")
            events = await collected(worker, "ep-a")
            assert sum(isinstance(each.event, LifeBegan) for each in events) == 2


async def test_what_a_dead_worker_had_begun_is_taken_back_and_done_again(place: MemoryWorker) -> None:
    commands = ("echo one >> log", "echo two >> log; sleep 0.15; echo three >> log", "cat log")
    async with place.node() as node:
        for _ in range(2):
            async with place.worker(node) as worker:
                await worker.start(spec(*commands), episode_id="ep-a")
                await until(worker, "ep-a", lambda now: now.rounds == 1 and now.state is RUNNING)
                await anyio.sleep(0.03)
        async with place.worker(node) as worker:
            assert outputs(await collected(worker, "ep-a"))[2] == "one\ntwo\nthree\n"


async def test_an_end_whose_sandbox_was_still_there_at_a_death_is_finished(place: MemoryWorker) -> None:
    async with place.node() as node:
        async with place.worker(node) as worker:
            await worker.start(spec("true"), episode_id="ep-a")
            await ended(worker, "ep-a")
            await until_gone(node)
            await worker.cancel("ep-a")
        (place.directory / "episodes" / "ep-a.end").unlink()
        await node.create(SandboxSpec(metadata={"episode": "ep-a"}))
        async with place.worker(node) as worker:
            await until_gone(node)
            info = await until(worker, "ep-a", is_in(ENDED))
            assert (info.state, info.reason) == (ENDED, "submitted")


async def until_gone(node: Node, left: int = 0) -> None:
    with anyio.fail_after(60):
        while len(await sandboxes(node)) > left:  # noqa: ASYNC110 - a node tells nobody that a sandbox is gone.
            await anyio.sleep(0.005)


@pytest.mark.slow
async def test_a_paused_episode_is_paused_in_the_next_worker_and_its_deadline_stands_still(
    place: MemoryWorker,
) -> None:
    limited = spec("echo one", "sleep 1; echo two", limits=EpisodeLimits(deadline_s=60.0))
    clock = ManualClock()
    place.options["clock"] = clock
    async with place.node() as node:
        async with place.worker(node) as worker:
            await worker.start(limited, episode_id="ep-a")
            await until(worker, "ep-a", lambda now: now.rounds == 1)
            await worker.pause("ep-a", keep_memory=True)
        clock.advance(1000.0)
        async with place.worker(node) as worker:
            await until(worker, "ep-a", is_in(PAUSED))
            await anyio.sleep(0.05)
            assert (await worker.get("ep-a")).state is PAUSED
            await worker.resume("ep-a")
            assert (await ended(worker, "ep-a")).reason == "submitted"


# -- what nobody knows -------------------------------------------------------------------------------------------------


async def test_what_must_not_run_twice_waits_for_a_verdict_after_a_death(place: MemoryWorker) -> None:
    asked = spec("echo one", f"echo two; {LONG}", shell_effect="once")
    async with place.node() as node:
        async with place.worker(node) as worker:
            await worker.start(asked, episode_id="ep-a")
            await begun(worker, "ep-a", 2)
        async with place.worker(node) as worker:
            info = await until(worker, "ep-a", is_in(WAITING))
            (unknown,) = info.unknown
            assert (unknown.operation_id, unknown.number) == ("ep-a.r2.d1.c0", 2)
            with pytest.raises(InvalidStateError, match="verdict"):
                await worker.resume("ep-a")
            await worker.steer("ep-a", "somebody looks into it")
            with pytest.raises(InvalidStateError, match="result"):
                await worker.settle("ep-a", unknown.operation_id, Verdict.HAPPENED)
            seen = CommandOutput(exit_code=0, stdout=Content(text="seen"))
            told = await worker.settle("ep-a", unknown.operation_id, Verdict.HAPPENED, result=seen, by="a person")
            assert (told.state in (QUEUED, RUNNING), told.reason, told.unknown) == (True, "", ())
            assert outputs(await collected(worker, "ep-a")) == ["one\n", "seen", "submitted"]


@pytest.mark.parametrize("state", [WAITING, STOPPED, QUEUED])
async def test_an_episode_is_cancelled_wherever_it_is(place: MemoryWorker, state: EpisodeState) -> None:
    async def fail(turn: Turn) -> Proposal | Finished:
        raise ValueError("no")

    place.settings = replace(QUICK, at_once=1)
    async with place.node() as node:
        async with place.worker(node) as worker:
            await worker.start(spec(LONG, shell_effect="once"), episode_id="ep-first")
            await begun(worker, "ep-first", 1)
        async with place.worker(node, policies=Deciding(fail) if state is STOPPED else None) as worker:
            if state is QUEUED:
                await worker.start(spec(LONG), episode_id="ep-runs")
                await until(worker, "ep-runs", is_in(RUNNING))
            name = "ep-first" if state is WAITING else "ep-other"
            if state is not WAITING:
                await worker.start(DECIDED if state is STOPPED else spec("true"), episode_id=name)
            await until(worker, name, is_in(state))
            with anyio.fail_after(60):
                info = await worker.cancel(name, reason="enough")
            assert (info.state, info.reason, info.error_code) == (ENDED, "enough", "cancelled")
            last = (await collected(worker, name))[-1].event
            assert isinstance(last, EpisodeEnded)


# -- room --------------------------------------------------------------------------------------------------------------


async def test_loops_beyond_the_limit_wait_for_their_turn(place: MemoryWorker) -> None:
    place.settings = replace(QUICK, at_once=1, episodes=3)
    async with place.opened() as worker:
        await worker.start(spec(LONG), episode_id="ep-a")
        await until(worker, "ep-a", is_in(RUNNING))
        await worker.start(spec("true"), episode_id="ep-b")
        await worker.start(spec("true"), episode_id="ep-c")
        await until(worker, "ep-b", is_in(QUEUED))
        with pytest.raises(LimitExceededError):
            await worker.start(spec("true"), episode_id="ep-d")
        assert (await worker.pause("ep-c")).state is PAUSED
        await worker.cancel("ep-a")
        assert (await ended(worker, "ep-b")).reason == "submitted"
        assert (await worker.get("ep-c")).state is PAUSED
        await worker.resume("ep-c")
        assert (await ended(worker, "ep-c")).reason == "submitted"


# -- sandboxes ---------------------------------------------------------------------------------------------------------


async def test_a_sandbox_goes_with_its_episode_unless_it_is_to_stay_or_was_given(place: MemoryWorker) -> None:
    async with place.node() as node, place.worker(node) as worker:
        given = await node.create(SandboxSpec(metadata={"mine": "yes"}), sandbox_id="sbx-given")
        await worker.start(spec("true", job="j"), episode_id="ep-goes")
        await ended(worker, "ep-goes")
        await worker.start(spec("true", environment=EpisodeEnvironment(keep=True, cwd="/tmp")), episode_id="ep-stays")
        await ended(worker, "ep-stays")
        own = EpisodeEnvironment(sandbox_id=given.sandbox_id, cwd="/tmp")
        await worker.start(spec("echo mine > file", environment=own), episode_id="ep-given")
        await ended(worker, "ep-given")
        await until_gone(node, left=2)
        assert sorted(await sandboxes(node)) == ["sbx-given", "sbx-stays-e1"]
        kept = await node.inspect("sbx-stays-e1")
        assert kept.spec.metadata == {"episode": "ep-stays"}
        assert [chunk async for chunk in node.read_file("sbx-given", "/tmp/file")] == [b"mine\n"]


# -- two workers -------------------------------------------------------------------------------------------------------


async def test_two_workers_in_one_directory_are_one_too_many(place: MemoryWorker) -> None:
    async with place.node() as node, place.worker(node):
        with pytest.raises(StateLockedError, match="another worker holds"):
            await place.worker(node).__aenter__()


async def test_of_two_workers_over_one_store_one_drives_an_episode_and_the_other_goes_on_when_it_is_gone(
    place: MemoryWorker, tmp_path: Path
) -> None:
    place.store = MemoryObjectStore()
    other = MemoryWorker(tmp_path / "other", host=place.host, store=place.store)
    asked = spec("echo one", "sleep 1; echo two")
    async with place.node() as node, other.worker(node) as second:
        async with place.worker(node) as first:
            await first.start(asked, episode_id="ep-a")
            await until(first, "ep-a", lambda now: now.rounds == 1)
            with pytest.raises(StateLockedError, match="another worker holds ep-a"):
                await second.start(asked, episode_id="ep-a")
            assert list(await second.list()) == []
            await until(first, "ep-a", lambda now: now.uploaded_sequence >= 4)
        info = await second.start(asked, episode_id="ep-a")
        assert info.rounds == 1, "the log came from the store"
        assert outputs(await collected(second, "ep-a")) == ["one\n", "two\n", "submitted"]


async def test_a_worker_that_wakes_after_its_lease_stops_without_acknowledging(place: MemoryWorker) -> None:
    clock, store = ManualClock(), FaultyObjectStore(MemoryObjectStore())
    place.store, place.options["clock"] = store, clock
    go_on = anyio.Event()

    async def decide(turn: Turn) -> Proposal | Finished:
        await go_on.wait()
        return Proposal(calls=(Submit(),))

    place.options["policies"] = Deciding(decide)
    async with place.opened() as worker:
        await worker.start(DECIDED, episode_id="ep-a")
        await until(worker, "ep-a", lambda now: now.uploaded_sequence > 0)
        store.faults = Faults(fails=lambda action, key: True)
        clock.advance(1000.0)
        go_on.set()
        info = await until(worker, "ep-a", is_in(STOPPED))
        assert info.error_code == "store_unavailable"
        async with worker.events("ep-a", follow=False) as events:
            assert outputs([event async for event in events]) == []
        store.faults = Faults()
        await worker.resume("ep-a")
        assert (await ended(worker, "ep-a")).reason == "submitted"


async def test_a_worker_whose_episode_another_has_taken_over_stops_for_good(place: MemoryWorker) -> None:
    store = MemoryObjectStore()
    place.store = store
    go_on = anyio.Event()

    async def decide(turn: Turn) -> Proposal | Finished:
        await go_on.wait()
        return Proposal(calls=(Submit(),))

    place.options["policies"] = Deciding(decide)
    async with place.opened() as worker:
        await worker.start(DECIDED, episode_id="ep-a")
        await until(worker, "ep-a", lambda now: now.uploaded_sequence > 0)
        await store.put("episodes/ep-a/holders/000002.json", b'{"writer":"another","lease_s":60.0}')
        info = await until(worker, "ep-a", is_in(STOPPED))
        assert info.error_code == "writer_fenced"
        go_on.set()
        await anyio.sleep(0.05)
        assert (await worker.get("ep-a")).state is STOPPED


# -- disks -------------------------------------------------------------------------------------------------------------


async def test_a_disk_that_fills_up_stops_the_episode_after_some_tries_and_what_is_saved_goes_on(
    place: MemoryWorker,
) -> None:
    disk = SimulatedDisk()
    place.options["disk"] = disk
    proceed = anyio.Event()

    async def decide(turn: Turn) -> Proposal | Finished:
        if turn.number == 1:
            return Proposal(calls=(Run(script="echo one"),))
        await proceed.wait()
        return Proposal(calls=(Submit(),))

    place.options["policies"] = Deciding(decide)
    async with place.opened() as worker:
        await worker.start(DECIDED, episode_id="ep-a")
        await until(worker, "ep-a", lambda now: now.rounds == 1)
        disk.faults = DiskFaults(full=lambda operation, name: True)
        proceed.set()
        info = await until(worker, "ep-a", is_in(STOPPED))
        assert info.error_code == "host_disk_full"
        assert info.rounds == 1
        disk.faults = DiskFaults()
        await worker.resume("ep-a")
        info = await ended(worker, "ep-a")
        assert (info.reason, info.rounds) == ("submitted", 2)


async def test_a_disk_that_fails_to_save_makes_the_log_suspect_and_nothing_is_tried_again(
    place: MemoryWorker,
) -> None:
    disk = SimulatedDisk()
    place.options["disk"] = disk
    proceed = anyio.Event()
    asked: list[int] = []

    async def decide(turn: Turn) -> Proposal | Finished:
        asked.append(turn.number)
        await proceed.wait()
        return Proposal(calls=(Submit(),))

    place.options["policies"] = Deciding(decide)
    async with place.opened() as worker:
        await worker.start(DECIDED, episode_id="ep-a")
        await until(worker, "ep-a", is_in(RUNNING))
        await until(worker, "ep-a", lambda now: bool(asked))
        disk.faults = DiskFaults(failing=lambda operation, name: operation == "sync")
        proceed.set()
        info = await until(worker, "ep-a", is_in(STOPPED))
        assert info.error_code == "log_suspect"
        disk.faults = DiskFaults()
        await anyio.sleep(0.05)
        assert (await worker.get("ep-a")).state is STOPPED
        await worker.resume("ep-a")
        assert (await ended(worker, "ep-a")).reason == "submitted"
    assert len(asked) <= 2


async def test_an_image_that_the_node_has_not_is_found_missing_at_the_start(
    place: MemoryWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wants(image: str) -> EpisodeSpec:
        return spec("true", environment=EpisodeEnvironment(sandbox=SandboxSpec(image=image), cwd="/tmp"))

    async def away() -> Sequence[ImageInfo]:
        raise NodeUnavailableError("the node is away")

    async with place.node() as node, place.worker(node) as worker:
        with pytest.raises(ImageNotFoundError, match="pyhton"):
            await worker.start(wants("pyhton"), episode_id="ep-a")
        assert list(await worker.list()) == []
        with monkeypatch.context() as patch:
            patch.setattr(node, "images", away)
            await worker.start(wants("python:latest"), episode_id="ep-a")
            await worker.start(wants("pyhton"), episode_id="ep-b")
        # What is there is not asked for again.
        assert (await worker.start(wants("pyhton"), episode_id="ep-b")).episode_id == "ep-b"
        assert (await ended(worker, "ep-a")).reason == "submitted"


async def test_an_episode_whose_log_is_lost_does_not_begin_anew(place: MemoryWorker) -> None:
    directory = place.directory / "episodes"
    async with place.node() as node:
        async with place.worker(node) as worker:
            for name in ("ep-lost", "ep-new"):
                await worker.start(spec("echo one", LONG), episode_id=name)
                await until(worker, name, lambda now: now.rounds == 1)
        for name in ("ep-lost", "ep-new"):
            shutil.rmtree(directory / name)
        # As a worker leaves it that dies between the spec and the log.
        (directory / "ep-new.begun").unlink()
        async with place.worker(node) as worker:
            info = await until(worker, "ep-lost", is_in(STOPPED))
            assert info.error_code == "state_corrupted"
            assert "its log is gone" in info.reason
            assert (await until(worker, "ep-new", lambda now: now.rounds == 1)).lives == 1
            # Whoever knows that nothing counts says so.
            (directory / "ep-lost.begun").unlink()
            await worker.resume("ep-lost")
            await until(worker, "ep-lost", lambda now: now.rounds == 1)
        assert (directory / "ep-lost.begun").exists()


async def test_an_episode_that_cannot_begin_is_not_there(place: MemoryWorker) -> None:
    disk = SimulatedDisk()
    disk.faults = DiskFaults(full=lambda operation, name: True)
    async with place.node() as node, place.worker(node, disk=disk) as worker:
        with pytest.raises(HostDiskFullError):
            await worker.start(spec("true"), episode_id="ep-a")
        assert list(await worker.list()) == []
        disk.faults = DiskFaults()
        await worker.start(spec("true"), episode_id="ep-a")
        assert (await ended(worker, "ep-a")).reason == "submitted"


# -- who decides -------------------------------------------------------------------------------------------------------


async def test_a_model_that_never_answers_is_cancelled(place: MemoryWorker) -> None:
    async def decide(turn: Turn) -> Proposal | Finished:
        await anyio.sleep_forever()
        raise AssertionError

    place.options["policies"] = Deciding(decide)
    async with place.opened() as worker:
        await worker.start(DECIDED, episode_id="ep-a")
        await until(worker, "ep-a", is_in(RUNNING))
        await worker.steer("ep-a", "are you there?")
        with anyio.fail_after(60):
            assert (await worker.cancel("ep-a")).state is ENDED


async def test_a_failure_of_the_platform_is_tried_again_and_one_of_the_policy_stops_the_episode(
    place: MemoryWorker,
) -> None:
    errors: list[Exception] = [
        NodeUnavailableError("the node is away"),
        BackendFailedError("m broke off", detail="it was\nfull"),
    ]

    async def decide(turn: Turn) -> Proposal | Finished:
        if errors:
            raise errors.pop(0)
        return Proposal(calls=(Submit(),), model=ModelIdentity(name="m"), usage=TokenUsage(input_tokens=3))

    place.options["policies"] = Deciding(decide)
    async with place.opened() as worker:
        await worker.start(DECIDED, episode_id="ep-a")
        events = await collected(worker, "ep-a")
        failed = [each.event for each in events if isinstance(each.event, ModelFailed)]
        assert [(each.number, each.error_code, each.brief) for each in failed] == [
            (1, "backend_failed", "m broke off: it was full")
        ]
        info = await worker.get("ep-a")
        assert (info.lives, info.usage.input_tokens, info.usage.calls) == (3, 3, 2)
        errors += [ValueError("a mistake")]
        await worker.start(DECIDED, episode_id="ep-b")
        info = await until(worker, "ep-b", is_in(STOPPED))
        assert info.error_code == "caller_error"
        assert info.reason.endswith("failed in round 1 of ep-b: ValueError: a mistake")
        await worker.resume("ep-b")
        assert (await ended(worker, "ep-b")).reason == "submitted"


@pytest.mark.parametrize(
    "raised", [SystemExit(3), asyncio.CancelledError(), BaseExceptionGroup("both", [SystemExit()]), None]
)
async def test_whatever_a_policy_raises_or_returns_stops_its_episode_and_no_other(
    place: MemoryWorker, raised: BaseException | None
) -> None:
    async def decide(turn: Turn) -> Proposal | Finished:
        if turn.identity.episode_id == "ep-good":
            return Finished(reason="well")
        if raised is not None:
            raise raised
        return cast(Finished, 42)

    async with place.node() as node, place.worker(node, policies=Deciding(decide)) as worker:
        await worker.start(spec(policy=PluginPolicy(name="p")), episode_id="ep-a")
        assert (await until(worker, "ep-a", is_in(STOPPED))).error_code == "caller_error"
        await worker.start(spec(policy=PluginPolicy(name="p")), episode_id="ep-good")
        assert (await ended(worker, "ep-good")).reason == "well"


async def test_another_model_takes_over_and_decides_after_a_death_too(place: MemoryWorker) -> None:
    asked, waits = anyio.Event(), anyio.Event()

    async def decide(turn: Turn) -> Proposal | Finished:
        asked.set()
        await waits.wait()
        return Proposal(calls=(Submit(),))

    deciding = Deciding(decide)
    place.options["policies"] = deciding
    better = ModelEndpoint(url="http://127.0.0.1:1/v1", name="better")
    async with place.node() as node:
        async with place.worker(node) as worker:
            await worker.start(DECIDED, episode_id="ep-a")
            await asked.wait()
            info = await worker.resume("ep-a", model=better)
            assert (info.state, info.model.name) == (RUNNING, "better")
        async with place.worker(node) as worker:
            await until(worker, "ep-a", is_in(RUNNING))
            waits.set()
            events = await collected(worker, "ep-a")
    assert deciding.endpoints == ["", "better", "better"]
    assert [each.event.endpoint for each in events if isinstance(each.event, ModelChanged)] == [better]


async def test_what_an_episode_is_told_is_seen_with_the_next_decision(place: MemoryWorker) -> None:
    told: list[list[tuple[str, int]]] = []
    waits = anyio.Event()

    async def decide(turn: Turn) -> Proposal | Finished:
        told.append([(each.message, each.after_round) for each in turn.steered])
        if turn.number == 2:
            await waits.wait()
        return Proposal(calls=(Submit() if turn.number == 3 else Run(script="true"),))

    place.options["policies"] = Deciding(decide)
    async with place.opened() as worker:
        await worker.start(DECIDED, episode_id="ep-a")
        await until(worker, "ep-a", lambda now: len(told) == 2)
        await worker.steer("ep-a", "mind the gap")
        waits.set()
        await ended(worker, "ep-a")
    assert told == [[], [], [("mind the gap", 1)]]


async def test_a_wall_clock_that_jumps_ends_nothing(place: MemoryWorker) -> None:
    clock = ManualClock()
    place.options["clock"] = clock
    asked = spec("echo one", "sleep 0.1; echo two", limits=EpisodeLimits(deadline_s=100.0))
    async with place.opened() as worker:
        await worker.start(asked, episode_id="ep-a")
        await until(worker, "ep-a", lambda now: now.rounds == 1)
        clock.wall += 1e8
        assert (await ended(worker, "ep-a")).reason == "submitted"
        clock.wall -= 2e8
        await worker.start(asked, episode_id="ep-b")
        assert (await ended(worker, "ep-b")).reason == "submitted"


# -- the store ---------------------------------------------------------------------------------------------------------


async def test_the_copy_of_an_episode_reaches_its_end_though_the_store_loses_things(place: MemoryWorker) -> None:
    lost: list[str] = []

    def loses(key: str) -> bool:
        if "/log/" in key and len(lost) < 3:
            lost.append(key)
            return True
        return False

    store = FaultyObjectStore(MemoryObjectStore(), Faults(loses=loses))
    place.store = store
    async with place.opened() as worker:
        await worker.start(spec("echo one", "echo two"), episode_id="ep-a")
        events = await collected(worker, "ep-a")
        info = await until(worker, "ep-a", lambda now: now.uploaded_sequence == len(events))
        assert lost
        assert info.next_sequence == len(events) + 1


async def test_a_long_log_is_given_a_state_once_it_is_uploaded_and_what_is_in_front_goes(place: MemoryWorker) -> None:
    big = tuple(ScriptRound(calls=(Run(script=f"printf {'x' * 2000}"),)) for _ in range(30))
    long = spec(policy=ScriptPolicy(rounds=big))
    place.settings = replace(QUICK, state_bytes=30_000, segment_bytes=10_000)
    place.store = MemoryObjectStore()
    async with place.node() as node:
        async with place.worker(node) as worker:
            await worker.start(long, episode_id="ep-a")
            info = await ended(worker, "ep-a")
            assert (info.rounds, info.lives) == (30, 1)
            events = await collected(worker, "ep-a")
            assert isinstance(events[0].event, StateSaved)
            assert events[0].event.recent[-1].number == events[0].event.number
        content = read_episode_log(place.directory / "episodes" / "ep-a")
        assert content.progress.last_round == 30
        assert content.progress.totals.operations == 30
        assert content.progress.totals.lives == 1
        place.store = None
        async with place.worker(node) as worker:
            await worker.start(long, episode_id="ep-b")
            await ended(worker, "ep-b")
            events = await collected(worker, "ep-b")
            assert events[0].sequence == 1, "without a store nothing is dropped"


async def test_many_episodes_end_side_by_side(place: MemoryWorker) -> None:
    async with place.opened() as worker:
        names = [f"ep-{number}" for number in range(40)]
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(start, worker, name)
        infos: list[EpisodeInfo] = [await ended(worker, name) for name in names]
        assert {info.reason for info in infos} == {"submitted"}


async def start(worker: EpisodeWorker, name: str) -> None:
    await worker.start(spec("echo one", "echo two"), episode_id=name)


# -- what is broken ----------------------------------------------------------------------------------------------------


async def test_what_cannot_be_read_of_one_episode_holds_no_other_up(place: MemoryWorker) -> None:
    asked = spec("echo one")
    async with place.node() as node:
        async with place.worker(node) as worker:
            for name in ("ep-spec", "ep-newer", "ep-log", "ep-place", "ep-good"):
                await worker.start(spec(LONG), episode_id=name)
                await until(worker, name, is_in(RUNNING))
        episodes = place.directory / "episodes"
        (episodes / "ep-spec.json").write_bytes(b"garbage")
        (episodes / "ep-newer.json").write_bytes(b'{"version":99,"of":"the future"}')
        for name in ("ep-pipe.json", "ep-spec.end"):
            os.mkfifo(episodes / name)
        (episodes / "ep-folder.json").mkdir()
        for file in (episodes / "ep-place").iterdir():
            file.unlink()
        (episodes / "ep-place").rmdir()
        (episodes / "ep-place").write_bytes(b"no directory")
        (segment,) = (episodes / "ep-log").glob("*.jsonl")
        segment.write_bytes(segment.read_bytes().replace(b'"event":"life"', b'"event":"lief"'))
        async with place.worker(node) as worker:
            assert (await until(worker, "ep-good", is_in(RUNNING))).lives == 2
            assert (await until(worker, "ep-log", is_in(STOPPED))).error_code == "state_corrupted"
            assert (await until(worker, "ep-place", is_in(STOPPED))).error_code == "platform_error"
            damaged = [(name, StateCorruptedError) for name in ("ep-spec", "ep-pipe", "ep-folder")]
            for name, error in (*damaged, ("ep-newer", CapabilityMissingError)):
                with pytest.raises(error):
                    await worker.get(name)
                with pytest.raises(error):
                    await worker.start(asked, episode_id=name)
            assert {info.episode_id for info in await worker.list()} == {"ep-good", "ep-log", "ep-place"}


async def test_what_is_told_with_each_listing_is_short(place: MemoryWorker) -> None:
    long = "x" * 5000
    async with place.opened() as worker:
        await worker.start(spec(LONG), episode_id="ep-a")
        refused: tuple[Callable[[], Coroutine[Any, Any, EpisodeInfo]], ...] = (
            lambda: worker.steer("ep-a", "go on", by=long),
            lambda: worker.cancel("ep-a", reason=long),
            lambda: worker.settle("ep-a", "ep-a.r1.d1.c0", Verdict.HAPPENED, by=long),
            lambda: worker.grade("ep-a", EpisodeGrade(passed=True, by=long)),
            lambda: worker.start(spec("true", job=long)),
            lambda: worker.start(spec("true", policy=AgentPolicy(model=ModelEndpoint(url="http://m/v1", name=long)))),
        )
        for ask in refused:
            with pytest.raises(InvalidRequestError, match="is longer than"):
                await ask()
        assert [info.state in (QUEUED, RUNNING) for info in await worker.list()] == [True]


async def test_a_reason_is_kept_whole_and_told_in_short(place: MemoryWorker) -> None:
    async def decide(turn: Turn) -> Proposal | Finished:
        return Finished(reason="x" * 1_000_000)

    async with place.node() as node, place.worker(node, policies=Deciding(decide)) as worker:
        await worker.start(spec(policy=PluginPolicy(name="p")), episode_id="ep-a")
        assert len((await ended(worker, "ep-a")).reason) < 5000
        end = (await collected(worker, "ep-a"))[-1].event
        assert isinstance(end, EpisodeEnded)
        assert len(end.reason) == 1_000_000


async def test_an_episode_is_not_resumed_with_a_model_that_cannot_decide_it(place: MemoryWorker) -> None:
    async with place.opened() as worker:
        await worker.start(spec(LONG), episode_id="ep-script")
        with pytest.raises(InvalidRequestError, match="no model decides"):
            await worker.resume("ep-script", model=ModelEndpoint(url="http://m/v1"))
        asked = AgentPolicy(model=ModelEndpoint(url="http://127.0.0.1:1/v1"))
        await worker.start(spec(policy=asked), episode_id="ep-agent")
        await worker.pause("ep-agent")
        with pytest.raises(InvalidRequestError, match="no URL"):
            await worker.resume("ep-agent", model=ModelEndpoint(url="file:///etc/passwd"))
        log = read_episode_log(place.directory / "episodes" / "ep-agent")
        assert not any(isinstance(event, ModelChanged) for event in log.events)


async def test_an_episode_that_is_refused_leaves_nothing(place: MemoryWorker) -> None:
    asked = AgentPolicy(model=ModelEndpoint(url="http://m/v1"), history_bytes=0)
    async with place.opened() as worker:
        with pytest.raises(InvalidRequestError, match="history_bytes"):
            await worker.start(spec(policy=asked))
        assert list((place.directory / "episodes").iterdir()) == []


@dataclass
class EndingHands:
    """A command that ends its sandbox whenever it runs."""

    sandbox: Hands

    async def run(self, operation: Operation) -> ToolResult:
        if isinstance(operation.call, Run) and operation.call.script == "kill 1":
            raise PlatformError("the episode has lost its sandbox") from SandboxExitedError("its processes ended")
        return await self.sandbox.run(operation)

    async def ask(self, operation: Operation) -> ToolResult | None:
        return await self.sandbox.ask(operation)

    async def compensate(self, operation: Operation) -> None:
        await self.sandbox.compensate(operation)


async def test_a_command_that_ends_its_sandbox_each_time_fails_and_the_episode_goes_on(place: MemoryWorker) -> None:
    place.options["hands"] = lambda context, sandbox: EndingHands(sandbox)
    place.settings = replace(place.settings, backoff_s=(0.001, 0.001, 0.001))
    async with place.opened() as worker:
        await worker.start(spec("kill 1", "echo after"), episode_id="ep-a")
        info = await ended(worker, "ep-a")
        assert (info.reason, info.lives) == ("submitted", 4)
        log = read_episode_log(place.directory / "episodes" / "ep-a")
        (failed,) = log.rounds[0].results
        assert isinstance(failed, ToolFailed)
        assert failed.code == "sandbox_exited"


@dataclass
class FloodingHands:
    """A tool that answers with fifty megabytes."""

    sandbox: Hands

    async def run(self, operation: Operation) -> ToolResult:
        return CommandOutput(exit_code=0, stdout=Content(text="x" * 50_000_000))

    async def ask(self, operation: Operation) -> ToolResult | None:
        return None

    async def compensate(self, operation: Operation) -> None:
        return None


async def test_a_result_of_fifty_megabytes_is_kept_as_far_as_a_record_bears_it(place: MemoryWorker) -> None:
    place.options["hands"] = lambda context, sandbox: FloodingHands(sandbox)
    async with place.opened() as worker:
        await worker.start(spec(policy=script("true", submits=False)), episode_id="ep-a")
        (printed,) = outputs(await collected(worker, "ep-a"))
        assert len(printed) < 100_000
        assert "bytes left out" in printed
        size = sum(file.stat().st_size for file in (place.directory / "episodes" / "ep-a").iterdir())
        assert size < 200_000


async def test_a_command_that_reaches_the_node_after_a_pause_does_not_let_the_episode_go_on(
    place: MemoryWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsec.worker.episodes.lives._LOOKS_S", (0.01, 0.02))
    async with place.node() as node, place.worker(node) as worker:
        await worker.start(spec("echo one", LONG), episode_id="ep-a")
        await until(worker, "ep-a", lambda now: now.rounds == 1)
        info = await worker.pause("ep-a", keep_memory=True)
        await node.resume(info.sandbox_id)
        with anyio.fail_after(60):
            while (await node.inspect(info.sandbox_id)).state is not SandboxState.PAUSED:  # noqa: ASYNC110 - as above.
                await anyio.sleep(0.005)


async def test_a_mistake_of_ours_in_one_episode_ends_no_other(place: MemoryWorker) -> None:
    class BrokenStore(MemoryObjectStore):
        async def put(self, key: str, data: bytes, **options: Any) -> bool:
            if "ep-b/log" in key:
                raise ZeroDivisionError(key)
            return await super().put(key, data, **options)

    place.store = BrokenStore()
    async with place.opened() as worker:
        await worker.start(spec(LONG), episode_id="ep-b")
        await worker.start(spec("sleep 0.2; echo one"), episode_id="ep-good")
        info = await until(worker, "ep-b", is_in(STOPPED))
        assert info.error_code == "platform_error"
        assert "not thought of" in info.reason
        assert (await ended(worker, "ep-good")).reason == "submitted"


async def test_an_end_is_told_while_its_sandbox_cannot_be_taken_away_and_that_is_tried_until_it_can(
    place: MemoryWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dsec.worker.episodes.drive._CLEANING_S", (0.05,))
    async with place.node() as node, place.worker(node) as worker:
        away, remove = [True], node.remove

        async def refuse(sandbox_id: str) -> None:
            if away[0]:
                raise NodeUnavailableError("the node is away")
            await remove(sandbox_id)

        monkeypatch.setattr(node, "remove", refuse)
        await worker.start(spec("true"), episode_id="ep-a")
        await ended(worker, "ep-a")
        told = "submitted (its sandbox is still there: the node is away)"
        await until(worker, "ep-a", lambda now: now.reason == told)
        await anyio.sleep(0.15)
        info = await worker.get("ep-a")
        assert (info.state, info.reason) == (ENDED, told), "each try says it anew"
        away[0] = False
        await until(worker, "ep-a", lambda now: now.reason == "submitted")
        await until_gone(node)
