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
from dsec.base.errors import DeadlineExceededError, InvalidStateError
from dsec.base.units import MIB, format_duration
from dsec.cli.connection import open_service
from dsec.cli.context import Options, pass_options
from dsec.cli.leave import leave_host
from dsec.cli.output import note, print_fields, print_json_line
from dsec.cli.parameters import duration
from dsec.cli.settings import load
from dsec.cli.token import obtain_token
from dsec.cli.watched import Watched
from dsec.linux.malloc import keep_freed_memory
from dsec.model.sandbox import SandboxFilter, SandboxState
from dsec.node import namespace
from dsec.sdk.background import is_held
from dsec.sdk.pools import pools_of

if TYPE_CHECKING:
    from dsec.api.peers import PeerGate
    from dsec.api.server import Serving
    from dsec.node.settings import NodeSettings
    from dsec.service.port import SandboxService

DEFAULT_PORT = 8620
_STOP_TIMEOUT_S = 60.0
"""A graceful shutdown lets requests finish; see `dsec.api.application.Limits.grace_s`."""


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
            watched = Watched(node, SystemClock())
            gate = None if socket_only else await _gate(settings, node)
            async with _serve(watched.service, loaded.state_dir, host, None if socket_only else port, gate) as serving:
                # Whoever reads where the node is may end it at once.
                with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                    _announce(serving, loaded.state_dir, as_json=as_json)
                    why = await _wait_end(signals, watched, exit_when_idle)
                note(f"{why}: shutting down; sandboxes stay")

    options.run_alone(run)


@asynccontextmanager
async def _open_node(settings: NodeSettings, *, reachable: bool) -> AsyncIterator[SandboxService]:
    """Be the node. Only one that its peers can reach may move sandboxes: what they are in doubt about they ask it."""
    from dsec.node.builder import open_node
    from dsec.sdk.peers import HttpPeers, secret_file

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
    if not settings.peers:
        return None
    from dsec.api.peers import PeerGate, read_secret
    from dsec.sdk.peers import secret_file

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


async def _wait_end(signals: AsyncIterator[signal.Signals], watched: Watched, idle_s: float | None) -> str:
    """Wait for a signal or for idleness; return which."""
    reasons: list[str] = []
    async with anyio.create_task_group() as group:

        async def wait_signal() -> None:
            async for number in signals:
                reasons.append(number.name)
                group.cancel_scope.cancel()
                return

        async def wait_idle(limit_s: float) -> None:
            await watched.wait_idle(limit_s)
            reasons.append(f"idle for {format_duration(limit_s)}")
            group.cancel_scope.cancel()

        group.start_soon(wait_signal)
        if idle_s is not None:
            group.start_soon(wait_idle, idle_s)
    return reasons[0]


@click.command(name="down")
@click.option("--destroy", is_flag=True, help="Destroy and forget all sandboxes and pools first.")
@pass_options
def down(options: Options, destroy: bool) -> None:
    """Stop the node of this host. Sandboxes stay, and the next node takes them over.

    With --destroy nothing of it stays on the host but the files of its state directory.
    """
    state_dir = options.state_dir
    if destroy and (state_dir / "node.id").exists():
        removed = options.run_alone(lambda: _destroy_all(options))
        note(f"{removed} sandboxes destroyed")
    if is_held(state_dir):
        pid = holder(state_dir)
        options.run_alone(lambda: _end(pid))
        note(f"the node in {state_dir} (process {pid}) has ended")
    else:
        note(f"no node runs in {state_dir}")
    if destroy and state_dir.is_dir():
        for target in leave_host(state_dir):
            note(f"still in use: {target}")
        namespace.leave(state_dir)


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


def holder(state_dir: Path) -> int:
    """Return the process id of the node that holds the state directory.

    Raises:
        InvalidStateError: a program that embeds its node holds it; ending that is not ours to do.
    """
    try:
        pid = int((state_dir / "node.lock").read_text())
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError) as error:
        raise InvalidStateError(f"who holds {state_dir} cannot be told", detail=str(error)) from error
    if b"up" not in argv:
        command = b" ".join(argv).decode(errors="replace").strip()
        raise InvalidStateError(
            f"process {pid} has the node of {state_dir} inside it",
            detail=command,
            resolution="end that program instead",
        )
    return pid


async def _end(pid: int) -> None:
    """Ask the node to end and wait until its process has."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        signal.pidfd_send_signal(process, signal.SIGTERM)
        with anyio.fail_after(_STOP_TIMEOUT_S):
            await anyio.wait_readable(process)  # A process descriptor is readable once the process has ended.
    except ProcessLookupError:
        return
    except TimeoutError as error:
        raise DeadlineExceededError(
            f"process {pid} has not ended after {_STOP_TIMEOUT_S:g} s", resolution=f"kill -9 {pid}: nothing is lost"
        ) from error
    finally:
        os.close(process)
