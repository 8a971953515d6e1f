"""Device nodes of an image are kept, and open nothing: whatever a guest who is root does to them."""

from __future__ import annotations

import os
import tarfile
from pathlib import Path

import pytest

from dsec.base.units import MIB
from dsec.images.importers.detect import import_image
from dsec.images.importers.request import ImportRequest
from dsec.images.store import LocalImageStore
from dsec.model.process import CommandRequest
from dsec.model.sandbox import Resources, SandboxSpec
from dsec.model.state import ForkRequest, PackRequest, SnapshotRequest
from dsec.node.builder import open_node
from dsec.node.node import Node
from dsec.node.settings import NodeSettings

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]

RANDOM, KMSG, MEM = os.makedev(1, 8), os.makedev(1, 11), os.makedev(1, 1)
LISTED = "stat -c '%n %F %t:%T %a %u:%g' /d/*"
OPENED = """
for each in /d/* /tmp/bound/* /d2/*; do
  [ -e "$each" ] || continue
  head -c 1 "$each" >/dev/null 2>&1 && echo "read $each"
  (: >"$each") 2>/dev/null && echo "wrote $each"
done
true
"""
ATTACK = """
chmod 666 /d/*; chown 1000 /d/random; touch -d @1 /d/disk; setfattr -n user.a -v b /d/kmsg
mknod /tmp/made c 1 8; mknod /tmp/disk b {major:d} {minor:d}
cp -a /d /d2; mv /d/kmsg /d/moved; ln /d/random /tmp/linked
mkdir -p /tmp/bound; mount --bind /d /tmp/bound; mount -o remount,dev /; mount -o remount,bind,dev /
for each in /tmp/made /tmp/disk /tmp/linked; do head -c 1 $each && echo "opened $each"; done
true
"""


def _real_disk() -> int:
    """Return the number of a disk that this host has, so that opening it would succeed."""
    for entry in sorted(os.scandir("/sys/block"), key=lambda entry: entry.name):
        major, minor = map(int, (Path(entry) / "dev").read_text().split(":"))
        if major != 7:  # Loop devices come and go.
            return os.makedev(major, minor)
    pytest.skip("this host has no disk")


def _import(state_dir: Path, image_root: Path, disk: int) -> None:
    archive = state_dir.parent / "devices.tar"
    nodes = {"random": (tarfile.CHRTYPE, RANDOM), "kmsg": (tarfile.CHRTYPE, KMSG), "mem": (tarfile.CHRTYPE, MEM)}
    with tarfile.open(archive, "w") as tar:
        tar.add(image_root, "")
        for name, (kind, number) in (nodes | {"disk": (tarfile.BLKTYPE, disk)}).items():
            info = tarfile.TarInfo(f"d/{name}")
            info.type, info.mode, info.gid = kind, 0o660, 6
            info.devmajor, info.devminor = os.major(number), os.minor(number)
            tar.addfile(info)
    store = LocalImageStore(state_dir / "images")
    try:
        import_image(store, ImportRequest(path=archive, name="devices"))
    finally:
        store.close()


async def _shell(node: Node, sandbox_id: str, script: str) -> str:
    result = await node.run(sandbox_id, CommandRequest(argv=("bash", "-c", script)))
    assert result.status.exit_code == 0, result.stderr
    return result.stdout.decode()


async def _check(node: Node, sandbox_id: str, expected: str) -> None:
    assert await _shell(node, sandbox_id, LISTED) == expected
    assert await _shell(node, sandbox_id, OPENED) == ""


async def test_devices_of_an_image_are_listed_and_never_opened(state_dir: Path, image_root: Path) -> None:
    disk = _real_disk()
    _import(state_dir, image_root, disk)
    attack = ATTACK.format(major=os.major(disk), minor=os.minor(disk))
    settings = NodeSettings(state_dir=str(state_dir), store=(state_dir.parent / "shared").as_uri())
    async with open_node(settings) as node:
        quota = Resources(disk_bytes=64 * MIB)
        box = (await node.create(SandboxSpec(image="devices", resources=quota))).sandbox_id
        expected = await _shell(node, box, LISTED)
        assert expected.splitlines() == [
            f"/d/disk block special file {os.major(disk):x}:{os.minor(disk):x} 660 0:6",
            "/d/kmsg character special file 1:b 660 0:6",
            "/d/mem character special file 1:1 660 0:6",
            "/d/random character special file 1:8 660 0:6",
        ]
        await _check(node, box, expected)
        assert "opened" not in await _shell(node, box, attack)
        # Nothing was copied up: what a sandbox wrote holds no devices, as all that carries it relies on.
        await _check(node, box, expected)
        assert (await _shell(node, box, "grep -c ' / / .*nodev' /proc/self/mountinfo")).strip() == "1"
        # Whiteouts are devices, too, and are made as before.
        await _shell(node, box, "rm /d/mem; rm -r /home; ! [ -e /d/mem ] && ! [ -e /home ]")
        expected = "".join(line for line in expected.splitlines(keepends=True) if "/d/mem" not in line)
        saved = await node.state.snapshot(box, SnapshotRequest(name="step"))
        (child,) = await node.state.fork(box, ForkRequest())
        restored = await node.state.restore(saved.snapshot_id)
        await node.state.pack(box, PackRequest(name="packed"))
        packed = await node.create(SandboxSpec(image="packed"))
        for each in (child, restored, packed):
            await _check(node, each.sandbox_id, expected)
            assert "opened" not in await _shell(node, each.sandbox_id, attack)
            await _check(node, each.sandbox_id, expected)
        await node.rollback(child.sandbox_id)
        await _check(node, child.sandbox_id, expected)
        await node.shutdown(destroy=True)
