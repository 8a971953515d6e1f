"""A rollout from a request to a report: find and check tasks, run, sum up, write the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import anyio

from dsec.base.clock import Clock
from dsec.base.errors import DsecError, InvalidRequestError
from dsec.episode.log_events import RoundCommitted
from dsec.episode.operations import RoundRecord
from dsec.model.capability import CapabilityReport
from dsec.service.episodes import EpisodeService
from dsec.service.port import SandboxService
from dsec.service.prefetch import PrefetchService
from dsec.verification.attempt_result import AttemptResult
from dsec.worker.layout import REPORT_NAME, WORKER_NAME
from dsec.worker.manifest import make_manifest, write_durably
from dsec.worker.output import OutputDirectory, read_rounds
from dsec.worker.policies.episodes import EpisodeOptions
from dsec.worker.policies.port import PolicySource
from dsec.worker.policies.registry import load_policy
from dsec.worker.report.page import MAXIMUM_SHOWN_EPISODES, excerpted, render_report
from dsec.worker.rollout import Rollout, RolloutObserver, check_settings
from dsec.worker.rollout_worker import open_rollout_worker
from dsec.worker.settings import RolloutSettings
from dsec.worker.summary import Summary
from dsec.worker.tasks.discovery import TaskSet, discover
from dsec.worker.tasks.images import ImageBuilder
from dsec.worker.tasks.support import check_support, unenforceable_limits
from dsec.worker.tasks.task import Task

Warn = Callable[[str], None]
OpenEpisodes = Callable[[Path, SandboxService], AbstractAsyncContextManager[EpisodeService]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRequest:
    """What to roll out.

    Attributes:
        tasks: a task folder or a directory of them.
        policy: name of the policy; see `load_policy`.
        out: where results go; a rollout that is there already is gone on with.
        rollout_id: for a new one.
        settings: how.
        pattern, limit: which tasks.
        skip_broken: leave out tasks that are broken or cannot run here, instead of refusing to start.
        episodes: how attempts are played that are episodes.
    """

    tasks: Path
    policy: str
    out: Path
    rollout_id: str
    settings: RolloutSettings
    pattern: str = "*"
    limit: int | None = None
    skip_broken: bool = False
    episodes: EpisodeOptions = field(default_factory=EpisodeOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnd:
    """How the job ended; `interrupted` when it was asked to stop before it was done."""

    summary: Summary
    interrupted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Selection:
    tasks: tuple[Task, ...]
    skipped: dict[str, DsecError]


def _problem(
    task: Task, policy: PolicySource, reports: Sequence[CapabilityReport], settings: RolloutSettings
) -> DsecError | None:
    try:
        policy.check(task)
        check_support(task, reports, without_network=settings.without_network, left_out_limits=settings.left_out_limits)
    except DsecError as error:
        return error
    return None


def _select(
    found: TaskSet, policy: PolicySource, reports: Sequence[CapabilityReport], settings: RolloutSettings
) -> _Selection:
    problems: dict[str, DsecError] = dict(found.broken)
    for task in found.tasks:
        if (error := _problem(task, policy, reports, settings)) is not None:
            problems[task.name] = error
    return _Selection(tasks=tuple(task for task in found.tasks if task.name not in problems), skipped=problems)


def _refuse(selection: _Selection, skip_broken: bool) -> None:
    """Raise the first problem when there is one and it may not be skipped, or when nothing is left."""
    if selection.skipped and not skip_broken:
        first, *others = selection.skipped.values()
        more = f"{len(others)} more tasks have a problem, the next: {others[0].brief}" if others else ""
        resolution = first.resolution or "mend the task"
        raise type(first)(
            first.brief,
            detail="\n".join(filter(None, (first.detail, more))),
            resolution=f"{resolution}; --skip-broken leaves such tasks out",
        )
    if not selection.tasks:
        raise InvalidRequestError("no task is left to run", detail="\n".join(map(str, selection.skipped.values())))


def _warnings(tasks: Sequence[Task], warn: Warn) -> None:
    """Say once what the tasks' files hold that is not acted upon."""
    unknown = sorted({key for task in tasks for key in task.unknown_keys})
    if unknown:
        warn(f"keys of task.toml that DSec does not know: {', '.join(unknown[:10])}")


def _settled(settings: RolloutSettings, reports: Sequence[CapabilityReport], warn: Warn) -> RolloutSettings:
    """Find out which limits are left out, if the user said so, and say it."""
    left_out = unenforceable_limits(reports) if settings.available_limits else frozenset()
    if left_out:
        warn(f"tasks are run without limits of {', '.join(sorted(left_out))}: this node cannot enforce them")
    return replace(settings, left_out_limits=left_out)


async def run_rollout(
    request: RolloutRequest,
    *,
    service: SandboxService,
    clock: Clock,
    warn: Warn,
    builder: ImageBuilder | None = None,
    observer: RolloutObserver | None = None,
    stop: anyio.Event | None = None,
    open_episodes: OpenEpisodes = open_rollout_worker,
    prefetches: PrefetchService | None = None,
) -> JobEnd:
    """Run (or go on with) a rollout and write its results, summary and report.

    Args:
        request: what to run.
        service: drives the sandboxes.
        clock: tells the time.
        warn: takes warnings for people, one line each.
        builder: builds images of tasks that have a Dockerfile.
        observer: hears how it goes.
        stop: when set, attempts in flight are ended, their sandboxes removed, and the sums of what is finished written;
            episodes stay as they are, for the next run.
        open_episodes: opens the worker of attempts that are episodes.
        prefetches: is told which images come next; None: nobody is.

    Raises:
        DsecError: tasks are broken, `out` holds something else, or results cannot be written.
    """
    check_settings(request.settings)
    policy = load_policy(request.policy, request.episodes)
    found = discover(request.tasks, pattern=request.pattern, limit=request.limit)
    reports = await service.capabilities()
    settings = _settled(request.settings, reports, warn)
    selection = _select(found, policy, reports, settings)
    _refuse(selection, request.skip_broken)
    _warnings(selection.tasks, warn)
    manifest = make_manifest(
        selection.tasks, policy, settings, rollout_id=request.rollout_id, created_at_s=clock.wall_s()
    )
    skipped = {name: error.brief for name, error in selection.skipped.items()}
    with OutputDirectory(request.out, manifest) as output:
        async with _episodes(policy, request, service, open_episodes) as episodes:
            rollout = Rollout(
                service=service,
                tasks=selection.tasks,
                policy=policy,
                settings=settings,
                output=output,
                clock=clock,
                builder=builder,
                observer=observer,
                episodes=episodes,
                options=request.episodes,
                prefetches=prefetches,
            )
            interrupted = await _run_until(rollout, stop)
            results = list(output.results.values())
            elsewhere = await _rounds_elsewhere(episodes, request.out, results)
        summary = rollout.summary(skipped=skipped)
        output.write_summary(summary)
        page = render_report(summary, results, rounds=partial(read_rounds, request.out, elsewhere=elsewhere))
        write_durably(request.out / REPORT_NAME, page.encode(errors="replace"))
    return JobEnd(summary=summary, interrupted=interrupted)


def _episodes(
    policy: PolicySource, request: RolloutRequest, service: SandboxService, open_episodes: OpenEpisodes
) -> AbstractAsyncContextManager[EpisodeService | None]:
    return nullcontext() if policy.episode is None else open_episodes(request.out / WORKER_NAME, service)


async def _rounds_elsewhere(
    episodes: EpisodeService | None, out: Path, results: Sequence[AttemptResult]
) -> dict[str, list[RoundRecord]]:
    """Return the rounds of episodes whose worker is elsewhere, by their ids: of as many as a report shows."""
    found: dict[str, list[RoundRecord]] = {}
    for result in excerpted(results)[:MAXIMUM_SHOWN_EPISODES]:
        if result.episode is None or episodes is None or (out / WORKER_NAME).is_dir():
            continue
        try:
            async with episodes.events(result.episode.episode_id, follow=False) as events:
                told = [each.event async for each in events]
        except DsecError:
            continue  # It is not shown, and nothing else fails.
        found[result.episode.episode_id] = [event.record for event in told if isinstance(event, RoundCommitted)]
    return found


async def _run_until(rollout: Rollout, stop: anyio.Event | None) -> bool:
    """Run to the end or until `stop`; return whether it was stopped."""
    if stop is None:
        await rollout.run()
        return False
    done = False
    async with anyio.create_task_group() as group:

        async def watch() -> None:
            await stop.wait()
            group.cancel_scope.cancel()

        group.start_soon(watch)
        await rollout.run()
        done = True
        group.cancel_scope.cancel()
    return not done
