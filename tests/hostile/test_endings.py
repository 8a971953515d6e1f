"""Processes that will not end, callers that vanish, and operations that meet."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import anyio
import pytest

from dsec.base.errors import DsecError
from dsec.model.process import CommandRequest, ProcessState
from dsec.model.sandbox import SandboxSpec, SandboxState
from dsec.sdk.http import HttpService
from dsec.testing.guest import Guest
from dsec.testing.node_process import NodeProcess

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]

PATIENCE_S = 60.0
DAEMONS = """
trap '' TERM HUP INT QUIT USR1
(setsid sh -c 'trap "" TERM HUP; (setsid sleep 54321 &); sleep 54321' &)
(trap '' TERM; sleep 54321) &
sleep 54321
"""
"""Ignores every signal that can be, leaves its session twice, and leaves its parent."""


async def wait_until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Look until it holds; for what nobody announces to us."""
    ends_at = anyio.current_time() + PATIENCE_S
    while not await condition():
        assert anyio.current_time() < ends_at
        await anyio.sleep(0.02)


async def sleepers(guest: Guest) -> int:
    """How many of the daemons run, as the guest sees it."""
    counted = await guest.sh("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '^5432[1]$'")
    return int(counted.stdout)


async def test_timeout_ends_what_ignores_signals_and_daemonizes(guest: Guest) -> None:
    result = await guest.sh(DAEMONS, timeout_s=0.5)
    assert result.status.timed_out
    assert await sleepers(guest) == 0


async def test_kill_of_a_background_process_ends_its_daemons(guest: Guest) -> None:
    process_id = await guest.background(DAEMONS)

    async def all_run() -> bool:
        return await sleepers(guest) == 4

    await wait_until(all_run)
    await guest.service.signal_process(guest.sandbox_id, process_id, 9)
    assert await sleepers(guest) == 0


async def test_end_of_processes_ends_daemons_of_commands_that_ended(guest: Guest) -> None:
    await guest.sh("(setsid sleep 54321 &)")
    assert await sleepers(guest) == 1
    await guest.service.end_processes(guest.sandbox_id)
    assert await sleepers(guest) == 0


async def test_process_that_stops_itself_passes_through_pause_and_can_be_killed(guest: Guest) -> None:
    service, box = guest.service, guest.sandbox_id
    process_id = await guest.background("kill -STOP $$; exit 3")

    async def is_stopped() -> bool:
        states = await guest.sh("cat /proc/[0-9]*/status | grep '^State:'")
        return b"T (stopped)" in states.stdout

    await wait_until(is_stopped)
    for _ in range(3):
        await service.pause(box)
        await service.resume(box)
    (info,) = await service.list_processes(box)
    assert info.state is ProcessState.RUNNING
    await service.signal_process(box, process_id, 18)
    assert (await service.wait_process(box, process_id, timeout_s=PATIENCE_S)).status.exit_code == 3


async def test_client_that_vanishes_takes_its_command_with_it(node: NodeProcess, guest: Guest) -> None:
    """The connection is reset in the middle of a command, over TCP, without a word."""
    where = urlsplit(node.announced["url"])
    token = Path(node.announced["token_file"]).read_text().strip()
    for route in ("run", "stream"):
        body = b'{"argv": ["sleep", "54321"], "timeout_s": 3600}'
        head = (
            f"POST /v1/sandboxes/{guest.sandbox_id}/{route} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        connection = socket.create_connection((where.hostname or "", where.port or 0))
        connection.sendall(head.encode() + body)

        async def runs() -> bool:
            return await sleepers(guest) == 1

        async def is_gone() -> bool:
            return await sleepers(guest) == 0

        await wait_until(runs)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
        await wait_until(is_gone)


async def test_two_clients_that_stop_one_sandbox_both_succeed(node: NodeProcess, service: HttpService) -> None:
    box = (await service.create(SandboxSpec(image="guest"))).sandbox_id
    states: list[SandboxState] = []

    async def stop() -> None:
        async with node.service() as own:
            states.append((await own.stop(box)).state)

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(stop)
    assert states == [SandboxState.STOPPED] * 4
    await service.remove(box)
    await service.remove(box)


async def test_everything_at_once_ends_in_one_state(service: HttpService) -> None:
    """Rollback, pause, commands, files and stop meet: each succeeds or says why not; the last word is the stop's."""
    box = (await service.create(SandboxSpec(image="guest"))).sandbox_id

    async def attempt(call: Callable[[], Awaitable[object]]) -> None:
        with contextlib.suppress(DsecError):
            await call()

    async with anyio.create_task_group() as group:
        for number in range(5):
            request = CommandRequest(argv=("sleep", "0.1"))
            group.start_soon(attempt, lambda: service.rollback(box))
            group.start_soon(attempt, lambda: service.pause(box))
            group.start_soon(attempt, lambda request=request: service.run(box, request))
            group.start_soon(attempt, lambda request=request: service.start_process(box, request))
            group.start_soon(attempt, lambda number=number: service.write_file(box, f"/tmp/{number}", b"x" * 100_000))
        group.start_soon(attempt, lambda: service.stop(box))
    assert (await service.stop(box)).state is SandboxState.STOPPED
    await service.remove(box)
