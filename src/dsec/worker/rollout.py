"""The main job: tasks times attempts, side by side, each to its verdict.

The attempts are one queue, and `concurrency` lanes take from it; a lane is a row of the timeline. A finished attempt is
on the disk before its lane takes the next, so that a run that was killed goes on where it was: with the attempts
that have no record. Sandboxes of an earlier run are found by the rollout's id in their metadata and removed first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from dsec.base.clock import Clock
from dsec.base.errors import DsecError, InvalidRequestError, NotFoundError
from dsec.episode.spec import EpisodeFilter, EpisodeState
from dsec.model.sandbox import SandboxFilter
from dsec.service.episodes import EpisodeService
from dsec.service.port import SandboxService
from dsec.service.prefetch import PrefetchService
from dsec.verification.attempt_result import AttemptResult
from dsec.verification.outcome import Outcome
from dsec.worker.attempt import Attempt, AttemptContext
from dsec.worker.coming import ComingAttempts
from dsec.worker.episode_attempt import EpisodeAttempt
from dsec.worker.episodes.environments.sandboxes import EPISODE_KEY
from dsec.worker.output import OutputDirectory
from dsec.worker.policies.episodes import EpisodeOptions
from dsec.worker.policies.port import PolicySource
from dsec.worker.settings import RolloutSettings
from dsec.worker.summary import Summary, summarise
from dsec.worker.tasks.images import ImageBuilder, TaskImages
from dsec.worker.tasks.task import Task

MAXIMUM_CONCURRENCY = 4096
MAXIMUM_ATTEMPTS = 10_000


class RolloutObserver(Protocol):
    """Hears how a rollout goes, for a progress bar. Must not raise or block."""

    def rollout_began(self, *, planned: int, finished: Sequence[AttemptResult]) -> None: ...

    def attempt_began(self, task: str, attempt: int) -> None: ...

    def attempt_ended(self, result: AttemptResult) -> None: ...


class SilentObserver:
    """Hears and says nothing."""

    def rollout_began(self, *, planned: int, finished: Sequence[AttemptResult]) -> None:
        del planned, finished

    def attempt_began(self, task: str, attempt: int) -> None:
        del task, attempt

    def attempt_ended(self, result: AttemptResult) -> None:
        del result


def check_settings(settings: RolloutSettings) -> None:
    """Check the numbers.

    Raises:
        InvalidRequestError: one is out of range.
    """
    for name, most in (("attempts", MAXIMUM_ATTEMPTS), ("concurrency", MAXIMUM_CONCURRENCY)):
        value = getattr(settings, name)
        if not 1 <= value <= most:
            raise InvalidRequestError(f"{name} is {value}; it must be from 1 to {most}")


class Rollout:
    """One run of a rollout in an open output directory."""

    def __init__(
        self,
        *,
        service: SandboxService,
        tasks: Sequence[Task],
        policy: PolicySource,
        settings: RolloutSettings,
        output: OutputDirectory,
        clock: Clock,
        builder: ImageBuilder | None = None,
        observer: RolloutObserver | None = None,
        episodes: EpisodeService | None = None,
        options: EpisodeOptions = EpisodeOptions(),
        prefetches: PrefetchService | None = None,
    ) -> None:
        check_settings(settings)
        self._service = service
        self._tasks = tasks
        self._policy = policy
        self._settings = settings
        self._output = output
        self._clock = clock
        self._builder = builder
        self._observer = observer or SilentObserver()
        self._episodes = episodes
        self._options = options
        self._prefetches = prefetches
        self._decided: set[tuple[str, int]] = set()
        self._attempt = Attempt if policy.episode is None else EpisodeAttempt

    async def run(self, *, skipped: dict[str, str] | None = None) -> Summary:
        """Run every attempt that has no record yet and return the sums over all.

        Cancelling ends the attempts in flight and removes their sandboxes; they have no record and are run again by the
        next run.

        Raises:
            DsecError: the results cannot be written, or the service cannot be asked at all.
        """
        await self._look_for_decided()
        await self.sweep()
        context = self._context()
        queue = ComingAttempts(self._queue(), self._prefetches, self._output.manifest.rollout_id)
        planned = len(self._tasks) * self._settings.attempts
        self._observer.rollout_began(planned=planned, finished=self._finished())
        try:
            async with anyio.create_task_group() as lanes:
                for lane in range(min(self._settings.concurrency, max(1, planned))):
                    lanes.start_soon(self._lane, lane, queue, context, lanes)
        except ExceptionGroup as group:
            raise _first(group) from group
        await self.sweep()
        summary = self.summary(skipped=skipped or {})
        self._output.write_summary(summary)
        return summary

    def summary(self, *, skipped: dict[str, str]) -> Summary:
        """Return the sums over what is recorded now."""
        return summarise(
            list(self._output.results.values()),
            rollout_id=self._output.manifest.rollout_id,
            policy=self._policy.name,
            planned=len(self._tasks) * self._settings.attempts,
            skipped=skipped,
        )

    async def sweep(self) -> int:
        """Remove every sandbox that this rollout has left; return how many there were.

        Those of episodes whose attempts have no verdict yet stay: the next run goes on with them.
        """
        query = SandboxFilter(metadata={"rollout": self._output.manifest.rollout_id})
        kept = await self._open_episodes()
        left = [info for info in await self._service.list(query) if info.spec.metadata.get(EPISODE_KEY) not in kept]
        for info in left:
            try:
                await self._service.remove(info.sandbox_id)
            except DsecError:
                # Its lifetime ends it; what matters is that no attempt of this run uses it.
                continue
        return len(left)

    async def _open_episodes(self) -> set[str]:
        """Return the episodes whose attempts have no verdict yet."""
        if self._episodes is None:
            return set()
        found = await self._episodes.list(EpisodeFilter(job=self._output.manifest.rollout_id))
        return {info.episode_id for info in found if not self._output.is_verified(info.task, info.attempt)}

    def _context(self) -> AttemptContext:
        return AttemptContext(
            service=self._service,
            policy=self._policy,
            settings=self._settings,
            rollout_id=self._output.manifest.rollout_id,
            images=TaskImages(self._service, self._builder),
            clock=self._clock,
            episodes=self._episodes,
            options=self._options,
        )

    def _finished(self) -> list[AttemptResult]:
        return [result for result in self._output.results.values() if self._is_finished(result.task, result.attempt)]

    def _is_finished(self, task: str, attempt: int) -> bool:
        return self._output.is_finished(task, attempt) and (task, attempt) not in self._decided

    async def _look_for_decided(self) -> None:
        """Find the attempts that were unknown, and of whose episodes somebody has said since what became of them."""
        for result in self._output.results.values():
            if result.outcome is Outcome.UNKNOWN and result.episode is not None and self._episodes is not None:
                try:
                    info = await self._episodes.get(result.episode.episode_id)
                except NotFoundError:
                    continue
                if info.state is not EpisodeState.WAITING:
                    self._decided.add(result.key)

    def _queue(self) -> Iterator[tuple[Task, int]]:
        """Yield what has no record, every task's first attempt before any second."""
        for attempt in range(1, self._settings.attempts + 1):
            for task in self._tasks:
                if not self._is_finished(task.name, attempt):
                    yield task, attempt

    async def _lane(self, lane: int, queue: ComingAttempts, context: AttemptContext, lanes: TaskGroup) -> None:
        # All lanes share one iterator: no lane awaits while it takes the next item.
        for task, number in queue:
            lanes.start_soon(queue.tell)
            self._observer.attempt_began(task.name, number)
            with self._output.open_trajectory(task.name, number) as log:
                attempt = self._attempt(context, task, number, lane=lane, log=log)
                result, tests = await attempt.run()
            await self._output.finish(result, tests)
            await attempt.release(result)
            self._observer.attempt_ended(result)


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first plain exception of a task group's."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
