"""Episodes: agent loops that a worker drives, and that outlive whoever started them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Sequence
from pathlib import Path
from types import TracebackType

from dsec.base.errors import InvalidStateError
from dsec.episode.log_events import RoundCommitted, StateSaved, Verdict
from dsec.episode.operations import RoundRecord
from dsec.episode.spec import (
    EpisodeEvent,
    EpisodeFilter,
    EpisodeGrade,
    EpisodeInfo,
    EpisodeSpec,
    EpisodeState,
    ModelEndpoint,
)
from dsec.episode.tools import ToolResult
from dsec.sdk.episode_jobs import DEFAULT_AT_ONCE, ENDED, Heard
from dsec.sdk.episode_keeping import EpisodesKeeper


class AsyncEpisodes:
    """The episodes of a worker. Connects at its first use; `aclose`, or the end of its context, lets go.

    Whoever uses it may vanish at any time. Episodes go on, an id is a key that starts an episode once, and an offset
    into an episode's events is all that is needed to hear the rest.

    Args:
        url: of a worker, such as ``http://host:8621`` or ``unix:/path/worker.sock``; None: `DSEC_WORKER_URL`, or else
            the worker of this host, which is started when none runs.
        token: of that worker; None: `DSEC_WORKER_TOKEN`.
        state_dir: of the node of this host, where no URL is given.
    """

    def __init__(
        self, url: str | None = None, *, token: str | None = None, state_dir: str | Path | None = None
    ) -> None:
        self._keeper = EpisodesKeeper(url=url, token=token, state_dir=state_dir)

    # -- starting and collecting ---------------------------------------------------------------------------------

    async def start(self, spec: EpisodeSpec, *, episode_id: str | None = None) -> EpisodeInfo:
        """Begin an episode and return once its beginning is saved.

        Args:
            spec: what it is to be.
            episode_id: ``ep-...``; the same id and spec begin it once, however often they are sent. None: a fresh one.

        Raises:
            AlreadyExistsError: the id is that of an episode with another spec.
            InvalidRequestError: the spec asks for what cannot be.
            LimitExceededError: the worker has as many as it takes.
        """
        return await (await self._keeper.service()).start(spec, episode_id=episode_id)

    async def start_many(
        self,
        specs: Sequence[EpisodeSpec],
        *,
        ids: Sequence[str] | None = None,
        at_once: int = DEFAULT_AT_ONCE,
        on_progress: Heard | None = None,
    ) -> list[EpisodeInfo]:
        """Start a batch and return its episodes in order; asking again starts what is left.

        Specs that name a job get ids made of their content: a trainer that died while it started 800 episodes starts
        the same 800 again and has each once. To run the same again, change the job, the attempt or the metadata.

        Args:
            specs: one for each episode.
            ids: one for each, if they are to be yours.
            at_once: requests under way.
            on_progress: called as episodes are started.

        Raises:
            As `start`, of the first that could not be started; those before it run.
        """
        return await self._keeper.start_many(specs, ids, at_once, on_progress)

    async def collect(
        self,
        job: str,
        *,
        known: Collection[str] = (),
        final: Collection[EpisodeState] = ENDED,
        on_progress: Heard | None = None,
    ) -> AsyncIterator[EpisodeInfo]:
        """Yield the episodes of a job as they end, the earliest first, until all have.

        Args:
            job: its name.
            known: ids that were taken in before, and are not told again: keep them with your own checkpoint.
            final: states in which an episode is told and no longer waited for. STOPPED and WAITING ones need somebody;
                add these states where nobody is there.
            on_progress: called after each look, with how many episodes are where.
        """
        async for info in self._keeper.collect(job, known, final, on_progress):
            yield info

    async def wait(self, episode_id: str) -> EpisodeInfo:
        """Return an episode once it has ended."""
        service = await self._keeper.service()
        info = await service.get(episode_id)
        if info.state is not EpisodeState.ENDED:
            async with service.events(episode_id, info.next_sequence) as events:
                async for _ in events:
                    pass
        return await service.get(episode_id)

    # -- looking -------------------------------------------------------------------------------------------------

    async def get(self, episode_id: str) -> EpisodeInfo:
        """Return what is known of an episode. Raises `NotFoundError`."""
        return await (await self._keeper.service()).get(episode_id)

    async def spec(self, episode_id: str) -> EpisodeSpec:
        """Return what an episode was asked to be."""
        return await (await self._keeper.service()).spec(episode_id)

    async def list(
        self,
        *,
        job: str = "",
        task: str = "",
        states: Sequence[EpisodeState] = (),
        metadata: dict[str, str] | None = None,
    ) -> list[EpisodeInfo]:
        """List episodes, the newest first; everything that is given has to hold."""
        query = EpisodeFilter(job=job, task=task, states=tuple(states), metadata=metadata or {})
        return list(await (await self._keeper.service()).list(query))

    async def events(
        self, episode_id: str, from_sequence: int = 1, *, follow: bool = True
    ) -> AsyncIterator[EpisodeEvent]:
        """Yield the saved events of an episode from a sequence on, then those that come, until it has ended.

        The connection is made anew where it is lost. Keep ``event.sequence + 1``: with it, whoever comes back has
        missed nothing.

        Args:
            episode_id: of it.
            from_sequence: of the first event that is wanted.
            follow: wait for what is to come.

        Raises:
            NotFoundError: there is no such episode.
            StateCorruptedError: the log cannot prove that nothing is missing.
        """
        async with (await self._keeper.service()).events(episode_id, from_sequence, follow=follow) as events:
            async for event in events:
                yield event

    async def rounds(self, episode_id: str) -> Sequence[RoundRecord]:
        """Return the committed rounds of an episode so far, whole and in order: decisions, results, versions, usage.

        Raises:
            InvalidStateError: the worker has dropped the first ones behind a saved state.
        """
        found: list[RoundRecord] = []
        async for event in self.events(episode_id, follow=False):
            if isinstance(event.event, RoundCommitted):
                found.append(event.event.record)
            elif isinstance(event.event, StateSaved) and len(found) < event.event.number:
                raise InvalidStateError(
                    f"the first rounds of {episode_id} are no longer in its log",
                    resolution="hear `events` while it runs; what is left of it begins with a saved state",
                )
        return found

    # -- steering ------------------------------------------------------------------------------------------------

    async def steer(self, episode_id: str, message: str, *, by: str = "") -> EpisodeInfo:
        """Tell an episode something that its policy sees with its next decision; it is saved when this returns."""
        return await (await self._keeper.service()).steer(episode_id, message, by=by)

    async def pause(self, episode_id: str, *, keep_memory: bool = False) -> EpisodeInfo:
        """Let an episode stand still, its sandbox paused; `keep_memory` only freezes that."""
        return await (await self._keeper.service()).pause(episode_id, keep_memory=keep_memory)

    async def resume(self, episode_id: str, *, model: ModelEndpoint | None = None) -> EpisodeInfo:
        """Let an episode go on from its last committed round; `model` decides from now on.

        Raises:
            InvalidStateError: it has ended, or waits for a verdict (`settle`).
        """
        return await (await self._keeper.service()).resume(episode_id, model=model)

    async def cancel(self, episode_id: str, *, reason: str = "") -> EpisodeInfo:
        """End an episode; its sandbox goes."""
        return await (await self._keeper.service()).cancel(episode_id, reason=reason)

    async def settle(
        self, episode_id: str, operation_id: str, verdict: Verdict, *, result: ToolResult | None = None, by: str = ""
    ) -> EpisodeInfo:
        """Say what became of an operation that nobody knows the outcome of (`EpisodeInfo.unknown`).

        Raises:
            InvalidStateError: that operation waits for no verdict.
        """
        service = await self._keeper.service()
        return await service.settle(episode_id, operation_id, verdict, result=result, by=by)

    async def grade(self, episode_id: str, *, passed: bool, reward: float | None = None, by: str = "") -> EpisodeInfo:
        """Keep what an ended episode is worth; a later grade takes the place of an earlier one."""
        grade = EpisodeGrade(passed=passed, reward=reward, by=by)
        return await (await self._keeper.service()).grade(episode_id, grade)

    async def pause_job(self, job: str, *, keep_memory: bool = False) -> Sequence[EpisodeInfo]:
        """Let all episodes of a job stand still: the trainer's accelerators were taken away. Loops are kept."""
        return await (await self._keeper.service()).pause_job(job, keep_memory=keep_memory)

    async def resume_job(self, job: str) -> Sequence[EpisodeInfo]:
        """Let all episodes of a job go on that are paused."""
        return await (await self._keeper.service()).resume_job(job)

    # -- the connection ------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Close the connection. Episodes go on. Idempotent."""
        await self._keeper.aclose()

    async def __aenter__(self) -> AsyncEpisodes:
        await self._keeper.service()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
