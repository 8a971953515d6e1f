"""`HttpEpisodes`: the `EpisodeService` of a worker elsewhere, over HTTP or a unix socket.

A worker may end and begin again at any time, and loses nothing by it; so a client that has talked to one goes on asking
for a while when its connection is cut, wherever asking twice does no harm. Whoever follows an episode is connected anew
from the last event that was heard (`dsec.sdk.episode_feed`).
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from dsec.api import episode_wire, wire
from dsec.api.episode_routes import EPISODE_ROUTES
from dsec.api.routes import METADATA_PREFIX, Route, deadline_of
from dsec.base.errors import NodeUnavailableError, UnknownOutcomeError
from dsec.base.ids import CLIENTS_OWN_LENGTH, new_id
from dsec.episode.log_events import Verdict
from dsec.episode.spec import (
    EpisodeEvent,
    EpisodeFilter,
    EpisodeGrade,
    EpisodeInfo,
    EpisodeSpec,
    ModelEndpoint,
)
from dsec.episode.tools import ToolResult
from dsec.sdk.episode_feed import SILENCE_S, EpisodeFeed
from dsec.sdk.http import ANSWER_SLACK_S, decode_answer, encode_body, error_of
from dsec.sdk.keepalive import Endpoint, KeepAliveClient, Reply
from dsec.sdk.perseverance import Perseverance
from dsec.sdk.streaming import StreamClient

REMEDY = "start one with `dsec worker up`, or correct DSEC_WORKER_URL"
PATIENCE_S = 60.0
"""How long a worker that once answered may be away: it reads the logs of all its episodes when it starts."""
_ONCE = frozenset({"steer", "settle"})
"""Operations that may not be sent twice: a message would be heard twice, a verdict be refused."""

Revive = Callable[[], Awaitable[None]]
"""What is called when the connection to a worker was lost, before it is asked again."""


class HttpEpisodes:
    """An `EpisodeService` over HTTP. Belongs to the event loop in which it is first used.

    Args:
        endpoint: where the worker is.
        patience_s: how long a worker that once answered may be away.
        first_s: how long one may be that has not answered yet.
        silence_s: after how long without a word a followed stream is taken for dead.
        revive: called when the worker was lost, before it is asked again.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        patience_s: float = PATIENCE_S,
        first_s: float = 0.0,
        silence_s: float = SILENCE_S,
        revive: Revive | None = None,
    ) -> None:
        endpoint = replace(endpoint, remedy=REMEDY)
        self._unary = KeepAliveClient(endpoint)
        self._streams = StreamClient(endpoint)
        self._patience_s = patience_s
        self._first_s = first_s
        self._silence_s = silence_s
        self._revive = revive
        self._has_answered = False

    async def _call(self, name: str, body: Any = None, query: Iterable[tuple[str, str]] = (), **path: str) -> Any:
        route = EPISODE_ROUTES[name]
        reply = await self._reply(route, body, route.target(query, **path))
        self._has_answered = True
        if reply.status >= 400:
            raise error_of(reply)
        return decode_answer(reply.body, route.result)

    async def _reply(self, route: Route, body: Any, target: str) -> Reply:
        """Send one request until it is answered. An error that is raised here is the connection's, none of the
        worker's."""
        perseverance = Perseverance(self._patience_s if self._has_answered else self._first_s)
        while True:
            try:
                return await self._unary.request(
                    route.method,
                    target,
                    None if route.body is None else encode_body(body),
                    repeatable=route.name not in _ONCE,
                    timeout_s=deadline_of(route, body) + ANSWER_SLACK_S,
                )
            except UnknownOutcomeError as error:
                raise UnknownOutcomeError(
                    error.brief, detail=error.detail, resolution="look at the episode before asking again"
                ) from error
            except NodeUnavailableError as error:  # Nothing was done, or doing it again is doing it once.
                await self._lost(perseverance, error)

    async def _lost(self, perseverance: Perseverance, error: NodeUnavailableError) -> None:
        await perseverance.wait(error)
        if self._revive is not None:
            await self._revive()

    # -- episodes -----------------------------------------------------------------------------------------------

    async def start(self, spec: EpisodeSpec, *, episode_id: str | None = None) -> EpisodeInfo:
        """Begin an episode. An id is always sent, so that a cut connection is answered by asking again instead of
        beginning another."""
        body = episode_wire.StartEpisodeRequest(spec=spec, episode_id=episode_id or new_episode_id())
        info: EpisodeInfo = await self._call("start", body)
        return info

    async def get(self, episode_id: str) -> EpisodeInfo:
        info: EpisodeInfo = await self._call("get", episode_id=episode_id)
        return info

    async def list(self, query: EpisodeFilter = EpisodeFilter()) -> Sequence[EpisodeInfo]:
        pairs = [(name, value) for name, value in (("job", query.job), ("task", query.task)) if value]
        pairs += [("state", state.value) for state in query.states]
        pairs += [(METADATA_PREFIX + key, value) for key, value in query.metadata.items()]
        infos: Sequence[EpisodeInfo] = await self._call("list", query=pairs)
        return infos

    async def spec(self, episode_id: str) -> EpisodeSpec:
        spec: EpisodeSpec = await self._call("spec", episode_id=episode_id)
        return spec

    @asynccontextmanager
    async def events(
        self, episode_id: str, from_sequence: int = 1, *, follow: bool = True
    ) -> AsyncIterator[AsyncIterator[EpisodeEvent]]:
        feed = EpisodeFeed(
            self._streams,
            episode_id,
            from_sequence,
            follow=follow,
            patience_s=self._patience_s,
            silence_s=self._silence_s,
            revive=self._revive,
        )
        try:
            await self._open(feed)
            yield feed
        finally:
            await feed.aclose()

    async def _open(self, feed: EpisodeFeed) -> None:
        perseverance = Perseverance(self._patience_s if self._has_answered else self._first_s)
        while True:
            try:
                await feed.open()
                self._has_answered = True
                return
            except NodeUnavailableError as error:
                await self._lost(perseverance, error)

    async def steer(self, episode_id: str, message: str, *, by: str = "") -> EpisodeInfo:
        body = episode_wire.SteerRequest(message=message, by=by)
        info: EpisodeInfo = await self._call("steer", body, episode_id=episode_id)
        return info

    async def pause(self, episode_id: str, *, keep_memory: bool = False) -> EpisodeInfo:
        info: EpisodeInfo = await self._call("pause", query=_pausing(keep_memory), episode_id=episode_id)
        return info

    async def resume(self, episode_id: str, *, model: ModelEndpoint | None = None) -> EpisodeInfo:
        body = episode_wire.ResumeEpisodeRequest(model=model)
        info: EpisodeInfo = await self._call("resume", body, episode_id=episode_id)
        return info

    async def cancel(self, episode_id: str, *, reason: str = "") -> EpisodeInfo:
        body = episode_wire.CancelRequest(reason=reason)
        info: EpisodeInfo = await self._call("cancel", body, episode_id=episode_id)
        return info

    async def settle(
        self, episode_id: str, operation_id: str, verdict: Verdict, *, result: ToolResult | None = None, by: str = ""
    ) -> EpisodeInfo:
        body = episode_wire.SettleRequest(verdict=verdict, result=result, by=by)
        info: EpisodeInfo = await self._call("settle", body, episode_id=episode_id, operation_id=operation_id)
        return info

    async def grade(self, episode_id: str, grade: EpisodeGrade) -> EpisodeInfo:
        info: EpisodeInfo = await self._call("grade", grade, episode_id=episode_id)
        return info

    async def pause_job(self, job: str, *, keep_memory: bool = False) -> Sequence[EpisodeInfo]:
        infos: Sequence[EpisodeInfo] = await self._call("pause_job", query=_pausing(keep_memory), job=job)
        return infos

    async def resume_job(self, job: str) -> Sequence[EpisodeInfo]:
        infos: Sequence[EpisodeInfo] = await self._call("resume_job", job=job)
        return infos

    # -- the worker ---------------------------------------------------------------------------------------------

    async def health(self) -> wire.Health:
        """Ask whether the worker answers."""
        health: wire.Health = await self._call("health")
        return health

    async def aclose(self) -> None:
        """Close the connections; episodes go on. Idempotent."""
        self._unary.close()
        self._streams.close()


def new_episode_id() -> str:
    """Return a fresh id."""
    return new_id("ep", os.urandom, length=CLIENTS_OWN_LENGTH)


def _pausing(keep_memory: bool) -> list[tuple[str, str]]:
    return [("keep_memory", "true")] if keep_memory else []
