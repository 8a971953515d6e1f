"""Faults under load: sandboxes read lazy layers of several sources while everything that serves them is killed, cut,
corrupted and filled; and the account of which read may have failed.

What must hold, whatever is done:

- No byte that a read returns is another than the source tree's (but between rot on this host's disk, which the kernel
  reads by itself, and the verification that finds it).
- A read fails only while nobody could have served it: while all processes of the daemon are dead, or no origin of its
  layer can be reached or has right what is wanted. `Outages` keeps account of those times.
- When all is well again every read succeeds, with nothing remounted and no sandbox made anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread

from dsec.base.errors import DsecError
from dsec.images.lazy.serving.client import LayerDaemon, kill_daemon
from dsec.images.lazy.serving.daemon_wire import Answer
from dsec.stores.objects import ObjectStore
from dsec.testing.node_process import NodeProcess
from dsec.testing.relay import Relay

PATIENCE_S = 120.0
"""A busy host takes its time to start programs."""
ROT = "rot"
AFTER_S = 3.0
"""So long after an outage a read may still fail that began in it, or before the retry that ends it."""


@dataclass(slots=True)
class Outages:
    """When whom could nobody serve, in monotonic seconds.

    Attributes:
        times: beginning and end, by source; the empty source is the daemon. An end of infinity: it lasts.
    """

    times: dict[str, list[list[float]]] = field(default_factory=dict)

    def begin(self, source: str) -> None:
        self.times.setdefault(source, []).append([time.monotonic(), float("inf")])

    def end(self, source: str) -> None:
        self.times[source][-1][1] = time.monotonic()

    @contextmanager
    def lasting(self, source: str) -> Iterator[None]:
        """An outage for the duration of the block."""
        self.begin(source)
        try:
            yield
        finally:
            self.end(source)

    def excuse(self, began_s: float, ended_s: float, origins: Sequence[str]) -> bool:
        """Whether a read of a layer with these origins may have failed."""
        if self._overlaps("", began_s, ended_s):
            return True
        return all(self._overlaps(origin, began_s, ended_s) for origin in origins)

    def excuse_rot(self, began_s: float, ended_s: float) -> bool:
        """Whether a read may have found what had rotted here and was not found out yet."""
        return self._overlaps(ROT, began_s, ended_s)

    def _overlaps(self, source: str, began_s: float, ended_s: float) -> bool:
        return any(begin <= ended_s and began_s <= end + AFTER_S for begin, end in self.times.get(source, ()))


@dataclass(frozen=True, slots=True)
class Complaint:
    """A read that a reader complained of.

    Attributes:
        reader: whose.
        said: what it said.
    """

    reader: str
    said: Mapping[str, object]

    @property
    def is_wrong(self) -> bool:
        return self.said["what"] == "wrong"

    @property
    def times(self) -> tuple[float, float]:
        return float(str(self.said["began_s"])), float(str(self.said["ended_s"]))


class Reader:
    """A reader process (`dsec.testing.lazy_reader`), and what it said.

    Args:
        name: of the sandbox it looks into.
        directory: what it reads.
        source: what that must be.
        seed: of its draws.
    """

    def __init__(self, name: str, directory: Path, source: Path, seed: str) -> None:
        self.name = name
        self.directory = directory
        self.source = source
        self.complaints: list[Complaint] = []
        self.reads = 0
        command = [sys.executable, "-m", "dsec.testing.lazy_reader", str(directory), str(source), seed]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if said["what"] == "ended":
                self.reads = said["reads"]
            else:
                self.complaints.append(Complaint(self.name, said))

    def end(self) -> None:
        """Have it end, and hear its last words."""
        self._process.terminate()
        try:
            self._process.wait(90)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise AssertionError(f"a read of {self.name} hangs") from None
        self._thread.join()
        if self._process.stdout is not None:
            self._process.stdout.close()


@dataclass(kw_only=True)
class FaultWorld:
    """What faults are done to.

    Attributes:
        node: serves sandboxes.
        daemon: serves their layers.
        relays: between this host and its sources, by the source's name.
        stores: object stores that are sources, past the relays, by the source's name.
        blobs: directories of blobs of registries, by the source's name.
        cache_disk: directory of the file system that the cache lies on.
        draw: what is drawn.
        more: further faults, by name; none may cost a read.
        outages: the account.
        log: what was done, for people.
        done: how often each fault was done.
    """

    node: NodeProcess
    daemon: LayerDaemon
    relays: Mapping[str, Relay]
    stores: Mapping[str, ObjectStore]
    blobs: Mapping[str, Path]
    cache_disk: Path
    draw: random.Random
    more: Mapping[str, Callable[[], Awaitable[None]]] = field(default_factory=dict)
    outages: Outages = field(default_factory=Outages)
    log: list[str] = field(default_factory=list)
    done: dict[str, int] = field(default_factory=dict)

    def faults(self) -> dict[str, Callable[[], Awaitable[None]]]:
        """Return what can be done, by name."""
        return {
            "kill server": self.kill_server,
            "kill both": self.kill_both,
            "kill all": self.kill_all,
            "kill node": self.kill_node,
            "kill node and all": self.kill_node_and_all,
            "stop server": self.stop_server,
            "cut link": self.cut_link,
            "hang link": self.hang_link,
            "cut in a body": self.cut_in_a_body,
            "corrupt source": self.corrupt_source,
            "fill disk": self.fill_disk,
            "rot and repair": self.rot_and_repair,
            **self.more,
        }

    async def run(self, seconds: float, only: Sequence[str] = ()) -> None:
        """Do one fault after the other, drawn, for so long, all kinds or only some; each is undone before the next."""
        ends_s = time.monotonic() + seconds
        faults = {name: fault for name, fault in self.faults().items() if not only or name in only}
        order: list[str] = []
        while time.monotonic() < ends_s:
            if not order:
                order = sorted(faults)
                self.draw.shuffle(order)
            name = order.pop()
            self.log.append(f"{time.monotonic():.2f} {name}")
            await faults[name]()
            self.done[name] = self.done.get(name, 0) + 1
            await anyio.sleep(self.draw.random() * 0.5)

    async def kill_server(self) -> None:
        """Its keeper forks another, which answers what was asked: nothing may fail."""
        with contextlib.suppress(DsecError, ProcessLookupError):
            os.kill((await self._status()).pid, signal.SIGKILL)

    async def kill_both(self) -> None:
        """Keeper and server; its second is the keeper then: nothing may fail."""
        status = await self._status()
        for pid in (status.keeper_pid, status.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await self._revived(status.keeper_pid)

    async def kill_all(self) -> None:
        """Reads fail until the node has seen it."""
        status = await self._status()
        with self.outages.lasting(""):
            await anyio.to_thread.run_sync(kill_daemon, self.daemon)
            await self._revived(status.keeper_pid)

    async def kill_node(self) -> None:
        """The daemon is no child of it: nothing may fail."""
        await anyio.to_thread.run_sync(self.node.kill)
        await anyio.sleep(self.draw.random())
        assert await anyio.to_thread.run_sync(self.node.start)

    async def kill_node_and_all(self) -> None:
        """Reads fail until there is a node again."""
        status = await self._status()
        with self.outages.lasting(""):
            await anyio.to_thread.run_sync(self.node.kill)
            await anyio.to_thread.run_sync(kill_daemon, self.daemon)
            await anyio.sleep(self.draw.random())
            assert await anyio.to_thread.run_sync(self.node.start)
            await self._revived(status.keeper_pid)

    async def stop_server(self) -> None:
        """It stands still for a moment: reads wait."""
        with contextlib.suppress(DsecError, ProcessLookupError):
            pid = (await self._status()).pid
            os.kill(pid, signal.SIGSTOP)
            try:
                await anyio.sleep(1 + self.draw.random())
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    async def cut_link(self) -> None:
        """One source answers nothing for a while."""
        name = self.draw.choice(sorted(self.relays))
        with self.outages.lasting(name):
            self.relays[name].answers = False
            await anyio.sleep(1 + 2 * self.draw.random())
            self.relays[name].answers = True

    async def hang_link(self) -> None:
        """One source takes nothing for a while."""
        name = self.draw.choice(sorted(self.relays))
        with self.outages.lasting(name):
            self.relays[name].takes = False
            await anyio.sleep(0.5 + self.draw.random())
            self.relays[name].takes = True

    async def cut_in_a_body(self) -> None:
        """A connection ends in the middle of an answer; whoever asked asks again."""
        for relay in self.relays.values():
            relay.cut_back_at = relay.passed_back + self.draw.randrange(1, 2 << 20)
        await anyio.sleep(self.draw.random())

    async def corrupt_source(self) -> None:
        """Some chunks of a source are others for a while."""
        name = self.draw.choice(sorted([*self.stores, *self.blobs]))
        with self.outages.lasting(name):
            undo = await (self._spoil_store(name) if name in self.stores else self._spoil_blobs(name))
            await anyio.sleep(1 + self.draw.random())
            await undo()

    async def _spoil_store(self, name: str) -> Callable[[], Awaitable[None]]:
        store = self.stores[name]
        keys = [info.key async for info in store.list("layers/chunks/")]
        kept = {key: await store.get(key) for key in self.draw.sample(keys, max(1, len(keys) // 3))}
        for key, content in kept.items():
            await store.put(key, _spoiled(content, self.draw))

        async def undo() -> None:
            for key, content in kept.items():
                await store.put(key, content)

        return undo

    async def _spoil_blobs(self, name: str) -> Callable[[], Awaitable[None]]:
        """Turn bits over in large blobs, in place: a registry may have them open."""
        chosen = [path for path in self.blobs[name].rglob("data") if path.is_file() and path.stat().st_size > 1 << 20]
        places = [(path, self.draw.randrange(path.stat().st_size)) for path in chosen for _ in range(3)]

        async def turn_over() -> None:
            for path, at in places:
                with path.open("r+b") as file:
                    file.seek(at)
                    (byte,) = file.read(1)
                    file.seek(at)
                    file.write(bytes([byte ^ 1]))

        await turn_over()
        return turn_over

    async def fill_disk(self) -> None:
        """The cache's disk has no room for a while: chunks are served from memory."""
        filler = self.cache_disk / "filler"
        try:
            with contextlib.suppress(OSError), filler.open("wb") as file:
                while True:
                    file.write(bytes(1 << 20))
                    file.flush()
            await anyio.sleep(1 + self.draw.random())
        finally:
            filler.unlink(missing_ok=True)

    async def rot_and_repair(self) -> None:
        """Bits turn over in the cache, which nobody sees until it is verified: until then, reads may be wrong."""
        with self.outages.lasting(ROT):
            for manifest in (await self._status()).mounted:
                _turn_over(self.daemon.root / "cache" / manifest / "data", self.draw)
            for manifest in (await self._status()).mounted:
                await self._verify(manifest)

    async def _verify(self, manifest: str) -> None:
        try:
            await anyio.to_thread.run_sync(lambda: self.daemon.verify(manifest, repair=True))
        except DsecError as error:
            pid = (await self._status()).pid
            raise AssertionError(f"{error}: {self.log}: {waiting_threads(pid)}") from error

    async def _status(self) -> Answer:
        return await anyio.to_thread.run_sync(self.daemon.status)

    async def _revived(self, keeper: int) -> None:
        """Wait until another keeper has begun, without asking the daemon, which would begin one."""
        lock = self.daemon.root / "keeper.lock"
        with anyio.move_on_after(PATIENCE_S) as scope:
            while lock.read_text().split()[:1] in ([str(keeper)], []):  # noqa: ASYNC110 - another process writes it.
                await anyio.sleep(0.05)
        if scope.cancelled_caught:
            log = (self.daemon.root / "daemon.log").read_text(errors="replace")[-3000:]
            raise AssertionError(f"nobody serves any more; {self.log}; node: {self.node.log_tail()}; daemon: {log}")
        await self._status()


def waiting_threads(pid: int) -> str:
    """Say where in the kernel the threads of a process wait, for whoever wonders why it does not answer."""
    said = []
    for task in sorted(Path(f"/proc/{pid}/task").iterdir()):
        with contextlib.suppress(OSError):
            frames = (line.split()[1].partition("+")[0] for line in (task / "stack").read_text().splitlines())
            said.append(f"{(task / 'comm').read_text().strip()}: {' < '.join(frames)}")
    return "\n".join(said)


def _turn_over(path: Path, draw: random.Random) -> None:
    """Turn over bits of a file with holes, where it has something."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(3):
            with contextlib.suppress(OSError):  # There is nothing from there on.
                at = os.lseek(descriptor, draw.randrange(os.fstat(descriptor).st_size), os.SEEK_DATA)
                (byte,) = os.pread(descriptor, 1, at)
                os.pwrite(descriptor, bytes([byte ^ 1]), at)
    finally:
        os.close(descriptor)


def _spoiled(content: bytes, draw: random.Random) -> bytes:
    """Return other content: a bit turned over, a half, nothing, or noise."""
    kind = draw.randrange(4)
    if kind == 0:
        at = draw.randrange(len(content))
        return content[:at] + bytes([content[at] ^ (1 << draw.randrange(8))]) + content[at + 1 :]
    if kind == 1:
        return content[: len(content) // 2]
    return b"" if kind == 2 else draw.randbytes(len(content))


def unexcused(
    complaints: Sequence[Complaint], outages: Outages, origins: Mapping[str, Sequence[str]]
) -> list[Complaint]:
    """Return the complaints that are right: wrong bytes, and failures while somebody could have served."""
    return [
        complaint
        for complaint in complaints
        if not outages.excuse_rot(*complaint.times)
        and (complaint.is_wrong or not outages.excuse(*complaint.times, origins[complaint.reader]))
    ]
