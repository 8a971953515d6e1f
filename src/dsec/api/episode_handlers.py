"""What each route of a worker's server does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from dsec import __version__
from dsec.api import episode_wire, wire
from dsec.api.episode_routes import EPISODE_ROUTES
from dsec.api.face import Face
from dsec.api.handlers import Call
from dsec.api.heartbeat import beating
from dsec.api.openapi import episode_document
from dsec.api.routes import METADATA_PREFIX
from dsec.base.errors import CapabilityMissingError, InvalidRequestError
from dsec.episode.identity import check_episode_id
from dsec.episode.spec import EpisodeEvent, EpisodeFilter
from dsec.service.episodes import EpisodeService, HasEpisodes


@dataclass(frozen=True, slots=True)
class Worker:
    """What a worker's server serves.

    Attributes:
        episodes: what drives them.
        heartbeat_s: see `episode_wire.HEARTBEAT_S`.
    """

    episodes: EpisodeService
    heartbeat_s: float = episode_wire.HEARTBEAT_S


def _episodes(call: Call) -> EpisodeService:
    if not isinstance(call.service, HasEpisodes):
        raise CapabilityMissingError("this service drives no episodes", resolution="talk to a worker (DSEC_WORKER_URL)")
    return call.service.episodes


def _id(call: Call) -> str:
    return check_episode_id(call.path["episode_id"])


async def health(call: Call) -> object:
    return wire.Health(status="ok", version=__version__)


async def openapi(call: Call) -> object:
    return episode_document()


async def start(call: Call) -> object:
    body: episode_wire.StartEpisodeRequest = call.body
    return await _episodes(call).start(body.spec, episode_id=body.episode_id)


async def list_episodes(call: Call) -> object:
    return list(await _episodes(call).list(call.query))


async def get(call: Call) -> object:
    return await _episodes(call).get(_id(call))


async def spec(call: Call) -> object:
    return await _episodes(call).spec(_id(call))


async def steer(call: Call) -> object:
    body: episode_wire.SteerRequest = call.body
    return await _episodes(call).steer(_id(call), body.message, by=body.by)


async def pause(call: Call) -> object:
    return await _episodes(call).pause(_id(call), keep_memory=call.query.keep_memory)


async def resume(call: Call) -> object:
    return await _episodes(call).resume(_id(call), model=call.body.model)


async def cancel(call: Call) -> object:
    return await _episodes(call).cancel(_id(call), reason=call.body.reason)


async def settle(call: Call) -> object:
    body: episode_wire.SettleRequest = call.body
    return await _episodes(call).settle(
        _id(call), call.path["operation_id"], body.verdict, result=body.result, by=body.by
    )


async def grade(call: Call) -> object:
    return await _episodes(call).grade(_id(call), call.body)


async def pause_job(call: Call) -> object:
    return list(await _episodes(call).pause_job(call.path["job"], keep_memory=call.query.keep_memory))


async def resume_job(call: Call) -> object:
    return list(await _episodes(call).resume_job(call.path["job"]))


@asynccontextmanager
async def events(call: Call) -> AsyncIterator[AsyncIterator[object]]:
    query: episode_wire.EpisodeEventsQuery = call.query
    service = call.service
    every_s = service.heartbeat_s if isinstance(service, Worker) else episode_wire.HEARTBEAT_S
    async with (
        _episodes(call).events(_id(call), query.from_sequence, follow=query.follow) as found,
        beating(_logged(found), episode_wire.AliveEvent(), every_s) as told,
    ):
        yield told


async def _logged(found: AsyncIterator[EpisodeEvent]) -> AsyncIterator[object]:
    async for each in found:
        yield episode_wire.LoggedEvent(sequence=each.sequence, event=each.event)


def episode_filter_of(pairs: list[tuple[str, str]]) -> EpisodeFilter:
    """Build the filter of a listing from its query.

    Raises:
        InvalidRequestError: a parameter is unknown, repeated or names no state.
    """
    metadata: dict[str, str] = {}
    states: list[str] = []
    fields: dict[str, str] = {}
    for key, value in pairs:
        if key.startswith(METADATA_PREFIX):
            metadata[key.removeprefix(METADATA_PREFIX)] = value
        elif key == "state":
            states.append(value)
        elif key not in ("job", "task"):
            raise InvalidRequestError(
                f"unknown query parameter `{key}`", resolution="use job, task, state or metadata.KEY"
            )
        elif key in fields:
            raise InvalidRequestError(f"query parameter `{key}` is repeated")
        else:
            fields[key] = value
    encoded = wire.encode({**fields, "metadata": metadata, "states": states}, msgpack=True)
    query: EpisodeFilter = wire.decode(encoded, EpisodeFilter, msgpack=True)
    return query


EPISODES = Face(
    routes=EPISODE_ROUTES,
    values={
        "list": list_episodes,
        **{
            handler.__name__: handler
            for handler in (
                health, openapi, start, get, spec, steer, pause, resume, cancel, settle, grade, pause_job, resume_job,
            )
        },
    },
    events={"events": events},
    octets={},
    filter_of=episode_filter_of,
)  # fmt: skip
"""A worker's."""
