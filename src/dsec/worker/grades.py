"""What results of episodes were found to be worth: ``grades.jsonl`` beside the logs (docs/formats/grades.md).

A grade comes after its episode has ended, when the log takes nothing more; so grades have a file of their own, of
framed lines that are only appended to. The last line of an episode counts, and the earlier ones stay for whoever asks
who changed their mind.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import msgspec

from dsec.base.errors import StateCorruptedError
from dsec.episode.frames import scan_frames
from dsec.episode.identity import check_episode_id
from dsec.episode.spec import EpisodeGrade
from dsec.model.value import Value
from dsec.stores.episode_log_disk import HostDisk
from dsec.worker.framed_log import FramedLog, sync_directory

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


_ENCODER, _DECODER = msgspec.json.Encoder(), msgspec.json.Decoder(GradeLine)


class GradeBook:
    """The grades of a worker's episodes, open for more. One process at a time writes it: the one that holds the worker.

    Use as a context manager, or call `close`.
    """

    def __init__(self, directory: Path) -> None:
        """Open or begin the book of a worker's directory; a torn last line, which nobody was told of, is cut off.

        Raises:
            StateCorruptedError: it is damaged elsewhere; nothing was changed.
        """
        self._log = FramedLog(directory / GRADES_NAME)
        sync_directory(directory)
        self._grades = dict(_last(self._log.documents, name=str(directory / GRADES_NAME)))

    def __enter__(self) -> GradeBook:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._log.__exit__(None, None, None)

    def get(self, episode_id: str) -> EpisodeGrade | None:
        """Return the grade of an episode, if it has one."""
        return self._grades.get(episode_id)

    async def grade(self, episode_id: str, grade: EpisodeGrade, *, at_s: float) -> None:
        """Give a grade; it is on the disk when this returns.

        Raises:
            HostDiskFullError, PlatformError: it could not be saved, and does not count.
        """
        await self._log.append(_ENCODER.encode(GradeLine(episode_id=episode_id, grade=grade, at_s=at_s)))
        self._grades[episode_id] = grade


def read_grades(path: Path) -> Mapping[str, EpisodeGrade]:
    """Return the grades in a file, which may be written meanwhile; none where there is no file.

    Raises:
        StateCorruptedError: what is there does not verify.
    """
    try:
        data = HostDisk().read(path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise StateCorruptedError(f"{path} cannot be read", detail=str(error)) from error
    return _last(scan_frames(data, name=str(path)).documents, name=str(path))


def _last(documents: tuple[bytes, ...], *, name: str) -> Mapping[str, EpisodeGrade]:
    try:
        lines = [_DECODER.decode(document) for document in documents]
    except msgspec.DecodeError as error:
        raise StateCorruptedError(
            f"{name} holds a line that is no grade",
            detail=str(error),
            resolution="read it with the version of dsec that wrote it",
        ) from error
    return {line.episode_id: line.grade for line in lines}
