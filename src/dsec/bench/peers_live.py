"""The live half of `peers`: eight real layer daemons read one layer to its end at the same time.

Each has a network namespace of its own on one switch, and so have the object store and the tracker; every link carries
the same rate each way (``tc`` tbf), the store's included. All daemons mount the layer and read every file of it: with
peers off and with peers on, in turn. The time is that until the last has read everything.

Three times with peers on: each node in an order of its own, as sandboxes read that do different things; all in the same
order, as they read when they all do the same at the same moment; and so once more with a tracker that still remembers
whom it sent how much to. In step everybody wants the same chunk, nobody has another one to give for it, and what is
gained is the chain by which it spreads.

The rate is low enough for the links to be what is waited for, and not the processors of this machine, on which all of
it runs: 100 Mbit/s each are 100 MB/s in all, with everything verified and written.
"""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread

from dsec.base.errors import RuntimeFailedError
from dsec.base.units import MIB
from dsec.bench.context import PureContext
from dsec.bench.peer_hosts import PeerHosts, peer_hosts
from dsec.images import erofs
from dsec.images.lazy.publication.conversion import LayerFile, publish
from dsec.images.lazy.serving.daemon_options import DaemonOptions
from dsec.linux.userns import is_host_root
from dsec.stores.objects_folder import FolderObjectStore

NODES = 8
BITS_PER_S = 100_000_000
LAYER_BYTES = 96 * MIB
CENTRAL, OWN_ORDER, SAME_ORDER = "central", "peers, each in its own order", "peers, all in the same order"
SAME_AGAIN = "peers, all in the same order, right after another burst"
WAYS = (CENTRAL, OWN_ORDER, SAME_ORDER, SAME_AGAIN)
_FILE_BYTES = 4 * MIB
_PROGRAMS = ("ip", "tc", "nsenter", "mkfs.erofs")


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """All nodes read everything once.

    Attributes:
        way: of `WAYS`.
        complete_s: until the last had.
        origin_bytes: what the store's host sent meanwhile, frames and all.
        sent_most_of_mean: the most that a node sent, in means of all nodes; 0: none sent anything.
    """

    way: str
    complete_s: float
    origin_bytes: int
    sent_most_of_mean: float


async def measure_live(context: PureContext) -> list[LiveRun]:
    """Measure each way as often as the options say; nothing, with a note, where this host cannot, or another number of
    nodes was asked for than there are.
    """
    if context.options.count is not None:
        context.note("no real nodes: their number is fixed")
        return []
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing or not is_host_root():
        context.note(f"no real nodes: {', '.join(missing) + ' missing' if missing else 'that needs root'}")
        return []
    context.note(
        f"{NODES} real nodes: each in a network namespace, {BITS_PER_S // 10**6} Mbit/s each way by tbf, "
        f"{LAYER_BYTES >> 20} MiB that do not shrink"
    )
    directory = Path(tempfile.mkdtemp(prefix="dsec-peers-"))
    runs = []
    try:
        with peer_hosts(directory / "hosts", NODES) as hosts:
            manifest = await anyio.to_thread.run_sync(_publish, directory, hosts)
            for host in (hosts.origin, *(each.host for each in hosts.hosts)):
                host.shape(BITS_PER_S)
            for sample in range(context.options.samples):
                for way in WAYS:
                    runs.append(await _run(hosts, manifest, way))
                    context.progress.say(f"{sample + 1}: {way}: {runs[-1].complete_s:.1f} s")
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return runs


def _publish(directory: Path, hosts: PeerHosts) -> str:
    chance = random.Random(1)
    tree = directory / "tree"
    tree.mkdir()
    files = LAYER_BYTES // _FILE_BYTES
    for number in range(files):
        (tree / f"{number:04}").write_bytes(chance.randbytes(_FILE_BYTES))
    erofs.make(tree, directory / "layer.erofs")
    file = LayerFile(directory / "layer.erofs", "sha256:" + "ab" * 32, files + 1)
    return anyio.run(publish, file, FolderObjectStore(hosts.store)).manifest


async def _run(hosts: PeerHosts, manifest: str, way: str) -> LiveRun:
    """Have everything read once. Cancelled, it ends after the file that each reads.

    Raises:
        RuntimeFailedError: a read failed.
    """
    ended = threading.Event()
    async with anyio.create_task_group() as group:
        group.start_soon(_set_when_cancelled, ended)
        run = await anyio.to_thread.run_sync(_measured, hosts, manifest, way, ended)
        group.cancel_scope.cancel()
    return run


async def _set_when_cancelled(event: threading.Event) -> None:
    try:
        await anyio.sleep_forever()
    finally:
        event.set()


def _measured(hosts: PeerHosts, manifest: str, way: str, ended: threading.Event) -> LiveRun:
    """Start the tracker, and all daemons with nothing cached, have everything read, and end the daemons."""
    if way != SAME_AGAIN:
        # It remembers for some seconds whom it sent how much to, and evens that out: each run is to be about itself.
        hosts.tracker.kill()
        hosts.tracker.start()
    try:
        for host in hosts.hosts:
            host.start(DaemonOptions(store_url=hosts.store_url) if way == CENTRAL else hosts.options(host))
        mounts = [host.daemon.mount(manifest) for host in hosts.hosts]
        origin_before = hosts.origin.sent_bytes()
        sent_before = [host.host.sent_bytes() for host in hosts.hosts]
        complete_s = _read_all(mounts, ended, same_order=way != OWN_ORDER)
        sent = [host.host.sent_bytes() - before for host, before in zip(hosts.hosts, sent_before, strict=True)]
        return LiveRun(
            way=way,
            complete_s=complete_s,
            origin_bytes=hosts.origin.sent_bytes() - origin_before,
            sent_most_of_mean=0.0 if way == CENTRAL else max(sent) * len(sent) / sum(sent),
        )
    finally:
        for host in hosts.hosts:
            host.end()


def _read_all(mounts: Sequence[Path], ended: threading.Event, *, same_order: bool) -> float:
    """Read all files on all hosts at once, one after the other on each; return how long the last took."""
    failures: list[str] = []

    def read(number: int, root: Path) -> None:
        files = sorted(root.iterdir())
        if not same_order:
            random.Random(number).shuffle(files)
        for file in files:
            if ended.is_set():
                return
            try:
                file.read_bytes()
            except OSError as error:
                failures.append(f"{file}: {error.strerror}")

    threads = [threading.Thread(target=read, args=each) for each in enumerate(mounts)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        detail = "\n".join(failures[:5])
        raise RuntimeFailedError("a read failed", detail=detail, resolution="look at the logs of the daemons")
    return time.perf_counter() - began


def of_way(runs: Sequence[LiveRun], way: str) -> list[LiveRun]:
    """Return the runs of one way."""
    return [run for run in runs if run.way == way]


def as_row(run: LiveRun) -> dict[str, Any]:
    """Return a run as a row of the report."""
    return {
        "what": "real nodes, one run",
        "way": run.way,
        "complete_s": run.complete_s,
        "origin_layers": run.origin_bytes / LAYER_BYTES,
        "sent_most_of_mean": run.sent_most_of_mean,
    }
