"""The play of an attempt that is an episode: follow it to where nothing goes on by itself, and add up what it did.

The worker drives the episode; here it is watched. Its log tells what happened, and `EpisodeService.get` whether it
stands still without having ended, which no event says.
"""

from __future__ import annotations

from dataclasses import dataclass

import anyio

from dsec.base.errors import DsecError
from dsec.episode.ledger import AttemptLedger
from dsec.episode.log_events import (
    EnvironmentUsed,
    EpisodeEnded,
    LifeBegan,
    ModelChanged,
    ModelFailed,
    RoundCommitted,
    StateSaved,
)
from dsec.episode.operations import RoundRecord
from dsec.episode.spec import EpisodeEvent, EpisodeInfo, EpisodeState
from dsec.episode.tools import CommandOutput, Run
from dsec.episode.totals import EnvironmentKind
from dsec.episode.use import AttemptUse
from dsec.service.episodes import EpisodeService

_LOOK_S = 0.5
"""How often it is looked whether an episode stands still; its end is heard of at once."""
_END_S = 0.01
_STILL = (EpisodeState.ENDED, EpisodeState.STOPPED, EpisodeState.WAITING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When a round was played, or a sandbox made.

    Attributes:
        end_s: wall-clock seconds since the epoch.
        decide_s, tools_s, create_s: seconds before it, in this order.
    """

    end_s: float
    decide_s: float = 0.0
    tools_s: float = 0.0
    create_s: float = 0.0


class EpisodePlay:
    """One episode, watched. Implements `dsec.worker.play.Played`.

    Attributes:
        moments: when its rounds were played.
        workspace: version of the workspace after the last round.
        ended: how it ended; None: it did not.
        models: that decided, in the order in which they took over.
        is_failing: whether the last thing that was heard of its model is that it came to nothing.
    """

    def __init__(self, episodes: EpisodeService, episode_id: str) -> None:
        self.episode_id = episode_id
        self.moments: list[Moment] = []
        self.workspace = ""
        self.ended: EpisodeEnded | None = None
        self.models: list[str] = []
        self.is_failing = False
        self._episodes = episodes
        self._ledger = AttemptLedger()
        self._next = 1
        self._rounds = 0
        self._guest_s = 0.0
        self._last_output = ""
        self._heard = anyio.Event()

    @property
    def round_count(self) -> int:
        """How many rounds are committed."""
        return self._rounds

    def guest_s(self) -> float:
        """Seconds in which the policy's commands ran."""
        return self._guest_s

    def last_output(self) -> str:
        """Return what the last command printed."""
        return self._last_output

    def use(self) -> AttemptUse:
        """Return what it has used."""
        return self._ledger.use()

    async def follow(self) -> EpisodeInfo:
        """Watch until it has ended, was stopped by an error, or waits for somebody.

        Raises:
            StateCorruptedError: its log cannot prove that nothing is missing.
            DsecError: the worker cannot be asked.
        """
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._hear)
            while (info := await self._episodes.get(self.episode_id)).state not in _STILL:
                await self._wait()
            tasks.cancel_scope.cancel()
        await self.catch_up()
        return info

    async def catch_up(self) -> None:
        """Take in what is saved by now.

        Raises:
            StateCorruptedError: its log cannot prove that nothing is missing.
        """
        async with self._episodes.events(self.episode_id, self._next, follow=False) as events:
            async for event in events:
                self._take(event)

    async def _wait(self) -> None:
        if self._heard.is_set():
            await anyio.sleep(_END_S)  # Its end is saved, and will be known in a moment.
        else:
            with anyio.move_on_after(_LOOK_S):
                await self._heard.wait()

    async def _hear(self) -> None:
        try:
            async with self._episodes.events(self.episode_id, self._next) as events:
                async for event in events:
                    self._take(event)
        except DsecError:
            return  # Catching up meets it again, where it counts.
        self._heard.set()

    def _take(self, told: EpisodeEvent) -> None:
        if told.sequence < self._next:
            return
        self._next = told.sequence + 1
        self._ledger.add(told.event)
        match told.event:
            case RoundCommitted(record=record):
                self._round(record)
            case LifeBegan(model=model) | ModelChanged(model=model):
                if model.name and model.name not in self.models[-1:]:
                    self.models.append(model.name)
            case ModelFailed():
                self.is_failing = True
            case EnvironmentUsed(kind=EnvironmentKind.CREATED, began_s=began_s, ended_s=ended_s):
                self.moments.append(Moment(end_s=ended_s, create_s=max(0.0, ended_s - began_s)))
            case EpisodeEnded():
                self.ended = told.event
            case StateSaved():
                self._restart(told.event)
            case _:
                pass

    def _round(self, record: RoundRecord) -> None:
        self._rounds = record.number
        self.is_failing = False
        self.workspace = record.workspace_after
        self.moments.append(Moment(end_s=record.committed_at_s, decide_s=record.decide_s, tools_s=record.tools_s))
        for operation, result in zip(record.decision.operations, record.results, strict=True):
            if isinstance(operation.call, Run) and isinstance(result, CommandOutput):
                self._guest_s += result.duration_s
                self._last_output = result.stdout.shown() + result.stderr.shown()

    def _restart(self, state: StateSaved) -> None:
        """Take over what a whole state stands for, where the rounds before it were dropped."""
        self._rounds = max(self._rounds, state.number)
        self.workspace = state.workspace
