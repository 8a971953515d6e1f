"""What a pool wants done. Every action says why."""

from __future__ import annotations

import enum

import msgspec


class PoolAction(msgspec.Struct, frozen=True, tag_field="action", tag=True):
    """The base of all actions."""


class HandOut(PoolAction, frozen=True):
    """Give a ready sandbox to a task. The pool counts it as in use from now on; nobody else is given it.

    Attributes:
        task, sandbox: who gets what.
        waited_s: how long the task waited.
        reason: why now.
    """

    task: str
    sandbox: str
    waited_s: float
    reason: str


class Create(PoolAction, frozen=True):
    """Begin `count` creations. Each is answered by one `Created` or `CreationFailed`."""

    count: int
    reason: str


class Recycle(PoolAction, frozen=True):
    """Roll a returned sandbox back and check that it is clean. Answered by `Recycled`."""

    sandbox: str
    reason: str


class Destroy(PoolAction, frozen=True):
    """Destroy a sandbox. Answered by `Gone`; until then it counts against the cap."""

    sandbox: str
    reason: str


class Refuse(PoolAction, frozen=True):
    """Tell a task that it gets no sandbox.

    Attributes:
        task: which.
        code: of the error to raise.
        reason: why, with the numbers.
        retry_after_s: when asking again may help; None: as the error's own code says.
        detail, resolution: of the failure that is the reason; empty without one.
    """

    task: str
    code: str
    reason: str
    retry_after_s: float | None = None
    detail: str = ""
    resolution: str = ""


class Trouble(enum.Enum):
    """What can be wrong with a pool."""

    LOW = "low"
    DRAINED = "drained"
    NOT_CLEAN = "not_clean"
    CREATION_FAILS = "creation_fails"
    CAP_REACHED = "cap_reached"


class Warn(PoolAction, frozen=True):
    """Something changed that an operator should know.

    Attributes:
        kind: what.
        over: it is over.
        reason: in words, with the numbers.
    """

    kind: Trouble
    over: bool
    reason: str
