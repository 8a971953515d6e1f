"""Whole rollouts: resuming, sweeping, sums."""

from __future__ import annotations

import json
import signal
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from dsec.base.clock import SystemClock
from dsec.base.errors import (
    AlreadyExistsError,
    DsecError,
    InvalidRequestError,
    NodeUnavailableError,
    StateCorruptedError,
    StateLockedError,
    UnknownOutcomeError,
)
from dsec.distribution.prefetch import PrefetchProgress
from dsec.model.prefetch import PrefetchHint
from dsec.model.process import CommandRequest, CommandResult
from dsec.model.sandbox import SandboxSpec
from dsec.service.prefetch import PrefetchService
from dsec.testing.faulty_service import Box, FaultyService, ran, reward
from dsec.verification.attempt_result import AttemptResult
from dsec.verification.outcome import Outcome
from dsec.worker.manifest import make_manifest
from dsec.worker.output import OutputDirectory, read_results
from dsec.worker.policies.registry import load_policy
from dsec.worker.rollout import Rollout, SilentObserver
from dsec.worker.settings import RolloutSettings, VerifyIn
from dsec.worker.summary import Summary, exit_code
from dsec.worker.tasks.discovery import discover

pytestmark = pytest.mark.anyio
MakeTask = Callable[..., Path]


class Killed(BaseException):
    """Stands for a kill between two results."""


class Observer(SilentObserver):
    """Counts, and kills after so many results."""

    def __init__(self, kill_after: int | None = None) -> None:
        self.began: list[tuple[str, int]] = []
        self.finished_before: list[tuple[str, int]] = []
        self._left = kill_after

    def rollout_began(self, *, planned: int, finished: Sequence[AttemptResult]) -> None:
        self.finished_before = [result.key for result in finished]

    def attempt_began(self, task: str, attempt: int) -> None:
        self.began.append((task, attempt))

    def attempt_ended(self, result: AttemptResult) -> None:
        if self._left is not None:
            self._left -= 1
            if self._left == 0:
                raise Killed


async def passes(box: Box, request: CommandRequest) -> CommandResult:
    if request.argv[0] == "/tests/test.sh":
        reward(box, b"1")
    return ran()


async def run(
    root: Path,
    *,
    service: FaultyService | None = None,
    observer: Observer | None = None,
    policy: str = "oracle",
    prefetches: PrefetchService | None = None,
    **settings: Any,
) -> Summary:
    tasks = discover(root / "tasks").tasks
    chosen = RolloutSettings(**{"attempts": 2, "concurrency": 1, "backoff_s": (0.0,), **settings})
    source = load_policy(policy)
    manifest = make_manifest(tasks, source, chosen, rollout_id="rol-1", created_at_s=1.0)
    with OutputDirectory(root / "out", manifest) as output:
        return await Rollout(
            service=service or FaultyService(passes),  # type: ignore[arg-type]
            tasks=tasks,
            policy=source,
            settings=chosen,
            output=output,
            clock=SystemClock(),
            observer=observer,
            prefetches=prefetches,
        ).run()


@pytest.fixture
def root(make_task: MakeTask, tmp_path: Path) -> Path:
    for name in ("a", "b", "c"):
        make_task(name)
    return tmp_path


async def test_every_attempt_at_every_task_has_a_result(root: Path) -> None:
    observer = Observer()
    summary = await run(root, observer=observer)
    assert observer.began == [("a", 1), ("b", 1), ("c", 1), ("a", 2), ("b", 2), ("c", 2)]
    assert summary.outcomes["passed"] == 6
    assert (summary.pass_rate, summary.pass_at, summary.mean_reward) == (1.0, {"1": 1.0, "2": 1.0}, 1.0)
    assert exit_code(summary) == 0
    assert json.loads((root / "out" / "summary.json").read_bytes())["outcomes"]["passed"] == 6
    assert (root / "out" / "attempts" / "a" / "2" / "trajectory.jsonl").exists()


class Told:
    """Hears what comes next."""

    def __init__(self, error: DsecError | None = None) -> None:
        self.hints: list[tuple[str, ...]] = []
        self._error = error

    async def hint(self, hint: PrefetchHint) -> PrefetchProgress:
        self.hints.append(tuple(image for step in hint.steps for image in step.images))
        if self._error is not None:
            raise self._error
        return PrefetchProgress()


async def test_the_images_of_the_next_tasks_are_told_and_nothing_at_the_end(
    make_task: MakeTask, tmp_path: Path
) -> None:
    for name in ("a", "b", "c", "d", "e"):
        make_task(name, toml=f'[environment]\ndocker_image = "image-{name}"\n')
    told = Told()
    await run(tmp_path, prefetches=told, attempts=1)
    assert told.hints == [
        ("image-b", "image-c", "image-d"),
        ("image-c", "image-d", "image-e"),
        ("image-d", "image-e"),
        ("image-e",),
        (),
    ]
    deaf = Told(NodeUnavailableError("not now"))
    (tmp_path / "again").mkdir()
    (tmp_path / "tasks").rename(tmp_path / "again/tasks")
    summary = await run(tmp_path / "again", prefetches=deaf, attempts=1)
    assert summary.outcomes["passed"] == 5
    assert len(deaf.hints) == 1, "who cannot be told is not told again"


@pytest.mark.parametrize("kill_after", range(1, 6))
async def test_finished_attempts_are_never_run_again(root: Path, kill_after: int) -> None:
    first, second = Observer(kill_after), Observer()
    with pytest.raises((Killed, BaseExceptionGroup)):
        await run(root, observer=first)
    summary = await run(root, observer=second)
    assert second.finished_before == first.began[:kill_after]
    assert sorted(first.began[:kill_after] + second.began) == sorted((task, n) for task in "abc" for n in (1, 2))
    assert summary.outcomes["passed"] == 6


async def test_a_torn_tail_is_cut_and_its_attempt_run_again(root: Path) -> None:
    await run(root)
    path = root / "out" / "results.jsonl"
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for length in (last + 1, len(whole) - 30, len(whole) - 1):
        path.write_bytes(whole[:length])
        observer = Observer()
        await run(root, observer=observer)
        assert observer.began == [("c", 2)]
        assert len(read_results(root / "out")[1]) == 6


async def test_damage_in_the_middle_stops_everything_and_changes_nothing(root: Path) -> None:
    await run(root)
    path = root / "out" / "results.jsonl"
    damaged = path.read_bytes().replace(b'"task":"b"', b'"task":"x"', 1)
    path.write_bytes(damaged)
    with pytest.raises(StateCorruptedError, match=r"line 2"):
        await run(root)
    assert path.read_bytes() == damaged


async def test_other_settings_are_refused_and_named(root: Path, make_task: MakeTask) -> None:
    await run(root)
    (root / "tasks" / "a" / "tests" / "test.sh").write_text("#!/bin/sh\nexit 1\n")
    make_task("d")
    with pytest.raises(AlreadyExistsError) as caught:
        await run(root, policy="nop", attempts=3, verify_in=VerifyIn.CLEAN)
    for words in ("policy: 'oracle' before, 'nop' now", "attempts: 2 before, 3 now", "verify_in", "not in it: d"):
        assert words in caught.value.detail
    assert "files changed: a" in caught.value.detail


async def test_concurrency_may_change(root: Path) -> None:
    await run(root)
    await run(root, concurrency=4)


async def test_one_process_at_a_time(root: Path) -> None:
    tasks, source = discover(root / "tasks").tasks, load_policy("nop")
    manifest = make_manifest(tasks, source, RolloutSettings(), rollout_id="rol-1", created_at_s=1.0)
    with OutputDirectory(root / "out", manifest), pytest.raises(StateLockedError, match="another process"):
        OutputDirectory(root / "out", manifest).__enter__()


async def test_sandboxes_of_the_run_before_are_removed_and_no_others(root: Path) -> None:
    service = FaultyService(passes)
    await service.create(SandboxSpec(metadata={"rollout": "rol-1"}), sandbox_id="sbx-stale")
    await service.create(SandboxSpec(metadata={"rollout": "rol-2"}), sandbox_id="sbx-other")
    await run(root, service=service)
    assert list(service.boxes) == ["sbx-other"]


async def test_infrastructure_errors_are_tried_again_by_the_next_run_and_unknown_ones_are_not(root: Path) -> None:
    service = FaultyService(passes)
    service.faults["create"] = [NodeUnavailableError("no"), NodeUnavailableError("no")]
    service.faults["run"] = [UnknownOutcomeError("lost")]
    first = await run(root, service=service)
    assert (first.outcomes["infrastructure_error"], first.outcomes["unknown"], first.pass_rate) == (1, 1, 1.0)
    assert exit_code(first) == 1
    observer = Observer()
    second = await run(root, observer=observer)
    assert observer.began == [("a", 1)]
    assert (second.outcomes["infrastructure_error"], second.outcomes["unknown"]) == (0, 1)


async def test_an_expected_outcome_is_part_of_the_exit_code(root: Path) -> None:
    async def fails(box: Box, request: CommandRequest) -> CommandResult:
        reward(box, b"0")
        return ran()

    summary = await run(root, service=FaultyService(fails), policy="nop")
    assert exit_code(summary) == 0
    assert exit_code(summary, expect=Outcome.FAILED) == 0
    assert exit_code(summary, expect=Outcome.PASSED) == 1


async def test_a_cancelled_run_leaves_no_sandbox_and_can_go_on(root: Path) -> None:
    reached = anyio.Event()

    async def hangs(box: Box, request: CommandRequest) -> CommandResult:
        reached.set()
        await anyio.sleep_forever()
        raise AssertionError

    service = FaultyService(hangs)
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: run(root, service=service, concurrency=3))
        await reached.wait()
        group.cancel_scope.cancel()
    assert not service.boxes
    assert (await run(root)).outcomes["passed"] == 6


async def test_lanes_run_side_by_side(root: Path) -> None:
    inside = 0
    most = 0

    async def on_run(box: Box, request: CommandRequest) -> CommandResult:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await anyio.lowlevel.checkpoint()
        inside -= 1
        return await passes(box, request)

    await run(root, service=FaultyService(on_run), concurrency=3)
    assert most == 3
    assert {result.lane for result in read_results(root / "out")[1]} == {0, 1, 2}


async def test_numbers_out_of_range_are_refused(root: Path) -> None:
    with pytest.raises(InvalidRequestError, match="concurrency is 0"):
        await run(root, concurrency=0)


async def test_replay_does_again_what_was_recorded(root: Path) -> None:
    await run(root)
    (root / "out").rename(root / "recorded")
    commands = []

    async def on_run(box: Box, request: CommandRequest) -> CommandResult:
        commands.append(request.argv)
        return await passes(box, request)

    await run(root, service=FaultyService(on_run), policy=f"replay:{root / 'recorded'}", attempts=1)
    assert commands == [("/solution/solve.sh",), ("/tests/test.sh",)] * 3


KILLED = """
    import os, signal, sys
    sys.path.insert(0, {here!r})
    import anyio
    from pathlib import Path
    import test_rollout as t

    class Dies(t.Observer):
        def attempt_ended(self, result):
            print(result.task, result.attempt, flush=True)
            if int(sys.argv[1]) == len(self.began):
                os.kill(os.getpid(), signal.SIGKILL)

    async def main():
        await t.run(Path({root!r}), observer=Dies())

    anyio.run(main)
"""


@pytest.mark.slow
@pytest.mark.parametrize("after", [1, 4])
async def test_a_real_kill_loses_and_repeats_nothing(root: Path, after: int) -> None:
    program = textwrap.dedent(KILLED).format(here=str(Path(__file__).parent), root=str(root))
    done = await anyio.run_process([sys.executable, "-c", program, str(after)], check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    acknowledged = [tuple(line.split()) for line in done.stdout.decode().splitlines()]
    observer = Observer()
    await run(root, observer=observer)
    assert [(task, str(attempt)) for task, attempt in observer.finished_before] == acknowledged
    assert len(acknowledged) == after
    assert len(observer.began) == 6 - after
