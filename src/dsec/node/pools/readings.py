"""Figures of the host beside those of a pool, for events."""

from __future__ import annotations

import os

from dsec.linux.pressure import disk_times, tcp_segments
from dsec.model.event import EventReading
from dsec.model.pool import PoolStatistics
from dsec.node.core import Core


class HostReadings:
    """Take readings; what counts up on the host is told as its change since the reading before."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._taken_boot_s: float | None = None
        self._host = EventReading()
        self._disk: tuple[int, float] | None = None
        self._tcp: tuple[int, int] | None = None

    def take(self, pool: PoolStatistics | None = None, maximum: int | None = None) -> EventReading:
        """Return figures of the host, and of a pool if there is one."""
        now_s = self._core.now_boot_s()
        if self._taken_boot_s is None or now_s > self._taken_boot_s:
            self._taken_boot_s, self._host = now_s, self._look()
        host = self._host
        if pool is None:
            return host
        return EventReading(
            ready=pool.ready,
            level=pool.level,
            waiting=pool.waiting,
            in_use=pool.in_use,
            arrival_rate_per_s=pool.arrival_rate_per_s,
            supply_rate_per_s=pool.creation_rate_per_s + pool.recycle_rate_per_s,
            hold_time_s=pool.hold_time_s,
            maximum=maximum,
            disk_wait_s=host.disk_wait_s,
            network_repeated=host.network_repeated,
            memory_full=host.memory_full,
            io_full=host.io_full,
            cpu_some=host.cpu_some,
        )

    def _look(self) -> EventReading:
        pressure = self._core.admission.pressure(len(self._core.slots))
        return EventReading(
            disk_wait_s=self._disk_wait_s(),
            network_repeated=self._network_repeated(),
            memory_full=pressure.memory_full,
            io_full=pressure.io_full,
            cpu_some=pressure.cpu_some,
        )

    def _disk_wait_s(self) -> float | None:
        """Mean time of the reads and writes since the last look; None when there were none."""
        directory = self._core.parts.spool_dir
        before, self._disk = self._disk, None if directory is None else _disk_of(directory.parent)
        if before is None or self._disk is None or self._disk[0] <= before[0]:
            return None
        return (self._disk[1] - before[1]) / (self._disk[0] - before[0])

    def _network_repeated(self) -> float | None:
        before, self._tcp = self._tcp, tcp_segments()
        if before is None or self._tcp is None or self._tcp[0] <= before[0]:
            return None
        return min(1.0, (self._tcp[1] - before[1]) / (self._tcp[0] - before[0]))


def _disk_of(path: os.PathLike[str]) -> tuple[int, float] | None:
    try:
        return disk_times(os.stat(path).st_dev)
    except OSError:
        return None
