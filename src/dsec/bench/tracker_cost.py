"""What a tracker's messages cost it: processor time of a real one, over HTTP, for what the simulator reckons with.

A tracker in a process of its own (`dsec.bench.tracker_host`) is told what nodes have and asked by them, one message
after the other; the kernel says how long its process ran (``/proc/PID/schedstat``). On a busy host that is more than on
a quiet one, as caches are shared.
"""

from __future__ import annotations

import os
import random
import secrets
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from dsec.base.errors import StoreUnavailableError
from dsec.base.ids import random_body
from dsec.base.secret_file import read_secret
from dsec.distribution.messages import Announcement, LayerChange, Lookup, Report
from dsec.images.lazy.peers.calling import Caller
from dsec.images.lazy.peers.tracking import ANNOUNCE, LOOK_UP, REPORT
from dsec.model.peer import Peer

NODES = 64
_CHUNKS, _AHEAD, _GAINED = 128, 32, 8
_MESSAGES = 300
_LAYER = "f" * 64
_REPLY_BYTES = 4 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerCost:
    """Processor time, in microseconds.

    Attributes:
        message_us: of a message that says nothing.
        chunk_us: of each chunk that is wanted now.
        ahead_us: of each that is wanted soon, and of which most are held by somebody.
        announced_us: of each that is announced.
    """

    message_us: float
    chunk_us: float
    ahead_us: float
    announced_us: float


async def measure_tracker() -> TrackerCost:
    """Measure one. Raises `StoreUnavailableError` where it does not start."""
    with _tracker() as (pid, callers):
        asking = _Asking(callers)
        for number in range(NODES):
            await asking.announce(number, _CHUNKS // 2)

        async def took_us(send: Callable[[int], Awaitable[None]]) -> float:
            before_ns = _ran_ns(pid)
            for number in range(_MESSAGES):
                await send(number % NODES)
            return (_ran_ns(pid) - before_ns) / 1000 / _MESSAGES

        message_us = await took_us(asking.report)
        one_us = await took_us(lambda number: asking.look_up(number, 1, 0))
        six_us = await took_us(lambda number: asking.look_up(number, 6, 0))
        ahead_us = await took_us(lambda number: asking.look_up(number, 1, _AHEAD))
        announced_us = await took_us(lambda number: asking.announce(number, _GAINED))
        return TrackerCost(
            message_us=message_us,
            chunk_us=(six_us - one_us) / 5,
            ahead_us=(ahead_us - one_us) / _AHEAD,
            announced_us=(announced_us - message_us) / _GAINED,
        )


class _Asking:
    """Nodes that speak to the tracker."""

    def __init__(self, callers: list[tuple[str, Caller]]) -> None:
        self._callers = callers
        self._sequences = [0] * len(callers)
        self._chance = random.Random(1)

    async def report(self, number: int) -> None:
        await self._post(number, REPORT, Report(node=self._callers[number][0], failures=()))

    async def look_up(self, number: int, now: int, soon: int) -> None:
        names = self._names(now + soon)
        node = self._callers[number][0]
        await self._post(number, LOOK_UP, Lookup(node=node, layer=_LAYER, chunks=names[:now], ahead=names[now:]))

    async def announce(self, number: int, gained: int) -> None:
        self._sequences[number] += 1
        announcement = Announcement(
            node=self._callers[number][0],
            address="http://10.0.0.1:8621",
            life="1",
            sequence=self._sequences[number],
            full=self._sequences[number] == 1,
            upload_bytes_per_s=3_000_000_000,
            upload_slots=4,
            changes=(LayerChange(layer=_LAYER, gained=self._names(gained)),),
        )
        await self._post(number, ANNOUNCE, announcement)

    def _names(self, count: int) -> tuple[str, ...]:
        return tuple(f"{number:064x}" for number in self._chance.sample(range(_CHUNKS), count))

    async def _post(self, number: int, target: str, body: object) -> None:
        caller = self._callers[number][1]
        reply = await caller.ask("POST", target, msgspec.json.encode(body), limit=_REPLY_BYTES, timeout_s=10.0)
        if reply.status not in (200, 204):
            raise StoreUnavailableError(f"the tracker answers with status {reply.status}", detail=reply.body.decode())


@contextmanager
def _tracker() -> Iterator[tuple[int, list[tuple[str, Caller]]]]:
    with tempfile.TemporaryDirectory(prefix="dsec-tracker-") as directory:
        secret_file = Path(directory) / "secret"
        secret_file.touch(0o600)
        secret_file.write_text(secrets.token_hex(32))
        node, port = random_body(5, os.urandom), _free_port()
        argv = (sys.executable, "-m", "dsec.bench.tracker_host", node, str(secret_file), "127.0.0.1", str(port))
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as process:
            callers: list[tuple[str, Caller]] = []
            try:
                assert process.stdout is not None
                if process.stdout.readline() != b"ready\n":
                    raise StoreUnavailableError(f"{' '.join(argv)} does not start", resolution="run it by hand")
                peer = Peer(node=node, url=f"http://127.0.0.1:{port}")
                for own in (random_body(5, os.urandom) for _ in range(NODES)):
                    callers.append((own, Caller(own, peer, lambda: read_secret(secret_file))))
                yield process.pid, callers
            finally:
                for _, caller in callers:
                    caller.close()
                process.kill()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _ran_ns(pid: int) -> int:
    """Return for how long a process ran, all its threads together."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))
