"""The C library's allocator (mallopt(3), malloc_trim(3)). Those of other libraries are left as they are."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_ARENA_MAX = -8


def keep_freed_memory(*, block_bytes: int, free_bytes: int, arenas: int | None = None) -> None:
    """Let the allocator keep what was freed instead of giving it back to the kernel at once.

    By default every buffer of more than 128 KiB is mapped anew, and its pages are faulted in and cleared each time:
    about a third of what moving data in buffers of a mebibyte costs. C libraries without mallopt are left as they are.

    Args:
        block_bytes: blocks up to this size come from the heap.
        free_bytes: free memory at the heap's end that is kept, of each arena.
        arenas: that threads share, so that what one freed another can use; None: as many as the library likes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        if arenas is not None:
            mallopt(_ARENA_MAX, arenas)
        mallopt(_MMAP_THRESHOLD, block_bytes)
        mallopt(_TRIM_THRESHOLD, free_bytes)


def give_freed_memory_back(*, block_bytes: int, free_bytes: int, arenas: int) -> None:
    """Let the allocator give back what was freed, where memory is dearer than time.

    A process that decodes long texts again and again, and keeps small things in between, otherwise grows to several
    times what it holds: each thread has an arena of its own, and long blocks come to lie in the heap, which shrinks at
    its end only, once one of their size was freed (the threshold grows by itself unless it is set).

    Args:
        block_bytes: blocks from this size on are mapped for themselves.
        free_bytes: free memory at the heap's end that is kept.
        arenas: that threads share.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_ARENA_MAX, arenas)
        mallopt(_MMAP_THRESHOLD, block_bytes)
        mallopt(_TRIM_THRESHOLD, free_bytes)


def trim() -> None:
    """Give back all pages of the heap in which nothing lies. Whoever allocates meanwhile waits."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
