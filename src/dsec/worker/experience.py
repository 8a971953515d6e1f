"""What a worker has learned of recoveries: ``experience.jsonl`` beside the logs (docs/formats/experience.md).

A framed line for each episode holds the steps that it took. Facts are kept and not sums, so that a grade that changes
its mind takes the place of the line before: the last line of an episode counts. Models change, and so does what they
can: of very many episodes only the newest are kept. Losing the file costs knowledge and nothing else.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import anyio.to_thread
import msgspec

from dsec.base.errors import StateCorruptedError
from dsec.episode.frames import encode_frame, scan_frames
from dsec.episode.identity import check_episode_id
from dsec.episode.recovery_experience import PRIOR_WEIGHT, Experience, StepTaken
from dsec.model.value import Value
from dsec.stores.episode_log_disk import HostDisk
from dsec.worker.framed_log import FramedLog, sync_directory
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


_ENCODER, _DECODER = msgspec.json.Encoder(), msgspec.json.Decoder(ExperienceLine)


class ExperienceBook:
    """The experience of a worker, open for more; one process at a time writes it. A context manager.

    Attributes:
        experience: of all episodes so far.
    """

    def __init__(self, directory: Path, *, prior_weight: float = PRIOR_WEIGHT) -> None:
        """Open or begin the book of a worker's directory; a torn last line is cut off.

        Raises:
            StateCorruptedError: it is damaged elsewhere; nothing was changed.
        """
        self._prior_weight = prior_weight
        _forget_oldest(directory / EXPERIENCE_NAME, MAXIMUM_EPISODES)
        self._log = FramedLog(directory / EXPERIENCE_NAME)
        sync_directory(directory)
        self._lines = _last(self._log.documents, name=str(directory / EXPERIENCE_NAME))
        self.experience = _learned(self._lines, prior_weight)

    def __enter__(self) -> ExperienceBook:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._log.__exit__(None, None, None)

    async def learn(self, episode_id: str, steps: tuple[StepTaken, ...]) -> None:
        """Take in what an episode's steps came to, in place of what was known of it.

        Raises:
            HostDiskFullError, PlatformError: it could not be saved.
        """
        if self._lines.get(episode_id, ()) == steps:
            return
        await self._log.append(_ENCODER.encode(ExperienceLine(episode_id=episode_id, steps=steps)))
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
    try:
        data = HostDisk().read(path)
    except FileNotFoundError:
        return Experience(prior_weight=prior_weight)
    except OSError as error:
        raise StateCorruptedError(f"{path} cannot be read", detail=str(error)) from error
    return _learned(_last(scan_frames(data, name=str(path)).documents, name=str(path)), prior_weight)


def _forget_oldest(path: Path, maximum: int) -> None:
    """Write a book anew that has grown to twice what is kept of it."""
    if not path.exists():
        return
    documents = scan_frames(path.read_bytes(), name=str(path)).documents
    if len(documents) <= 2 * maximum:
        return
    kept = list(_last(documents, name=str(path)).items())[-maximum:]
    lines = [_ENCODER.encode(ExperienceLine(episode_id=name, steps=steps)) for name, steps in kept]
    write_durably(path, b"".join(map(encode_frame, lines)))


def _last(documents: tuple[bytes, ...], *, name: str) -> dict[str, tuple[StepTaken, ...]]:
    try:
        lines = [_DECODER.decode(document) for document in documents]
    except msgspec.DecodeError as error:
        raise StateCorruptedError(
            f"{name} holds a line that is no experience",
            detail=str(error),
            resolution="read it with the version of dsec that wrote it, or move it away: it is learned anew",
        ) from error
    found: dict[str, tuple[StepTaken, ...]] = {}
    for line in lines:
        # In the order in which they were learned last.
        found.pop(line.episode_id, None)
        found[line.episode_id] = line.steps
    return found


def _learned(lines: dict[str, tuple[StepTaken, ...]], prior_weight: float) -> Experience:
    return Experience((step for steps in lines.values() for step in steps), prior_weight=prior_weight)
