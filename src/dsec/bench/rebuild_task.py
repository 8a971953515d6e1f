"""The chapter's task at small scale: an agent that thinks for 9 s and tests for 1 s, three times, in 2 GiB.

Its model is an endpoint that replays recorded answers, as slowly as they were given; its environment is a sandbox in
which a program holds memory, made ready by a preparation that takes 2 s. All times and the memory are scaled by the
same two factors. The memory of everything that bears the episode's name is read many times a second from outside the
worker, so that what a mode costs is what it took, and not what it says.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread

from dsec.base.errors import DsecError, RuntimeFailedError
from dsec.base.units import GIB, MIB
from dsec.bench.pause_guest import Held, command
from dsec.episode.endpoint import ModelEndpoint
from dsec.episode.log_events import EnvironmentUsed
from dsec.episode.spec import AgentPolicy, EnvironmentMode, EpisodeEnvironment, EpisodeSpec, EpisodeState
from dsec.gateway.endpoint import replaying
from dsec.gateway.server import serve
from dsec.model.sandbox import Resources, SandboxFilter, SandboxSpec
from dsec.node.node import Node
from dsec.worker.episodes.environments.sandboxes import EPISODE_KEY
from dsec.worker.episodes.worker import EpisodeWorker

ROUNDS = 3
THINKING_S, TOOL_S, PREPARE_S, MEMORY_GIB = 9.0, 1.0, 2.0, 2.0
"""The chapter's."""
TIME_SCALE, MEMORY_SCALE = 0.4, 1 / 32
HELD_BYTES = round(MEMORY_GIB * MEMORY_SCALE * GIB)
_READ_EVERY_S = 0.02
_DIRECTORY = "/dev/shm/held"
"""In memory: what is there belongs to the processes, and goes with them."""
_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to keep the environment.

    Attributes:
        name: for people.
        mode: of the episode.
        snapshot_rounds: 1: through the store.
    """

    name: str
    mode: EnvironmentMode
    snapshot_rounds: int = 0


RESIDENT = Way(name="resident", mode=EnvironmentMode.RESIDENT)
REBUILT = Way(name="rebuilt", mode=EnvironmentMode.REBUILT)
WAYS = (
    RESIDENT,
    REBUILT,
    Way(name="rebuilt through the store", mode=EnvironmentMode.REBUILT, snapshot_rounds=1),
    Way(name="paused", mode=EnvironmentMode.PAUSED),
)


@dataclass(slots=True)
class Course:
    """What one run of the task took.

    Attributes:
        points: seconds since its first round began to be thought about, and bytes.
        duration_s: from there to the end of the last tool.
        waits_s: how long each round's tools waited for their environment, as the log says.
        accounted_byte_s: integral of memory by the log.
    """

    points: list[tuple[float, int]] = field(default_factory=list)
    duration_s: float = 0.0
    waits_s: list[float] = field(default_factory=list)
    accounted_byte_s: float = 0.0

    @property
    def byte_s(self) -> float:
        """Integral of the memory that was read."""
        pairs = zip(self.points, self.points[1:], strict=False)
        return sum((later - sooner) * (before + after) / 2 for (sooner, before), (later, after) in pairs)


class Task:
    """Runs the task.

    Args:
        node: of the sandboxes.
        worker: of the episodes.
        url: of the model.
        image: of the sandboxes.
    """

    def __init__(self, node: Node, worker: EpisodeWorker, url: str, image: str) -> None:
        self._node = node
        self._worker = worker
        self._url = url
        self._image = image
        self._count = 0

    async def run(self, way: Way) -> Course:
        """Run it once.

        Raises:
            RuntimeFailedError: it did not end as it should.
        """
        self._count += 1
        episode_id = f"ep-rebuild-{self._count}"
        course = Course()
        async with anyio.create_task_group() as tasks:
            await self._worker.start(self._spec(way), episode_id=episode_id)
            tasks.start_soon(self._read, episode_id, course)
            await self._wait(episode_id, course)
            tasks.cancel_scope.cancel()
        return course

    async def _wait(self, episode_id: str, course: Course) -> None:
        with anyio.fail_after(_LIMIT_S):
            async with self._worker.events(episode_id) as events:
                async for each in events:
                    if isinstance(each.event, EnvironmentUsed):
                        course.accounted_byte_s += each.event.memory_byte_s
                        if each.event.detail.startswith("tools waited "):
                            course.waits_s.append(float(each.event.detail.split()[2]))
        info = await self._worker.get(episode_id)
        if info.state is EpisodeState.STOPPED or info.rounds != ROUNDS + 1:
            raise RuntimeFailedError("the task of the benchmark did not end", detail=info.reason)
        course.duration_s = course.points[-1][0]

    async def _read(self, episode_id: str, course: Course) -> None:
        """Read memory until this is cancelled. What is about to come or to go holds nothing that counts."""
        began_s = anyio.current_time()
        query = SandboxFilter(metadata={EPISODE_KEY: episode_id})
        while True:
            memory_bytes = 0
            for info in await self._node.list(query):
                try:
                    memory_bytes += (await self._node.statistics(info.sandbox_id)).memory_bytes or 0
                except DsecError:
                    continue
            course.points.append((anyio.current_time() - began_s, memory_bytes))
            await anyio.sleep(_READ_EVERY_S)

    def _spec(self, way: Way) -> EpisodeSpec:
        limits = Resources(memory_bytes=4 * HELD_BYTES, disk_bytes=256 * MIB)
        return EpisodeSpec(
            task="the chapter's",
            instruction="Mend the program.",
            policy=AgentPolicy(model=ModelEndpoint(url=self._url, name="recorded")),
            environment=EpisodeEnvironment(
                sandbox=SandboxSpec(image=self._image, resources=limits),
                mode=way.mode,
                snapshot_rounds=way.snapshot_rounds,
                preparations={"shell": preparation()},
            ),
        )


def preparation() -> str:
    """Return the command that makes a sandbox ready: a program takes its memory, in 2 s of the chapter's time."""
    words = " ".join(f"'{word}'" for word in command(Held.ANONYMOUS, HELD_BYTES, directory=_DIRECTORY))
    return (
        f"setsid {words} < /dev/null > /dev/null 2>&1 & sleep {PREPARE_S * TIME_SCALE:g};"
        f" until [ -e {_DIRECTORY}/ready ]; do sleep 0.02; done"
    )


def tool() -> str:
    """Return the command of each round: the program touches all it holds, and 1 s of the chapter's time passes."""
    return f"echo > {_DIRECTORY}/ask; cat {_DIRECTORY}/answer > /dev/null; sleep {TOOL_S * TIME_SCALE:g}"


def conversation() -> str:
    """Return the recorded answers: three tests, and the submission."""
    after_s = THINKING_S * TIME_SCALE
    tested = {"function": {"name": "shell", "arguments": json.dumps({"command": tool()})}}
    submitted = {"function": {"name": "submit", "arguments": json.dumps({"summary": "It is mended."})}}
    answers = [("I test it." if number else "I look at it.", tested, after_s) for number in range(ROUNDS)]
    answers.append(("All tests pass.", submitted, 0.0))
    return "".join(
        json.dumps({"role": "assistant", "content": text, "tool_calls": [call], "after_s": seconds}) + "\n"
        for text, call, seconds in answers
    )


@asynccontextmanager
async def task_in(directory: Path, node: Node, image: str) -> AsyncIterator[Task]:
    """Open a worker and a model in a directory, and return the task."""
    recording = directory / "conversation.jsonl"
    await anyio.to_thread.run_sync(lambda: recording.write_text(conversation(), encoding="utf-8"))
    state = directory / "model"
    state.mkdir()
    async with (
        serve(replaying(recording, state=state), state) as serving,
        EpisodeWorker(directory / "worker", node, node.state) as worker,
    ):
        yield Task(node, worker, f"{serving.url}/v1", image)
