"""Events that a node keeps: what happened to its creations and pools (docs/formats/events.md)."""

from __future__ import annotations

import enum

from dsec.model.value import Value


class EventKind(enum.Enum):
    """What happened."""

    ARRIVED = "arrived"
    """A creation was asked for."""
    READY = "ready"
    """It was answered; `duration_s` is how long the caller waited."""
    FAILED = "failed"
    """It was answered with an error; `text` says which."""
    REFUSED = "refused"
    """The node did not admit one more; `text` names the measure and its threshold."""
    IMAGE_LOADED = "image_loaded"
    """The layers of an image were made readable, in `duration_s`."""
    CREATED = "created"
    """An instance was launched, in `duration_s`."""
    CREATION_FAILED = "creation_failed"
    RETURNED = "returned"
    """A sandbox came back to its pool after `duration_s`."""
    RECYCLED = "recycled"
    """It is clean and ready again, after `duration_s`."""
    NOT_CLEAN = "not_clean"
    """It failed its clean check; `text` says by what."""
    DESTROYED = "destroyed"
    DISK_FULL = "disk_full"
    """A sandbox reached its quota and is rolled back for it, as it asked; `text` says so."""
    MEMORY_KEPT = "memory_kept"
    """A sandbox was paused and its memory not given back; `text` says why."""
    MOVED_AWAY = "moved_away"
    """A sandbox is another node's now, after `duration_s`; `text` says which, and why it was moved."""
    MOVED_HERE = "moved_here"
    """A sandbox came from another node, which `text` names."""
    NOT_MOVED = "not_moved"
    """A sandbox could not be moved and goes on; `text` says why."""
    WARNED = "warned"
    """`text` says of what."""
    READING = "reading"
    """Figures of a pool and of the host, about once a second."""


class EventReading(Value, frozen=True, omit_defaults=True):
    """Figures at one instant. What is not known is None.

    Attributes:
        ready, level, waiting, in_use: of the pool.
        arrival_rate_per_s, supply_rate_per_s: tasks in; sandboxes made or recycled, over the last minute.
        hold_time_s: mean time that a task keeps a sandbox.
        maximum: the pool's cap.
        disk_wait_s: mean time of a read or write of the state directory's disk since the last reading.
        network_repeated: share of TCP segments sent again since the last reading, 0 to 1.
        memory_full, io_full, cpu_some: shares of the last 10 s, 0 to 1.
    """

    ready: int | None = None
    level: int | None = None
    waiting: int | None = None
    in_use: int | None = None
    arrival_rate_per_s: float | None = None
    supply_rate_per_s: float | None = None
    hold_time_s: float | None = None
    maximum: int | None = None
    disk_wait_s: float | None = None
    network_repeated: float | None = None
    memory_full: float | None = None
    io_full: float | None = None
    cpu_some: float | None = None


class NodeEvent(Value, frozen=True, omit_defaults=True):
    """One event.

    Attributes:
        at_s: wall-clock seconds since the epoch.
        kind: what happened.
        pool: of which pool; empty: none.
        sandbox_id: of which sandbox, or which carrier of a pool.
        task: for which task, as its metadata names it.
        duration_s: how long it took.
        text: in words.
        reading: of `READING` events.
    """

    at_s: float
    kind: EventKind
    pool: str = ""
    sandbox_id: str = ""
    task: str = ""
    duration_s: float | None = None
    text: str = ""
    reading: EventReading | None = None
