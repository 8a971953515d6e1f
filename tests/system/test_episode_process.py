"""Trainer and worker as processes of their own, both killed in the middle: the trainer comes back with an offset and
has heard every saved event once, and the worker goes on where the log says.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from dsec import Episodes
from dsec.episode.log_events import EpisodeEnded, LifeBegan, OperationsRunning, RoundCommitted, Verdict
from dsec.episode.spec import (
    EpisodeEnvironment,
    EpisodeEvent,
    EpisodeSpec,
    EpisodeState,
    ScriptPolicy,
    ScriptRound,
)
from dsec.episode.tools import CommandOutput, Run
from dsec.model.sandbox import SandboxSpec
from dsec.stores.episode_log_feed import read_page
from dsec.testing.command_line import Dsec, serving_in_memory
from dsec.testing.node_process import NodeProcess
from dsec.testing.worker_process import WorkerProcess

pytestmark = pytest.mark.slow

TRAINER = """
import msgspec, os, sys, threading
from dsec import Episodes, EpisodeSpec

url, folder = sys.argv[1:3]
specs = msgspec.json.decode(open(f"{folder}/specs.json", "rb").read(), type=list[EpisodeSpec])
with Episodes(url) as episodes:
    started = episodes.start_many(specs)

    def follow(episode_id):
        path = f"{folder}/{episode_id}"
        heard = open(path, "rb").read() if os.path.exists(path) else b""
        whole = heard[: heard.rfind(b"\\n") + 1]  # A line that was cut off is heard again.
        with open(path, "wb") as file:
            file.write(whole)
            file.flush()
            offset = msgspec.json.decode(whole.splitlines()[-1])["sequence"] + 1 if whole else 1
            for event in episodes.events(episode_id, offset):
                file.write(msgspec.json.encode(event) + b"\\n")
                file.flush()

    threads = [threading.Thread(target=follow, args=(info.episode_id,)) for info in started]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    done = {info.episode_id for info in episodes.collect("rl")}
    assert done == {info.episode_id for info in started}, done
print("all heard")
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="dsec") as path:
        (Path(path) / "w").mkdir()
        (Path(path) / "trainer").mkdir()
        yield Path(path)


class Trainer:
    """A process that starts episodes, and follows each into a file."""

    def __init__(self, url: str, folder: Path) -> None:
        self._argv = [sys.executable, "-c", TRAINER, url, str(folder)]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def kill(self) -> None:
        if self._process is not None:
            with self._process as process:
                process.kill()
            self._process = None

    def finish(self) -> None:
        assert self._process is not None
        output, errors = self._process.communicate(timeout=60)
        code, self._process = self._process.returncode, None
        assert code == 0, errors
        assert output == "all heard\n"


def specs(image: str, count: int, rounds: int) -> list[EpisodeSpec]:
    commands = [Run(script=f"echo {number} >> log; sleep 0.05; cat log") for number in range(1, rounds + 1)]
    policy = ScriptPolicy(rounds=tuple(ScriptRound(calls=(command,)) for command in commands))
    environment = EpisodeEnvironment(sandbox=SandboxSpec(image=image), cwd="/tmp")
    return [
        EpisodeSpec(task="t", policy=policy, environment=environment, job="rl", attempt=attempt)
        for attempt in range(1, count + 1)
    ]


def check(folder: Path, count: int, rounds: int) -> int:
    """Compare what the trainer heard with the logs themselves, and these with what must have happened; return how many
    lives the episodes had."""
    lives = 0
    logs = [path for path in (folder / "w" / "episodes").iterdir() if path.is_dir()]
    assert len(logs) == count
    for log in logs:
        heard = (folder / "trainer" / log.name).read_bytes().splitlines()
        events = [msgspec.json.decode(line, type=EpisodeEvent) for line in heard]
        assert [event.sequence for event in events] == list(range(1, len(events) + 1))
        assert [event.event for event in events] == saved(log)
        records = [each.event.record for each in events if isinstance(each.event, RoundCommitted)]
        assert [record.number for record in records] == list(range(1, rounds + 1))
        for record in records:
            (result,) = record.results
            assert isinstance(result, CommandOutput)
            assert result.stdout.text.split() == [str(number) for number in range(1, record.number + 1)]
        assert isinstance(events[-1].event, EpisodeEnded)
        lives += sum(isinstance(each.event, LifeBegan) for each in events)
    return lives


def saved(log: Path) -> list[object]:
    events: list[object] = []
    while page := read_page(log, len(events) + 1).events:
        events += page
    return events


def kill_both(worker: WorkerProcess, folder: Path, chance: random.Random, through: int) -> None:
    """Let a trainer work while it and the worker are killed, each twice, before it has heard `through` events; at the
    end it has heard all."""
    trainer = Trainer(worker.url, folder / "trainer")
    # The worker first, and early: later on it may have finished while the trainer was away.
    victims = ["worker", *chance.sample(["trainer", "trainer", "worker"], 3)]
    moments = [chance.randrange(1, 6), *sorted(chance.sample(range(6, through), 3))]
    worker.start()
    trainer.start()
    try:
        for moment, victim in zip(moments, victims, strict=True):
            wait_heard(folder / "trainer", moment)
            if victim == "trainer":
                trainer.kill()
                trainer.start()
            else:
                worker.kill()
                worker.start()
        trainer.finish()
    finally:
        trainer.kill()
    worker.stop()


def wait_heard(trainer: Path, count: int) -> None:
    """Wait until so many events were heard, of all episodes together."""
    for _ in range(6000):
        if sum(path.read_bytes().count(b"\n") for path in trainer.glob("ep-*")) >= count:
            return
        time.sleep(0.01)
    raise AssertionError(f"the trainer never heard {count} events")


def test_a_trainer_misses_nothing_whoever_is_killed(folder: Path) -> None:
    (folder / "trainer" / "specs.json").write_bytes(msgspec.json.encode(specs("python", 3, 12)))
    (folder / "n").mkdir()
    with serving_in_memory(folder / "n") as node:
        worker = WorkerProcess(folder / "w", node.url)
        try:
            kill_both(worker, folder, random.Random(1), through=40)
        finally:
            worker.kill()
    assert check(folder, 3, 12) > 3


@pytest.mark.root
def test_the_same_on_a_real_node_whose_sandboxes_outlive_the_worker(folder: Path, state_dir: Path) -> None:
    (folder / "trainer" / "specs.json").write_bytes(msgspec.json.encode(specs("guest", 2, 12)))
    node = NodeProcess(state_dir)
    node.start()
    worker = WorkerProcess(folder / "w", f"unix:{state_dir / 'node.sock'}")
    try:
        kill_both(worker, folder, random.Random(3), through=20)
    finally:
        worker.kill()
        node.stop()
    assert check(folder, 2, 12) > 2


@pytest.mark.root
def test_an_episode_goes_on_by_itself_when_its_node_was_killed_under_a_command(folder: Path, state_dir: Path) -> None:
    (folder / "trainer" / "specs.json").write_bytes(msgspec.json.encode(specs("guest", 1, 20)))
    node = NodeProcess(state_dir)
    node.start()
    worker = WorkerProcess(folder / "w", f"unix:{state_dir / 'node.sock'}")
    trainer = Trainer(worker.url, folder / "trainer")
    try:
        worker.start()
        trainer.start()
        wait_heard(folder / "trainer", 5)
        node.kill()
        node.start()
        trainer.finish()
    finally:
        trainer.kill()
        worker.kill()
        node.stop()
    assert check(folder, 1, 20) > 1


def test_what_nobody_can_know_waits_for_a_verdict_and_is_not_done_again(folder: Path) -> None:
    pay = Run(script="echo paid >> /tmp/account; sleep 60")
    policy = ScriptPolicy(rounds=(ScriptRound(calls=(pay,)), ScriptRound(calls=(Run(script="cat /tmp/account"),))))
    environment = EpisodeEnvironment(sandbox=SandboxSpec(image="python"))
    spec = EpisodeSpec(task="t", policy=policy, environment=environment, shell_effect="once")
    (folder / "n").mkdir()
    with serving_in_memory(folder / "n") as node, Episodes(f"unix:{folder / 'w' / 'worker.sock'}") as episodes:
        worker = WorkerProcess(folder / "w", node.url)
        try:
            worker.start()
            episodes.start(spec, episode_id="ep-one")
            for event in episodes.events("ep-one"):
                if isinstance(event.event, OperationsRunning):
                    break
            wait_until(lambda: "paid" in node.ok("sandbox", "exec", box_of(node), "--", "cat", "/tmp/account"))
            worker.kill()
            worker.start()
            wait_until(lambda: episodes.get("ep-one").state is EpisodeState.WAITING)
            (unknown,) = episodes.get("ep-one").unknown
            assert unknown.call == pay
            episodes.settle(
                "ep-one", unknown.operation_id, Verdict.HAPPENED, result=CommandOutput(exit_code=0), by="me"
            )
            assert episodes.wait("ep-one").state is EpisodeState.ENDED
            first, second = episodes.rounds("ep-one")
        finally:
            worker.kill()
    assert (first.attempts, first.results) == ((1,), (CommandOutput(exit_code=0),))
    (result,) = second.results
    assert isinstance(result, CommandOutput)
    assert result.exit_code != 0  # Files are those of the last committed round, whatever happened outside.


def box_of(node: Dsec) -> str:
    """Return the sandbox of the one episode."""
    (box,) = node.ok("sandbox", "ls", "-q").split()
    return box


def wait_until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    for _ in range(3000):
        if holds():
            return
        time.sleep(0.01)
    raise AssertionError("it never held")
