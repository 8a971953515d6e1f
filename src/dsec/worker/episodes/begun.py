"""The mark that the log of an episode has begun: ``<id>.begun`` beside its spec.

A spec without a log is an episode that has not begun, and a worker begins it. So it was, too, when a log had been lost:
the episode began anew in silence, and what it had done outside was done a second time. The mark tells the two apart. It
is written once the first event of the log is saved and before anybody is told that the episode has begun; so where it
is, there was a log.
"""

from __future__ import annotations

from pathlib import Path

from dsec.base.errors import StateCorruptedError
from dsec.stores.episode_log_place import LogPlace, disk_failure


def mark_begun(place: LogPlace) -> None:
    """Write down that a log has begun; on the disk when this returns. Does nothing where that is known.

    Raises:
        HostDiskFullError, PlatformError: it cannot be written.
    """
    mark, disk = _mark(place), place.disk
    try:
        if disk.exists(mark):
            return
        disk.close(disk.create(mark))
        disk.sync_directory(mark.parent)
    except OSError as error:
        raise disk_failure(mark.parent, error) from error


def check_not_begun(place: LogPlace) -> None:
    """Refuse to begin a log where one has begun.

    Raises:
        StateCorruptedError: there was one, and it is gone.
        PlatformError: the disk failed.
    """
    mark = _mark(place)
    try:
        is_begun = place.disk.exists(mark)
    except OSError as error:
        raise disk_failure(mark.parent, error) from error
    if is_begun:
        raise StateCorruptedError(
            f"{place.directory.name} has begun, and its log is gone from {place.directory}",
            detail="begun anew, it would do again what it has done outside",
            resolution="bring the directory back from a copy, and resume the episode; or start another attempt. Only "
            f"if nothing that it did outside counts, remove {mark} and resume it: it begins anew",
        )


def _mark(place: LogPlace) -> Path:
    return place.directory.with_name(f"{place.directory.name}.begun")
