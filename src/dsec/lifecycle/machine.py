"""The life of a sandbox as a pure state machine.

::

    pending → creating → ready ⇄ paused
                         ready → rolling_back → ready
                         ready → migrating → ready
                         paused → migrating → paused
    any but stopped → stopping → stopped
    any but stopped → failed → stopping

`failed` keeps its cause and can always be destroyed; destroying twice is destroying once. The machine takes a
state and an event and returns the next state, or raises: it never waits, writes or reads a clock.
"""

from __future__ import annotations

import enum

from dsec.base.errors import InvalidStateError
from dsec.model.sandbox import SandboxState


class Event(enum.Enum):
    """What happened, or was asked for."""

    CREATE_BEGAN = "create_began"
    CREATED = "created"
    PAUSED = "paused"
    RESUMED = "resumed"
    ROLLBACK_BEGAN = "rollback_began"
    ROLLED_BACK = "rolled_back"
    MIGRATION_BEGAN = "migration_began"
    MIGRATED = "migrated"
    STOP_BEGAN = "stop_began"
    STOPPED = "stopped"
    FAILED = "failed"


_S, _E = SandboxState, Event

TRANSITIONS: dict[tuple[SandboxState, Event], SandboxState] = {
    (_S.PENDING, _E.CREATE_BEGAN): _S.CREATING,
    (_S.CREATING, _E.CREATED): _S.READY,
    (_S.READY, _E.PAUSED): _S.PAUSED,
    (_S.PAUSED, _E.RESUMED): _S.READY,
    (_S.READY, _E.ROLLBACK_BEGAN): _S.ROLLING_BACK,
    (_S.ROLLING_BACK, _E.ROLLED_BACK): _S.READY,
    (_S.READY, _E.MIGRATION_BEGAN): _S.MIGRATING,
    (_S.PAUSED, _E.MIGRATION_BEGAN): _S.MIGRATING,
    (_S.MIGRATING, _E.MIGRATED): _S.READY,
    (_S.MIGRATING, _E.PAUSED): _S.PAUSED,
    (_S.STOPPING, _E.STOPPED): _S.STOPPED,
    (_S.STOPPED, _E.STOP_BEGAN): _S.STOPPED,
    (_S.STOPPED, _E.STOPPED): _S.STOPPED,
}
for _state in SandboxState:
    if _state is not _S.STOPPED:
        TRANSITIONS[_state, _E.STOP_BEGAN] = _S.STOPPING
        TRANSITIONS[_state, _E.FAILED] = _S.FAILED

LIVE = frozenset({_S.READY, _S.PAUSED, _S.ROLLING_BACK, _S.MIGRATING})
"""States in which the sandbox's files exist and matter."""


def next_state(state: SandboxState, event: Event, *, sandbox_id: str = "the sandbox") -> SandboxState:
    """Return the state after `event`.

    Raises:
        InvalidStateError: the event cannot happen in this state; nothing changed.
    """
    after = TRANSITIONS.get((state, event))
    if after is None:
        possible = sorted(event.value for (before, event) in TRANSITIONS if before is state)
        raise InvalidStateError(
            f"{sandbox_id} is {state.value}: {event.value} is not possible",
            resolution=f"in this state only these are: {', '.join(possible)}",
        )
    return after
