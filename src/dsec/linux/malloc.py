"""The C library's allocator (mallopt(3))."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3


def keep_freed_memory(*, block_bytes: int, free_bytes: int) -> None:
    """Let the allocator keep what was freed instead of giving it back to the kernel at once.

    By default every buffer of more than 128 KiB is mapped anew, and its pages are faulted in and cleared each time:
    about a third of what moving data in buffers of a mebibyte costs. C libraries without mallopt are left as they are.

    Args:
        block_bytes: blocks up to this size come from the heap.
        free_bytes: free memory at the heap's end that is kept.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_MMAP_THRESHOLD, block_bytes)
        mallopt(_TRIM_THRESHOLD, free_bytes)
