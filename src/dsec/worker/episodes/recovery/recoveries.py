"""The strategies of a worker's episodes, and what they learn from those that ended.

An episode that ended teaches what its steps came to, if it is known whether it passed: its check says so, or how it
ended, or a grade. It is learned again when a grade comes, in place of what was known. What cannot be read teaches
nothing, and holds nobody up.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import anyio.to_thread

from dsec.base.errors import DsecError, InvalidStateError
from dsec.episode.log_content import LogContent
from dsec.episode.log_events import ModelChanged
from dsec.episode.prices import Prices
from dsec.episode.recovery_experience import Experience, StepTaken
from dsec.episode.recovery_learning import steps_taken
from dsec.episode.spec import EpisodeSpec
from dsec.stores.episode_log_disk import Disk, HostDisk
from dsec.stores.episode_log_reading import read_episode_log
from dsec.worker.episodes.ports import RecoveryStrategy
from dsec.worker.episodes.recovery.escalation import TreeRecovery, prices_of
from dsec.worker.experience import ExperienceBook


class Recoveries:
    """Open while its worker holds the directory; a context manager.

    Args:
        directory: of the worker.
        disk: where logs are.
    """

    def __init__(self, directory: Path, *, disk: Disk | None = None) -> None:
        self._directory = directory
        self._disk = disk or HostDisk()
        self._stack = ExitStack()
        self._book: ExperienceBook | None = None
        self._nothing = Experience()

    def __enter__(self) -> Recoveries:
        self._book = self._stack.enter_context(ExperienceBook(self._directory))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._book = None
        self._stack.close()

    @property
    def experience(self) -> Experience:
        """What was learned so far."""
        return self._book.experience if self._book is not None else self._nothing

    def strategy(self, spec: EpisodeSpec) -> RecoveryStrategy:
        """Return the strategy of an episode."""
        return TreeRecovery(spec, lambda: self.experience)

    async def learn(self, episode_id: str, spec: EpisodeSpec, passed: bool | None) -> None:
        """Learn from an episode that has ended; never fails for what there is to read or to write.

        Args:
            episode_id: of it.
            spec: of it.
            passed: what its grade says; None: it has none.

        Raises:
            InvalidStateError: this is not open.
        """
        if self._book is None:
            raise InvalidStateError("what a worker learns is not open")
        try:
            steps = await anyio.to_thread.run_sync(self._steps, episode_id, spec, passed)
            if steps:
                await self._book.learn(episode_id, steps)
        except DsecError:
            return

    def _steps(self, episode_id: str, spec: EpisodeSpec, passed: bool | None) -> tuple[StepTaken, ...]:
        content = read_episode_log(self._directory / "episodes" / episode_id, disk=self._disk)
        if content.problem:
            return ()
        checked, prices = spec.check is not None, _prices(spec, content)
        return tuple(steps_taken(content.events, passed=passed, checked=checked, prices=prices))


def _prices(spec: EpisodeSpec, content: LogContent) -> Prices:
    return prices_of(spec, *(event.endpoint for event in content.events if isinstance(event, ModelChanged)))
