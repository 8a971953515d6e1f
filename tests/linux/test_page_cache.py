"""What of a file is in the page cache, and where it lies."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.linux.page_cache import PAGE_BYTES, cached_ranges, device_size, extents


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A file on a disk: what lies on a tmpfs never leaves the page cache."""
    path = Path("/var/tmp") / f"dsec-test-page-cache-{os.getpid()}"
    yield path
    path.unlink(missing_ok=True)


def test_the_pages_that_were_read_are_told_and_no_others(on_disk: Path) -> None:
    on_disk.write_bytes(os.urandom(64 * PAGE_BYTES))
    descriptor = os.open(on_disk, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        assert list(cached_ranges(descriptor, device_size(descriptor))) == []
        for page in (3, 4, 40):
            os.pread(descriptor, 1, page * PAGE_BYTES)
        found = list(cached_ranges(descriptor, 64 * PAGE_BYTES))
        assert found == [range(3 * PAGE_BYTES, 5 * PAGE_BYTES), range(40 * PAGE_BYTES, 41 * PAGE_BYTES)]
    finally:
        os.close(descriptor)


def test_the_extents_of_a_file_cover_it(on_disk: Path) -> None:
    on_disk.write_bytes(os.urandom(5 * PAGE_BYTES))
    descriptor = os.open(on_disk, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        found = list(extents(descriptor))
        assert found[0][0] == 0
        assert sum(length for _, _, length in found) == 5 * PAGE_BYTES
    finally:
        os.close(descriptor)
