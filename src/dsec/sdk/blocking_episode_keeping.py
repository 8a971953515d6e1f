"""A connection to a worker for `Episodes`: the keeper of dsec.sdk.episode_keeping, living in the background loop."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from dsec.episode.spec import EpisodeInfo, EpisodeSpec, EpisodeState
from dsec.sdk import episode_keeping
from dsec.sdk._sync.episode_service import BlockingEpisodeService
from dsec.sdk.bridge import call, iterate
from dsec.sdk.episode_jobs import Heard


class BlockingEpisodesKeeper:
    """One connection, opened by its first use. The arguments are those of `dsec.sdk.workers.open_episodes`."""

    def __init__(
        self, *, url: str | None = None, token: str | None = None, state_dir: str | Path | None = None
    ) -> None:
        self._keeper = episode_keeping.EpisodesKeeper(url=url, token=token, state_dir=state_dir)

    def service(self) -> BlockingEpisodeService:
        """Return the worker."""
        return BlockingEpisodeService(call(self._keeper.service))

    def start_many(
        self, specs: Sequence[EpisodeSpec], ids: Sequence[str] | None, at_once: int, on_progress: Heard | None
    ) -> list[EpisodeInfo]:
        """See `dsec.sdk.episode_jobs.start_many`."""
        return call(self._keeper.start_many, specs, ids, at_once, on_progress)

    def collect(
        self, job: str, known: Collection[str], final: Collection[EpisodeState], on_progress: Heard | None
    ) -> Iterator[EpisodeInfo]:
        """See `dsec.sdk.episode_jobs.collect`."""
        return iterate(self._keeper.collect(job, known, final, on_progress))

    def close(self) -> None:
        """Close the connection; episodes go on. Idempotent."""
        call(self._keeper.aclose)
