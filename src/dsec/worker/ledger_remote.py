"""Read what a run used from a worker elsewhere: events, specs and grades, over the contract of episodes."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
from msgspec.structs import replace

from dsec.base.errors import DsecError, NotFoundError
from dsec.episode.ledger import AttemptLedger
from dsec.episode.log_events import LogEvent, ModelChanged, StateSaved
from dsec.episode.spec import EpisodeFilter, EpisodeInfo
from dsec.episode.spending import GradedUse
from dsec.service.episodes import EpisodeService
from dsec.worker.ledger_reading import Recorded, RecordedRun, endpoints_of

AT_ONCE = 16
"""Episodes whose events are read at the same time."""


async def read_remote_runs(
    episodes: EpisodeService, runs: Sequence[str], *, deadline_s: float | None = None
) -> RecordedRun:
    """Return what the attempts of runs used, each attempt once.

    Args:
        episodes: the worker.
        runs: each a job, or an episode's id.
        deadline_s: of each attempt; None: as its spec says.

    Raises:
        NotFoundError: the worker has no such run.
        DsecError: it does not answer.
    """
    infos: dict[str, EpisodeInfo] = {}
    for run in runs:
        for info in await _found(episodes, run):
            infos[info.episode_id] = info
    recorded: dict[str, Recorded] = {}
    problems: list[str] = []
    limiter = anyio.CapacityLimiter(AT_ONCE)

    async def read(info: EpisodeInfo) -> None:
        async with limiter:
            recorded[info.episode_id] = await _read(episodes, info, deadline_s, problems)

    async with anyio.create_task_group() as tasks:
        for info in infos.values():
            tasks.start_soon(read, info)
    ordered = sorted(recorded.values(), key=lambda one: one.graded.use.key)
    return RecordedRun(name=", ".join(runs), attempts=tuple(ordered), problems=tuple(problems))


async def _found(episodes: EpisodeService, run: str) -> Sequence[EpisodeInfo]:
    found = await episodes.list(EpisodeFilter(job=run))
    if found:
        return found
    try:
        return [await episodes.get(run)]
    except DsecError as error:
        raise NotFoundError(
            f"the worker has no job and no episode {run!r}", detail=error.brief, resolution="list them: dsec episode ls"
        ) from error


async def _read(episodes: EpisodeService, info: EpisodeInfo, deadline_s: float | None, problems: list[str]) -> Recorded:
    ledger, changes, sequence, lacks = AttemptLedger(), list[LogEvent](), 0, list[str]()
    spec = await episodes.spec(info.episode_id)
    try:
        async with episodes.events(info.episode_id, follow=False) as events:
            async for each in events:
                ledger.add(each.event)
                sequence = each.sequence
                if isinstance(each.event, ModelChanged | StateSaved):
                    changes.append(each.event)
    except DsecError as error:
        problems.append(f"{info.episode_id}: {error.brief}")
        lacks.append("its events could not all be read")
    use = ledger.use(sequence=sequence, job=spec.job, missing=lacks)
    if not sequence:
        use = replace(use, episode_id=info.episode_id, task=spec.task, attempt=spec.attempt)
    graded = GradedUse(
        use=use,
        passed=info.grade.passed if info.grade is not None else None,
        deadline_s=spec.limits.deadline_s if deadline_s is None else deadline_s,
    )
    return Recorded(graded=graded, endpoints=tuple(endpoints_of(spec, changes)))
