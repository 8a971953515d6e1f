"""What a worker has learned of recoveries: ``experience.jsonl`` beside the logs (docs/formats/experience.md).

A framed line for each episode holds the steps that it took. Facts are kept and not sums, so that a grade that changes
its mind takes the place of the line before: the last line of an episode counts. Models change, and so does what they
can: of very many episodes only the newest are kept. Losing the file costs knowledge and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio.to_thread
import msgspec

from dsec.episode.frames import encode_frame
from dsec.episode.identity import check_episode_id
from dsec.episode.recovery_experience import PRIOR_WEIGHT, Experience, StepTaken
from dsec.model.value import Value
from dsec.worker.book import Book, read_book
from dsec.worker.manifest import write_durably

EXPERIENCE_NAME = "experience.jsonl"
MAXIMUM_EPISODES = 50_000
"""Of the newest, that are kept when a book is opened that has grown to twice as many lines."""


class ExperienceLine(Value, frozen=True):
    """The steps of one episode."""

    episode_id: str
    steps: tuple[StepTaken, ...]

    def __post_init__(self) -> None:
        check_episode_id(self.episode_id)


_ENCODER = msgspec.json.Encoder()
_RESOLUTION = "read it with the version of dsec that wrote it, or move it away: it is learned anew"


class ExperienceBook(Book[ExperienceLine]):
    """The experience of a worker, open for more; one process at a time writes it. A context manager.

    Attributes:
        experience: of all episodes so far.
    """

    def __init__(self, directory: Path, *, prior_weight: float = PRIOR_WEIGHT) -> None:
        """Open or begin the book of a worker's directory; one that has grown to twice what is kept is written anew.

        Raises:
            StateCorruptedError: it is damaged elsewhere than at its end; nothing was changed.
        """
        path = directory / EXPERIENCE_NAME
        super().__init__(path, ExperienceLine, resolution=_RESOLUTION)
        if len(self._read) > 2 * MAXIMUM_EPISODES:
            self.close()
            write_durably(path, _newest(self._read, MAXIMUM_EPISODES))
            super().__init__(path, ExperienceLine, resolution=_RESOLUTION)
        self._prior_weight = prior_weight
        self._lines = _last(self._read)
        self.experience = _learned(self._lines, prior_weight)

    async def learn(self, episode_id: str, steps: tuple[StepTaken, ...]) -> None:
        """Take in what an episode's steps came to, in place of what was known of it.

        Raises:
            HostDiskFullError, PlatformError: it could not be saved.
        """
        if self._lines.get(episode_id, ()) == steps:
            return
        await self._append(ExperienceLine(episode_id=episode_id, steps=steps))
        known = episode_id in self._lines
        self._lines[episode_id] = steps
        if known:
            # A grade has changed its mind: rarely, and what took its place cannot be taken out of sums again.
            lines = dict(self._lines)
            self.experience = await anyio.to_thread.run_sync(_learned, lines, self._prior_weight)
        else:
            self.experience.learn(steps)


def read_experience(path: Path, *, prior_weight: float = PRIOR_WEIGHT) -> Experience:
    """Return what a file says, which may be written meanwhile; nothing where there is none.

    Raises:
        StateCorruptedError: what is there does not verify.
    """
    return _learned(_last(read_book(path, ExperienceLine, resolution=_RESOLUTION)), prior_weight)


def _newest(lines: Sequence[ExperienceLine], maximum: int) -> bytes:
    """Return a file of what counts of the episodes that were learned last."""
    kept = list(_last(lines).items())[-maximum:]
    documents = (_ENCODER.encode(ExperienceLine(episode_id=name, steps=steps)) for name, steps in kept)
    return b"".join(map(encode_frame, documents))


def _last(lines: Sequence[ExperienceLine]) -> dict[str, tuple[StepTaken, ...]]:
    found: dict[str, tuple[StepTaken, ...]] = {}
    for line in lines:
        # In the order in which they were learned last.
        found.pop(line.episode_id, None)
        found[line.episode_id] = line.steps
    return found


def _learned(lines: dict[str, tuple[StepTaken, ...]], prior_weight: float) -> Experience:
    return Experience((step for steps in lines.values() for step in steps), prior_weight=prior_weight)
