"""An `EpisodeService` in memory whose episodes do what a test says: for the faces of a worker, which drive none.

A test is the loop: `tell` appends a saved event, `put` changes what is known.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import msgspec

from dsec.base.errors import AlreadyExistsError, InvalidStateError, NotFoundError, StateCorruptedError
from dsec.episode.identity import EpisodeIdentity, check_episode_id
from dsec.episode.log_events import (
    EpisodeBegan,
    EpisodeEnded,
    EpisodeSteered,
    LogEvent,
    OperationSettled,
    Verdict,
)
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


@dataclass(slots=True)
class _Kept:
    """One episode: its spec, what is known, and what was saved."""

    spec: EpisodeSpec
    info: EpisodeInfo
    events: list[LogEvent] = field(default_factory=list)
    changed: anyio.Event = field(default_factory=anyio.Event)

    def tell(self, event: LogEvent) -> None:
        self.events.append(event)
        self.put(next_sequence=len(self.events) + 1)

    def put(self, **fields: object) -> None:
        self.info = msgspec.structs.replace(self.info, **fields)
        self.changed.set()
        self.changed = anyio.Event()

    @property
    def has_ended(self) -> bool:
        return self.info.state is EpisodeState.ENDED


class MemoryEpisodes:
    """Episodes in memory.

    Attributes:
        model: what the last `resume` was given.
        error: raised by every operation, where a test sets it.
        asked: the sequences from which events were asked for.
    """

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._count = itertools.count(1)
        self.model: ModelEndpoint | None = None
        self.error: Exception | None = None
        self.asked: list[int] = []

    @property
    def episodes(self) -> MemoryEpisodes:
        """Itself: a server takes what has episodes."""
        return self

    # -- what a loop does ---------------------------------------------------------------------------------------

    def tell(self, episode_id: str, event: LogEvent) -> None:
        """Save an event."""
        kept = self._found(episode_id)
        kept.tell(event)
        if isinstance(event, EpisodeEnded):
            kept.put(state=EpisodeState.ENDED, reason=event.reason, ended_at_s=float(next(self._count)))

    def put(self, episode_id: str, **fields: object) -> None:
        """Change what is known of an episode."""
        self._found(episode_id).put(**fields)

    # -- what a trainer does ------------------------------------------------------------------------------------

    async def start(self, spec: EpisodeSpec, *, episode_id: str | None = None) -> EpisodeInfo:
        number = next(self._count)
        chosen = check_episode_id(episode_id or f"ep-{number}")
        kept = self._kept.get(chosen)
        if self.error is not None:
            raise self.error
        if kept is not None and kept.spec != spec:
            raise AlreadyExistsError(f"{chosen} is another episode")
        if kept is None:
            info = EpisodeInfo(
                episode_id=chosen, task=spec.task, attempt=spec.attempt, job=spec.job, state=EpisodeState.RUNNING,
                policy=msgspec.to_builtins(spec.policy)["policy"], created_at_s=float(number),
            )  # fmt: skip
            kept = self._kept[chosen] = _Kept(spec, info)
            kept.tell(EpisodeBegan(identity=EpisodeIdentity(episode_id=chosen, task=spec.task)))
        return kept.info

    async def get(self, episode_id: str) -> EpisodeInfo:
        return self._found(episode_id).info

    async def list(self, query: EpisodeFilter = EpisodeFilter()) -> Sequence[EpisodeInfo]:
        if self.error is not None:
            raise self.error
        return [kept.info for kept in reversed(self._kept.values()) if _fits(kept, query)]

    async def spec(self, episode_id: str) -> EpisodeSpec:
        return self._found(episode_id).spec

    @asynccontextmanager
    async def events(
        self, episode_id: str, from_sequence: int = 1, *, follow: bool = True
    ) -> AsyncIterator[AsyncIterator[EpisodeEvent]]:
        kept = self._found(episode_id)
        self.asked.append(from_sequence)
        if from_sequence > len(kept.events) + 1:
            raise StateCorruptedError(f"the log has {len(kept.events)} events")
        yield self._events(kept, from_sequence, follow)

    async def _events(self, kept: _Kept, sequence: int, follow: bool) -> AsyncIterator[EpisodeEvent]:
        while True:
            changed = kept.changed
            while sequence <= len(kept.events):
                yield EpisodeEvent(sequence=sequence, event=kept.events[sequence - 1])
                sequence += 1
            if kept.has_ended or not follow:
                return
            await changed.wait()

    async def steer(self, episode_id: str, message: str, *, by: str = "") -> EpisodeInfo:
        kept = self._open(episode_id)
        kept.tell(EpisodeSteered(message=message, by=by))
        return kept.info

    async def pause(self, episode_id: str, *, keep_memory: bool = False) -> EpisodeInfo:
        kept = self._open(episode_id)
        kept.put(state=EpisodeState.PAUSED, reason="kept" if keep_memory else "")
        return kept.info

    async def resume(self, episode_id: str, *, model: ModelEndpoint | None = None) -> EpisodeInfo:
        kept = self._open(episode_id)
        if kept.info.state is EpisodeState.WAITING:
            raise InvalidStateError(f"{episode_id} waits for a verdict", resolution="settle what is unknown")
        self.model = model
        kept.put(state=EpisodeState.RUNNING, reason="")
        return kept.info

    async def cancel(self, episode_id: str, *, reason: str = "") -> EpisodeInfo:
        if not self._found(episode_id).has_ended:
            self.tell(episode_id, EpisodeEnded(reason=reason or "cancelled"))
        return self._found(episode_id).info

    async def settle(
        self, episode_id: str, operation_id: str, verdict: Verdict, *, result: ToolResult | None = None, by: str = ""
    ) -> EpisodeInfo:
        kept = self._open(episode_id)
        left = tuple(each for each in kept.info.unknown if each.operation_id != operation_id)
        if len(left) == len(kept.info.unknown):
            raise InvalidStateError(f"{operation_id} waits for no verdict")
        kept.tell(OperationSettled(number=1, operation=operation_id, verdict=verdict, result=result, by=by))
        kept.put(unknown=left, state=EpisodeState.WAITING if left else EpisodeState.RUNNING)
        return kept.info

    async def grade(self, episode_id: str, grade: EpisodeGrade) -> EpisodeInfo:
        kept = self._found(episode_id)
        if not kept.has_ended:
            raise InvalidStateError(f"{episode_id} has not ended")
        kept.put(grade=grade)
        return kept.info

    async def pause_job(self, job: str, *, keep_memory: bool = False) -> Sequence[EpisodeInfo]:
        return [await self.pause(each, keep_memory=keep_memory) for each in self._of_job(job)]

    async def resume_job(self, job: str) -> Sequence[EpisodeInfo]:
        return [await self.resume(each) for each in self._of_job(job)]

    def _of_job(self, job: str) -> Sequence[str]:
        return [name for name, kept in self._kept.items() if kept.spec.job == job and not kept.has_ended]

    def _found(self, episode_id: str) -> _Kept:
        if episode_id not in self._kept:
            raise NotFoundError(f"there is no episode {episode_id}", resolution="`dsec episode ls` lists them")
        return self._kept[episode_id]

    def _open(self, episode_id: str) -> _Kept:
        kept = self._found(episode_id)
        if kept.has_ended:
            raise InvalidStateError(f"{episode_id} has ended")
        return kept


def _fits(kept: _Kept, query: EpisodeFilter) -> bool:
    return (
        query.job in ("", kept.spec.job)
        and query.task in ("", kept.spec.task)
        and (not query.states or kept.info.state in query.states)
        and query.metadata.items() <= kept.spec.metadata.items()
    )
