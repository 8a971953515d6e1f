"""What `scripts/try_cgroup_v2.py` runs in its virtual machine: memory is given back and read back, three times each."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from dsec.linux.cgroups import CgroupLimits, CgroupMounts, Cgroups
from dsec.linux.kernel_write import KernelWrites
from dsec.linux.madvise import will_need
from dsec.linux.swap import format_swap, swap_on

MIB = 1 << 20
DISK = Path("/dev/vda")
MODULES = ("virtio_ring", "virtio", "virtio_pci_legacy_dev", "virtio_pci_modern_dev", "virtio_pci", "virtio_blk")
_FINIT_MODULE = 313
HOLDER = """
import hashlib, os, sys
held = bytearray(os.urandom(4096) * 16384)
for place in range(0, len(held), 4096):
    held[place : place + 8] = place.to_bytes(8, "big")
print(hashlib.sha256(held).hexdigest(), flush=True)
for _ in sys.stdin:
    print(hashlib.sha256(held).hexdigest(), flush=True)
"""


def main() -> None:
    """Go through limits with and without swap, and a host that does not like to swap."""
    for name in MODULES:
        descriptor = os.open(f"/modules/{name}.ko", os.O_RDONLY)
        ctypes.CDLL(None).syscall(_FINIT_MODULE, descriptor, b"", 0)
    while not DISK.exists():
        time.sleep(0.05)
    descriptor = os.open(DISK, os.O_RDWR)
    format_swap(descriptor, os.lseek(descriptor, 0, os.SEEK_END))
    swap_on(DISK)
    mounts = CgroupMounts.find()
    assert mounts is not None
    cgroups = Cgroups(mounts, "dsec/node")
    cgroups.open()
    say(f"Linux {os.uname().release}, {cgroups.mode.value}, {' '.join(sorted(cgroups.controllers()))}")
    without_swap = CgroupLimits(memory_bytes=256 * MIB, swap_bytes=0)
    for name, limits, swappiness in (
        ("no swap of its own", without_swap, 60), ("no limits", CgroupLimits(), 60), ("swappiness 0", without_swap, 0)
    ):  # fmt: skip
        Path("/proc/sys/vm/swappiness").write_text(f"{swappiness}")
        try_limits(cgroups, name, limits)


def try_limits(cgroups: Cgroups, name: str, limits: CgroupLimits) -> None:
    """Page a process out and let it answer, three times; then end a release early."""
    cgroups.create("g", limits)
    argv = ("sh", "-c", 'read _; exec python3 -c "$0"', HOLDER)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        cgroups.attach(holder.pid, "g")
        first = ask(holder)
        for number in range(3):
            freeze(cgroups)
            before, began_s = charged(cgroups), time.monotonic()
            released = cgroups.release_memory("g", KernelWrites())
            took_s = time.monotonic() - began_s
            shown = f"{released / before:.1%} of {before / MIB:.1f} MiB in {took_s:.2f} s"
            say(f"{name}: {shown}; swap limit now {limit(cgroups)}")
            cgroups.freeze("g", frozen=False)
            if number != 1:
                will_need(holder.pid, lambda: True)
            assert ask(holder) == first, "the memory is not what it was"
        freeze(cgroups)
        writes = KernelWrites()
        threading.Timer(0.02, writes.end).start()
        cgroups.release_memory("g", writes)
        cgroups.freeze("g", frozen=False)
        assert ask(holder) == first, "the memory is not what it was"
        say(f"{name}: whole; ended early with the swap limit {limit(cgroups)}")
        assert holder.stdin is not None
        holder.stdin.close()
    while not cgroups.remove("g"):
        time.sleep(0.01)


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def ask(holder: subprocess.Popen[str]) -> str:
    """Return the digest of what a holder holds."""
    assert holder.stdin is not None
    assert holder.stdout is not None
    holder.stdin.write("\n")
    holder.stdin.flush()
    return holder.stdout.readline()


def freeze(cgroups: Cgroups) -> None:
    """Freeze the group, and see it frozen."""
    cgroups.freeze("g", frozen=True)
    while not cgroups.is_frozen("g"):
        time.sleep(0.01)


def charged(cgroups: Cgroups) -> int:
    """Return what the group is charged with."""
    return cgroups.usage("g").memory_bytes or 0


def limit(cgroups: Cgroups) -> str:
    """Return the limit of the group's swap."""
    return (cgroups.path("g") / "memory.swap.max").read_text().strip()


if __name__ == "__main__":
    main()
