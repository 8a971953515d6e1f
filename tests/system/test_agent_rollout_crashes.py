"""A rollout of agents is killed with -9 again and again, worker and node in one: nothing is lost or done twice."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.episode.log_content import Completeness
from dsec.episode.operations import RoundRecord
from dsec.stores.episode_log_reading import read_episode_log
from dsec.verification.outcome import Outcome
from dsec.worker.output import read_results

pytestmark = [pytest.mark.root, pytest.mark.slow]
TASKS, ROUNDS, KILLS = 3, 4, 3
TOML = """\
[agent]
timeout_sec = 300
[verifier]
timeout_sec = 30
[environment]
docker_image = "guest"
workdir = "/home/user"
"""
TESTS = """\
#!/bin/sh
# Each round adds one line: a round that is lost, or whose work is done twice, shows.
if [ "$(cat /home/user/log)" = "$(printf 'r1\\nr2\\nr3\\nr4')" ]; then reward=1; else reward=0; fi
echo $reward > /logs/verifier/reward.txt
"""


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """Serve a model that adds a line in each round, slowly enough to be killed there, and then submits."""
    answers = [
        {
            "role": "assistant",
            "tool_calls": [{"name": "shell", "arguments": {"command": f"echo r{n} >> log; sleep 0.2"}}],
        }
        for n in range(1, ROUNDS + 1)
    ]
    answers.append({"role": "assistant", "tool_calls": [{"name": "submit", "arguments": {}}]})
    file = tmp_path / "conversation.jsonl"
    file.write_text("".join(json.dumps({**answer, "after_s": 0.2}) + "\n" for answer in answers))
    command = [sys.executable, "-m", "dsec", "model", "replay", str(file), "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
        process.terminate()


def committed(out: Path) -> dict[str, tuple[RoundRecord, ...]]:
    """Return the rounds in the logs as they lie there."""
    logs = out / "worker" / "episodes"
    found = [path for path in logs.iterdir() if path.is_dir()] if logs.is_dir() else []
    return {path.name: read_episode_log(path).rounds for path in found if any(path.glob("*.jsonl"))}


def wait_until_it_writes(out: Path, runner: subprocess.Popen[bytes]) -> None:
    """Wait until a runner writes to a log, or has ended."""
    before, until_s = written(out), time.monotonic() + 60
    while written(out) == before and runner.poll() is None and time.monotonic() < until_s:
        time.sleep(0.02)


def written(out: Path) -> dict[Path, int]:
    """Return the sizes of all logs."""
    sizes = {}
    for path in (out / "worker" / "episodes").glob("*/*.jsonl"):
        try:
            sizes[path] = path.stat().st_size
        except FileNotFoundError:
            continue  # A writer that begins takes what was torn away.
    return sizes


@pytest.mark.parametrize("seed", [1])
def test_whenever_the_runner_is_killed_each_round_is_done_once_and_each_attempt_is_verified(
    state_dir: Path, tmp_path: Path, url: str, seed: int
) -> None:
    for number in range(TASKS):
        folder = tmp_path / "tasks" / f"t{number}"
        (folder / "tests").mkdir(parents=True)
        (folder / "task.toml").write_text(TOML)
        (folder / "instruction.md").write_text(f"Task {number}.\n")
        (folder / "tests" / "test.sh").write_text(TESTS)
    out, draw = tmp_path / "out", random.Random(seed)
    command = [sys.executable, "-m", "dsec", "--state-dir", str(state_dir), "rollout", "run", str(tmp_path / "tasks")]
    command += ["--policy", "agent", "--model", url, "--out", str(out), "--concurrency", str(TASKS)]
    saved: dict[str, tuple[RoundRecord, ...]] = {}
    for _ in range(KILLS):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as runner:
            if draw.random() < 0.7:
                wait_until_it_writes(out, runner)
                time.sleep(draw.uniform(0.0, 0.8))
            else:
                time.sleep(draw.uniform(0.2, 2.0))
            runner.kill()
        now = committed(out)
        for name, rounds in saved.items():
            assert now[name][: len(rounds)] == rounds, "what was saved is as it was"
        saved = now
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = read_results(out)[1]
    assert [result.outcome for result in results] == [Outcome.PASSED] * TASKS, results
    for name, rounds in committed(out).items():
        assert rounds[: len(saved.get(name, ()))] == saved.get(name, ())
        assert [record.number for record in rounds] == list(range(1, ROUNDS + 2))
        assert read_episode_log(out / "worker" / "episodes" / name).completeness is Completeness.COMPLETE
    assert len(committed(out)) == TASKS, "no attempt was begun anew"
    assert any(result.episode is not None and result.episode.lives > 1 for result in results), "it was killed in time"
    listed = [sys.executable, "-m", "dsec", "--state-dir", str(state_dir), "sandbox", "ls", "-q", "-a"]
    assert not subprocess.run(listed, capture_output=True, text=True, timeout=60, check=True).stdout.split()
