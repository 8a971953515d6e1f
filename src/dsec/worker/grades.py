"""What results of episodes were found to be worth: ``grades.jsonl`` beside the logs (docs/formats/grades.md).

A grade comes after its episode has ended, when the log takes nothing more; so grades have a file of their own, of
framed lines that are only appended to. The last line of an episode counts, and the earlier ones stay for whoever asks
who changed their mind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dsec.episode.identity import check_episode_id
from dsec.episode.spec import EpisodeGrade
from dsec.model.value import Value
from dsec.worker.book import Book, read_book

GRADES_NAME = "grades.jsonl"


class GradeLine(Value, frozen=True, omit_defaults=True):
    """One grade that was given.

    Attributes:
        episode_id: to which episode.
        grade: what it is worth.
        at_s: when, in wall-clock seconds since the epoch.
    """

    episode_id: str
    grade: EpisodeGrade
    at_s: float = 0.0

    def __post_init__(self) -> None:
        check_episode_id(self.episode_id)


_RESOLUTION = "read it with the version of dsec that wrote it"


class GradeBook(Book[GradeLine]):
    """The grades of a worker's episodes, open for more. One process at a time writes it: the one that holds the worker.

    Use as a context manager, or call `close`.
    """

    def __init__(self, directory: Path) -> None:
        """Open or begin the book of a worker's directory.

        Raises:
            StateCorruptedError: it is damaged elsewhere than at its end; nothing was changed.
        """
        super().__init__(directory / GRADES_NAME, GradeLine, resolution=_RESOLUTION)
        self._grades = _last(self._read)

    def get(self, episode_id: str) -> EpisodeGrade | None:
        """Return the grade of an episode, if it has one."""
        return self._grades.get(episode_id)

    async def grade(self, episode_id: str, grade: EpisodeGrade, *, at_s: float) -> None:
        """Give a grade; it is on the disk when this returns.

        Raises:
            HostDiskFullError, PlatformError: it could not be saved, and does not count.
        """
        await self._append(GradeLine(episode_id=episode_id, grade=grade, at_s=at_s))
        self._grades[episode_id] = grade


def read_grades(path: Path) -> Mapping[str, EpisodeGrade]:
    """Return the grades in a file, which may be written meanwhile; none where there is no file.

    Raises:
        StateCorruptedError: what is there does not verify.
    """
    return _last(read_book(path, GradeLine, resolution=_RESOLUTION))


def _last(lines: Sequence[GradeLine]) -> dict[str, EpisodeGrade]:
    return {line.episode_id: line.grade for line in lines}
