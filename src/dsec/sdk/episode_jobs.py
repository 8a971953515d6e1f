"""Many episodes at once: start a batch, and hear of each as it ends.

Both are plain functions over an `EpisodeService`, and keep nothing: what was started and what has ended is known by the
worker, and what was taken in already by whoever asks. A trainer that dies in the middle does the same again.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import anyio
import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.episode.spec import EpisodeFilter, EpisodeInfo, EpisodeSpec, EpisodeState
from dsec.sdk.episodes import new_episode_id
from dsec.service.episodes import EpisodeService

DEFAULT_AT_ONCE = 32
"""Requests under way while a batch is started."""
ENDED = frozenset({EpisodeState.ENDED})
_FIRST_LOOK_S, _LONGEST_LOOK_S = 0.1, 2.0
_ID_DIGITS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodesProgress:
    """How far a batch is.

    Attributes:
        done: episodes that were started, or have ended.
        total: of the batch.
        states: how many are where; of a batch that is being started: empty.
    """

    done: int
    total: int
    states: dict[EpisodeState, int] = field(default_factory=dict)


Heard = Callable[[EpisodesProgress], None]
"""What is called as a batch gets on."""


def batch_ids(specs: Sequence[EpisodeSpec]) -> list[str]:
    """Return an id for each spec of a batch. One that names its job gets an id made of its content and its place among
    equal ones, so that the same batch has the same ids whenever it is started; one without a job, a fresh id.
    """
    seen: Counter[bytes] = Counter()
    ids: list[str] = []
    for spec in specs:
        content = msgspec.json.encode(spec, order="sorted")
        seen[content] += 1
        digest = hashlib.sha256(b"%d:%b" % (seen[content], content)).hexdigest()
        ids.append(f"ep-{digest[:_ID_DIGITS]}" if spec.job else new_episode_id())
    return ids


async def start_many(
    service: EpisodeService,
    specs: Sequence[EpisodeSpec],
    *,
    ids: Sequence[str] | None = None,
    at_once: int = DEFAULT_AT_ONCE,
    on_progress: Heard | None = None,
) -> list[EpisodeInfo]:
    """Start a batch and return its episodes, in order. Asking again starts what is left: see `batch_ids`.

    Args:
        service: a worker.
        specs: one for each episode.
        ids: one for each, if they are to be yours.
        at_once: requests under way.
        on_progress: called as episodes are started.

    Raises:
        InvalidRequestError: as many ids as specs are needed.
        DsecError: of the first that could not be started; those before it run.
    """
    chosen = list(ids) if ids is not None else batch_ids(specs)
    if len(chosen) != len(specs):
        raise InvalidRequestError(f"{len(chosen)} ids were given for {len(specs)} episodes")
    starting = _Starting(service, len(specs), on_progress)
    waiting = iter(zip(range(len(specs)), specs, chosen, strict=True))
    async with anyio.create_task_group() as group:
        for _ in range(min(max(1, at_once), len(specs))):
            group.start_soon(starting.run, waiting, group.cancel_scope)
    if starting.error is not None:
        raise starting.error
    return [starting.started[index] for index in range(len(specs))]


class _Starting:
    def __init__(self, service: EpisodeService, total: int, on_progress: Heard | None) -> None:
        self._service = service
        self._total = total
        self._on_progress = on_progress
        self.started: dict[int, EpisodeInfo] = {}
        self.error: Exception | None = None

    async def run(self, waiting: Iterator[tuple[int, EpisodeSpec, str]], scope: anyio.CancelScope) -> None:
        try:
            for index, spec, episode_id in waiting:
                self.started[index] = await self._service.start(spec, episode_id=episode_id)
                if self._on_progress is not None:
                    self._on_progress(EpisodesProgress(done=len(self.started), total=self._total))
        except Exception as error:  # noqa: BLE001 - the first is raised as it is: a task group would wrap it.
            self.error = self.error or error
            scope.cancel()


async def collect(
    service: EpisodeService,
    job: str,
    *,
    known: Collection[str] = (),
    final: Collection[EpisodeState] = ENDED,
    on_progress: Heard | None = None,
) -> AsyncIterator[EpisodeInfo]:
    """Yield the episodes of a job as they end, the earliest first, until all have ended.

    Args:
        service: a worker.
        job: its name.
        known: ids that were taken in before: they are not told again.
        final: states in which an episode is told and no longer waited for. One that is STOPPED or WAITING needs
            somebody; whoever has nobody adds these two.
        on_progress: called after each look, with how many are where.
    """
    told = set(known)
    look_s = _FIRST_LOOK_S
    while True:
        infos = await service.list(EpisodeFilter(job=job))
        over = sorted((info for info in infos if info.state in final), key=lambda info: info.ended_at_s)
        if on_progress is not None:
            states = Counter(info.state for info in infos)
            on_progress(EpisodesProgress(done=len(over), total=len(infos), states=dict(states)))
        fresh = [info for info in over if info.episode_id not in told]
        for info in fresh:
            told.add(info.episode_id)
            yield info
        if len(over) == len(infos):
            return
        look_s = _FIRST_LOOK_S if fresh else min(2 * look_s, _LONGEST_LOOK_S)
        await anyio.sleep(look_s)
