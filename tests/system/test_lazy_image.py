"""Sandboxes of an image that was pulled by its reference run, and go on when who serves their layers is killed."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from dsec.images.lazy.publication.sharing import publish_image, pull_image
from dsec.images.lazy.serving.client import LayerDaemon, end_daemon, kill_daemon
from dsec.images.lazy.serving.daemon_options import DaemonOptions
from dsec.images.store import LocalImageStore
from dsec.model.process import CommandRequest
from dsec.model.sandbox import SandboxSpec
from dsec.node.builder import open_node
from dsec.node.node import Node
from dsec.node.settings import NodeSettings
from dsec.stores.objects_folder import FolderObjectStore

pytestmark = [pytest.mark.anyio, pytest.mark.root, pytest.mark.slow]


async def _said(node: Node, sandbox_id: str, script: str) -> str:
    result = await node.run(sandbox_id, CommandRequest(argv=("sh", "-c", script)))
    assert result.status.exit_code == 0, result.stderr
    return result.stdout.decode()


async def _pulled(state_dir: Path) -> FolderObjectStore:
    """Make the image of a state directory one that is here by its manifest only."""
    objects = FolderObjectStore(state_dir.parent / "objects")
    here = LocalImageStore(state_dir / "images")
    reference = (await publish_image(here, "guest", objects)).reference
    here.close()
    shutil.rmtree(state_dir / "images")
    there = LocalImageStore(state_dir / "images")
    await pull_image(there, reference, objects)
    there.close()
    return objects


def _wait_kept(lock: Path) -> None:
    """Wait until a keeper has begun, without asking the daemon, which would begin one."""
    deadline_s = time.monotonic() + 60
    while not lock.exists() or not lock.read_text():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def _wait_other(daemon: LayerDaemon, keeper: int) -> None:
    """Wait until another keeper has begun, without asking the daemon, which would begin one."""
    lock = daemon.root / "keeper.lock"
    while lock.read_text().split()[:1] == [str(keeper)]:
        time.sleep(0.02)


async def test_a_sandbox_of_a_pulled_image_outlives_its_node_and_who_serves_its_layers(state_dir: Path) -> None:
    objects = await _pulled(state_dir)
    settings = NodeSettings(state_dir=str(state_dir), store=objects.url)
    daemon = LayerDaemon(state_dir / "images/lazy", DaemonOptions(store_url=objects.url))
    async with open_node(settings) as node:
        box = (await node.create(SandboxSpec(image="guest"))).sandbox_id
        assert await _said(node, box, "echo here; rm /bin/wc; ls /bin/wc 2>/dev/null || echo gone") == "here\ngone\n"
        assert daemon.status().cached_bytes > 0
        os.kill(daemon.status().pid, signal.SIGKILL)
        assert await _said(node, box, "perl -e 'print 6 * 7'") == "42"
        before = daemon.status()
        await anyio.to_thread.run_sync(kill_daemon, daemon)
        # The node sees that nobody serves its layers any more, and starts another.
        await anyio.to_thread.run_sync(_wait_other, daemon, before.keeper_pid)
        assert await _said(node, box, "cat /bin/dd | wc -c || true; echo some") != ""
    await anyio.to_thread.run_sync(end_daemon, state_dir / "images/lazy")
    async with open_node(settings) as node:
        assert daemon.status().keeper_pid != before.keeper_pid
        assert await _said(node, box, "cat /bin/* | wc -c 2>/dev/null || cat /bin/* > /dev/null; echo all") == "all\n"
        other = (await node.create(SandboxSpec(image="guest"))).sandbox_id
        assert await _said(node, other, "ls /bin/wc") == "/bin/wc\n"
        for each in (box, other):
            await node.remove(each)


def _wait_unmounted(daemon: LayerDaemon) -> None:
    while daemon.mounted():
        time.sleep(0.02)


async def test_a_node_that_has_lazy_layers_has_them_served_before_anybody_needs_one(state_dir: Path) -> None:
    objects = await _pulled(state_dir)
    lock = state_dir / "images/lazy/keeper.lock"
    async with open_node(NodeSettings(state_dir=str(state_dir), store=objects.url)):
        await anyio.to_thread.run_sync(_wait_kept, lock)
    daemon = LayerDaemon(state_dir / "images/lazy", DaemonOptions(store_url=objects.url))
    assert not daemon.mounted()
    await anyio.to_thread.run_sync(end_daemon, state_dir / "images/lazy")


async def test_layers_go_with_their_last_sandbox_and_come_again_with_the_next(state_dir: Path) -> None:
    objects = await _pulled(state_dir)
    daemon = LayerDaemon(state_dir / "images/lazy", DaemonOptions(store_url=objects.url))
    async with open_node(NodeSettings(state_dir=str(state_dir), store=objects.url, layers_kept_s=0.2)) as node:
        for _ in range(2):
            box = (await node.create(SandboxSpec(image="guest"))).sandbox_id
            await node._layer_release.look()
            await anyio.sleep(0.3)
            await node._layer_release.look()
            assert await _said(node, box, "echo here") == "here\n"
            assert len(daemon.mounted()) == 1
            await node.remove(box)
            await anyio.to_thread.run_sync(_wait_unmounted, daemon)
    await anyio.to_thread.run_sync(end_daemon, state_dir / "images/lazy")


async def test_no_sandbox_loses_its_layers_to_one_that_goes(state_dir: Path) -> None:
    """Nothing is kept, so that whatever is not used at a look goes: under the hands of those who come."""
    objects = await _pulled(state_dir)
    async with open_node(NodeSettings(state_dir=str(state_dir), store=objects.url, layers_kept_s=0.0)) as node:

        async def come_and_go() -> None:
            for _ in range(5):
                box = (await node.create(SandboxSpec(image="guest"))).sandbox_id
                assert await _said(node, box, "echo here") == "here\n"
                await node.remove(box)

        async def look() -> None:
            while True:
                await node._layer_release.look()

        async with anyio.create_task_group() as lookers:
            lookers.start_soon(look)
            async with anyio.create_task_group() as users:
                for _ in range(2):
                    users.start_soon(come_and_go)
            lookers.cancel_scope.cancel()
    await anyio.to_thread.run_sync(end_daemon, state_dir / "images/lazy")
