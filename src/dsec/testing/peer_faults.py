"""A node of the fleet beside one that faults are done to (`dsec.testing.lazy_faults`): it holds layers, gives chunks of
them, and dies, stalls and lies.

It is the tracker as well, so that with it everything goes that knows of peers. Nothing of that may cost a read: a peer
is asked first and is never the only one. So its faults are in no account of outages.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

import anyio
import anyio.to_thread

from dsec.cli.leave import leave_host
from dsec.images.lazy.peers.seeder import SHELF
from dsec.images.lazy.serving.client import LAZY, LayerDaemon, end_daemon, kill_daemon
from dsec.images.lazy.serving.daemon_options import DaemonOptions
from dsec.images.staging import remove_tree
from dsec.node.lock import node_id
from dsec.testing.node_process import NodeProcess
from dsec.testing.server_process import free_ports

Fault = Callable[[], Awaitable[None]]


class PeerNode:
    """The peer.

    Args:
        state_dir: its own, empty.
        environment: whereby it reaches the stores.
        draw: what is drawn.

    Attributes:
        variables: what another node needs to be of its fleet.
    """

    def __init__(self, state_dir: Path, environment: Mapping[str, str], draw: random.Random) -> None:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        port, listen = free_ports(2)
        secret = state_dir / "fleet-secret"
        secret.touch(0o600)
        secret.write_text(secrets.token_hex(32))
        tracker = f"{node_id(state_dir, os.urandom)}=http://127.0.0.1:{port}"
        self.variables = {"DSEC_TRACKER": tracker, "DSEC_PEER_TOKEN_FILE": str(secret), "DSEC_PEER_STALL_S": "1"}
        self._state_dir = state_dir
        self._environment = {**environment, **self.variables, "DSEC_PEER_LISTEN": f"127.0.0.1:{listen}"}
        self._node = NodeProcess(state_dir, self._environment, tcp=True, port=port)
        self._daemon = LayerDaemon(state_dir / "images" / LAZY, DaemonOptions(store_url=""))
        self._draw = draw

    def start(self, pulls: Sequence[tuple[str, str]]) -> None:
        """Start it, and have it hold layers.

        Args:
            pulls: the URLs of stores, and images there.
        """
        assert self._node.start()
        for store, image in pulls:
            command = [sys.executable, "-m", "dsec", "--state-dir", str(self._state_dir), "image", "pull", image]
            environment = {**os.environ, **self._environment, "DSEC_STORE": store}
            done = subprocess.run([*command, "--eager"], capture_output=True, text=True, env=environment, timeout=120)
            assert done.returncode == 0, done.stderr

    def end(self) -> None:
        """End it, and take everything of it from the machine."""
        if self._node.is_running:
            self._node.stop()
        remove_tree(self._state_dir / "images" / LAZY / "mounts")
        end_daemon(self._state_dir / "images" / LAZY)
        leave_host(self._state_dir)
        remove_tree(self._state_dir)

    def faults(self) -> dict[str, Fault]:
        """Return what can be done to it, by name."""
        return {"kill peer": self._kill, "stop peer": self._stop, "peer lies": self._lie}

    async def _kill(self) -> None:
        """Node and daemon are killed, the tracker with them."""
        await anyio.to_thread.run_sync(self._node.kill)
        await anyio.to_thread.run_sync(kill_daemon, self._daemon)
        await anyio.sleep(self._draw.random())
        assert await anyio.to_thread.run_sync(self._node.start)

    async def _stop(self) -> None:
        """Whoever gives chunks stands still, in the middle of one perhaps."""
        stopped = await anyio.to_thread.run_sync(self._processes)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            await anyio.sleep(1 + 2 * self._draw.random())
        finally:
            for pid in stopped:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    async def _lie(self) -> None:
        """A bit of everything that it would give is another for a while."""
        files = [path for path in (self._state_dir / "images" / LAZY / SHELF).iterdir() if path.is_file()]
        for path in files:
            self._turn_over(path)
        await anyio.sleep(1 + self._draw.random())
        for path in files:
            self._turn_over(path)

    def _turn_over(self, path: Path) -> None:
        """Turn over the bit in the middle; done twice, nothing was done."""
        at = path.stat().st_size // 2
        with path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes(each ^ 1 for each in byte))

    def _processes(self) -> list[int]:
        """The daemon's server, and the process that gives chunks."""
        server = self._daemon.status().pid
        children = Path(f"/proc/{server}/task").glob("*/children")
        return [server, *(int(pid) for file in children for pid in file.read_text().split())]
