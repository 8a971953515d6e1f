"""What could survive a rollback does not, and would be seen: on the real container runtime, a guest for each."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from dsec.base.errors import NotFoundError, StateMismatchError
from dsec.model.process import CommandRequest
from dsec.model.sandbox import Resources, SandboxFilter, SandboxSpec, SandboxState
from dsec.node.builder import open_node
from dsec.node.node import Node
from dsec.node.sandbox import Sandbox
from dsec.node.settings import NodeSettings

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.anyio]

BOX = "sbx-box"
HOST_IDS = 3 << 29
"""Far above the default range: what has these ids is ours, and of no other node that runs on this host."""
_ENTER = ("nsenter", "-t")
SPEC = SandboxSpec(image="guest", resources=Resources(memory_bytes=128 << 20, disk_bytes=64 << 20, pids=64), seed=7)
ATTACKS = {
    "a file": ("echo x > /left", "files of the writable layer that a fresh one has not: "),
    "a deleted file of the image": ("rm /etc/passwd", "files of the writable layer that a fresh one has not: "),
    "rights of the root directory": ("chmod 700 /", "files of the writable layer"),
    "a file in shared memory": ("echo x > /dev/shm/left", "files in memory that a fresh one has not: /dev/shm/left"),
    "a file in /dev": ("echo x > /dev/left", "files in memory that a fresh one has not: /dev/left"),
    "a name that is no UTF-8": (r"touch /dev/shm/$(printf '\377\033')", r"/dev/shm/\xff\x1b"),
    "another seed": ("rm -f /dev/dsec-seed; echo 8 > /dev/dsec-seed", "variables and seed"),
    "a daemon": ("(setsid sleep 31536000 >/dev/null 2>&1 &)", "processes run"),
}


@pytest.fixture
async def node(state_dir: Path) -> AsyncIterator[Node]:
    async with open_node(NodeSettings(state_dir=str(state_dir), first_host_id=HOST_IDS)) as opened:
        yield opened
        for sandbox in await opened.list(SandboxFilter(states=tuple(SandboxState))):
            await opened.remove(sandbox.sandbox_id)


async def shell(node: Node, script: str) -> None:
    result = await node.run(BOX, CommandRequest(argv=("sh", "-c", script)))
    assert result.status.exit_code == 0, result.stderr


def inside(node: Node) -> Sandbox:
    return node._core.registry.find(BOX)


async def test_a_sandbox_that_nobody_used_is_clean(node: Node) -> None:
    await node.create(SPEC, sandbox_id=BOX)
    report = await node.state.fingerprint(BOX)
    assert report.is_clean, report.differences
    assert report.differences == ()


@pytest.mark.parametrize("attack", ATTACKS)
async def test_what_a_guest_leaves_is_seen_and_said_and_gone_after_a_rollback(node: Node, attack: str) -> None:
    script, words = ATTACKS[attack]
    await node.create(SPEC, sandbox_id=BOX)
    clean = await node.state.fingerprint(BOX)
    await shell(node, script)
    dirty = await node.state.fingerprint(BOX)
    assert not dirty.is_clean
    assert any(words in each for each in dirty.differences), dirty.differences
    await node.rollback(BOX)
    after = await node.state.fingerprint(BOX)
    assert after.is_clean, after.differences
    assert after.fingerprint == clean.fingerprint


async def test_sockets_and_system_v_objects_are_seen(node: Node) -> None:
    await node.create(SPEC, sandbox_id=BOX)
    pid = inside(node).running().instance.init_pid  # type: ignore[attr-defined]
    make = "import ctypes;assert ctypes.CDLL(None).shmget(4711,4096,0o1600)>=0"
    listen = (
        "import socket;s=socket.socket(socket.AF_UNIX);s.bind('\\0left');s.listen();"
        "t=socket.create_server(('127.0.0.1',8080));u=socket.socket(type=socket.SOCK_DGRAM);u.bind(('127.0.0.1',53));"
        "print(flush=True);input()"
    )
    await anyio.run_process([*_ENTER, str(pid), "-i", "/usr/bin/python3", "-c", make])
    async with await anyio.open_process([*_ENTER, str(pid), "-n", "/usr/bin/python3", "-c", listen]) as child:
        assert child.stdout is not None
        await child.stdout.receive()
        said = (await node.state.fingerprint(BOX)).differences
        child.kill()
    assert "System V objects that a fresh one has not: shared memory key 4711 mode 600" in said
    sockets = "tcp socket 0100007F:1F90, udp socket 0100007F:0035, unix socket @left"
    assert f"interfaces and sockets that a fresh one has not: {sockets}" in said
    await node.rollback(BOX)
    assert (await node.state.fingerprint(BOX)).is_clean


async def test_a_rollback_that_is_not_clean_fails_the_sandbox_and_hands_out_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    await node.create(SPEC, sandbox_id=BOX)
    create = node._core.parts.layers.create

    def haunted(name: str, *, quota_bytes: int | None) -> object:
        made = create(name, quota_bytes=quota_bytes)
        (made.upper / "ghost").write_text("of the one before")
        return made

    monkeypatch.setattr(node._core.parts.layers, "create", haunted)
    with pytest.raises(StateMismatchError, match="/ghost"):
        await node.rollback(BOX)
    record = inside(node).record
    assert record.state is SandboxState.FAILED
    assert "/ghost" in record.cause
    with pytest.raises(StateMismatchError):
        await node.run(BOX, CommandRequest(argv=("true",)))


async def test_no_process_with_the_guests_ids_is_left_after_a_rollback(node: Node) -> None:
    await node.create(SPEC, sandbox_id=BOX)
    sandbox = inside(node)
    first = node._core.slots.first_host_id(sandbox.record.slot)
    await shell(
        node, "for n in 1 2 3 4; do (setsid sh -c 'setsid sleep 31536000 & sleep 31536000' >/dev/null 2>&1 &) ; done"
    )
    await node.rollback(BOX)
    init = sandbox.running().instance.init_pid  # type: ignore[attr-defined]
    assert processes_of(first) == {init}


def processes_of(first: int) -> set[int]:
    """Return the pids of processes with ids of one sandbox, but for those that are only waited for."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            owner = os.stat(f"/proc/{name}").st_uid
            is_zombie = ") Z " in Path(f"/proc/{name}/stat").read_text()
        except OSError:
            continue
        if not is_zombie and first <= owner < first + 65_536:
            found.add(int(name))
    return found


async def test_the_record_outlives_a_restart_and_a_lost_one_is_said(state_dir: Path) -> None:
    settings = NodeSettings(state_dir=str(state_dir), first_host_id=HOST_IDS)
    async with open_node(settings) as node:
        await node.create(SPEC, sandbox_id=BOX)
        before = await node.state.fingerprint(BOX)
    async with open_node(settings) as node:
        assert (await node.state.fingerprint(BOX)).fingerprint == before.fingerprint
        (record,) = (state_dir / "fingerprints").rglob("*.json")
    record.write_text("{")
    async with open_node(settings) as node:
        with pytest.raises(NotFoundError, match="no clean state"):
            await node.state.fingerprint(BOX)
        await node.rollback(BOX)
        await node.remove(BOX)


async def test_a_node_forgets_what_was_clean_under_another_boot(state_dir: Path) -> None:
    old = state_dir / "fingerprints" / "another-boot"
    old.mkdir(parents=True)
    (old / "shape.json").write_text("{}")
    async with open_node(NodeSettings(state_dir=str(state_dir), first_host_id=HOST_IDS)) as node:
        await node.create(SPEC, sandbox_id=BOX)
        assert not old.exists()
        assert list((state_dir / "fingerprints").rglob("*.json"))
        await node.remove(BOX)
