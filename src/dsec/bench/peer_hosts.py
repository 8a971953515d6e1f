"""Hosts that give each other chunks: real layer daemons, a tracker and an origin, each behind a link of its own.

Host 1 has the origin, a folder of objects served over HTTP (`far_store`); host 2 the tracker; each further one a daemon
with a cache of its own. They share a machine, and nothing else but the switch.
"""

from __future__ import annotations

import os
import secrets
import select
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import msgspec

from dsec.base.errors import StoreUnavailableError
from dsec.base.ids import random_body
from dsec.bench.far_store import BUCKET
from dsec.bench.switched import SwitchedHost, switched_hosts
from dsec.images.lazy.peers.settings import PeerSettings
from dsec.images.lazy.serving.client import LayerDaemon, end_daemon, kill_daemon
from dsec.images.lazy.serving.daemon_options import DaemonOptions, write_options
from dsec.images.staging import remove_tree
from dsec.sdk.tracker import tracker_overview
from dsec.service.tracking import TrackerOverview

_STORE_PORT, _TRACKER_PORT, _CHUNK_PORT = 80, 8620, 8621
_READY_S = 30.0
_POLL_S = 0.01
_ASKER = "asker"


class Service:
    """A process that says a line when it takes requests, and that can be killed and started again.

    Args:
        argv: its command line.
    """

    def __init__(self, argv: tuple[str, ...]) -> None:
        self._argv = argv
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it is ready. Raises `StoreUnavailableError`."""
        child = self._child = subprocess.Popen(
            self._argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True
        )
        assert child.stdout is not None
        if not select.select([child.stdout], [], [], _READY_S)[0] or child.stdout.readline() != b"ready\n":
            raise StoreUnavailableError(f"{' '.join(self._argv)} does not start", resolution="run it by hand")

    def kill(self) -> None:
        """Kill it. Idempotent."""
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            assert self._child.stdout is not None
            self._child.stdout.close()
            self._child = None


@dataclass
class PeerHost:
    """A host with a layer daemon.

    Attributes:
        host: where it is.
        node: its id.
        root: the daemon's directory.
        environment: what leads its daemon to the origin.
    """

    host: SwitchedHost
    node: str
    root: Path
    environment: Mapping[str, str]
    daemon: LayerDaemon = field(init=False)

    def start(self, options: DaemonOptions) -> None:
        """Start the daemon in the host's network."""
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_options(self.root, options)
        self.daemon = LayerDaemon(self.root, options)
        argv = self.host.inside(sys.executable, "-m", "dsec.images.lazy.serving.daemon", str(self.root))
        with (self.root / "daemon.log").open("ab") as log:
            subprocess.run(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, **self.environment},
                start_new_session=True,
                check=True,
            )

    def events(self) -> list[dict[str, object]]:
        """Return what its daemon said so far."""
        path = self.root / "events.jsonl"
        return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()] if path.exists() else []

    def kill(self) -> None:
        """Kill all of the daemon, as when the host dies: what is mounted fails its reads."""
        kill_daemon(self.daemon)

    def end(self) -> None:
        """End the daemon and forget its cache. Idempotent."""
        remove_tree(self.root / "mounts")
        end_daemon(self.root)
        remove_tree(self.root)


@dataclass
class PeerHosts:
    """What `peer_hosts` made.

    Attributes:
        origin: the host with the origin.
        store: the origin's folder.
        store_url: as the setting `store` of a daemon.
        tracker: the tracker's process.
        hosts: those with daemons, which are not started yet.
    """

    origin: SwitchedHost
    store: Path
    store_url: str
    tracker_host: SwitchedHost
    tracker: Service
    tracker_setting: str
    secret_file: Path
    hosts: list[PeerHost]

    def overview(self) -> TrackerOverview:
        """Return what the tracker knows. Raises `NodeUnavailableError`."""

        async def ask() -> TrackerOverview:
            return await tracker_overview(_ASKER, self.tracker_setting, self.secret_file)

        return self.tracker_host.call(lambda: anyio.run(ask))

    def options(self, host: PeerHost, **peers: object) -> DaemonOptions:
        """Return the options of a host's daemon that has peers.

        Args:
            host: which.
            peers: fields of `PeerSettings` that are to be others.
        """
        settings = PeerSettings(
            node=host.node,
            secret_file=str(self.secret_file),
            tracker=self.tracker_setting,
            listen=f"{host.host.address}:{_CHUNK_PORT}",
        )
        return DaemonOptions(store_url=self.store_url, peers=msgspec.structs.replace(settings, **peers))


@contextmanager
def peer_hosts(directory: Path, count: int) -> Iterator[PeerHosts]:
    """Make hosts, with the origin and the tracker running, and end everything at the end. Needs root.

    Args:
        directory: where all of it is kept.
        count: of hosts with daemons.
    """
    store, secret_file = directory / "store", directory / "peer-token"
    store.mkdir(parents=True)
    secret_file.touch(0o600)
    secret_file.write_text(secrets.token_hex(32))
    with ExitStack() as stack:
        origin, tracking, *others = stack.enter_context(switched_hosts(2 + count))
        run = (sys.executable, "-m")
        serve = (*run, "dsec.bench.far_store", str(store), origin.address, str(_STORE_PORT))
        node = random_body(5, os.urandom)
        track = (*run, "dsec.bench.tracker_host", node, str(secret_file), tracking.address, str(_TRACKER_PORT))
        services = [Service(origin.inside(*serve)), Service(tracking.inside(*track))]
        for service in services:
            stack.callback(service.kill)
            service.start()
        environment = {"AWS_ENDPOINT_URL": f"http://{origin.address}", "AWS_SKIP_SIGNATURE": "true"}
        hosts = [
            PeerHost(host, random_body(5, os.urandom), directory / f"host{number}", environment)
            for number, host in enumerate(others, 1)
        ]
        for host in hosts:
            stack.callback(host.end)
        yield PeerHosts(
            origin=origin,
            store=store,
            store_url=f"s3://{BUCKET}",
            tracker_host=tracking,
            tracker=services[1],
            tracker_setting=f"{node}=http://{tracking.address}:{_TRACKER_PORT}",
            secret_file=secret_file,
            hosts=hosts,
        )
