"""Run the memory part of `dsec.linux.cgroups` on a kernel with cgroup v2 alone, in a virtual machine without KVM.

A host whose controllers are in v1 hierarchies cannot show what version 2 does. This packs our own code with this
Python into an initramfs, boots a kernel on it under QEMU, and prints what the guest says (scripts/cgroup_v2_guest.py).
It takes about two minutes, and changes nothing on the host:

    apt-get download linux-image-6.1.0-57-cloud-amd64 && dpkg -x linux-image-*.deb kernel
    python scripts/try_cgroup_v2.py kernel/boot/vmlinuz-* kernel/lib/modules/*
"""

from __future__ import annotations

import argparse
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import BinaryIO

from cgroup_v2_guest import MODULES

from dsec.testing.guest_image import make_root

SOURCE = Path(__file__).resolve().parent.parent / "src" / "dsec"
DISK_BYTES = 384 << 20
DONE = "the guest is done"
INIT = f"""#!/bin/sh
mount -t proc none /proc; mount -t sysfs none /sys; mount -t devtmpfs none /dev; mount -t cgroup2 none /sys/fs/cgroup
export PATH=/usr/bin:/bin PYTHONPATH=/opt PYTHONDONTWRITEBYTECODE=1
python3 /guest.py && echo {DONE}
python3 -c "import ctypes; ctypes.CDLL(None).reboot(0x4321fedc)"
"""


def main() -> None:
    """Build, boot, and tell."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("kernel", type=Path)
    parser.add_argument("modules", type=Path, help="its directory of modules, such as lib/modules/VERSION")
    parser.add_argument("--qemu", default="qemu-system-x86_64", help="the program, with options of its own if need be")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root, archive, disk = (Path(scratch) / name for name in ("root", "initrd", "disk"))
        make_guest(root, options.modules)
        with archive.open("wb") as file:
            pack(root, file)
        with disk.open("wb") as file:
            file.truncate(DISK_BYTES)
        sys.exit(boot(options.qemu.split(), options.kernel, archive, disk))


def make_guest(root: Path, modules: Path) -> None:
    """Fill the guest's root."""
    make_root(root, python=True)
    shutil.copytree(SOURCE, root / "opt/dsec", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "opt/dsec/__init__.py").write_text("")  # Its own would import what the guest lacks.
    (root / "modules").mkdir()
    for name in MODULES:
        shutil.copy(next((modules / "kernel/drivers").rglob(f"{name}.ko")), root / "modules")
    shutil.copy(Path(__file__).with_name("cgroup_v2_guest.py"), root / "guest.py")
    (root / "init").write_text(INIT)
    (root / "init").chmod(0o755)


def pack(root: Path, out: BinaryIO) -> None:
    """Write a directory as an initramfs (initramfs-buffer-format.rst: cpio, "newc")."""
    paths = sorted(root.rglob("*"))
    for number, path in enumerate(paths, 1):
        mode = path.lstat().st_mode
        content = os.fsencode(os.readlink(path)) if path.is_symlink() else b""
        if stat.S_ISREG(mode):
            content = path.read_bytes()
        entry(out, number, str(path.relative_to(root)), mode, content)
    entry(out, len(paths) + 1, "dev/console", stat.S_IFCHR | 0o600, b"", device=(5, 1))
    entry(out, 0, "TRAILER!!!", 0, b"")


def entry(out: BinaryIO, number: int, name: str, mode: int, content: bytes, device: tuple[int, int] = (0, 0)) -> None:
    """Write one entry, padded to words of four bytes."""
    encoded = os.fsencode(name) + b"\0"
    fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(encoded), 0)
    header = b"070701" + b"".join(b"%08X" % field for field in fields) + encoded
    for part in (header, content):
        out.write(part + b"\0" * (-len(part) % 4))


def boot(qemu: list[str], kernel: Path, archive: Path, disk: Path) -> int:
    """Boot, pass on what the guest says, and return 0 if it came to its end."""
    machine = ["-accel", "tcg", "-cpu", "max", "-m", "900", "-nographic", "-no-reboot", "-net", "none"]
    system = ["-kernel", str(kernel), "-initrd", str(archive), "-append", "console=ttyS0 quiet panic=-1 rdinit=/init"]
    drive = ["-drive", f"file={disk},if=virtio,format=raw"]
    with subprocess.Popen(
        [*qemu, *machine, *system, *drive], stdout=subprocess.PIPE, text=True, errors="replace"
    ) as vm:
        assert vm.stdout is not None
        said = []
        for line in vm.stdout:
            said.append(line)
            sys.stdout.write(line)
            sys.stdout.flush()
    return 0 if any(DONE in line for line in said) else 1


if __name__ == "__main__":
    main()
