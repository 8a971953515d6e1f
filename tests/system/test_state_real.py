"""Checkpoints and forks on real btrfs with real processes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from dsec.linux import btrfs
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxSpec
from dsec.model.state import CheckpointRequest, ForkRequest
from dsec.node.builder import open_node
from dsec.node.node import Node
from dsec.node.settings import NodeSettings
from dsec.testing.leaks import Leaks

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]
WRITER = "i=0; while :; do i=$((i+1)); echo $i > a.new; mv a.new a; echo $i > b.new; mv b.new b; done"
FREEZING_S = 5.0


async def shell(node: Node, sandbox_id: str, script: str) -> str:
    return (await node.run(sandbox_id, CommandRequest(argv=("sh", "-c", script)))).stdout.decode()


async def test_a_checkpoint_in_a_storm_of_writes_is_one_instant_and_the_storm_goes_on(state_dir: Path) -> None:
    async with open_node(NodeSettings(state_dir=str(state_dir))) as node:
        box = (await node.create(SandboxSpec(image="guest", workdir="/tmp"))).sandbox_id
        await node.start_process(box, CommandRequest(argv=("sh", "-c", WRITER)))
        await shell(node, box, "until [ -s b ]; do sleep 0.01; done")
        points = [await node.state.checkpoint(box, CheckpointRequest(name=f"p{number}")) for number in range(5)]
        last = int(await shell(node, box, "cat b"))
        assert all(0 < point.frozen_s < FREEZING_S for point in points)
        seen = []
        for point in points:
            await node.rollback(box, snapshot=point.checkpoint_id)
            a, b = map(int, (await shell(node, box, "cat a b")).split())
            assert a - b in (0, 1)
            seen.append(b)
        assert seen == sorted(seen)
        assert last >= seen[-1]
        await node.shutdown(destroy=True)
    assert not Leaks.read(state_dir).described()


async def test_children_of_a_fork_are_whole_and_differ_where_they_should(state_dir: Path) -> None:
    async with open_node(NodeSettings(state_dir=str(state_dir))) as node:
        box = (await node.create(SandboxSpec(image="guest", seed=3))).sandbox_id
        await shell(node, box, "echo same > /tmp/x; echo 0 > /etc/machine-id")
        children = await node.state.fork(box, ForkRequest(count=12))
        told = [
            await shell(node, child.sandbox_id, "cat /tmp/x; cat /etc/machine-id; hostname; cat /dev/dsec-seed")
            for child in children
        ]
        columns = list(zip(*(each.split() for each in told), strict=True))
        assert set(columns[0]) == {"same"}
        assert all(len(set(column)) == len(children) for column in columns[1:])
        await node.shutdown(destroy=True)
    assert not Leaks.read(state_dir).described()


async def test_a_node_that_destroyed_everything_ends_when_that_is_removed_however_slow_the_disk(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    destroy = btrfs.destroy_subvolume

    def destroy_slowly(parent_fd: int, name: str) -> None:
        time.sleep(0.2)
        destroy(parent_fd, name)

    monkeypatch.setattr(btrfs, "destroy_subvolume", destroy_slowly)
    async with open_node(NodeSettings(state_dir=str(state_dir))) as node:
        box = (await node.create(SandboxSpec(image="guest"))).sandbox_id
        for number in range(4):
            await node.state.checkpoint(box, CheckpointRequest(name=f"p{number}"))
        await node.shutdown(destroy=True)
    assert not Leaks.read(state_dir).described()
