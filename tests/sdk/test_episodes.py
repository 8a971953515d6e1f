"""Episodes through the SDK, blocking and not: batches, collecting, watching."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from dsec import AsyncEpisodes, Episodes, EpisodeSpec, EpisodeState, NotFoundError, Verdict
from dsec.api.episode_server import serve_episodes
from dsec.base.errors import InvalidRequestError, InvalidStateError, LimitExceededError
from dsec.episode.identity import EpisodeIdentity
from dsec.episode.log_events import EpisodeEnded, RoundCommitted, StateSaved
from dsec.episode.operations import ModelDecision, RoundRecord
from dsec.episode.spec import EpisodeInfo, ScriptPolicy, UnknownOperation
from dsec.episode.tools import Run
from dsec.sdk import workers
from dsec.sdk.episode_jobs import EpisodesProgress, batch_ids, collect, start_many
from dsec.testing.memory_episodes import MemoryEpisodes


def spec(number: int, job: str = "rl") -> EpisodeSpec:
    return EpisodeSpec(task=f"t{number}", policy=ScriptPolicy(rounds=()), job=job)


@pytest.fixture
def memory() -> MemoryEpisodes:
    return MemoryEpisodes()


@pytest.fixture
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture
def worker_url(memory: MemoryEpisodes, state_dir: Path, portal: BlockingPortal) -> Iterator[str]:
    path = state_dir / "worker.sock"
    with portal.wrap_async_context_manager(serve_episodes(memory, socket_path=path)):
        yield f"unix:{path}"


def test_the_blocking_half_does_what_the_worker_offers(
    worker_url: str, memory: MemoryEpisodes, portal: BlockingPortal
) -> None:
    with Episodes(worker_url) as episodes:
        info = episodes.start(spec(1), episode_id="ep-one")
        assert episodes.list(job="rl") == [info]
        assert episodes.spec("ep-one") == spec(1)
        episodes.steer("ep-one", "hello", by="ana")
        assert [event.sequence for event in episodes.events("ep-one", follow=False)] == [1, 2]
        assert [each.state for each in episodes.pause_job("rl")] == [EpisodeState.PAUSED]
        assert [each.state for each in episodes.resume_job("rl")] == [EpisodeState.RUNNING]
        unknown = UnknownOperation(operation_id="ep-one.r1.d1.c0", call=Run(script="pay"), reason="?", number=1)
        portal.call(lambda: memory.put("ep-one", unknown=(unknown,), state=EpisodeState.WAITING))
        assert episodes.settle("ep-one", "ep-one.r1.d1.c0", Verdict.DID_NOT_HAPPEN).unknown == ()
        portal.start_task_soon(_end, memory, "ep-one")
        assert episodes.wait("ep-one").state is EpisodeState.ENDED
        graded = episodes.grade("ep-one", passed=True, reward=0.5)
        assert graded.grade is not None
        assert graded.grade.reward == 0.5
        with pytest.raises(NotFoundError):
            next(episodes.events("ep-none"))


async def _end(memory: MemoryEpisodes, episode_id: str) -> None:
    memory.tell(episode_id, EpisodeEnded(reason="done"))


def test_whoever_stops_watching_leaves_the_worker_alone(worker_url: str) -> None:
    with Episodes(worker_url) as episodes:
        episodes.start(spec(1), episode_id="ep-one")
        for event in episodes.events("ep-one"):
            assert event.sequence == 1
            break
        assert episodes.get("ep-one").state is EpisodeState.RUNNING


def test_a_batch_of_a_job_has_the_same_ids_each_time_and_its_twins_have_their_own() -> None:
    specs = [spec(1), spec(2), spec(1)]
    ids = batch_ids(specs)
    assert len(set(ids)) == 3
    assert batch_ids(specs) == ids
    assert batch_ids([spec(1), spec(1)]) == [ids[0], ids[2]]
    assert batch_ids([spec(1, job="")]) != batch_ids([spec(1, job="")])


@pytest.mark.anyio
async def test_a_batch_is_started_once_however_often_it_is_asked_for(memory: MemoryEpisodes) -> None:
    specs = [spec(number) for number in range(100)]
    heard: list[EpisodesProgress] = []
    infos = await start_many(memory, specs, at_once=7, on_progress=heard.append)
    assert [info.task for info in infos] == [each.task for each in specs]
    assert [progress.done for progress in heard] == list(range(1, 101))
    assert await start_many(memory, specs) == infos
    assert len(await memory.list()) == 100
    assert await start_many(memory, []) == []
    with pytest.raises(InvalidRequestError):
        await start_many(memory, specs, ids=["ep-a"])


@pytest.mark.anyio
async def test_a_batch_that_the_worker_refuses_raises_the_refusal_itself(memory: MemoryEpisodes) -> None:
    memory.error = LimitExceededError("enough")
    with pytest.raises(LimitExceededError, match="enough"):
        await start_many(memory, [spec(1), spec(2)])


@pytest.mark.anyio
async def test_episodes_are_collected_as_they_end_and_never_twice(memory: MemoryEpisodes) -> None:
    infos = await start_many(memory, [spec(number) for number in range(4)])
    ids = [info.episode_id for info in infos]
    memory.tell(ids[2], EpisodeEnded())
    memory.put(ids[0], state=EpisodeState.STOPPED)
    heard: list[EpisodesProgress] = []
    collected: list[EpisodeInfo] = []
    final = {EpisodeState.ENDED, EpisodeState.STOPPED}
    async for info in collect(memory, "rl", known={ids[0]}, final=final, on_progress=heard.append):
        collected.append(info)
        if len(collected) == 1:
            memory.tell(ids[3], EpisodeEnded())
            memory.tell(ids[1], EpisodeEnded())
    assert [info.episode_id for info in collected] == [ids[2], ids[3], ids[1]]
    assert heard[0] == EpisodesProgress(
        done=2, total=4, states={EpisodeState.ENDED: 1, EpisodeState.STOPPED: 1, EpisodeState.RUNNING: 2}
    )
    assert heard[-1].done == 4
    assert [info async for info in collect(memory, "rl", known=ids, final=final)] == []
    assert [info async for info in collect(memory, "another")] == []


class Starter:
    """Serves episodes, in a loop of its own, where a worker of this host is to be started."""

    def __init__(self, memory: MemoryEpisodes, portal: BlockingPortal, monkeypatch: pytest.MonkeyPatch) -> None:
        self._memory = memory
        self._portal = portal
        self._serving = ExitStack()
        self.started: list[list[str]] = []
        monkeypatch.delenv("DSEC_WORKER_URL", raising=False)
        monkeypatch.delenv("DSEC_WORKER_STATE_DIR", raising=False)
        monkeypatch.setattr(workers, "start_background", self.start)

    async def start(self, argv: list[str], worker_dir: Path, server: object) -> None:
        self.started.append(argv)
        worker_dir.mkdir(exist_ok=True)
        serving = serve_episodes(self._memory, socket_path=worker_dir / "worker.sock")
        opened = self._portal.wrap_async_context_manager(serving)
        await anyio.to_thread.run_sync(self._serving.enter_context, opened)

    async def end(self) -> None:
        await anyio.to_thread.run_sync(self._serving.close)

    async def end_episode(self) -> None:
        await anyio.to_thread.run_sync(self._portal.call, self._memory.tell, "ep-one", EpisodeEnded())


@pytest.fixture
def starter(memory: MemoryEpisodes, portal: BlockingPortal, monkeypatch: pytest.MonkeyPatch) -> Starter:
    return Starter(memory, portal, monkeypatch)


@pytest.mark.anyio
async def test_a_worker_of_this_host_is_started_when_none_answers_and_once_when_many_miss_it(
    starter: Starter, state_dir: Path
) -> None:
    async with AsyncEpisodes(state_dir=state_dir) as episodes:
        await episodes.start(spec(1), episode_id="ep-one")
        await starter.end()
        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(episodes.get, "ep-one")
    assert len(starter.started) == 2
    assert starter.started[0][-5:] == ["up", "--state-dir", str(state_dir / "worker"), "--exit-when-idle", "600"]
    await starter.end()


@pytest.mark.anyio
async def test_a_worker_that_was_told_to_end_is_waited_for_and_not_started_by_who_follows(
    starter: Starter, state_dir: Path
) -> None:
    async with AsyncEpisodes(state_dir=state_dir) as episodes:
        await episodes.start(spec(1), episode_id="ep-one")
        events = episodes.events("ep-one")
        await anext(events)
        await starter.end()
        async with anyio.create_task_group() as group:

            async def start_by_hand() -> None:
                await anyio.sleep(0.2)
                assert len(starter.started) == 1
                await starter.start([], state_dir / "worker", None)
                await starter.end_episode()

            group.start_soon(start_by_hand)
            assert [event.sequence async for event in events] == [2]
    assert len(starter.started) == 2
    await starter.end()


def committed(number: int) -> RoundCommitted:
    return RoundCommitted(record=RoundRecord(number=number, decision=ModelDecision(message=str(number))))


def test_the_rounds_of_an_episode_are_told_whole_or_not_at_all(
    worker_url: str, memory: MemoryEpisodes, portal: BlockingPortal
) -> None:
    with Episodes(worker_url) as episodes:
        episodes.start(spec(1), episode_id="ep-one")
        assert episodes.rounds("ep-one") == []
        state = StateSaved(number=2, identity=EpisodeIdentity(episode_id="ep-one", task="t"))
        for event in (committed(1), committed(2), state, committed(3)):
            portal.call(memory.tell, "ep-one", event)
        assert [record.decision.message for record in episodes.rounds("ep-one")] == ["1", "2", "3"]
        episodes.start(spec(1), episode_id="ep-two")
        portal.call(memory.tell, "ep-two", state)
        with pytest.raises(InvalidStateError, match="first rounds"):
            episodes.rounds("ep-two")


def test_a_worker_is_named_by_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert workers.worker_endpoint(None, None, {}) is None
    environment = {"DSEC_WORKER_URL": "http://w:1", "DSEC_WORKER_TOKEN": "secret"}
    named = workers.worker_endpoint(None, None, environment)
    assert named is not None
    assert (named.url, named.token) == ("http://w:1", "secret")
    given = workers.worker_endpoint("http://other:1", "mine", environment)
    assert given is not None
    assert (given.url, given.token) == ("http://other:1", "mine")
    assert workers.worker_state_dir(tmp_path, {}) == tmp_path / "worker"
    assert workers.worker_state_dir(tmp_path, {"DSEC_WORKER_STATE_DIR": "/elsewhere"}) == Path("/elsewhere")


class Instant(MemoryEpisodes):
    """Episodes that have ended when they have begun."""

    async def start(self, spec: EpisodeSpec, *, episode_id: str | None = None) -> EpisodeInfo:
        info = await super().start(spec, episode_id=episode_id)
        if info.state is not EpisodeState.ENDED:
            self.tell(info.episode_id, EpisodeEnded(reason="submitted"))
        return await self.get(info.episode_id)


def test_the_program_of_the_documentation_runs(
    state_dir: Path, portal: BlockingPortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "episodes.md").read_text()
    program, follow = (part.split("```")[0] for part in page.split("```python\n")[1:3])
    worker, collected = Instant(), set[str]()
    monkeypatch.setenv("DSEC_WORKER_URL", f"unix:{state_dir / 'worker.sock'}")
    names = {"tasks": ["a", "b"], "score": lambda info: 1.0, "checkpoint": SimpleNamespace(collected=collected)}
    with portal.wrap_async_context_manager(serve_episodes(worker, socket_path=state_dir / "worker.sock")):
        exec(program, names)
        exec(program, names)
        assert len(collected) == 16
        with Episodes() as episodes:
            (first, *_) = episodes.list(job="rl-7/step-120")
            assert first.grade is not None
            assert first.grade.passed
            episode_id = first.episode_id
            exec(follow.replace('"ep-7k2m9x"', repr(episode_id)), {"episodes": episodes, "offset": 2})
