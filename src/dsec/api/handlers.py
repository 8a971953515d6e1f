"""What each route does: one short function per operation, from a decoded `Call` to the service.

Value handlers return what is to be encoded (None: nothing); octet handlers return an iterator of bytes; event handlers
are context managers around an iterator of events.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from dsec import __version__
from dsec.api import wire
from dsec.api.body import PacedStream
from dsec.api.openapi import document
from dsec.api.peers import open_gate
from dsec.api.routes import METADATA_PREFIX, EventsQuery, ImageQuery, LayersQuery
from dsec.base.errors import CapabilityMissingError, InvalidRequestError
from dsec.model.peer_proof import PeerGate
from dsec.model.sandbox import SandboxFilter
from dsec.model.state import JobAction
from dsec.service.fleet import FleetService, HasFleet
from dsec.service.images import HasImages, ImageService
from dsec.service.migration import ID_LENGTH, PREFIX, MigrationOffer
from dsec.service.peers import HasPeerSide, Peer
from dsec.service.pools import HasPools, PoolService
from dsec.service.port import CommandStream, SandboxService
from dsec.service.prefetch import HasPrefetch
from dsec.service.state import HasState, StateService
from dsec.service.tracking import HasTracker, TrackerService

_MIGRATION_ID = re.compile(f"{PREFIX}-[0-9a-z]{{{ID_LENGTH}}}")


@dataclass(slots=True)
class Call:
    """One request: the service, path parameters, query and body, all decoded; the peers' gate, and which peer calls."""

    service: SandboxService
    path: dict[str, str]
    query: Any = None
    body: Any = None
    gate: PeerGate | None = None
    peer: str = ""

    async def paused_s(self) -> float:
        """Return how long the sandbox was paused, all in all."""
        return (await self.service.inspect(self.sandbox_id)).paused_s

    @property
    def sandbox_id(self) -> str:
        return self.path["sandbox_id"]


async def health(call: Call) -> object:
    return wire.Health(status="ok", version=__version__)


async def openapi(call: Call) -> object:
    return document()


async def node(call: Call) -> object:
    return await call.service.node()


async def images(call: Call) -> object:
    return await call.service.images()


async def capabilities(call: Call) -> object:
    return await call.service.capabilities()


def _images(call: Call) -> ImageService:
    if not isinstance(call.service, HasImages):
        raise CapabilityMissingError("this service brings no images anywhere", resolution="talk to a node")
    return call.service.image_work


def pull_image(call: Call) -> AbstractAsyncContextManager[AsyncIterator[object]]:
    return _images(call).pull(call.body)


def publish_image(call: Call) -> AbstractAsyncContextManager[AsyncIterator[object]]:
    return _images(call).publish(call.body)


def push_image(call: Call) -> AbstractAsyncContextManager[AsyncIterator[object]]:
    return _images(call).push(call.body)


def verify_image(call: Call) -> AbstractAsyncContextManager[AsyncIterator[object]]:
    return _images(call).verify(call.body)


async def image_work(call: Call) -> object:
    return list(await _images(call).running())


async def cancel_image_work(call: Call) -> None:
    await _images(call).cancel(call.path["work_id"])


async def image_layers(call: Call) -> object:
    query: LayersQuery = call.query
    toolkits = tuple(name for name in query.toolkits.split(",") if name)
    return await _images(call).layers(query.image, query.workspace, toolkits)


async def image_statistics(call: Call) -> object:
    query: ImageQuery = call.query
    return list(await _images(call).statistics(query.image))


async def prefetch(call: Call) -> object:
    if not isinstance(call.service, HasPrefetch):
        raise CapabilityMissingError("this service prefetches nothing", resolution="talk to a node")
    return await call.service.prefetch.hint(call.body)


def _pools(call: Call) -> PoolService:
    if not isinstance(call.service, HasPools):
        raise CapabilityMissingError("this service keeps no pools", resolution="talk to a node")
    return call.service.pools


async def list_pools(call: Call) -> object:
    return await _pools(call).list_pools()


async def set_pool(call: Call) -> object:
    body: wire.SetPoolRequest = call.body
    return await _pools(call).set_pool(body.spec, body.change)


async def remove_pool(call: Call) -> None:
    await _pools(call).remove_pool(call.path["pool_id"])


async def events(call: Call) -> object:
    query: EventsQuery = call.query
    return await _pools(call).events(since_s=query.since_s, task=query.task)


def _state(call: Call) -> StateService:
    if not isinstance(call.service, HasState):
        raise CapabilityMissingError("this service keeps no state", resolution="talk to a node")
    return call.service.state


async def checkpoint(call: Call) -> object:
    return await _state(call).checkpoint(call.sandbox_id, call.body)


async def list_checkpoints(call: Call) -> object:
    return await _state(call).list_checkpoints(call.sandbox_id)


async def remove_checkpoint(call: Call) -> None:
    await _state(call).remove_checkpoint(call.sandbox_id, call.path["checkpoint"])


async def fork(call: Call) -> object:
    return await _state(call).fork(call.sandbox_id, call.body)


async def snapshot(call: Call) -> object:
    return await _state(call).snapshot(call.sandbox_id, call.body)


async def list_snapshots(call: Call) -> object:
    return await _state(call).list_snapshots()


async def restore(call: Call) -> object:
    return await _state(call).restore(call.path["snapshot"], call.body)


async def remove_snapshot(call: Call) -> None:
    await _state(call).remove_snapshot(call.path["snapshot"])


async def pack(call: Call) -> object:
    return await _state(call).pack(call.sandbox_id, call.body)


async def migrate(call: Call) -> object:
    return await _state(call).migrate(call.sandbox_id, call.body)


async def fingerprint(call: Call) -> object:
    return await _state(call).fingerprint(call.sandbox_id)


async def list_jobs(call: Call) -> object:
    return await _state(call).list_jobs()


async def create(call: Call) -> object:
    body: wire.CreateRequest = call.body
    return await call.service.create(body.spec, sandbox_id=body.sandbox_id, timeout_s=body.timeout_s)


async def list_sandboxes(call: Call) -> object:
    return await call.service.list(call.query)


async def inspect(call: Call) -> object:
    return await call.service.inspect(call.sandbox_id)


async def remove(call: Call) -> None:
    await call.service.remove(call.sandbox_id)


async def statistics(call: Call) -> object:
    return await call.service.statistics(call.sandbox_id)


async def extend(call: Call) -> object:
    return await call.service.extend(call.sandbox_id, call.body)


async def pause(call: Call) -> object:
    return await call.service.pause(call.sandbox_id, keep_memory=call.query.keep_memory)


async def resume(call: Call) -> object:
    return await call.service.resume(call.sandbox_id)


async def rollback(call: Call) -> object:
    return await call.service.rollback(call.sandbox_id, snapshot=call.body.snapshot)


async def end_processes(call: Call) -> None:
    await call.service.end_processes(call.sandbox_id)


async def stop(call: Call) -> object:
    return await call.service.stop(call.sandbox_id)


async def run(call: Call) -> object:
    return await call.service.run(call.path["sandbox_id"], call.body)


async def start_process(call: Call) -> object:
    return await call.service.start_process(call.sandbox_id, call.body)


async def list_processes(call: Call) -> object:
    return await call.service.list_processes(call.sandbox_id)


async def wait_process(call: Call) -> object:
    timeout_s = call.body.timeout_s
    return await call.service.wait_process(call.sandbox_id, call.path["process_id"], timeout_s=timeout_s)


async def signal_process(call: Call) -> None:
    await call.service.signal_process(call.sandbox_id, call.path["process_id"], call.body.number)


async def open_session(call: Call) -> object:
    return await call.service.open_session(call.sandbox_id, call.body)


async def run_in_session(call: Call) -> object:
    return await call.service.run_in_session(call.sandbox_id, call.path["session_id"], call.body)


async def close_session(call: Call) -> None:
    await call.service.close_session(call.sandbox_id, call.path["session_id"])


async def write_file(call: Call) -> object:
    query = call.query
    return await call.service.write_file(
        call.sandbox_id,
        query.path,
        call.body,
        append=query.append,
        permissions=int(query.permissions, 8),
        user=query.user,
    )


async def remove_file(call: Call) -> None:
    query = call.query
    await call.service.remove_file(call.sandbox_id, query.path, recursive=query.recursive, user=query.user)


async def stat_file(call: Call) -> object:
    return await call.service.stat_file(call.sandbox_id, call.query.path, user=call.query.user)


async def list_files(call: Call) -> object:
    query = call.query
    return await call.service.list_files(call.sandbox_id, query.path, depth=query.depth, user=query.user)


async def make_directory(call: Call) -> object:
    created = await call.service.make_directory(call.sandbox_id, call.query.path, user=call.query.user)
    return wire.DirectoryMade(created=created)


async def move_file(call: Call) -> None:
    query = call.query
    await call.service.move_file(call.sandbox_id, query.source, query.target, user=query.user)


async def upload(call: Call) -> None:
    await call.service.upload(call.sandbox_id, call.query.path, call.body, user=call.query.user)


def _fleet(call: Call) -> FleetService:
    if not isinstance(call.service, HasFleet):
        raise CapabilityMissingError("this service has no peers", resolution="talk to a node")
    return call.service.fleet


async def fleet(call: Call) -> object:
    return await _fleet(call).look()


def drain(call: Call) -> AbstractAsyncContextManager[AsyncIterator[object]]:
    return _fleet(call).drain(call.body)


async def undo_drain(call: Call) -> None:
    await _fleet(call).undo_drain()


def _side(call: Call) -> Peer:
    if not isinstance(call.service, HasPeerSide):
        raise CapabilityMissingError("this service takes no sandboxes of peers", resolution="talk to a node")
    return call.service.migrations


def _migration(call: Call) -> str:
    migration_id = call.path["migration_id"]
    if _MIGRATION_ID.fullmatch(migration_id) is None:
        raise InvalidRequestError(f"{migration_id[:80]!r} is not the id of a migration")
    return migration_id


async def peer_hello(call: Call) -> object:
    return open_gate(call.gate).answer(call.body)


async def peer_view(call: Call) -> object:
    return await _side(call).view()


async def peer_offer(call: Call) -> object:
    offer: MigrationOffer = call.body
    if offer.source != call.peer:
        raise InvalidRequestError(f"the peer {call.peer} offers a sandbox in the name of {offer.source[:40]!r}")
    return await _side(call).offer(offer)


async def peer_status(call: Call) -> object:
    return await _side(call).status(_migration(call))


async def peer_round(call: Call) -> object:
    return await _side(call).round(_migration(call), call.query, PacedStream(call.body))


async def peer_commit(call: Call) -> None:
    await _side(call).commit(_migration(call), call.body)


async def peer_release(call: Call) -> object:
    return await _side(call).release(_migration(call))


async def peer_abort(call: Call) -> None:
    await _side(call).abort(_migration(call))


def _tracker(call: Call) -> TrackerService:
    if not isinstance(call.service, HasTracker):
        raise CapabilityMissingError("this service is no tracker of chunks", resolution="ask a node")
    return call.service.tracker


def _in_own_name(call: Call, node: str) -> None:
    if node != call.peer:
        raise InvalidRequestError(f"the peer {call.peer} speaks of chunks in the name of {node[:40]!r}")


def _announced(call: Call) -> object:
    _in_own_name(call, call.body.node)
    return _tracker(call).announce(call.body)


def _looked_up(call: Call) -> object:
    _in_own_name(call, call.body.node)
    return _tracker(call).look_up(call.body)


def _reported(call: Call) -> None:
    _in_own_name(call, call.body.node)
    _tracker(call).report(call.body)


async def tracker_announce(call: Call) -> object:
    return _announced(call)


async def tracker_look_up(call: Call) -> object:
    return _looked_up(call)


async def tracker_report(call: Call) -> None:
    _reported(call)


async def tracker_overview(call: Call) -> object:
    return _tracker(call).overview()


def read_file(call: Call) -> AsyncIterator[bytes]:
    return call.service.read_file(call.sandbox_id, call.query.path, user=call.query.user)


def download(call: Call) -> AsyncIterator[bytes]:
    return call.service.download(call.sandbox_id, call.query.path, user=call.query.user)


async def _command_events(command: CommandStream) -> AsyncIterator[object]:
    yield wire.StartedEvent(process_id=command.process_id)
    async for event in command:
        yield event


@asynccontextmanager
async def stream(call: Call) -> AsyncIterator[AsyncIterator[object]]:
    if call.body.keep_stdin_open:
        raise InvalidRequestError(
            "a stream cannot take input after its start", resolution="use the WebSocket at .../terminal"
        )
    async with call.service.stream(call.sandbox_id, call.body) as command:
        yield _command_events(command)


@asynccontextmanager
async def process_events(call: Call) -> AsyncIterator[AsyncIterator[object]]:
    async with call.service.attach(call.sandbox_id, call.path["process_id"]) as command:
        yield _command_events(command)


@asynccontextmanager
async def watch_files(call: Call) -> AsyncIterator[AsyncIterator[object]]:
    query = call.query
    watch = call.service.watch_files(call.sandbox_id, query.path, recursive=query.recursive, user=query.user)
    async with watch as changes:

        async def events() -> AsyncIterator[object]:
            yield wire.WatchingEvent()
            async for change in changes:
                yield wire.ChangeEvent(change=change)

        yield events()


def pause_job(call: Call) -> AbstractAsyncContextManager[AsyncIterator[object]]:
    return _state(call).change_job(call.path["job"], JobAction.PAUSE, keep_memory=call.query.keep_memory)


def resume_job(call: Call) -> AbstractAsyncContextManager[AsyncIterator[object]]:
    return _state(call).change_job(call.path["job"], JobAction.RESUME)


VALUE_HANDLERS: Mapping[str, Callable[[Call], Awaitable[object]]] = {
    "list": list_sandboxes,
    **{
        handler.__name__: handler
        for handler in (
            health, openapi, node, images, image_work, cancel_image_work, image_layers, image_statistics,
            prefetch,
            capabilities, create, inspect, remove, statistics, extend, pause,
            resume, rollback, end_processes, stop, run, start_process, list_processes, wait_process, signal_process,
            open_session, run_in_session, close_session, write_file, remove_file, stat_file, list_files,
            make_directory, move_file, upload, list_pools, set_pool, remove_pool, events,
            checkpoint, list_checkpoints, remove_checkpoint, fork, snapshot, list_snapshots, restore, remove_snapshot,
            pack, migrate, fingerprint, list_jobs,
            fleet, undo_drain,
            peer_hello, peer_view, peer_offer, peer_status, peer_round, peer_commit, peer_release, peer_abort,
            tracker_announce, tracker_look_up, tracker_report, tracker_overview,
        )
    },
}  # fmt: skip
OCTET_HANDLERS: Mapping[str, Callable[[Call], AsyncIterator[bytes]]] = {"read_file": read_file, "download": download}
EVENT_HANDLERS: Mapping[str, Callable[[Call], AbstractAsyncContextManager[AsyncIterator[object]]]] = {
    "stream": stream,
    "process_events": process_events,
    "watch_files": watch_files,
    "pause_job": pause_job,
    "resume_job": resume_job,
    "drain": drain,
    "pull_image": pull_image,
    "publish_image": publish_image,
    "push_image": push_image,
    "verify_image": verify_image,
}


def filter_of(pairs: list[tuple[str, str]]) -> SandboxFilter:
    """Build the filter of a listing from its query.

    Raises:
        InvalidRequestError: a parameter is unknown or names no state.
    """
    metadata: dict[str, str] = {}
    states: list[str] = []
    for key, value in pairs:
        if key.startswith(METADATA_PREFIX):
            metadata[key.removeprefix(METADATA_PREFIX)] = value
        elif key == "state":
            states.append(value)
        else:
            raise InvalidRequestError(f"unknown query parameter `{key}`", resolution="use state or metadata.KEY")
    query: SandboxFilter = wire.decode(
        wire.encode({"metadata": metadata, "states": states}, msgpack=True), SandboxFilter, msgpack=True
    )
    return query


SHORT_HANDLERS: Mapping[str, Callable[[Call], object]] = {
    tracker_announce.__name__: _announced,
    tracker_look_up.__name__: _looked_up,
    tracker_report.__name__: _reported,
}
"""Of routes of which nothing waits; they raise before they have done anything (`dsec.api.short`)."""
