"""A worker's server and its client, over episodes that do what the test says."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2
import pytest

from dsec.api.episode_handlers import EPISODES
from dsec.api.episode_routes import EPISODE_ROUTES
from dsec.api.episode_server import serve_episodes
from dsec.api.openapi import episode_document
from dsec.api.server import Serving, TcpAddress
from dsec.base.errors import (
    AlreadyExistsError,
    InvalidRequestError,
    InvalidStateError,
    NodeUnavailableError,
    NotFoundError,
    StateCorruptedError,
    UnauthorizedError,
)
from dsec.episode.agent_calls import Submit
from dsec.episode.content import Content
from dsec.episode.identity import EpisodeIdentity
from dsec.episode.log_events import EpisodeEnded, EpisodeSteered, ModelChanged, StateSaved, Verdict
from dsec.episode.operations import ModelIdentity
from dsec.episode.spec import (
    AgentPolicy,
    EpisodeEvent,
    EpisodeFilter,
    EpisodeGrade,
    EpisodeSpec,
    EpisodeState,
    ModelEndpoint,
    ScriptPolicy,
    ScriptRound,
    UnknownOperation,
)
from dsec.episode.tools import CommandOutput, Run
from dsec.sdk.episodes import HttpEpisodes
from dsec.sdk.keepalive import Endpoint
from dsec.testing.memory_episodes import MemoryEpisodes
from dsec.testing.relay import relayed

pytestmark = pytest.mark.anyio

TOKEN = "a-token-for-tests"
SCRIPT = ScriptPolicy(rounds=(ScriptRound(calls=(Run(script="make"),)), ScriptRound(calls=(Submit(),), message="é")))
SPEC = EpisodeSpec(task="fix-42", policy=SCRIPT, job="rl/7", metadata={"epoch": "3"})


@pytest.fixture
def memory() -> MemoryEpisodes:
    return MemoryEpisodes()


@pytest.fixture
async def serving(memory: MemoryEpisodes, short_dir: Path) -> AsyncIterator[Serving]:
    tcp = TcpAddress(token=TOKEN)
    async with serve_episodes(memory, tcp=tcp, socket_path=short_dir / "worker.sock") as serving:
        yield serving


@pytest.fixture
async def episodes(serving: Serving) -> AsyncIterator[HttpEpisodes]:
    async with client(serving.url, token=TOKEN) as episodes:
        yield episodes


@asynccontextmanager
async def client(url: str, *, token: str = "", silence_s: float = 20.0) -> AsyncIterator[HttpEpisodes]:
    episodes = HttpEpisodes(Endpoint(url=url, token=token), patience_s=10.0, silence_s=silence_s)
    try:
        yield episodes
    finally:
        await episodes.aclose()


async def test_an_episode_is_started_once_by_its_id(episodes: HttpEpisodes, memory: MemoryEpisodes) -> None:
    info = await episodes.start(SPEC, episode_id="ep-one")
    assert (info.episode_id, info.task, info.policy, info.state) == ("ep-one", "fix-42", "script", EpisodeState.RUNNING)
    assert await episodes.start(SPEC, episode_id="ep-one") == info
    with pytest.raises(AlreadyExistsError):
        await episodes.start(EpisodeSpec(task="other", policy=SCRIPT), episode_id="ep-one")
    assert await episodes.spec("ep-one") == await memory.spec("ep-one") == SPEC
    assert (await episodes.start(SPEC)).episode_id.startswith("ep-")


async def test_lists_are_filtered_by_all_that_is_asked(episodes: HttpEpisodes, memory: MemoryEpisodes) -> None:
    for number, epoch in enumerate("334"):
        await memory.start(EpisodeSpec(task="a&b=c", policy=SCRIPT, job="rl/7", metadata={"epoch": epoch}))
        memory.put(f"ep-{number + 1}", state=EpisodeState.PAUSED if number else EpisodeState.RUNNING)
    assert len(await episodes.list()) == 3
    assert len(await episodes.list(EpisodeFilter(task="a&b=c", metadata={"epoch": "3"}))) == 2
    paused = await episodes.list(EpisodeFilter(job="rl/7", states=(EpisodeState.PAUSED, EpisodeState.ENDED)))
    assert [info.episode_id for info in paused] == ["ep-3", "ep-2"]
    assert not await episodes.list(EpisodeFilter(job="none"))


async def test_every_operation_reaches_the_worker(episodes: HttpEpisodes, memory: MemoryEpisodes) -> None:
    await episodes.start(SPEC, episode_id="ep-one")
    assert (await episodes.steer("ep-one", "use a mutex", by="ana")).next_sequence == 3
    assert (await episodes.pause("ep-one", keep_memory=True)).reason == "kept"
    model = ModelEndpoint(url="http://127.0.0.1:1/v1", temperature=0.5)
    assert (await episodes.resume("ep-one", model=model)).state is EpisodeState.RUNNING
    assert memory.model == model
    assert [info.state for info in await episodes.pause_job("rl/7")] == [EpisodeState.PAUSED]
    assert [info.state for info in await episodes.resume_job("rl/7")] == [EpisodeState.RUNNING]
    unknown = UnknownOperation(
        operation_id="ep-one.r1.d1.c0", call=Run(script="pay"), reason="nobody saw its end", number=1
    )
    memory.put("ep-one", state=EpisodeState.WAITING, unknown=(unknown,))
    assert (await episodes.get("ep-one")).unknown == (unknown,)
    result = CommandOutput(exit_code=0, stdout=Content(raw=b"\xff"))
    settled = await episodes.settle("ep-one", unknown.operation_id, Verdict.HAPPENED, result=result, by="ana")
    assert settled.state is EpisodeState.RUNNING
    assert (await episodes.cancel("ep-one", reason="enough")).reason == "enough"
    grade = EpisodeGrade(passed=True, reward=0.25, by="tests")
    assert (await episodes.grade("ep-one", grade)).grade == grade


async def test_errors_arrive_as_what_they_are(episodes: HttpEpisodes, memory: MemoryEpisodes) -> None:
    with pytest.raises(NotFoundError, match="ep-gone"):
        await episodes.get("ep-gone")
    with pytest.raises(NotFoundError, match="ep-gone"):
        async with episodes.events("ep-gone"):
            pass
    with pytest.raises(InvalidRequestError, match="is not an episode id"):
        await episodes.get("../../etc")
    await memory.start(SPEC, episode_id="ep-one")
    with pytest.raises(InvalidStateError, match="no verdict"):
        await episodes.settle("ep-one", "ep-one.r1.d1.c0", Verdict.DID_NOT_HAPPEN)


async def heard(episodes: HttpEpisodes, first: int = 1, *, follow: bool = True) -> list[EpisodeEvent]:
    async with episodes.events("ep-one", first, follow=follow) as events:
        return [event async for event in events]


async def test_whoever_comes_back_with_an_offset_misses_nothing(episodes: HttpEpisodes, memory: MemoryEpisodes) -> None:
    await memory.start(SPEC, episode_id="ep-one")
    for number in range(5):
        await memory.steer("ep-one", str(number))
    assert [event.sequence for event in await heard(episodes, follow=False)] == [1, 2, 3, 4, 5, 6]
    async with episodes.events("ep-one", 3) as events:
        assert (await anext(events)).sequence == 3
    memory.tell("ep-one", EpisodeEnded(reason="done"))
    rest = await heard(episodes, 4)
    assert [event.sequence for event in rest] == [4, 5, 6, 7]
    assert rest[-1].event == EpisodeEnded(reason="done")
    assert not await heard(episodes, 8)


async def test_events_are_heard_as_they_come(episodes: HttpEpisodes, memory: MemoryEpisodes) -> None:
    await memory.start(SPEC, episode_id="ep-one")
    async with episodes.events("ep-one", 2) as events:
        for event in (ModelChanged(model=ModelIdentity(name="big")), EpisodeSteered(message="x" * (1 << 20))):
            memory.tell("ep-one", event)
            assert (await anext(events)).event == event


async def test_a_quiet_stream_says_that_it_is_alive(memory: MemoryEpisodes, short_dir: Path) -> None:
    path = short_dir / "w.sock"
    await memory.start(SPEC, episode_id="ep-one")
    transport = httpx2.AsyncHTTPTransport(uds=str(path))
    async with (
        serve_episodes(memory, socket_path=path, heartbeat_s=0.01),
        httpx2.AsyncClient(transport=transport, base_url="http://worker") as http,
        http.stream("GET", "/v1/episodes/ep-one/events") as reply,
    ):
        lines = aiter(reply.aiter_lines())
        assert json.loads(await anext(lines))["event"]["event"] == "began"
        assert [await anext(lines) for _ in range(3)] == ['{"type":"alive"}'] * 3
        memory.tell("ep-one", EpisodeEnded())
        rest = [json.loads(line)["type"] async for line in lines]
        assert rest[-1] == "logged"


@pytest.mark.slow
async def test_a_follower_outlives_its_server_and_hears_each_event_once(
    memory: MemoryEpisodes, short_dir: Path
) -> None:
    path = short_dir / "w.sock"
    await memory.start(SPEC, episode_id="ep-one")
    told: list[EpisodeEvent] = []
    heard_two = anyio.Event()

    async def follow(episodes: HttpEpisodes) -> None:
        async with episodes.events("ep-one") as events:
            async for event in events:
                told.append(event)
                if len(told) == 2:
                    heard_two.set()

    async with client(f"unix:{path}") as episodes, anyio.create_task_group() as group:
        async with serve_episodes(memory, socket_path=path):
            await memory.steer("ep-one", "first")
            group.start_soon(follow, episodes)
            await heard_two.wait()
        await memory.steer("ep-one", "while nobody served")
        async with serve_episodes(memory, socket_path=path):
            await memory.steer("ep-one", "last")
            memory.tell("ep-one", EpisodeEnded())
            with anyio.fail_after(60):
                while len(told) < 5:
                    await anyio.lowlevel.checkpoint()
            assert (await episodes.get("ep-one")).state is EpisodeState.ENDED
    assert [event.sequence for event in told] == [1, 2, 3, 4, 5]


async def test_a_server_that_falls_silent_is_left_for_a_new_connection(memory: MemoryEpisodes, short_dir: Path) -> None:
    path = short_dir / "w.sock"
    await memory.start(SPEC, episode_id="ep-one")
    async with (
        serve_episodes(memory, socket_path=path, heartbeat_s=60.0),
        client(f"unix:{path}", silence_s=0.02) as episodes,
        episodes.events("ep-one", 2) as events,
        anyio.create_task_group() as group,
    ):

        async def tell() -> None:
            await anyio.sleep(0.1)
            memory.tell("ep-one", EpisodeEnded())

        group.start_soon(tell)
        assert [event.sequence async for event in events] == [2]


async def test_a_worker_that_never_answered_is_not_waited_for(short_dir: Path) -> None:
    async with client(f"unix:{short_dir / 'w.sock'}") as episodes:
        with pytest.raises(NodeUnavailableError, match="no server answers") as raised:
            await episodes.list()
        assert "dsec worker up" in raised.value.resolution


class Leaping(MemoryEpisodes):
    """Tells events of which some are missing."""

    def __init__(self, *events: EpisodeEvent) -> None:
        super().__init__()
        self._told = events

    @asynccontextmanager
    async def events(
        self, episode_id: str, from_sequence: int = 1, *, follow: bool = True
    ) -> AsyncIterator[AsyncIterator[EpisodeEvent]]:
        async def told() -> AsyncIterator[EpisodeEvent]:
            for event in self._told:
                yield event

        yield told()


@pytest.mark.slow
async def test_a_gap_is_no_stream_of_events_unless_a_state_stands_behind_it(short_dir: Path) -> None:
    state = StateSaved(number=3, identity=EpisodeIdentity(episode_id="ep-one", task="t"))
    steered = EpisodeSteered(message="x")
    path = short_dir / "w.sock"
    first = [EpisodeEvent(sequence=5, event=state), EpisodeEvent(sequence=6, event=steered)]
    async with serve_episodes(Leaping(*first), socket_path=path), client(f"unix:{path}") as episodes:
        assert [event.sequence for event in await heard(episodes)] == [5, 6]
    gap = [*first, EpisodeEvent(sequence=8, event=steered)]
    async with serve_episodes(Leaping(*gap), socket_path=path), client(f"unix:{path}") as episodes:
        with pytest.raises(StateCorruptedError, match="event 8"):
            await heard(episodes)


async def test_a_slow_reader_holds_up_its_own_stream_alone(memory: MemoryEpisodes, episodes: HttpEpisodes) -> None:
    await memory.start(SPEC, episode_id="ep-one")
    async with episodes.events("ep-one") as slow:
        assert (await anext(slow)).sequence == 1
        for _ in range(24):
            memory.tell("ep-one", EpisodeSteered(message="x" * (1 << 20)))
        memory.tell("ep-one", EpisodeEnded())
        assert len(await heard(episodes)) == 26
        assert [event.sequence async for event in slow] == list(range(2, 27))


async def test_only_the_token_opens_a_port(serving: Serving, memory: MemoryEpisodes) -> None:
    async with client(serving.url, token="another-token-of-16") as episodes:
        with pytest.raises(UnauthorizedError):
            await episodes.list()
        with pytest.raises(UnauthorizedError):
            async with episodes.events("ep-one"):
                pass
    async with client(f"unix:{serving.socket_path}") as episodes:
        assert await episodes.list() == []
        assert (await episodes.health()).status == "ok"


async def test_what_is_not_understood_is_refused_and_named(serving: Serving) -> None:
    async with httpx2.AsyncClient(base_url=serving.url, headers={"authorization": f"Bearer {TOKEN}"}) as http:
        for target in ("/v1/episodes?stat=ended", "/v1/episodes?job=a&job=b", "/v1/episodes?state=gone"):
            assert (await http.get(target)).status_code == 400
        for body in ({}, {"spec": {"task": "t"}}, {"spec": {"task": "t", "policy": {"policy": "agent"}}}):
            assert (await http.post("/v1/episodes", json=body)).status_code == 400
        spec = {"task": "t", "policy": {"policy": "agent", "model": {"url": "http://m/v1"}}}
        assert (await http.post("/v1/episodes", json={"spec": spec})).status_code == 201
        assert (await http.post("/v1/episodes", content=b"x" * (33 << 20))).status_code == 413
        assert (await http.get("/v1/sandboxes")).status_code == 404


def test_the_document_covers_every_route_and_every_route_has_a_handler() -> None:
    document = json.loads(json.dumps(episode_document()))
    listed = {operation["operationId"] for item in document["paths"].values() for operation in item.values()}
    assert listed == set(EPISODE_ROUTES) == {*EPISODES.values, *EPISODES.events}
    assert "AgentPolicy" in document["components"]["schemas"]
    assert AgentPolicy(model=ModelEndpoint(url="u")).tools == ()


async def test_a_body_that_is_nested_without_end_is_the_callers_fault(serving: Serving) -> None:
    nested = "[" * 100_000 + "]" * 100_000
    body = f'{{"spec": {{"task": "t", "policy": {{"policy": "plugin", "name": "x", "options": {{"a": {nested}}}}}}}}}'
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    async with httpx2.AsyncClient(base_url=serving.url, headers=headers) as http:
        reply = await http.post("/v1/episodes", content=body)
    assert (reply.status_code, reply.json()["code"]) == (400, "invalid_request")


@pytest.mark.slow
async def test_wherever_the_connection_is_cut_each_event_is_heard_once(
    serving: Serving, memory: MemoryEpisodes
) -> None:
    chance = random.Random(5)
    await memory.start(SPEC, episode_id="ep-one")
    for _ in range(60):
        memory.tell("ep-one", EpisodeSteered(message="x" * chance.choice((1, 100, 5_000, 40_000))))
    memory.tell("ep-one", EpisodeEnded())
    async with relayed(port_of(serving)) as relay, client(relay.url, token=TOKEN) as episodes:
        cuts = iter(sorted(chance.sample(range(500, 600_000), 25)))
        relay.cut_back_at = next(cuts)
        told: list[int] = []
        async with episodes.events("ep-one") as events:
            async for event in events:
                told.append(event.sequence)
                if relay.cut_back_at is None:
                    relay.cut_back_at = next((cut for cut in cuts if cut > relay.passed_back), None)
        assert told == list(range(1, 63))
        assert relay.cuts > 5


def port_of(serving: Serving) -> int:
    return int(serving.url.rpartition(":")[2])
