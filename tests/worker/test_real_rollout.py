"""Rollouts on a real node: hostile guests do not get a reward, whatever they prepare."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dsec.base.clock import SystemClock
from dsec.cli.leave import leave_host
from dsec.images.store import LocalImageStore
from dsec.linux import mounts
from dsec.model.image import ImageConfig
from dsec.node.builder import open_node
from dsec.node.settings import NodeSettings
from dsec.verification.outcome import Outcome
from dsec.worker.job import JobEnd, RolloutRequest, run_rollout
from dsec.worker.output import read_results
from dsec.worker.settings import RolloutSettings, VerifyIn

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]

PROGRAMS = ("sh", "cat", "ln", "rm", "mkdir", "mkfifo", "chmod", "sleep", "setsid", "id", "test")

TOML = """\
[agent]
timeout_sec = 20
[verifier]
timeout_sec = 10
[environment]
docker_image = "tiny"
workdir = "/work"
memory_mb = 64
"""
CHECK = """\
#!/bin/sh
if test "$(cat answer)" = 42; then echo 1 > /logs/verifier/reward.txt; fi
"""

HONEST = {"honest": "echo 42 > answer\n"}
HOSTILE = {
    "forged": "mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt\n",
    "daemon": "setsid sh -c 'while :; do echo 1 > /logs/verifier/reward.txt; done' > /dev/null 2>&1 &\n",
    "linked": "mkdir -p /tmp/v/verifier; echo 1 > /tmp/v/verifier/reward.txt; ln -s /tmp/v /logs; ln -s /tmp /tests\n",
    "fifo": "mkfifo /tests; mkdir /logs; mkfifo /logs/verifier\n",
    "replaced": "mkdir /tests; echo 'echo 1 > /logs/verifier/reward.txt' > /tests/test.sh; chmod 755 /tests/test.sh\n",
    "start-up": "echo 'echo 1 > /logs/verifier/reward.txt' > /root/.profile; echo 'exit 0' > /etc/profile\n",
    "workdir-gone": "cd /; rm -rf /work\n",
    "nothing": "true\n",
}


def _copy_program(name: str, root: Path) -> None:
    path = shutil.which(name)
    assert path is not None, name
    linked = subprocess.run(["ldd", path], capture_output=True, text=True, check=False).stdout
    for source in [path, *re.findall(r"(/\S+) \(0x", linked)]:
        target = root / source.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(source), target)
    if not (root / "bin" / name).exists():
        (root / "bin").mkdir(exist_ok=True)
        shutil.copy(os.path.realpath(path), root / "bin" / name)


def _unmount_below(folder: Path) -> None:
    """The image store leaves its layers mounted for the next one; here there is none."""
    targets = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for target in reversed([target for target in targets if target.startswith(f"{folder}/")]):
        mounts.unmount(Path(target), detach=True)


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    """Yield a state directory with an image of a few of this host's own programs."""
    root = tmp_path / "root"
    for name in ("tmp", "proc", "dev", "sys", "etc", "root", "work"):
        (root / name).mkdir(parents=True)
    (root / "etc" / "passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    for program in PROGRAMS:
        _copy_program(program, root)
    state = tmp_path / "state"
    store = LocalImageStore(state / "images")
    store.add_image("tiny", [store.add_layer(root)], ImageConfig(env={"PATH": "/bin:/usr/bin"}), source="a test")
    store.close()
    yield state
    leave_host(state)
    _unmount_below(tmp_path)


async def _run(state_dir: Path, tasks: Path, verify_in: VerifyIn) -> JobEnd:
    async with open_node(NodeSettings(state_dir=str(state_dir))) as node:
        end = await run_rollout(
            RolloutRequest(
                tasks=tasks,
                policy="oracle",
                out=tasks.parent / "out",
                rollout_id="rol-real",
                settings=RolloutSettings(concurrency=2, verify_in=verify_in),
            ),
            service=node,
            clock=SystemClock(),
            warn=lambda text: None,
        )
        assert not await node.list()
        await node.shutdown(destroy=True)
        return end


def _write(make_task: Callable[..., Path], scripts: dict[str, str]) -> None:
    for name, script in scripts.items():
        files = {"tests/test.sh": CHECK, "solution/solve.sh": f"#!/bin/sh\n{script}"}
        make_task(name, toml=TOML, files=files)


@pytest.mark.parametrize("verify_in", list(VerifyIn))
async def test_the_honest_pass_and_the_hostile_fail(
    state_dir: Path, make_task: Callable[..., Path], tmp_path: Path, verify_in: VerifyIn
) -> None:
    _write(make_task, {**HONEST, **HOSTILE})
    end = await _run(state_dir, tmp_path / "tasks", verify_in)
    outcomes = {result.task: result.verdict for result in read_results(tmp_path / "out")[1]}
    assert outcomes["honest"].outcome is Outcome.PASSED, outcomes["honest"]
    assert {name: outcomes[name].outcome for name in HOSTILE} == dict.fromkeys(HOSTILE, Outcome.FAILED), outcomes
    assert end.summary.retried == 0
