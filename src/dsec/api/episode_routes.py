"""The table of routes of a worker's server: what `dsec.service.episodes.EpisodeService` offers, over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsec.api import episode_wire, wire
from dsec.api.routes import BUILD_S, COMMIT_S, STREAM_S, TRANSFER_S, Carry, PauseQuery, Route
from dsec.episode.spec import EpisodeGrade, EpisodeInfo, EpisodeSpec

_EPISODE = "/v1/episodes/{episode_id}"
_JOB = "/v1/episode-jobs/{job}"

_TABLE: tuple[Route, ...] = (
    Route(name="health", method="GET", path="/v1/health", summary="Say that the server answers.",
          result=wire.Health, public=True),
    Route(name="openapi", method="GET", path="/v1/openapi.json", summary="This document.",
          result=dict[str, Any], public=True),
    Route(name="start", method="POST", path="/v1/episodes",
          summary="Begin an episode; the same episode_id and spec return the same episode.",
          body=episode_wire.StartEpisodeRequest, result=EpisodeInfo, status=201, deadline_s=BUILD_S),
    Route(name="list", method="GET", path="/v1/episodes",
          summary="List episodes, the newest first; filter by `job`, `task`, `state` and `metadata.KEY`.",
          query=episode_wire.EpisodeListQuery, filters=True, result=list[EpisodeInfo]),
    Route(name="get", method="GET", path=_EPISODE, summary="Say what is known of an episode.", result=EpisodeInfo),
    Route(name="spec", method="GET", path=_EPISODE + "/spec", summary="Say what an episode was asked to be.",
          result=EpisodeSpec),
    Route(name="events", method="GET", path=_EPISODE + "/events",
          summary="Hear the saved events of an episode from a sequence on; `alive` comes where nothing happens.",
          query=episode_wire.EpisodeEventsQuery, result=episode_wire.EpisodeStreamEvent,
          result_carry=Carry.EVENTS, deadline_s=STREAM_S, ends_with_client=True),
    Route(name="steer", method="POST", path=_EPISODE + "/steer",
          summary="Tell an episode something that its policy sees with its next decision.",
          body=episode_wire.SteerRequest, result=EpisodeInfo),
    Route(name="pause", method="POST", path=_EPISODE + "/pause",
          summary="Let an episode stand still, its sandbox paused and its loop kept.", query=PauseQuery,
          result=EpisodeInfo, deadline_s=TRANSFER_S),
    Route(name="resume", method="POST", path=_EPISODE + "/resume",
          summary="Let an episode go on from its last committed round, with another model where one is given.",
          body=episode_wire.ResumeEpisodeRequest, result=EpisodeInfo, deadline_s=COMMIT_S),
    Route(name="cancel", method="POST", path=_EPISODE + "/cancel", summary="End an episode; its sandbox goes.",
          body=episode_wire.CancelRequest, result=EpisodeInfo, deadline_s=COMMIT_S),
    Route(name="settle", method="POST", path=_EPISODE + "/operations/{operation_id}/settle",
          summary="Say what became of an operation that is unknown.", body=episode_wire.SettleRequest,
          result=EpisodeInfo, deadline_s=COMMIT_S),
    Route(name="grade", method="PUT", path=_EPISODE + "/grade", summary="Keep what an ended episode is worth.",
          body=EpisodeGrade, result=EpisodeInfo),
    Route(name="pause_job", method="POST", path=_JOB + "/pause",
          summary="Let all episodes of a job stand still; loops are kept.", query=PauseQuery,
          result=list[EpisodeInfo], deadline_s=TRANSFER_S),
    Route(name="resume_job", method="POST", path=_JOB + "/resume",
          summary="Let all episodes of a job go on that are paused.", result=list[EpisodeInfo], deadline_s=TRANSFER_S),
)  # fmt: skip

EPISODE_ROUTES: Mapping[str, Route] = {route.name: route for route in _TABLE}
"""Every operation by its name."""
