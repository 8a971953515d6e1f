"""Reading an instance's memory back before it is thawed, within bounds that do not depend on its guest."""

from __future__ import annotations

import time
from contextlib import suppress

from dsec.linux.madvise import will_need
from dsec.runtimes.container.groups import Groups

_MAXIMUM_PROCESSES = 64


def read_back(cgroups: Groups, group: str, timeout_s: float) -> None:
    """Start reading the memory of a group's first processes back from swap. Blocks for up to about `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    # Where the kernel does not let us, the guest reads its memory back itself.
    with suppress(OSError):
        for pid in cgroups.process_ids(group, _MAXIMUM_PROCESSES):
            if time.monotonic() >= deadline:
                break
            will_need(pid, deadline)
