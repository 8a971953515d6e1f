"""Snapshots, restores and packs of trees as guests make them: real overlays on btrfs, two nodes, one store."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from dsec.base.errors import ImageNotFoundError, StateCorruptedError
from dsec.base.units import MIB
from dsec.linux import btrfs
from dsec.model.process import CommandRequest
from dsec.model.sandbox import Resources, SandboxSpec
from dsec.model.state import PackRequest, RestoreRequest, SnapshotRequest
from dsec.node.builder import open_node
from dsec.node.node import Node
from dsec.node.settings import NodeSettings

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]

SESSION = r"""set -e
rm /bin/wc; chmod 4755 /bin/id
rm -r /etc; mkdir /etc; echo 'root:x:0:0::/root:/bin/sh' > /etc/passwd
mkdir -p /srv/d /srv/empty; cd /srv
echo a > a; ln a d/b; ln a c; rm c
ln -s /nowhere link; ln link d/again; ln -s a alink
mkfifo pipe
truncate -s 5M sparse; printf x | dd of=sparse bs=1 seek=3000000 conv=notrunc 2>/dev/null
touch "$(printf 'a\nb')" "$(printf '\377\376')" "$(printf '\033[2J')"
chown 1000:1000 d; chmod 1770 d; chmod 0 empty
touch -d @1234567890.123456789 old
head -c 300000 /dev/urandom > random; cp random d/random
"""
LISTING = r"""cd /; find /srv /etc /bin /home /root /usr/bin -xdev \
  \( -type d -printf '%p d %m %U %G %Ts %n\n' -o -printf '%p %y %m %U %G %s {times} %n %l\n' \) | LC_ALL=C sort
cat /srv/a /srv/d/b /etc/passwd; od -An -tx8 /srv/random | tail -c 2000; od -An -tx1 -j 2999990 -N 20 /srv/sparse"""


async def shell(node: Node, sandbox_id: str, script: str) -> str:
    result = await node.run(sandbox_id, CommandRequest(argv=("bash", "-c", script), output_limit_bytes=1 << 22))
    assert result.status.exit_code == 0, result.stderr
    return result.stdout.decode(errors="backslashreplace")


async def begin(node: Node) -> str:
    box = (await node.create(SandboxSpec(image="guest", seed=7))).sandbox_id
    await shell(node, box, SESSION)
    return box


def listing(*, whole_seconds: bool = False) -> str:
    return LISTING.replace("{times}", "%Ts" if whole_seconds else "%T@")


async def test_another_node_restores_a_tree_as_it_was_and_sends_back_what_it_adds(
    state_dir: Path, other_state_dir: Path
) -> None:
    url = (state_dir.parent / "shared").as_uri()
    first, second = (NodeSettings(state_dir=str(each), store=url) for each in (state_dir, other_state_dir))
    async with open_node(first) as here:
        box = await begin(here)
        expected = await shell(here, box, listing())
        info = await here.state.snapshot(box, SnapshotRequest(name="step"))
        async with open_node(second) as there:
            restored = (await there.state.restore("step")).sandbox_id
            assert await shell(there, restored, listing()) == expected
            await shell(there, restored, "echo there >> /srv/a; rm -r /srv/d; mv /srv/random /srv/moved")
            added = await there.state.snapshot(restored)
            assert (added.parent, added.depth) == (info.snapshot_id, 1)
            assert added.stored_bytes < info.content_bytes / 10
            changed = await shell(there, restored, "cd /srv; find . | LC_ALL=C sort; cat a")
            back = (await here.state.restore(added.snapshot_id)).sandbox_id
            assert await shell(here, back, "cd /srv; find . | LC_ALL=C sort; cat a") == changed
            await there.rollback(restored)
            assert await shell(there, restored, listing()) == expected
            await there.shutdown(destroy=True)
        await here.shutdown(destroy=True)


async def test_what_a_node_lacks_is_named_and_nothing_is_left(state_dir: Path, other_state_dir: Path) -> None:
    url = (state_dir.parent / "shared").as_uri()
    first, second = (NodeSettings(state_dir=str(each), store=url) for each in (state_dir, other_state_dir))
    async with open_node(first) as here:
        box = await begin(here)
        await here.state.pack(box, PackRequest(name="mine"))
        mine = (await here.create(SandboxSpec(image="mine"))).sandbox_id
        of_mine, of_guest = await here.state.snapshot(mine), await here.state.snapshot(box)
        layer = next(image for image in await here.images() if image.name == "mine").layers[-1].digest
        for pack in (state_dir.parent / "shared/chunks/packs").iterdir():
            pack.write_bytes(b"x" * pack.stat().st_size)
        async with open_node(second) as there:
            with pytest.raises(ImageNotFoundError) as caught:
                await there.state.restore(of_mine.snapshot_id)
            assert layer in caught.value.detail
            with pytest.raises(StateCorruptedError):
                await there.state.restore(of_guest.snapshot_id, RestoreRequest(sandbox_id="sbx-new"))
            assert await there.list() == []
            await there.shutdown(destroy=True)
        await here.shutdown(destroy=True)


async def test_the_base_of_the_next_snapshot_takes_no_room_from_its_sandbox(state_dir: Path) -> None:
    quota = Resources(disk_bytes=64 * MIB)
    async with open_node(NodeSettings(state_dir=str(state_dir))) as node:
        box = (await node.create(SandboxSpec(image="guest", resources=quota))).sandbox_id
        await shell(node, box, f"head -c {40 * MIB} /dev/urandom > /root/a")
        await node.state.snapshot(box, SnapshotRequest(name="forty"))
        assert len(await node.state.list_checkpoints(box)) == 1
        await shell(node, box, f"rm /root/a; head -c {40 * MIB} /dev/urandom > /root/b")
        volume = os.open(state_dir / "volume", os.O_RDONLY | os.O_DIRECTORY)
        with anyio.fail_after(60):
            while await node.state.list_checkpoints(box) or node._base_room._raised:
                btrfs.start_commit(volume)  # What was discarded is freed after one.
                await node._base_room.look()
                await anyio.sleep(0.05)
        os.close(volume)
        full = await node.run(box, CommandRequest(argv=("sh", "-c", f"head -c {30 * MIB} /dev/urandom > /root/c")))
        assert full.status.exit_code != 0
        assert b"quota" in full.stderr.lower()
        await shell(node, box, "rm /root/c")
        info = await node.state.snapshot(box)
        assert (info.parent, info.depth) == (None, 0)
        await node.shutdown(destroy=True)


async def test_a_packed_session_looks_as_it_did_to_whoever_begins_with_it(state_dir: Path) -> None:
    async with open_node(NodeSettings(state_dir=str(state_dir))) as node:
        box = await begin(node)
        expected = await shell(node, box, listing(whole_seconds=True))
        await shell(node, box, "echo secret > /root/.bash_history; mkdir /root/.aws; echo key > /root/.aws/credentials")
        report = await node.state.pack(box, PackRequest(name="mine"))
        assert set(report.removed) >= {"/root/.bash_history: histories", "/root/.aws: credentials"}
        other = (await node.create(SandboxSpec(image="mine"))).sandbox_id
        found = await shell(node, other, listing(whole_seconds=True))
        # The time of a directory is of whoever unpacks it.
        assert _without_times_of_directories(found) == _without_times_of_directories(expected)
        await node.shutdown(destroy=True)


def _without_times_of_directories(text: str) -> list[str]:
    return [" ".join(line.split()[:5]) if " d " in line else line for line in text.splitlines()]
