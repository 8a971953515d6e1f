"""Read a log on a disk, in use or not. Nothing is locked and nothing changed."""

from __future__ import annotations

from pathlib import Path

from dsec.base.errors import NotFoundError, PlatformError, StateCorruptedError
from dsec.episode.log_content import LogContent, read_content
from dsec.episode.segments import JoinedLog, Segment, join_segments, parse_segment_name, read_segment
from dsec.stores.episode_log_disk import Disk, HostDisk

_TRIES = 5
"""A writer that begins to write, or drops what a state covers, takes segments away while they are read."""


def read_episode_log(directory: Path, *, disk: Disk = HostDisk()) -> LogContent:
    """Return what the log of an episode says; the directory's name is the episode's id.

    What cannot be proven is not returned, and told (`LogContent.problem`). A reader beside a writer sees each event
    whole or not at all, and may see some that are not saved yet.

    Raises:
        NotFoundError: there is no log.
        CapabilityMissingError: a newer version wrote it.
        StateCorruptedError: an event cannot be understood.
    """
    joined, problem = load_segments(directory, disk=disk)
    return read_content(joined, name=str(directory), problem=problem)


def load_segments(directory: Path, *, disk: Disk) -> tuple[JoinedLog, str]:
    """Return the joined segments of a log, and what could not be read of it.

    Raises:
        NotFoundError: there is no log.
        CapabilityMissingError: a newer version wrote it.
        PlatformError: it cannot be read.
    """
    for _ in range(_TRIES):
        segments: list[Segment] = []
        problems: list[str] = []
        try:
            names = [name for name in disk.names(directory) if parse_segment_name(name) is not None]
            if not names:
                raise NotFoundError(f"there is no log of an episode in {directory}")
            for name in names:
                data = disk.read(directory / name)
                try:
                    segments.append(read_segment(name, data, episode_id=directory.name))
                except StateCorruptedError as error:
                    problems.append(error.brief)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise PlatformError(f"the log in {directory} cannot be read", detail=error.strerror or "") from error
        return _joined(segments, problems)
    raise PlatformError(f"the log in {directory} changes faster than it can be read", resolution="try again")


def _joined(segments: list[Segment], problems: list[str]) -> tuple[JoinedLog, str]:
    joined = join_segments(segments)
    # A segment that cannot be read at all may be one that counts for nothing; but who can tell.
    return joined, problems[0] if problems else ""
