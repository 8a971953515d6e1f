"""The process that `dsec.bench.worker` looks at: `python -m dsec.bench.worker_child`, with a `Job` as JSON.

It says what it has come to in lines of JSON, and begins each next part when a line comes in. As ``worker`` it is a
worker of episodes whose sandboxes do nothing, over logs that have rounds already; as ``bare`` it is loops that ask the
same model the same things, keep what they heard in lists, and write nothing down.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import anyio
import anyio.to_thread
import msgspec

from dsec.bench.worker_rounds import result_text, worker_round
from dsec.episode.endpoint import ModelEndpoint
from dsec.episode.frames import encode_frame
from dsec.episode.identity import EpisodeIdentity
from dsec.episode.log_events import RoundCommitted, encode_log_event
from dsec.episode.spec import AgentPolicy, EpisodeSpec
from dsec.model.process import CommandRequest, CommandResult, ExitStatus, ProcessInfo
from dsec.model.sandbox import SandboxFilter, SandboxInfo, SandboxSpec, SandboxState, SandboxStats
from dsec.model.state import CheckpointInfo, CheckpointRequest
from dsec.service.port import SandboxService
from dsec.service.state import StateService
from dsec.stores.episode_log import create_log
from dsec.stores.episode_log_place import LogPlace
from dsec.worker.chat.http import ChatSettings, HttpChatModel
from dsec.worker.chat.port import ChatRequest
from dsec.worker.episodes.ports import first_version
from dsec.worker.episodes.shelf import SPEC_VERSION, KeptSpec, Shelf
from dsec.worker.episodes.standard import standard_worker


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


class IdleNode:
    """A node without sandboxes: commands print at once, and checkpoints are names. Only what loops ask of a node.

    The time from a checkpoint to whatever is asked next of its sandbox is that of the round's commit.
    """

    def __init__(self, counts: Counts, result_bytes: int) -> None:
        self._counts = counts
        self._result_bytes = result_bytes
        self._boxes: dict[str, SandboxInfo] = {}
        self._checkpoints: dict[str, list[CheckpointInfo]] = {}
        self._saved_s: dict[str, float] = {}

    def _asked(self, sandbox_id: str) -> SandboxInfo:
        if (saved_s := self._saved_s.pop(sandbox_id, None)) is not None:
            self._counts.rounds += 1
            self._counts.commits_s.append(time.perf_counter() - saved_s)
        return self._boxes[sandbox_id]

    def stand_up(self, sandbox_id: str, episode_id: str, version: str) -> None:
        """Let a sandbox be there, as a worker before this one would have left it."""
        self._boxes[sandbox_id] = SandboxInfo(
            sandbox_id=sandbox_id,
            state=SandboxState.READY,
            spec=SandboxSpec(metadata={"episode": episode_id}, workdir="/"),
            created_at_s=time.time(),
        )
        self._checkpoints[sandbox_id] = [
            CheckpointInfo(checkpoint_id=f"ckp-{version}", sandbox_id=sandbox_id, name=version)
        ]

    async def inspect(self, sandbox_id: str) -> SandboxInfo:
        return self._asked(sandbox_id)

    async def list(self, query: SandboxFilter = SandboxFilter()) -> Sequence[SandboxInfo]:
        box = self._boxes.get(f"sbx-{query.metadata['episode']}")
        return () if box is None else (box,)

    async def list_processes(self, sandbox_id: str) -> Sequence[ProcessInfo]:
        return ()

    async def rollback(self, sandbox_id: str, *, snapshot: str | None = None) -> SandboxInfo:
        return self._asked(sandbox_id)

    async def statistics(self, sandbox_id: str) -> SandboxStats:
        self._asked(sandbox_id)
        return SandboxStats(memory_bytes=0, cpu_s=0.0)

    async def run(self, sandbox_id: str, request: CommandRequest) -> CommandResult:
        self._asked(sandbox_id)
        text = result_text(len(sandbox_id) * 1009 + self._counts.rounds, self._result_bytes)
        return CommandResult(status=ExitStatus(exit_code=0), stdout=text.encode())

    async def checkpoint(self, sandbox_id: str, request: CheckpointRequest = CheckpointRequest()) -> CheckpointInfo:
        self._asked(sandbox_id)
        info = CheckpointInfo(checkpoint_id=f"ckp-{request.name}", sandbox_id=sandbox_id, name=request.name)
        self._checkpoints[sandbox_id].append(info)
        self._saved_s[sandbox_id] = time.perf_counter()
        return info

    async def list_checkpoints(self, sandbox_id: str) -> Sequence[CheckpointInfo]:
        self._asked(sandbox_id)
        return tuple(self._checkpoints[sandbox_id])

    async def remove_checkpoint(self, sandbox_id: str, checkpoint: str) -> None:
        left = [info for info in self._checkpoints[sandbox_id] if info.checkpoint_id != checkpoint]
        self._checkpoints[sandbox_id] = left


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
    node = IdleNode(counts, job.result_bytes)
    for name in names(job.episodes):
        node.stand_up(f"sbx-{name}", name, f"{name}.r{job.history}")
    service, state = cast(SandboxService, node), cast(StateService, node)
    async with standard_worker(empty, service, state):
        say(idle=True)
        await told()
    line = encode_frame(encode_log_event(RoundCommitted(worker_round("ep-bench-0", 1, job.result_bytes))))
    began = time.perf_counter()
    async with standard_worker(directory, service, state) as worker:
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
