"""The node's events: the newest in memory, and all of them in a file of bounded size (docs/formats/events.md).

Events explain, nothing depends on them: they are written about once a second, and a killed node loses the last
second's. A disk that is full costs events, never a sandbox.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import structlog

from dsec.base.clock import Clock
from dsec.base.errors import DsecError
from dsec.model.event import EventKind, EventReading, NodeEvent

KEPT_IN_MEMORY = 20_000
_BUSY_S = 120.0
_log = structlog.get_logger(__name__)
_encode = msgspec.json.Encoder().encode


class Recorder:
    """Keep events.

    Args:
        clock: tells when they happened.
        path: the file; None: memory only.
        maximum_bytes: when it is larger it becomes the older file, and the older one goes.
    """

    def __init__(self, clock: Clock, path: Path | None, maximum_bytes: int) -> None:
        self._clock = clock
        self._path = path
        self._maximum_bytes = maximum_bytes
        self._events: deque[NodeEvent] = deque(maxlen=KEPT_IN_MEMORY)
        self._unwritten: list[bytes] = []
        self._failed = False
        self._asked_boot_s: float | None = None

    def is_busy(self) -> bool:
        """Whether a creation was asked for in the last minutes."""
        return self._asked_boot_s is not None and self._clock.boot_s() - self._asked_boot_s < _BUSY_S

    def add(
        self,
        kind: EventKind,
        *,
        pool: str = "",
        sandbox_id: str = "",
        task: str = "",
        duration_s: float | None = None,
        text: str = "",
        reading: EventReading | None = None,
    ) -> None:
        """Keep one event. Costs microseconds; nothing is written here."""
        event = NodeEvent(
            at_s=self._clock.wall_s(),
            kind=kind,
            pool=pool,
            sandbox_id=sandbox_id,
            task=task,
            duration_s=duration_s,
            text=text,
            reading=reading,
        )
        self._events.append(event)
        if self._path is not None:
            self._unwritten.append(_encode(event))

    @contextmanager
    def creation(self, sandbox_id: str, task: str) -> Iterator[None]:
        """Keep that a creation was asked for, and how it was answered."""
        self.add(EventKind.ARRIVED, sandbox_id=sandbox_id, task=task)
        began_s, kind, text = self._clock.boot_s(), EventKind.READY, ""
        self._asked_boot_s = began_s
        try:
            yield
        except DsecError as error:
            kind, text = EventKind.FAILED, f"{error.code}: {error.brief}"
            raise
        except BaseException:
            kind, text = EventKind.FAILED, "cancelled"
            raise
        finally:
            duration_s = self._clock.boot_s() - began_s
            self.add(kind, sandbox_id=sandbox_id, task=task, duration_s=duration_s, text=text)

    def events(self, *, since_s: float = 0.0, task: str = "") -> Sequence[NodeEvent]:
        """Return the events in memory, the oldest first; with `task` those that name it and those that name none."""
        return [event for event in self._events if event.at_s >= since_s and (not task or event.task in (task, ""))]

    def flush(self) -> None:
        """Write what has come since the last time."""
        if self._path is None or not self._unwritten:
            return
        lines, self._unwritten = self._unwritten, []
        try:
            with open(self._path, "ab") as file:
                file.write(b"\n".join(lines) + b"\n")
                size_bytes = file.tell()
            if size_bytes > self._maximum_bytes:
                os.replace(self._path, older_file(self._path))
            self._failed = False
        except OSError as error:
            if not self._failed:
                _log.warning("events_not_written", path=str(self._path), error=str(error))
            self._failed = True


def older_file(path: Path) -> Path:
    """Where the events go that the file itself no longer holds."""
    return path.with_name(path.stem + ".1" + path.suffix)
