"""`rollout`: the HumanEval tasks, each in a sandbox of its own, beside their bare test commands without any."""

from __future__ import annotations

import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from dsec.base.clock import SystemClock
from dsec.base.errors import RuntimeFailedError
from dsec.base.ids import new_id
from dsec.bench.context import BenchContext
from dsec.bench.distribution import distribution
from dsec.bench.report import Report, make_report
from dsec.bench.sampling import Sample, alternate, timed
from dsec.node.node import Node
from dsec.verification.outcome import Outcome
from dsec.worker.job import RolloutRequest, run_rollout
from dsec.worker.settings import RolloutSettings
from dsec.worker.tasks.humaneval import import_humaneval

_BARE = {
    "bare test commands, two at a time, no sandbox": 2,
    "bare test commands, one after another, no sandbox": 1,
}
"""References, and how many run at a time."""
_MOVED = ("/tests/", "/home/user/", "/logs/")


class BareTests:
    """The tasks' own test scripts, run by the host's shell and Python on the reference solutions.

    The paths that the scripts name are moved below one directory per task; that is all that is changed of them.

    Args:
        tasks: task folders.
        scratch: where they are laid out; a new directory.
    """

    def __init__(self, tasks: list[Path], scratch: Path) -> None:
        scratch.mkdir(mode=0o755)
        self._roots = [_lay_out(task, scratch / task.name) for task in tasks]

    def run(self, at_once: int) -> None:
        """Run every test once; all must pass."""
        with ThreadPoolExecutor(at_once) as pool:
            failed = [name for name in pool.map(_run_test, self._roots) if name]
        if failed:
            raise RuntimeFailedError(f"the bare test of {failed[0]} failed")

    def sample(self, at_once: int) -> Sample:
        """Return what measures `run`."""

        async def sample() -> float:
            with timed() as watch:
                self.run(at_once)
            return watch.seconds

        return sample


def _lay_out(task: Path, root: Path) -> Path:
    for directory in _MOVED:
        (root / directory.strip("/")).mkdir(parents=True, mode=0o755)
    (root / "logs" / "verifier").mkdir()
    shutil.copy(task / "solution" / "solution.py", root / "home" / "user" / "solution.py")
    for file in (task / "tests").iterdir():
        text = file.read_text()
        for moved in _MOVED:
            text = text.replace(moved, f"{root}{moved}")
        (root / "tests" / file.name).write_text(text.replace('"/tests"', f'"{root}/tests"'))
    return root


def _run_test(root: Path) -> str:
    """Run one test; return its name if it fails."""
    reward = root / "logs" / "verifier" / "reward.txt"
    reward.unlink(missing_ok=True)
    subprocess.run(
        ["sh", str(root / "tests" / "test.sh")],
        env={"PATH": "/usr/bin:/bin"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    return "" if reward.is_file() and reward.read_text().strip() == "1" else root.name


async def bench_rollout(context: BenchContext) -> Report:
    """Roll the tasks out with the policy `oracle`; all must pass."""
    directory = context.workplace.directory
    tasks = import_humaneval(directory / "tasks")
    for folder in tasks[context.options.count or len(tasks) :]:
        shutil.rmtree(folder)
    tasks = tasks[: context.options.count]
    bare = BareTests(tasks, directory / "bare")
    rounds = max(1, context.options.samples // 33)
    async with context.workplace.embedded() as node:

        async def ours() -> float:
            return await _roll_out(node, directory / "tasks", directory, context)

        contestants = {"ours": ours, **{name: bare.sample(at_once) for name, at_once in _BARE.items()}}
        seconds = await alternate(contestants, rounds=rounds, progress=context.progress, warm_ups=1)
    return make_report(
        "rollout",
        "s",
        "lower",
        ours=distribution(seconds["ours"]),
        references={name: distribution(seconds[name]) for name in _BARE},
        series=[
            {"what": "tasks per second", "per_s": round(len(tasks) / min(seconds["ours"]), 1), "tasks": len(tasks)}
        ],
        host=context.host,
    )


async def _roll_out(node: Node, tasks: Path, directory: Path, context: BenchContext) -> float:
    rollout_id = new_id("rol", os.urandom)
    request = RolloutRequest(
        tasks=tasks,
        policy="oracle",
        out=directory / rollout_id,
        rollout_id=rollout_id,
        settings=RolloutSettings(concurrency=2 * (os.cpu_count() or 1)),
    )
    with timed() as watch:
        end = await run_rollout(request, service=node, clock=SystemClock(), warn=context.progress.say)
    outcomes = end.summary.outcomes
    if outcomes.get(Outcome.PASSED.value) != end.summary.attempts_planned:
        raise RuntimeFailedError("not every task passed", detail=str(outcomes))
    return watch.seconds
