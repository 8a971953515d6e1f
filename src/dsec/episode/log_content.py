"""What a log says, wherever it was read: on a worker's disk or in an object store."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from dsec.episode.episode_progress import EpisodeProgress, fold
from dsec.episode.log_events import LogEvent, RoundCommitted, decode_log_events
from dsec.episode.operations import RoundRecord
from dsec.episode.segments import JoinedLog


class Completeness(enum.Enum):
    """What a reader can prove.

    COMPLETE: the episode has ended, and nothing of it is missing.
    OPEN: nothing is missing up to the last event here; the episode had not ended, so that more may be elsewhere.
    INCOMPLETE: something is missing, or cannot be shown not to be.
    """

    COMPLETE = "complete"
    OPEN = "open"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogContent:
    """The proven part of a log.

    Attributes:
        events: without a gap, from the first one or from a whole state on.
        first: sequence of the first of them.
        progress: what they add up to.
        completeness: what that proves.
        problem: what is missing or damaged, if it is incomplete.
        torn_bytes: length of a torn tail, which was never acknowledged.
    """

    events: list[LogEvent]
    first: int
    progress: EpisodeProgress
    completeness: Completeness
    problem: str
    torn_bytes: int

    @property
    def rounds(self) -> tuple[RoundRecord, ...]:
        """The committed rounds, from the beginning or from behind the state that stands in for it."""
        return tuple(event.record for event in self.events if isinstance(event, RoundCommitted))

    @property
    def next_sequence(self) -> int:
        """The sequence of the event that would come next."""
        return self.first + len(self.events)


def read_content(joined: JoinedLog, *, name: str, problem: str = "") -> LogContent:
    """Decode and fold joined segments.

    Args:
        joined: see `dsec.episode.segments.join_segments`.
        name: what to call the log in an error.
        problem: what the reader could not read at all.

    Raises:
        StateCorruptedError: an event is not one of this version, or out of order.
    """
    events = decode_log_events(joined.documents, name=name)
    problem = problem or joined.problem
    progress = fold(events)
    proven = Completeness.OPEN if progress.ended is None else Completeness.COMPLETE
    return LogContent(
        events=events,
        first=joined.first,
        progress=progress,
        completeness=Completeness.INCOMPLETE if problem else proven,
        problem=problem,
        torn_bytes=joined.torn_bytes,
    )
