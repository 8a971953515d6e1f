"""Sandboxes move between two nodes on one host: real overlays on btrfs, real containers, a writer that never stops."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from tests.system.test_snapshots_real import SESSION, listing, shell

from dsec.base.errors import NodeUnavailableError, SandboxExitedError, SandboxMovedError
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxSpec, SandboxState
from dsec.model.state import CheckpointRequest, ForkRequest, MigrationRequest
from dsec.node.builder import open_node
from dsec.node.node import Node
from dsec.node.settings import NodeSettings
from dsec.runtimes.container.instance import ContainerInstance
from dsec.service.migration import ReleaseAnswer
from dsec.testing.direct_peers import DirectPeers

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]
BOX = "sbx-box"
MOVES = int(os.environ.get("DSEC_TEST_MOVES", "8"))


@pytest.fixture
def two(state_dir: Path, other_state_dir: Path) -> tuple[Path, Path]:
    return state_dir, other_state_dir


@asynccontextmanager
async def nodes(two: tuple[Path, Path]) -> AsyncIterator[tuple[Node, Node]]:
    """Two nodes with ranges of host ids of their own that are each other's peers; at the end nothing is left."""
    peers = DirectPeers()
    settings = [
        NodeSettings(state_dir=str(path), first_host_id=(1 << 24) * (2 + number)) for number, path in enumerate(two)
    ]
    async with open_node(settings[0], peers=peers.of) as here, open_node(settings[1], peers=peers.of) as there:
        peers.add(here)
        peers.add(there)
        yield here, there
        for node in (here, there):
            await node.shutdown(destroy=True)


async def test_a_tree_as_guests_make_it_arrives_with_its_checkpoints(two: tuple[Path, Path]) -> None:
    async with nodes(two) as (here, there):
        await here.create(SandboxSpec(image="guest", seed=7, env={"WHO": "me"}), sandbox_id=BOX)
        await shell(here, BOX, SESSION)
        await here.state.checkpoint(BOX, CheckpointRequest(name="first"))
        first = await shell(here, BOX, listing())
        await shell(
            here, BOX, "rm -r /srv/d; echo more >> /srv/a; mv /srv/random /srv/moved; cp /srv/moved /srv/random"
        )
        expected = await shell(here, BOX, listing())
        report = await here.state.migrate(BOX, MigrationRequest(node=there.node_id))
        assert report.sandbox.node == there.node_id
        assert await shell(there, BOX, listing()) == expected
        assert await shell(there, BOX, "cat /dev/dsec-seed; echo $WHO $DSEC_SEED; hostname") == f"7\nme 7\n{BOX}\n"
        await there.rollback(BOX, snapshot="first")
        assert await shell(there, BOX, listing()) == first
        back = await there.state.migrate(BOX, MigrationRequest(node=here.node_id))
        assert back.sandbox.node == here.node_id
        assert await shell(here, BOX, listing()) == first
        await here.rollback(BOX)
        assert await shell(here, BOX, "test -e /srv || echo clean") == "clean\n"


async def test_every_write_that_was_acknowledged_is_on_the_target(two: tuple[Path, Path]) -> None:
    async with nodes(two) as (here, there):
        await here.create(SandboxSpec(image="guest"), sandbox_id=BOX)
        await shell(here, BOX, "mkdir -p /srv; head -c 50000000 /dev/urandom > /srv/ballast")
        lines, uploads = [0], [0]
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                group.start_soon(append_lines, here, lines)
                group.start_soon(upload, here, uploads)
                group.start_soon(churn, here)
                while lines[0] < 5:  # noqa: ASYNC110 - the writers say nothing by themselves.
                    await anyio.sleep(0.01)
                report = await here.state.migrate(BOX, MigrationRequest(node=there.node_id))
        written = (await shell(there, BOX, "cat /srv/lines")).split()
        assert written[: lines[0]] == [str(number) for number in range(1, lines[0] + 1)]
        assert int(await shell(there, BOX, "cat /srv/uploaded")) >= uploads[0] > 0
        assert report.copied_bytes[0] > 50_000_000
        assert report.copied_bytes[-1] < 25_000_000
        assert report.downtime_s < report.duration_s


async def append_lines(node: Node, acknowledged: list[int]) -> None:
    """Append numbers by commands for as long as the node answers for the sandbox."""
    while True:
        try:
            await shell(node, BOX, f"echo {acknowledged[0] + 1} >> /srv/lines")
        except (SandboxMovedError, SandboxExitedError):
            return
        acknowledged[0] += 1


async def upload(node: Node, acknowledged: list[int]) -> None:
    """Write numbers from outside for as long as the node answers for the sandbox."""
    while True:
        try:
            await node.write_file(BOX, "/srv/uploaded", f"{acknowledged[0] + 1}".encode())
        except (SandboxMovedError, SandboxExitedError):
            return
        acknowledged[0] += 1
        await anyio.sleep(0.005)


async def churn(node: Node) -> None:
    """Have the guest write and rename without end."""
    script = (
        "cd /srv; i=0; while :; do i=$((i+1)); head -c 100000 /dev/urandom > t$((i%7)); mv t$((i%7)) u$((i%5)); done"
    )
    with pytest.raises(SandboxExitedError, match="moved"):
        await node.run(BOX, CommandRequest(argv=("bash", "-c", script)))


async def test_a_child_of_a_fork_arrives_with_its_clean_state(two: tuple[Path, Path]) -> None:
    async with nodes(two) as (here, there):
        await here.create(SandboxSpec(image="guest"), sandbox_id="sbx-parent")
        await shell(here, "sbx-parent", SESSION)
        clean = await shell(here, "sbx-parent", listing())
        await here.state.fork("sbx-parent", ForkRequest(sandbox_ids=(BOX,)))
        await shell(here, BOX, "rm -r /srv/d; echo x > /srv/new")
        expected = await shell(here, BOX, listing())
        report = await here.state.migrate(BOX, MigrationRequest(node=there.node_id))
        assert await shell(there, BOX, listing()) == expected
        assert report.copied_bytes[1] < report.copied_bytes[0], "the present state is an increment on the clean one"
        await there.rollback(BOX)
        assert await shell(there, BOX, listing()) == clean


async def test_a_copy_whose_init_dies_before_the_release_begins_anew_with_its_files(
    two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(two) as (here, there):
        await here.create(SandboxSpec(image="guest"), sandbox_id=BOX)
        await shell(here, BOX, SESSION)
        expected = await shell(here, BOX, listing())
        release, killed = there.migrations.release, anyio.Event()

        async def killing(migration_id: str) -> ReleaseAnswer:
            if killed.is_set():
                return await release(migration_id)
            killed.set()
            copy = there._core.registry.find(BOX)
            instance = copy.running().instance
            assert isinstance(instance, ContainerInstance)
            signal.pidfd_send_signal(instance._pidfd, signal.SIGKILL)
            with anyio.fail_after(60):
                while copy.generation is not None:  # noqa: ASYNC110 - nobody is told.
                    await anyio.sleep(0.01)
            raise NodeUnavailableError("the release was lost")

        monkeypatch.setattr(there.migrations, "release", killing)
        report = await here.state.migrate(BOX, MigrationRequest(node=there.node_id))
        assert report.sandbox.state is SandboxState.READY
        assert await shell(there, BOX, listing()) == expected


async def test_a_sandbox_that_moves_to_and_fro_loses_no_acknowledged_write(two: tuple[Path, Path]) -> None:
    async with nodes(two) as pair:
        await pair[0].create(SandboxSpec(image="guest"), sandbox_id=BOX)
        await shell(pair[0], BOX, "mkdir -p /srv; head -c 5000000 /dev/urandom > /srv/ballast")
        writer = Writer(pair)
        async with anyio.create_task_group() as group:
            group.start_soon(writer.run)
            for number in range(MOVES):
                source, target = pair[number % 2], pair[(number + 1) % 2]
                if number % 3 == 0:
                    await source.state.checkpoint(BOX, CheckpointRequest(name=f"c{number}"))
                await source.state.migrate(BOX, MigrationRequest(node=target.node_id))
            writer.stopped = True
        written = (await shell(pair[MOVES % 2], BOX, "cat /srv/lines")).split()
        assert written == [str(number) for number in range(1, writer.acknowledged + 1)]
        assert len(await pair[MOVES % 2].state.list_checkpoints(BOX)) == (MOVES + 2) // 3
        gone = pair[(MOVES + 1) % 2]
        assert not gone._core.parts.layers.names()
        assert not await gone._core.parts.runtime.instances()


UNSURE = (SandboxExitedError, NodeUnavailableError)
"""After these a client asks again: it ended with a move, or the word of its old node takes long on a busy host."""


class Writer:
    """Appends numbers to a file of a sandbox that moves, and follows it.

    Attributes:
        acknowledged: the last number that is in the file.
        stopped: it is to write no more.
    """

    def __init__(self, pair: tuple[Node, Node]) -> None:
        self._pair = pair
        self._at = 0
        self.acknowledged = 0
        self.stopped = False

    async def run(self) -> None:
        while not self.stopped:
            try:
                await shell(self._pair[self._at], BOX, f"echo {self.acknowledged + 1} >> /srv/lines")
                self.acknowledged += 1
            except SandboxMovedError:
                self._at = 1 - self._at
            except UNSURE:
                self.acknowledged = await self._last()  # Whether it was written before that is not known.

    async def _last(self) -> int:
        while True:
            try:
                return int(await shell(self._pair[self._at], BOX, "tail -n1 /srv/lines || echo 0") or 0)
            except SandboxMovedError:
                self._at = 1 - self._at
            except UNSURE:
                continue
