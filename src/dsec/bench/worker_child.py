"""The process that `dsec.bench.worker` looks at: `python -m dsec.bench.worker_child`, with a `Job` as JSON.

It says what it has come to in lines of JSON, and begins each next part when a line comes in. As ``worker`` it is a
worker of episodes whose sandboxes do nothing, over logs that have rounds already; as ``bare`` it is loops that ask the
same model the same things, keep what they heard in lists, and write nothing down.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import anyio
import anyio.to_thread
import msgspec

from dsec.bench.worker_rounds import result_text, worker_round
from dsec.episode.content import Content
from dsec.episode.endpoint import ModelEndpoint
from dsec.episode.frames import encode_frame
from dsec.episode.identity import EpisodeIdentity
from dsec.episode.log_events import RoundCommitted, encode_log_event
from dsec.episode.operations import ModelDecision, Operation, RoundRecord
from dsec.episode.spec import AgentPolicy, EpisodeSpec
from dsec.episode.tools import CommandOutput, ToolResult
from dsec.service.port import SandboxService
from dsec.service.state import StateService
from dsec.stores.episode_log import create_log
from dsec.stores.episode_log_place import LogPlace
from dsec.worker.chat.http import ChatSettings, HttpChatModel
from dsec.worker.chat.port import ChatRequest
from dsec.worker.episodes.ports import Hands, LifeContext, Workspace, first_version, hear_nothing
from dsec.worker.episodes.shelf import SPEC_VERSION, KeptSpec, Shelf
from dsec.worker.episodes.worker import EpisodeWorker


class Job(msgspec.Struct, frozen=True):
    """What the process is to do.

    Attributes:
        kind: a worker, or bare loops.
        directory: to work in; it exists.
        url: of the model.
        episodes: how many at once.
        history: rounds that each has behind it.
        result_bytes: of each result.
    """

    kind: Literal["worker", "bare"]
    directory: str
    url: str
    episodes: int
    history: int
    result_bytes: int


@dataclass(slots=True)
class Counts:
    """What has happened since the last line."""

    rounds: int = 0
    commits_s: list[float] = field(default_factory=list)
    syncs_s: list[float] = field(default_factory=list)


class IdleEnvironment:
    """An environment without a sandbox: commands print at once, and versions are names. Times commits."""

    def __init__(self, context: LifeContext, counts: Counts, result_bytes: int) -> None:
        self._counts = counts
        self._version = context.progress.workspace
        self._prefix = context.episode_id
        self._result_bytes = result_bytes
        self._saved_s = 0.0

    sandbox_id = ""

    @property
    def hands(self) -> Hands:
        return self

    @property
    def workspace(self) -> Workspace:
        return cast(Workspace, self)

    async def __aenter__(self) -> IdleEnvironment:
        return self

    async def __aexit__(self, *exception: object) -> None:
        return None

    def deciding(self, number: int) -> AbstractAsyncContextManager[Callable[[str], None]]:
        return nullcontext(hear_nothing)

    async def before_tools(self, decision: ModelDecision) -> None:
        return None

    async def after_round(self, record: RoundRecord) -> None:
        self._counts.rounds += 1
        self._counts.commits_s.append(time.perf_counter() - self._saved_s)

    async def pause(self, *, keep_memory: bool = False) -> None:
        return None

    async def resume(self) -> None:
        return None

    async def remove(self) -> None:
        return None

    async def run(self, operation: Operation) -> ToolResult:
        text = result_text(len(operation.operation_id) * 1009 + self._counts.rounds, self._result_bytes)
        return CommandOutput(exit_code=0, stdout=Content(text=text))

    async def ask(self, operation: Operation) -> ToolResult | None:
        return None

    async def compensate(self, operation: Operation) -> None:
        return None

    async def version(self) -> str | None:
        return self._version

    async def versions(self) -> Collection[str]:
        return (self._version,)

    async def save(self, number: int) -> str:
        self._version = f"{self._prefix}.r{number}"
        self._saved_s = time.perf_counter()
        return self._version

    async def restore(self, version: str) -> None:
        self._version = version

    async def keep_only(self, versions: Collection[str]) -> None:
        return None


def say(**what: Any) -> None:
    """Tell the parent."""
    sys.stdout.write(msgspec.json.encode(what).decode() + "\n")
    sys.stdout.flush()


async def told() -> bool:
    """Wait for the parent; return False once it has nothing more to say."""
    return bool(await anyio.to_thread.run_sync(sys.stdin.readline))


def names(count: int) -> list[str]:
    """Return ids of episodes."""
    return [f"ep-bench-{number}" for number in range(count)]


def lay_out(directory: Path, job: Job) -> None:
    """Write specs, and logs of so many rounds, as a worker before this one would have left them."""
    shelf = Shelf(directory)
    policy = AgentPolicy(model=ModelEndpoint(url=job.url, name="bench"))
    spec = EpisodeSpec(task="bench", policy=policy, instruction="Mend the program.")
    with shelf.hold():
        for name in names(job.episodes):
            shelf.add(name, KeptSpec(version=SPEC_VERSION, created_at_s=time.time(), spec=spec))
            identity = EpisodeIdentity(episode_id=name, task="bench", policy="agent", workspace=first_version(name))
            with create_log(LogPlace(directory=shelf.log_directory(name)), identity) as log:
                for number in range(1, job.history + 1):
                    log.append(RoundCommitted(worker_round(name, number, job.result_bytes)))
                log.save()


async def sync_now_and_then(path: Path, line: bytes, counts: Counts) -> None:
    """Write and fsync a line as long as a round's, in a thread, beside all else: what the disk takes at that moment."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def sync() -> float:
        begin = time.perf_counter()
        os.write(file, line)
        os.fsync(file)
        return time.perf_counter() - begin

    try:
        while True:
            counts.syncs_s.append(await anyio.to_thread.run_sync(sync))
            await anyio.sleep(0.1)
    finally:
        os.close(file)


async def report(counts: Counts, running: Callable[[], int]) -> None:
    """Say each time that the parent asks what happened since, until it goes."""
    began = time.perf_counter()
    while await told():
        now = time.perf_counter()
        say(
            rounds=counts.rounds,
            seconds=now - began,
            running=running(),
            commits_s=counts.commits_s,
            syncs_s=counts.syncs_s,
        )
        began, counts.rounds, counts.commits_s, counts.syncs_s = now, 0, [], []


async def be_worker(job: Job) -> None:
    """Take up all episodes, and go on with them."""
    directory, empty = Path(job.directory) / "worker", Path(job.directory) / "empty"
    await anyio.to_thread.run_sync(lay_out, directory, job)
    counts = Counts()
    service, state = cast(SandboxService, None), cast(StateService, None)  # No environment here asks for either.

    def environment(context: LifeContext) -> IdleEnvironment:
        return IdleEnvironment(context, counts, job.result_bytes)

    async with EpisodeWorker(empty, service, state, environments=environment):
        say(idle=True)
        await told()
    line = encode_frame(encode_log_event(RoundCommitted(worker_round("ep-bench-0", 1, job.result_bytes))))
    began = time.perf_counter()
    async with EpisodeWorker(directory, service, state, environments=environment) as worker:
        infos = await worker.list()
        while not all(info.lives for info in infos):
            await anyio.sleep(0.05)
            infos = await worker.list()
        say(taken_up_s=time.perf_counter() - began)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sync_now_and_then, Path(job.directory) / "bare", line, counts)
            await report(counts, lambda: len(infos))
            tasks.cancel_scope.cancel()


async def be_bare(job: Job) -> None:
    """Ask the model in so many loops, each with its history in a list."""
    counts = Counts()
    say(idle=True)
    await told()
    say(taken_up_s=0.0)

    async def loop(number: int) -> None:
        model = HttpChatModel(ChatSettings(url=job.url, model="bench"))
        messages: list[Mapping[str, Any]] = [{"role": "user", "content": "Mend the program."}]
        for each in range(job.history):
            messages += said_and_heard(number * 1009 + each, job.result_bytes)
        while True:
            await model.answer(ChatRequest(messages=messages))
            messages += said_and_heard(number * 1009 + len(messages), job.result_bytes)
            counts.rounds += 1

    async with anyio.create_task_group() as tasks:
        for number in range(job.episodes):
            tasks.start_soon(loop, number)
        await report(counts, lambda: job.episodes)
        tasks.cancel_scope.cancel()


def said_and_heard(seed: int, result_bytes: int) -> Sequence[Mapping[str, Any]]:
    """Return the messages of a round."""
    return (
        {"role": "assistant", "content": "I look at the next part."},
        {"role": "user", "content": result_text(seed, result_bytes)},
    )


def main() -> None:
    job = msgspec.json.decode(sys.argv[1].encode(), type=Job)
    kinds: Mapping[str, Callable[[Job], Awaitable[None]]] = {"worker": be_worker, "bare": be_bare}
    anyio.run(kinds[job.kind], job)


if __name__ == "__main__":
    main()
