"""A real worker, a real node and a real database are killed at random moments while episodes act in sandboxes and
outside them; the histories are judged by the independent model.

``DSEC_REAL_CRASHES=60`` kills so many times (4 by default), ``DSEC_CRASH_SEED`` repeats a run's choices, though not
its times. Systems outside are reached over real connections: PostgreSQL (`asked`), and HTTP services that honour keys
(`deduplicated`), undo (`compensated`) or do neither (`once`), which lose requests and answers now and then.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString

import anyio
import anyio.to_thread
import msgspec
import pytest

from dsec.base.errors import DsecError
from dsec.episode.agent_calls import OutsideCall
from dsec.episode.content import Content
from dsec.episode.log_events import Verdict
from dsec.episode.spec import (
    EpisodeEnvironment,
    EpisodeInfo,
    EpisodeSpec,
    EpisodeState,
    OutsideSpec,
    ScriptPolicy,
    ScriptRound,
)
from dsec.episode.tools import OutsideAnswer, ReadFile, Run
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxFilter, SandboxSpec
from dsec.sdk.episodes import HttpEpisodes
from dsec.stores.episode_log_remote import read_stored_log
from dsec.stores.objects_folder import FolderObjectStore
from dsec.testing.episode_checker import Claim, Effect, History, Reported, check_history
from dsec.testing.http_service_with_keys import HttpServiceWithKeys
from dsec.testing.leaks import Leaks
from dsec.testing.node_process import NodeProcess
from dsec.testing.postgresql_server import PostgresqlServer, find_programs, run_postgresql
from dsec.testing.worker_process import WorkerProcess

psycopg = pytest.importorskip("psycopg")
PROGRAMS = find_programs()
KILLS = int(os.environ.get("DSEC_REAL_CRASHES", "4"))
SEED = int(os.environ.get("DSEC_CRASH_SEED", secrets.randbelow(10**6)))
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.timeout(600 + 15 * KILLS),
    pytest.mark.skipif(PROGRAMS is None, reason="PostgreSQL is not installed (scripts/install-test-packages)"),
]
LOG = "/tmp/work.log"
EPISODES = 2
ROUNDS = 4 + KILLS // 4
OUTSIDE = ("asked", "deduplicated", "compensated", "once")
INSERT = "INSERT INTO transfers VALUES (%(dsec_operation)s, %(account)s, %(amount)s) RETURNING account"


@pytest.fixture
def server() -> Iterator[PostgresqlServer]:
    assert PROGRAMS is not None
    with run_postgresql(PROGRAMS) as running:
        with psycopg.connect(running.connection, autocommit=True) as connection:
            connection.execute("CREATE TABLE transfers (operation text, account text, amount integer)")
        yield running


@dataclass
class World:
    """Systems outside, and what they did."""

    server: PostgresqlServer
    services: dict[str, HttpServiceWithKeys]

    @classmethod
    @asynccontextmanager
    async def running(cls, server: PostgresqlServer) -> AsyncIterator[World]:
        async with AsyncExitStack() as stack:
            services = {
                kind: await stack.enter_async_context(
                    HttpServiceWithKeys(honours_keys=kind == "deduplicated").running()
                )
                for kind in OUTSIDE[1:]
            }
            yield cls(server, services)

    def specs(self) -> tuple[OutsideSpec, ...]:
        parameters = {"account": {}, "amount": {"type": "integer"}}
        database = {"statements": [INSERT], "parameters": parameters, "connection": self.server.connection}
        made = [OutsideSpec(name="asked", adapter="postgresql", options={**database, "timeout_s": 5.0})]
        for kind, service in self.services.items():
            keys = kind == "deduplicated"
            named = "" if keys else "?operation={operation}"
            options: dict[str, Any] = {"url": f"{service.url}/transfers{named}", "parameters": parameters}
            options |= {"keys": keys, "timeout_s": 1.0, "settle_s": 0.2, "backoff_s": [0.05, 0.1]}
            if kind == "compensated":
                options["undo"] = {"url": f"{service.url}/transfers/{{operation}}", "method": "DELETE"}
            made.append(OutsideSpec(name=kind, adapter="http", options=options))
        return tuple(made)

    def times(self, kind: str, operation: str) -> int:
        if kind != "asked":
            return self.services[kind].done[operation]
        return sum(effect.operation == operation for effect in self.rows())

    async def wait_arrived(self) -> None:
        """Wait until what was on its way has arrived, or is lost: whoever looks before settles what may yet happen."""
        for service in self.services.values():
            await service.wait_arrived()
        earlier = await anyio.to_thread.run_sync(self._backends)
        while earlier := earlier & await anyio.to_thread.run_sync(self._backends):  # noqa: ASYNC110 - nobody tells.
            await anyio.sleep(0.02)

    def _backends(self) -> set[int]:
        """The database's processes that serve others: each ends with its connection, of which a call has its own."""
        asked = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
        return {row[0] for row in self._found(asked)}

    def rows(self) -> list[Effect]:
        return [Effect(operation=row[0]) for row in self._found("SELECT operation FROM transfers")]

    def _found(self, query: LiteralString) -> list[tuple[Any, ...]]:
        while True:
            try:
                with psycopg.connect(self.server.connection) as connection:
                    found: list[tuple[Any, ...]] = connection.execute(query).fetchall()
                    return found
            except psycopg.OperationalError:
                time.sleep(0.05)  # It was killed, and another thread starts it again.

    def effects(self, episode: str) -> list[Effect]:
        told = [Effect(operation=name, by=by) for each in self.services.values() for name, by in each.effects]
        return [effect for effect in [*self.rows(), *told] if effect.operation.startswith(f"{episode}.")]


@dataclass
class Trainer:
    """Watches one episode over all lives of the worker, and settles what is unknown by looking at the world."""

    episode: str
    spec: EpisodeSpec
    world: World
    log: Path
    told: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    reported: list[Reported] = field(default_factory=list)
    ended: bool = False

    def files(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.log.iterdir() if not path.name.startswith(".")}

    async def work(self, worker: WorkerProcess) -> None:
        while not self.ended:
            try:
                async with worker.episodes() as episodes:
                    await episodes.start(self.spec, episode_id=self.episode)
                    async with anyio.create_task_group() as tasks:
                        tasks.start_soon(self._settle, episodes)
                        await self._watch(episodes)
                        tasks.cancel_scope.cancel()
            except* (DsecError, OSError):
                await anyio.sleep(0.05)

    async def _watch(self, episodes: HttpEpisodes) -> None:
        async with episodes.events(self.episode, len(self.told) + 1) as stream:
            async for heard in stream:
                document = json.loads(msgspec.json.encode(heard.event))
                self.told.append((heard.sequence, document))
                self.ended = document["event"] == "ended"

    async def _settle(self, episodes: HttpEpisodes) -> None:
        while True:
            info = await episodes.get(self.episode)
            if info.state is EpisodeState.WAITING and info.unknown:
                await self._settle_unknown(episodes, info)
            elif info.state in (EpisodeState.STOPPED, EpisodeState.QUEUED) and info.reason:
                await episodes.resume(self.episode)
            await anyio.sleep(0.05)

    async def _settle_unknown(self, episodes: HttpEpisodes, info: EpisodeInfo) -> None:
        names = tuple(unknown.operation_id for unknown in info.unknown)
        self.reported.append(Reported(operations=names, log=await anyio.to_thread.run_sync(self.files)))
        await self.world.wait_arrived()
        for unknown in info.unknown:
            assert isinstance(unknown.call, OutsideCall)
            happened = self.world.times(unknown.call.name, unknown.operation_id)
            verdict = Verdict.HAPPENED if happened else Verdict.DID_NOT_HAPPEN
            result = OutsideAnswer(content=Content(text="looked up"), status="201") if happened else None
            await episodes.settle(self.episode, unknown.operation_id, verdict, result=result, by="a person")


def script(draw: random.Random, world: World) -> EpisodeSpec:
    """Rounds of commands in the sandbox and of all kinds outside it, a little slow."""
    rounds = []
    for number in range(1, ROUNDS + 1):
        calls: list[Any] = []
        for place in range(draw.randint(2, 5)):
            kind = draw.choice([*OUTSIDE, "workspace", "none"])
            if kind == "workspace":
                calls.append(Run(script=f"echo r{number}.d1.c{place} >> {LOG}; sleep 0.0{draw.randint(1, 9)}"))
            elif kind == "none":
                calls.append(ReadFile(path=LOG))
            else:
                calls.append(OutsideCall(name=kind, arguments={"account": "ada", "amount": number}))
        rounds.append(ScriptRound(calls=tuple(calls)))
    return EpisodeSpec(
        task="crash",
        policy=ScriptPolicy(rounds=tuple(rounds)),
        environment=EpisodeEnvironment(sandbox=SandboxSpec(image="guest"), cwd="/tmp", keep=True),
        outside=world.specs(),
    )


@dataclass
class Chaos:
    """Kills one process after another, and starts it again."""

    draw: random.Random
    worker: WorkerProcess
    node: NodeProcess
    world: World
    kills: dict[str, int] = field(default_factory=lambda: {"worker": 0, "node": 0, "database": 0})

    async def rage(self, trainers: list[Trainer]) -> None:
        while sum(self.kills.values()) < KILLS and not all(trainer.ended for trainer in trainers):
            for service in self.world.services.values():
                if self.draw.random() < 0.3:
                    service.faults.append(self.draw.choice(["lose", "drop", "503+", "503", "429@0"]))
            # The first to die is the worker, and early: few episodes may have ended before any other draw.
            is_first = not sum(self.kills.values())
            await anyio.sleep(10 ** self.draw.uniform(-1.5, -1 if is_first else 0))
            weights = [1, 0, 0] if is_first else [6, 2, 2]
            victim = self.draw.choices(["worker", "node", "database"], weights=weights)[0]
            self.kills[victim] += 1
            await anyio.to_thread.run_sync(getattr(self, f"_kill_{victim}"))
        for service in self.world.services.values():
            service.faults.clear()

    def _kill_worker(self) -> None:
        self.worker.kill()
        self.worker.start()

    def _kill_node(self) -> None:
        self.node.kill()
        self.node.start()

    def _kill_database(self) -> None:
        self.world.server.kill()
        self.world.server.start()


async def changes(node: NodeProcess, episode: str) -> list[str]:
    """Return what the sandbox of an episode holds of its commands."""
    async with node.service() as service:
        (found,) = await service.list(SandboxFilter(metadata={"episode": episode}))
        kept = await service.run(found.sandbox_id, CommandRequest(argv=("sh", "-c", f"cat {LOG} || true")))
        await service.remove(found.sandbox_id)
    return [f"{episode}.{name}" for name in kept.stdout.decode().split()]


async def claimed(directory: Path, episode: str) -> Claim:
    """Return what a reader says of the copy of an ended episode."""
    store = FolderObjectStore(directory)
    content = await read_stored_log(store, episode)
    objects = {info.key: await store.get(info.key) async for info in store.list(f"episodes/{episode}/")}
    return Claim(word=content.completeness.value, rounds=len(content.rounds), objects=objects)


async def test_whatever_process_is_killed_every_promise_is_kept(state_dir: Path, server: PostgresqlServer) -> None:
    draw = random.Random(SEED)
    node = NodeProcess(state_dir)
    directory = state_dir.with_name("w")
    directory.mkdir()
    store = state_dir.with_name("store")
    worker = WorkerProcess(directory, f"unix:{state_dir / 'node.sock'}", "--store", f"file://{store}")
    try:
        node.start()
        worker.start()
        async with World.running(server) as world:
            trainers = []
            for number in range(EPISODES):
                episode = f"ep-real-{SEED}-{number}"
                log = directory / "episodes" / episode
                trainers.append(Trainer(episode, script(draw, world), world, log))
            chaos = Chaos(draw, worker, node, world)
            async with anyio.create_task_group() as tasks:
                for trainer in trainers:
                    tasks.start_soon(trainer.work, worker)
                await chaos.rage(trainers)
            worker.stop()
            for trainer in trainers:
                history = History(
                    disk=trainer.files(),
                    effects=world.effects(trainer.episode),
                    told=trainer.told,
                    ended=trainer.ended,
                    reported=trainer.reported,
                    files=await changes(node, trainer.episode),
                    claims=[await claimed(store, trainer.episode)],
                )
                assert history.claims[0].word == "complete"
                assert check_history(history) == [], (SEED, chaos.kills)
            assert chaos.kills["worker"]
    finally:
        worker.kill()
        node.stop()
    assert not Leaks.read(state_dir).described(), SEED
