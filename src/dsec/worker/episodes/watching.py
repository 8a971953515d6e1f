"""Saved events of an episode, for whoever watches: from an offset on, then as they are saved, until the end.

The log on the disk is the queue, so that nothing is kept for a watcher and a slow one holds nobody up. What a restart
could take back is not shown: a page ends with the last event that is known to be saved.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from pathlib import Path

import anyio.to_thread

from dsec.episode.log_events import EpisodeEnded
from dsec.episode.spec import EpisodeEvent
from dsec.stores.episode_log_disk import Disk
from dsec.stores.episode_log_feed import read_page
from dsec.worker.episodes.drive import EpisodeDrive


async def watch(
    directory: Path, disk: Disk, drive: EpisodeDrive | None, sequence: int, *, follow: bool
) -> AsyncGenerator[EpisodeEvent, None]:
    """Yield events.

    Args:
        directory, disk: where the log is.
        drive: of the episode; None: it has ended, and all of its log is saved.
        sequence: of the first event that is wanted.
        follow: whether to wait for more.

    Raises:
        StateCorruptedError: the log cannot prove that nothing is missing.
    """
    while True:
        change = drive.change if drive is not None else None
        through = drive.saved_sequence if drive is not None else None
        if through is None or through >= sequence:
            page = await anyio.to_thread.run_sync(partial(read_page, directory, sequence, through=through, disk=disk))
            for place, event in enumerate(page.events):
                yield EpisodeEvent(sequence=page.first + place, event=event)
                if isinstance(event, EpisodeEnded):
                    return
            sequence = page.next_sequence
            if page.events:
                continue
        if change is None or not follow:
            return
        await change.wait()
