"""What a process needs that drives hundreds of episodes: descriptors, and an allocator that gives memory back."""

from __future__ import annotations

import resource

import anyio
import anyio.to_thread

from dsec.base.units import KIB
from dsec.linux.malloc import give_freed_memory_back, trim

_DESCRIPTORS = 16_384
"""A log takes two, its rounds one, a command or model that is waited for one each."""
_TRIM_S = 30.0


def fit_process() -> None:
    """Let this process open many files, or as many as it may, and keep little of what it frees."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    give_freed_memory_back(block_bytes=64 * KIB, free_bytes=128 * KIB, arenas=2)


async def trim_now_and_then() -> None:
    """Give the memory back that decoding leaves scattered, until cancelled."""
    while True:
        await anyio.sleep(_TRIM_S)
        await anyio.to_thread.run_sync(trim)
