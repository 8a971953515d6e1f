"""`dsec up` and `dsec down`: run this host's node in the foreground and serve its API; stop it."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import click
import msgspec

from dsec.base.clock import SystemClock
from dsec.base.units import MIB
from dsec.cli.connection import open_service
from dsec.cli.context import Options, pass_options
from dsec.cli.leave import leave_host, may_have_sandboxes
from dsec.cli.output import note, print_fields, print_json_line
from dsec.cli.parameters import duration
from dsec.cli.serving import end_process, holder, wait_end
from dsec.cli.settings import load
from dsec.cli.token import obtain_token
from dsec.cli.watched import Watched, has_sandboxes
from dsec.linux.malloc import keep_freed_memory
from dsec.model.sandbox import SandboxFilter, SandboxState
from dsec.node import namespace
from dsec.sdk.background import WORKER, is_held
from dsec.sdk.pools import pools_of
from dsec.sdk.workers import worker_state_dir

if TYPE_CHECKING:
    from dsec.api.server import Serving
    from dsec.model.peer_proof import PeerGate
    from dsec.node.settings import NodeSettings
    from dsec.service.port import SandboxService

DEFAULT_PORT = 8620


@click.command(name="up")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=DEFAULT_PORT, show_default=True, help="0: any free one."
)
@click.option("--socket-only", is_flag=True, help="Serve node.sock alone, without TCP.")
@click.option("--exit-when-idle", type=duration, help="Leave after this time without a request and without a sandbox.")
@click.option("--json", "as_json", is_flag=True, help="Print where it is heard as one line of JSON.")
@pass_options
def up(options: Options, host: str, port: int, socket_only: bool, exit_when_idle: float | None, as_json: bool) -> None:
    """Run the node of this host and serve its API until SIGTERM or SIGINT. Sandboxes outlive it.

    The API listens on loopback; callers need the token in the state directory's file `token`, which its owner alone can
    read. The owner of the state directory needs no token at node.sock.

    An ordinary user's node enters a user namespace first, which stays while its sandboxes do.
    """
    loaded = load(options)
    namespace.enter(loaded.state_dir)
    keep_freed_memory(block_bytes=4 * MIB, free_bytes=16 * MIB)

    settings = msgspec.structs.replace(loaded.settings, state_dir=str(loaded.state_dir))

    async def run() -> None:
        async with _open_node(settings, reachable=not socket_only) as node:
            watched = Watched(node, SystemClock(), has_sandboxes)
            gate = None if socket_only else await _gate(settings, node)
            async with _serve(watched.service, loaded.state_dir, host, None if socket_only else port, gate) as serving:
                # Whoever reads where the node is may end it at once.
                with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                    _announce(serving, loaded.state_dir, as_json=as_json)
                    why = await wait_end(signals, exit_when_idle, watched.wait_idle)
                note(f"{why}: shutting down; sandboxes stay")

    options.run_alone(run)


@asynccontextmanager
async def _open_node(settings: NodeSettings, *, reachable: bool) -> AsyncIterator[SandboxService]:
    """Be the node. Only one that its peers can reach may move sandboxes: what they are in doubt about they ask it."""
    from dsec.node.builder import open_node
    from dsec.node.settings import secret_file
    from dsec.sdk.peers import HttpPeers

    opened: list[HttpPeers] = []

    def peers(own: str) -> HttpPeers:
        opened.append(HttpPeers(own, settings.peers, secret_file(settings)))
        return opened[0]

    try:
        async with open_node(settings, peers=peers if reachable else None) as node:
            yield node
    finally:
        for each in opened:
            each.close()


async def _gate(settings: NodeSettings, node: SandboxService) -> PeerGate | None:
    """Return what lets the node's peers in; None: it has none."""
    if not settings.peers and not settings.tracker:
        return None
    from dsec.base.secret_file import read_secret
    from dsec.model.peer_proof import PeerGate
    from dsec.node.settings import secret_file

    return PeerGate((await node.node()).node, read_secret(secret_file(settings)))


def _serve(
    service: SandboxService, state_dir: Path, host: str, port: int | None, gate: PeerGate | None
) -> AbstractAsyncContextManager[Serving]:
    from dsec.api.server import TcpAddress, serve

    tcp = None if port is None else TcpAddress(token=obtain_token(state_dir / "token"), host=host, port=port)
    return serve(service, tcp=tcp, socket_path=state_dir / "node.sock", gate=gate)


def _announce(serving: Serving, state_dir: Path, *, as_json: bool) -> None:
    """Say where the node is heard, and where the token is: never the token itself, which logs would keep."""
    where = {"socket": str(serving.socket_path), "pid": str(os.getpid())}
    if serving.url:
        where = {"url": serving.url, "token_file": str(state_dir / "token"), **where}
    if as_json:
        print_json_line(where)
    else:
        print_fields(where.items())


@click.command(name="down")
@click.option("--destroy", is_flag=True, help="Destroy and forget all sandboxes and pools first.")
@pass_options
def down(options: Options, destroy: bool) -> None:
    """Stop the node of this host, and its worker. Sandboxes and episodes stay; the next node and worker take them over.

    With --destroy nothing of it stays on the host but the files of its state directory.
    """
    state_dir = options.state_dir
    _end_worker(options, worker_state_dir(state_dir))
    if destroy and (state_dir / "node.id").exists():
        if is_held(state_dir) or may_have_sandboxes(state_dir):
            removed = options.run_alone(lambda: _destroy_all(options))
            note(f"{removed} sandboxes destroyed")
        else:
            note(f"there are no sandboxes in {state_dir}")
    if is_held(state_dir):
        pid = holder(state_dir)
        options.run_alone(lambda: end_process(pid))
        note(f"the node in {state_dir} (process {pid}) has ended")
    else:
        note(f"no node runs in {state_dir}")
    if destroy and state_dir.is_dir():
        for target in leave_host(state_dir):
            note(f"still in use: {target}")
        namespace.leave(state_dir)


def _end_worker(options: Options, worker_dir: Path) -> None:
    """End the worker first: it would start the node again, which its episodes need."""
    if is_held(worker_dir, WORKER):
        pid = holder(worker_dir, WORKER)
        options.run_alone(lambda: end_process(pid))
        note(f"the worker in {worker_dir} (process {pid}) has ended")


async def _destroy_all(options: Options) -> int:
    async with open_service(options) as service:
        pools = pools_of(service)
        for pool in await pools.list_pools():
            # Before the sandboxes: what comes back to a pool is kept for the next task.
            await pools.remove_pool(pool.pool_id)
        found = await service.list(SandboxFilter(states=tuple(SandboxState)))
        async with anyio.create_task_group() as group:
            limiter = anyio.CapacityLimiter(16)

            async def remove(sandbox_id: str) -> None:
                async with limiter:
                    await service.remove(sandbox_id)

            for info in found:
                group.start_soon(remove, info.sandbox_id)
    return len(found)
