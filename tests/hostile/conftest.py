"""A real node under attack: every test has a guest who is root and hostile, and a bystander who must not notice.

The node is a process of its own and is reached over its socket, as users reach it. After every test the bystander still
runs with its file and its process, and nothing of the hostile sandbox is left on the host.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from dsec.model.process import CommandRequest, ProcessState
from dsec.model.sandbox import Resources, SandboxFilter, SandboxSpec, SandboxState
from dsec.sdk.http import HttpService
from dsec.testing.guest import Guest
from dsec.testing.guest_image import make_root
from dsec.testing.leaks import Leaks, clear_away, wait_loop_devices_gone
from dsec.testing.node_process import NodeProcess

BYSTANDER = "sbx-bystander"
MARK = b"what the bystander wrote"
LIMITS = Resources(memory_bytes=256 << 20, disk_bytes=64 << 20, pids=100, cpu_millis=1000)
PATIENCE_S = 60.0
EVERY = SandboxFilter(states=tuple(SandboxState))
MakeGuest = Callable[..., AbstractAsyncContextManager[Guest]]


def _import(state_dir: Path, root: Path, name: str) -> None:
    command = [sys.executable, "-m", "dsec", "--state-dir", str(state_dir), "image", "import", str(root)]
    subprocess.run([*command, "--name", name], capture_output=True, check=True, timeout=120)


def _make_root_without_shell(root: Path) -> Path:
    make_root(root)
    for name in ("sh", "bash"):
        (root / "bin" / name).unlink()
    return root


@pytest.fixture(scope="session")
def node() -> Iterator[NodeProcess]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    top = Path(tempfile.mkdtemp(prefix="dsec-"))
    state_dir = top / "state"
    state_dir.mkdir(mode=0o700)
    node = NodeProcess(state_dir, tcp=True)
    try:
        _import(state_dir, make_root(top / "root", python=True), "guest")
        _import(state_dir, _make_root_without_shell(top / "bare"), "shell-less")
        node.start()
        anyio.run(_create_bystander, node)
        yield node
        anyio.run(_remove_bystander, node)
        node.stop()
        down = [sys.executable, "-m", "dsec", "--state-dir", str(state_dir), "down", "--destroy"]
        subprocess.run(down, capture_output=True, check=True, timeout=120)
        assert not Leaks.read(state_dir).described()
        wait_loop_devices_gone(state_dir)
    finally:
        node.kill()
        clear_away(state_dir)
        shutil.rmtree(top, ignore_errors=True)


async def _create_bystander(node: NodeProcess) -> None:
    async with node.service() as service:
        await service.create(SandboxSpec(image="guest", resources=LIMITS), sandbox_id=BYSTANDER)
        await service.write_file(BYSTANDER, "/home/user/mark", MARK)
        await service.start_process(BYSTANDER, CommandRequest(argv=("sleep", "86400"), timeout_s=None))


async def _remove_bystander(node: NodeProcess) -> None:
    async with node.service() as service:
        await service.remove(BYSTANDER)


@pytest.fixture
async def service(node: NodeProcess) -> AsyncIterator[HttpService]:
    """The node's service; when the test is over, the bystander is asked and the host is looked at."""
    async with node.service() as service:
        yield service
        # What a failed test leaves is not the next one's.
        left = [info.sandbox_id for info in await service.list(EVERY) if info.sandbox_id != BYSTANDER]
        for sandbox_id in left:
            await service.remove(sandbox_id)
        await _check_bystander(service)
        await _check_host(node)
        assert not left


async def _check_bystander(service: HttpService) -> None:
    info = await service.inspect(BYSTANDER)
    assert (info.state, info.generation) == (SandboxState.READY, 0)
    result = await service.run(BYSTANDER, CommandRequest(argv=("cat", "/home/user/mark"), timeout_s=PATIENCE_S))
    assert (result.status.exit_code, result.stdout) == (0, MARK)
    assert [process.state for process in await service.list_processes(BYSTANDER)] == [ProcessState.RUNNING]


async def _check_host(node: NodeProcess) -> None:
    """Only the bystander's things are on the host, at the latest in a moment."""
    ends_at = anyio.current_time() + PATIENCE_S
    while left := _foreign(Leaks.read(node.state_dir)):
        assert anyio.current_time() < ends_at, left
        await anyio.sleep(0.05)
    assert node.is_running


def _foreign(left: Leaks) -> list[str]:
    everything = (*left.groups, *left.mounts, *left.run_entries, *left.layers, *left.spools, *left.files)
    foreign = [name for name in everything if BYSTANDER not in name]
    known = ("sleep 86400", "/dev/.init", BYSTANDER)
    return foreign + [process for process in left.processes if not any(word in process for word in known)]


@pytest.fixture
def make_guest(service: HttpService) -> MakeGuest:
    """Return a function that makes a guest with other limits or from another image."""

    @asynccontextmanager
    async def make(**changes: Any) -> AsyncIterator[Guest]:
        fields: dict[str, Any] = {"image": "guest", "resources": LIMITS, "workdir": "/home/user", **changes}
        info = await service.create(SandboxSpec(**fields))
        try:
            yield Guest(service, info.sandbox_id)
        finally:
            await service.remove(info.sandbox_id)

    return make


@pytest.fixture
async def guest(make_guest: MakeGuest) -> AsyncIterator[Guest]:
    async with make_guest() as guest:
        yield guest
