"""What happens to a pool. Times are not part of an event: `Pool.handle` is told the time."""

from __future__ import annotations

import msgspec

from dsec.model.pool import PoolPolicy


class PoolEvent(msgspec.Struct, frozen=True, tag_field="event", tag=True):
    """The base of all events."""


class TaskArrived(PoolEvent, frozen=True):
    """A task asks for a sandbox.

    Attributes:
        task: names this one request; unique while it waits.
        group: whose turn it is is decided between groups: all requests of one training task.
    """

    task: str
    group: str = ""


class TaskLeft(PoolEvent, frozen=True):
    """A task no longer waits: cancelled, or past its deadline. Nothing happens when it does not wait."""

    task: str


class Created(PoolEvent, frozen=True):
    """A creation that the pool asked for is done; its sandbox is clean and ready."""

    sandbox: str


class CreationFailed(PoolEvent, frozen=True):
    """A creation that the pool asked for failed, and was undone.

    Attributes:
        brief: why.
        code: of the error.
        detail, resolution, retry_after_s: as the error has them.
    """

    brief: str
    code: str = "platform_error"
    detail: str = ""
    resolution: str = ""
    retry_after_s: float | None = None


class Returned(PoolEvent, frozen=True):
    """A task is done with its sandbox, whose processes have ended."""

    sandbox: str


class Recycled(PoolEvent, frozen=True):
    """A recycle that the pool asked for ended.

    Attributes:
        sandbox: which.
        clean: whether it is clean and ready.
        reason: what the clean check found, or why the rollback failed.
        exists: whether anything of the sandbox is still there to be destroyed.
    """

    sandbox: str
    clean: bool
    reason: str = ""
    exists: bool = True


class Adopted(PoolEvent, frozen=True):
    """Sandboxes of an earlier life of the node were found. All at once, so that nothing is created in between for what
    is there.

    Attributes:
        ready: those that stand ready.
        in_use: those that tasks have.
    """

    ready: tuple[str, ...] = ()
    in_use: tuple[str, ...] = ()


class Spoiled(PoolEvent, frozen=True):
    """Ready sandboxes must not be given to anybody any more. Those that are not ready are ignored.

    Attributes:
        sandboxes: which.
        reason: why.
    """

    sandboxes: tuple[str, ...]
    reason: str


class Gone(PoolEvent, frozen=True):
    """A sandbox does not exist any more: destroyed as the pool asked, or dead of its own. Unknown ones are ignored."""

    sandbox: str
    reason: str = ""


class Ticked(PoolEvent, frozen=True):
    """Time has passed. Wanted about once a second, also when nothing else happens."""


class PolicyChanged(PoolEvent, frozen=True):
    """Somebody set the pool anew."""

    policy: PoolPolicy


class ShrinkAsked(PoolEvent, frozen=True):
    """The host needs room: give up ready sandboxes.

    Attributes:
        count: how many, at most.
        reason: why.
    """

    count: int
    reason: str
