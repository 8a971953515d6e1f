"""A sandbox's move between two nodes as two pure state machines: two-phase commit with presumed abort.

The source coordinates. Its journal's `released` is the decision; before it the source gives up by itself, after it the
sandbox is the target's. The target prepares, and is fenced until it hears the release: so a message that is lost leaves
at worst nobody who serves for a while, never two. A phase here is what a journal says; None says nothing of the
migration: it was given up, or never was. docs/formats/migration.md has the messages and the table of crashes.

Sources: J. Gray, *Notes on Data Base Operating Systems* (1978), two-phase commit; C. Mohan, B. Lindsay, *Efficient
Commit Protocols for the Tree of Processes Model* (1983), presumed abort.
"""

from __future__ import annotations

import enum

from dsec.base.errors import InvalidStateError


class SourcePhase(enum.Enum):
    """What the source's journal says."""

    COPYING = "copying"
    RELEASED = "released"
    MOVED = "moved"


class TargetPhase(enum.Enum):
    """What the target's journal says."""

    RECEIVING = "receiving"
    PREPARED = "prepared"
    DONE = "done"


class SourceEvent(enum.Enum):
    """What happens to the source."""

    BEGUN = "begun"
    TARGET_PREPARED = "target_prepared"
    GIVEN_UP = "given_up"
    ACKNOWLEDGED = "acknowledged"
    RESTARTED = "restarted"


class TargetEvent(enum.Enum):
    """What happens to the target."""

    OFFERED = "offered"
    COMMITTED = "committed"
    RELEASE_HEARD = "release_heard"
    ABORT_HEARD = "abort_heard"
    LEASE_ENDED = "lease_ended"
    RESTARTED = "restarted"


class Verdict(enum.Enum):
    """What the source answers to the question how a migration was decided."""

    OPEN = "open"
    RELEASED = "released"
    GIVEN_UP = "given_up"


_S, _SE, _T, _TE = SourcePhase, SourceEvent, TargetPhase, TargetEvent

SOURCE: dict[tuple[SourcePhase | None, SourceEvent], SourcePhase | None] = {
    (None, _SE.BEGUN): _S.COPYING,
    (_S.COPYING, _SE.TARGET_PREPARED): _S.RELEASED,
    (_S.COPYING, _SE.GIVEN_UP): None,
    # Whether the sandbox stood still for the last round died with the process: what was copied may be old.
    (_S.COPYING, _SE.RESTARTED): None,
    (_S.RELEASED, _SE.ACKNOWLEDGED): _S.MOVED,
    (_S.MOVED, _SE.ACKNOWLEDGED): _S.MOVED,
    (_S.RELEASED, _SE.RESTARTED): _S.RELEASED,
    (_S.MOVED, _SE.RESTARTED): _S.MOVED,
    (None, _SE.RESTARTED): None,
}

TARGET: dict[tuple[TargetPhase | None, TargetEvent], TargetPhase | None] = {
    (None, _TE.OFFERED): _T.RECEIVING,
    (_T.RECEIVING, _TE.COMMITTED): _T.PREPARED,
    (_T.PREPARED, _TE.COMMITTED): _T.PREPARED,
    (_T.PREPARED, _TE.RELEASE_HEARD): _T.DONE,
    # A release that comes again is acknowledged again.
    (_T.DONE, _TE.RELEASE_HEARD): _T.DONE,
    (_T.RECEIVING, _TE.ABORT_HEARD): None,
    (_T.PREPARED, _TE.ABORT_HEARD): None,
    (None, _TE.ABORT_HEARD): None,
    (_T.RECEIVING, _TE.LEASE_ENDED): None,
    (_T.RECEIVING, _TE.RESTARTED): None,
    (_T.PREPARED, _TE.RESTARTED): _T.PREPARED,
    (_T.DONE, _TE.RESTARTED): _T.DONE,
    (None, _TE.RESTARTED): None,
}


def source_after(phase: SourcePhase | None, event: SourceEvent) -> SourcePhase | None:
    """Return the source's phase after `event`.

    Raises:
        InvalidStateError: the event cannot happen in this phase; nothing changed.
    """
    if (phase, event) not in SOURCE:
        raise _impossible("source", phase, event)
    return SOURCE[phase, event]


def target_after(phase: TargetPhase | None, event: TargetEvent) -> TargetPhase | None:
    """Return the target's phase after `event`.

    Raises:
        InvalidStateError: the event cannot happen in this phase; nothing changed.
    """
    if (phase, event) not in TARGET:
        raise _impossible("target", phase, event)
    return TARGET[phase, event]


def source_serves(phase: SourcePhase | None) -> bool:
    """Whether the sandbox is the source's; while it stands still for the last round its requests wait."""
    return phase in (None, SourcePhase.COPYING)


def target_serves(phase: TargetPhase | None) -> bool:
    """Whether the sandbox is the target's."""
    return phase is TargetPhase.DONE


def verdict(phase: SourcePhase | None) -> Verdict:
    """What the source answers to a target in doubt; not to know a migration is to have given it up."""
    if phase is SourcePhase.COPYING:
        return Verdict.OPEN
    return Verdict.GIVEN_UP if phase is None else Verdict.RELEASED


def event_of(answer: Verdict) -> TargetEvent | None:
    """What an answer means to a target in doubt; None: ask again."""
    return {Verdict.RELEASED: TargetEvent.RELEASE_HEARD, Verdict.GIVEN_UP: TargetEvent.ABORT_HEARD}.get(answer)


def _impossible(side: str, phase: enum.Enum | None, event: enum.Enum) -> InvalidStateError:
    said = "unknown" if phase is None else str(phase.value)
    return InvalidStateError(f"the migration is {said} to its {side}: {event.value} is not possible")
