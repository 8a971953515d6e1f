"""`dsec worker up`: be the worker of this host until somebody ends it, or nobody needs it."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import anyio
import click

from dsec.base.clock import SystemClock
from dsec.base.errors import DsecError, InvalidRequestError
from dsec.cli.connection import open_service, start_node
from dsec.cli.context import Options, pass_options
from dsec.cli.lazy import HELP_OPTIONS
from dsec.cli.output import note, print_fields, print_json_line
from dsec.cli.parameters import duration
from dsec.cli.serving import wait_end
from dsec.cli.token import obtain_token
from dsec.cli.watched import Watched
from dsec.cli.worker import directory_of, worker_dir_option
from dsec.episode.spec import EpisodeEvent, EpisodeFilter, EpisodeState
from dsec.sdk.background import NODE, WORKER
from dsec.sdk.connect import answers
from dsec.sdk.state import state_of
from dsec.service.episodes import EpisodeService

if TYPE_CHECKING:
    from dsec.api.server import Serving, TcpAddress
    from dsec.service.port import SandboxService
    from dsec.worker.episodes.worker import EpisodeWorker

DEFAULT_LOOPS = 1000
_NODE_LOOK_S = 1.0
"""How often is looked whether the node of this host is there. One that was killed is started again, before its episodes
have used up their tries."""
_NODE_TOUCH_LOOKS = 30
"""So many looks apart it is asked something: a node in the background leaves when nobody ever does."""
_BUSY = EpisodeFilter(states=(EpisodeState.QUEUED, EpisodeState.RUNNING))
"""Episodes that need their worker. The others wait on the disk for the next one as well."""


@click.command(name="up", context_settings=HELP_OPTIONS)
@worker_dir_option
@click.option("--listen", metavar="HOST:PORT", help="Serve TCP there too, with the token in the file `token`.")
@click.option("--store", metavar="URL", help="Copy logs to file:///path or s3://bucket/prefix.  [nowhere]")
@click.option(
    "--loops", type=click.IntRange(min=1), default=DEFAULT_LOOPS, show_default=True, help="Episodes that go on at once."
)
@click.option("--exit-when-idle", type=duration, help="Leave after this time without a request and a running episode.")
@click.option("--json", "as_json", is_flag=True, help="Print where it is heard as one line of JSON.")
@pass_options
def up(
    options: Options,
    worker_dir: Path | None,
    listen: str | None,
    store: str | None,
    loops: int,
    exit_when_idle: float | None,
    as_json: bool,
) -> None:
    """Drive the episodes of a state directory until SIGTERM or SIGINT: those that had not ended, and new ones.

    Their sandboxes are those of the node that --url names, or of this host's, which is started when none runs. When the
    worker ends, episodes stand still; the next one goes on with them, whether this one was told to end or killed.

    The owner of the state directory needs no token at worker.sock. The keys of models are variables of this process.
    """
    directory = directory_of(options, worker_dir)
    address = None if listen is None else _address(listen)

    async def run() -> None:
        async with (
            _open_node(options) as service,
            _open_worker(directory, service, store, loops) as worker,
            _serve(worker, directory, address) as (serving, watched),
        ):
            # Whoever reads where the worker is may end it at once.
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                _announce(serving, directory, as_json=as_json)
                why = await wait_end(signals, exit_when_idle, watched.wait_idle)
            note(f"{why}: shutting down; episodes go on with the next worker")

    options.run_alone(run, fast=True)


def _address(listen: str) -> tuple[str, int]:
    """Return host and port.

    Raises:
        InvalidRequestError: the text is not of that form.
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65_535:
        raise InvalidRequestError(
            f"{listen!r} is not HOST:PORT", resolution="write an address and a port, such as 127.0.0.1:8621"
        )
    return host.strip("[]"), int(port)


@asynccontextmanager
async def _open_node(options: Options) -> AsyncIterator[SandboxService]:
    """Connect to the node, and see to it that it stays: its episodes would all fail with it."""
    async with open_service(options) as service, anyio.create_task_group() as group:
        if not options.url:
            group.start_soon(_look_after, options, service)
        yield service
        group.cancel_scope.cancel()


async def _look_after(options: Options, service: SandboxService) -> None:
    for look in itertools.count():
        await anyio.sleep(_NODE_LOOK_S)
        try:
            if not await answers(options.state_dir / NODE.socket):
                await start_node(options, options.state_dir)
            elif look % _NODE_TOUCH_LOOKS == 0:
                await service.node()
        except DsecError as error:
            note(f"the node of {options.state_dir} does not answer: {error.brief}")


@asynccontextmanager
async def _open_worker(
    directory: Path, service: SandboxService, store: str | None, loops: int
) -> AsyncIterator[EpisodeWorker]:
    from dsec.stores.opening import open_store
    from dsec.worker.episodes.parts import WorkerSettings
    from dsec.worker.episodes.standard import standard_worker

    opened = None if store is None else open_store(store)
    try:
        settings = WorkerSettings(at_once=loops)
        async with standard_worker(directory, service, state_of(service), opened, settings) as worker:
            yield worker
    finally:
        if opened is not None:
            await opened.aclose()


@asynccontextmanager
async def _serve(
    worker: EpisodeWorker, directory: Path, address: tuple[str, int] | None
) -> AsyncIterator[tuple[Serving, Watched[EpisodeService]]]:
    from dsec.api.episode_server import serve_episodes

    followed = _Followed(worker)
    watched: Watched[EpisodeService] = Watched(cast(EpisodeService, followed), SystemClock(), followed.is_needed)
    tcp = None if address is None else _tcp(directory, address)
    async with serve_episodes(watched.service, tcp=tcp, socket_path=directory / WORKER.socket) as serving:
        yield serving, watched


class _Followed:
    """A worker that knows whether anybody follows one of its episodes."""

    def __init__(self, worker: EpisodeWorker) -> None:
        self._worker = worker
        self._followers = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    @asynccontextmanager
    async def events(
        self, episode_id: str, from_sequence: int = 1, *, follow: bool = True
    ) -> AsyncIterator[AsyncIterator[EpisodeEvent]]:
        self._followers += 1
        try:
            async with self._worker.events(episode_id, from_sequence, follow=follow) as events:
                yield events
        finally:
            self._followers -= 1

    async def is_needed(self, _: EpisodeService) -> bool:
        return self._followers > 0 or bool(await self._worker.list(_BUSY))


def _tcp(directory: Path, address: tuple[str, int]) -> TcpAddress:
    from dsec.api.server import TcpAddress

    host, port = address
    return TcpAddress(token=obtain_token(directory / "token"), host=host, port=port)


def _announce(serving: Serving, directory: Path, *, as_json: bool) -> None:
    """Say where the worker is heard, and where the token is: never the token itself, which logs would keep."""
    where = {"socket": str(serving.socket_path), "pid": str(os.getpid())}
    if serving.url:
        where = {"url": serving.url, "token_file": str(directory / "token"), **where}
    if as_json:
        print_json_line(where)
    else:
        print_fields(where.items())
