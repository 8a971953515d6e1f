"""Reading an instance's memory back ahead of its need, within bounds that do not depend on its guest."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from dsec.linux.madvise import will_need
from dsec.runtimes.container.groups import Groups

_MAXIMUM_PROCESSES = 64


def read_back(cgroups: Groups, group: str, timeout_s: float, ended: threading.Event) -> None:
    """Start reading the memory of a group's first processes back from swap. Blocks for up to about `timeout_s`, or
    until another thread sets `ended`."""
    ends_at = time.monotonic() + timeout_s

    def go_on() -> bool:
        return time.monotonic() < ends_at and not ended.is_set()

    # Where the kernel does not let us, the guest reads its memory back itself.
    with suppress(OSError):
        for pid in cgroups.process_ids(group, _MAXIMUM_PROCESSES):
            if not go_on():
                break
            will_need(pid, go_on)
