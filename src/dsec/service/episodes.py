"""The contract by which episodes are driven, beside `dsec.service.port.SandboxService`.

A worker implements it (`dsec.worker.episodes.worker`), `dsec.sdk.episodes.HttpEpisodes` against a worker's server. The
loops run in the worker, outside the pool of accelerators: whoever starts an episode may vanish, come back with an
offset, and has missed nothing. Every operation is bounded in time and raises `dsec.base.errors.DsecError`s only.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, runtime_checkable

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


class EpisodeService(Protocol):
    """Start, watch, steer and end episodes."""

    async def start(self, spec: EpisodeSpec, *, episode_id: str | None = None) -> EpisodeInfo:
        """Begin an episode and return once its beginning is saved. `episode_id` is the idempotency key: asking again
        with the same id and spec returns the same episode, with another spec raises `AlreadyExistsError`.

        Raises:
            InvalidRequestError: the spec asks for what cannot be.
            ImageNotFoundError: the node has answered, and has no such image.
            LimitExceededError: this worker has as many as it takes.
        """

    async def get(self, episode_id: str) -> EpisodeInfo:
        """Return what is known of an episode. Raises `NotFoundError`."""

    async def list(self, query: EpisodeFilter = EpisodeFilter()) -> Sequence[EpisodeInfo]:
        """Return episodes, the newest first."""

    async def spec(self, episode_id: str) -> EpisodeSpec:
        """Return what an episode was asked to be."""

    def events(
        self, episode_id: str, from_sequence: int = 1, *, follow: bool = True
    ) -> AbstractAsyncContextManager[AsyncIterator[EpisodeEvent]]:
        """Hear the saved events from a sequence on, then those that come, until the episode has ended; without
        `follow`, what there is. Whoever is slow holds nobody up. A beginning that was dropped behind a saved state is
        answered with that state.

        Raises:
            StateCorruptedError: the log cannot prove that nothing is missing.
        """

    async def steer(self, episode_id: str, message: str, *, by: str = "") -> EpisodeInfo:
        """Tell an episode something that its policy sees with its next decision. It is saved when this returns."""

    async def pause(self, episode_id: str, *, keep_memory: bool = False) -> EpisodeInfo:
        """Let an episode stand still, its sandbox paused and its loop kept: no operation is under way when this
        returns but commands that are frozen, whose time stands still. Idempotent."""

    async def resume(self, episode_id: str, *, model: ModelEndpoint | None = None) -> EpisodeInfo:
        """Let an episode go on that is paused or stopped, from its last committed round; `model` takes over from now
        on. Idempotent while it runs.

        Raises:
            InvalidStateError: it has ended, or waits for a verdict (`settle`).
        """

    async def cancel(self, episode_id: str, *, reason: str = "") -> EpisodeInfo:
        """End an episode: its open round is given up, its end is saved, its sandbox goes. Idempotent."""

    async def settle(
        self, episode_id: str, operation_id: str, verdict: Verdict, *, result: ToolResult | None = None, by: str = ""
    ) -> EpisodeInfo:
        """Say what became of an operation that is UNKNOWN; the episode goes on once none is left.

        Raises:
            InvalidStateError: that operation waits for no verdict.
        """

    async def grade(self, episode_id: str, grade: EpisodeGrade) -> EpisodeInfo:
        """Keep what an ended episode's result is worth; a later grade takes the place of an earlier one."""

    async def pause_job(self, job: str, *, keep_memory: bool = False) -> Sequence[EpisodeInfo]:
        """Preemption: let all episodes of a job stand still and pause their sandboxes; loops are kept."""

    async def resume_job(self, job: str) -> Sequence[EpisodeInfo]:
        """Let all episodes of a job go on that are paused."""


@runtime_checkable
class HasEpisodes(Protocol):
    """A service that drives episodes."""

    @property
    def episodes(self) -> EpisodeService:
        """What drives them."""
        ...
