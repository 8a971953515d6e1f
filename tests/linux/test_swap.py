"""Swap areas: the table, the header, and a frozen process whose memory goes out and comes back whole."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dsec.linux.cgroups import CgroupLimits, CgroupMode, CgroupMounts, Cgroups
from dsec.linux.kernel_write import KernelWrites
from dsec.linux.madvise import will_need
from dsec.linux.swap import SwapArea, format_swap, swap_off, swap_on, swap_table

MIB = 1 << 20


def test_table_is_read_with_its_escaped_names(tmp_path: Path) -> None:
    table = tmp_path / "swaps"
    table.write_text(
        "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
        "/dev/vdb                                partition\t8\t\t0\t\t-2\n"
        "/a\\040b/swap\\040(deleted) file\t\t1024\t\t24\t\t-3\n"
    )
    first, second = swap_table(str(table))
    assert first == SwapArea("/dev/vdb", 8192, 0)
    assert second == SwapArea("/a b/swap (deleted)", MIB, 24 << 10)
    assert second.free_bytes == 1000 << 10


def test_kernel_without_swap_has_no_areas(tmp_path: Path) -> None:
    assert swap_table(str(tmp_path / "none")) == ()


def test_area_that_the_kernel_would_refuse_is_not_formatted(tmp_path: Path) -> None:
    with open(tmp_path / "swap", "wb") as file, pytest.raises(ValueError, match="at least"):
        format_swap(file.fileno(), os.sysconf("SC_PAGE_SIZE") * 10 - 1)


def test_memory_of_a_process_that_is_gone_needs_no_reading() -> None:
    with subprocess.Popen(["true"]) as process:
        pass
    assert will_need(process.pid, lambda: True) == 0


def made(path: Path, size_bytes: int) -> Path:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size_bytes)
        format_swap(descriptor, size_bytes)
    finally:
        os.close(descriptor)
    return path


@contextmanager
def area(path: Path, size_bytes: int) -> Iterator[SwapArea]:
    try:
        swap_on(made(path, size_bytes))
    except OSError as error:
        pytest.skip(f"this host cannot carry a swap file here: {error.strerror}")
    try:
        yield next(area for area in swap_table() if area.path == str(path))
    finally:
        swap_off(path)


@pytest.mark.root
def test_area_is_on_until_it_is_switched_off(tmp_path: Path) -> None:
    with area(tmp_path / "a b", 4 * MIB) as found:
        assert found.size_bytes == 4 * MIB - os.sysconf("SC_PAGE_SIZE")
        with pytest.raises(OSError, match="busy") as caught:
            swap_on(tmp_path / "a b")
        assert caught.value.errno == errno.EBUSY
    assert str(tmp_path / "a b") not in [area.path for area in swap_table()]


HOLDER = """
import hashlib, mmap, os, sys
size = int(sys.argv[1])
private = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
shared = mmap.mmap(-1, size)
for place in (private, shared):
    for start in range(0, size, 1 << 20):
        place[start : start + (1 << 20)] = os.urandom(1 << 20)
for line in sys.stdin:
    digest = hashlib.sha256()
    for place in (private, shared):
        for start in range(0, size, 1 << 20):
            digest.update(place[start : start + (1 << 20)])
    print(digest.hexdigest(), flush=True)
"""


def wait(condition: Callable[[], object]) -> None:
    for _ in range(3000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("did not come to be")


@contextmanager
def real_group() -> Iterator[Cgroups]:
    mounts = CgroupMounts.find()
    if mounts is None or (mounts.mode is CgroupMode.HYBRID and "memory" not in mounts.v1):
        pytest.skip("this host has no memory controller")
    parent = f"dsec/t{os.getpid()}w"
    cgroups = Cgroups(mounts, parent)
    cgroups.open()
    try:
        # Swap of its own is not allowed, as is the default: what pausing does must not depend on it.
        cgroups.create("g", CgroupLimits(memory_bytes=256 * MIB, swap_bytes=0))
        yield cgroups
    finally:
        cgroups.kill("g")
        wait(lambda: not cgroups.is_populated("g"))
        wait(lambda: cgroups.remove("g"))
        for root in (mounts.unified, *mounts.v1.values()):
            if (root / parent).is_dir():
                os.rmdir(root / parent)


@contextmanager
def holder(cgroups: Cgroups, size_bytes: int) -> Iterator[subprocess.Popen[str]]:
    script = f"import os, sys; sys.stdin.readline()\n{HOLDER}"
    command = [sys.executable, "-c", script, str(size_bytes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            cgroups.attach(process.pid, "g")
            say(process)
            yield process
        finally:
            cgroups.freeze("g", frozen=False)
            process.kill()


def say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def digest(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    say(process)
    return process.stdout.readline()


@pytest.mark.root
@pytest.mark.slow
def test_frozen_memory_goes_to_swap_and_comes_back_whole_three_times(tmp_path: Path) -> None:
    with area(tmp_path / "swap", 256 * MIB), real_group() as cgroups, holder(cgroups, 32 * MIB) as process:
        first = digest(process)
        assert len(first.strip()) == hashlib.sha256().digest_size * 2
        for _ in range(3):
            cgroups.freeze("g", frozen=True)
            wait(lambda: cgroups.is_frozen("g"))
            before = cgroups.usage("g").memory_bytes
            assert before is not None
            assert before > 64 * MIB
            assert cgroups.release_memory("g", KernelWrites()) >= 0.9 * before
            assert (cgroups.swapped_bytes("g") or 0) > 56 * MIB
            pids = cgroups.process_ids("g", 16)
            assert pids == (process.pid,)
            assert will_need(pids[0], lambda: False) == 0
            assert will_need(pids[0], lambda: True) >= 64 * MIB
            cgroups.freeze("g", frozen=False)
            assert digest(process) == first
