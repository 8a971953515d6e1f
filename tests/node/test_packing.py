"""A pack makes a whole image or nothing, and the sandbox does not notice."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.from_thread
import pytest

from dsec.base.errors import HostDiskFullError, ImageNotFoundError, InvalidStateError, SandboxNotFoundError
from dsec.images.memory import MemoryImages
from dsec.images.packing import PackOrder
from dsec.model.sandbox import SandboxSpec, SandboxState
from dsec.model.state import PackReport, PackRequest
from dsec.node.node import Node
from dsec.testing.faults import Faults, check_no_leak, killed
from dsec.testing.memory_node import MemoryHost

pytestmark = pytest.mark.anyio
BOX = "sbx-box"


class SlowImages(MemoryImages):
    """Images whose packs do something first, in their thread."""

    def __init__(self, first: Callable[[PackOrder], None]) -> None:
        super().__init__()
        self._first = first

    def pack(self, order: PackOrder) -> PackReport:
        self._first(order)
        return super().pack(order)


async def begin(node: Node) -> None:
    await node.create(SandboxSpec(), sandbox_id=BOX)
    await node.write_file(BOX, "/home/user/x", b"before")


async def test_nothing_is_left_on_the_host_but_the_image() -> None:
    host = MemoryHost()
    async with host.node() as node:
        await begin(node)
        await node.state.pack(BOX, PackRequest(name="packed"))
        await check_no_leak(host, node)
        image = host.images.get("packed")
        assert image.layers[:-1] == host.images.get("python").layers
        assert image.source == f"packed from {BOX}"


async def test_what_is_written_meanwhile_is_not_in_it() -> None:
    def write(order: PackOrder) -> None:
        anyio.from_thread.run(node.write_file, BOX, "/home/user/late", b"late")

    host = MemoryHost(images=SlowImages(write))
    async with host.node() as node:
        await begin(node)
        await node.state.pack(BOX, PackRequest(name="packed"))
        other = await node.create(SandboxSpec(image="packed"))
        assert {info.name for info in await node.list_files(other.sandbox_id, "/home/user")} == {"x"}
        assert {info.name for info in await node.list_files(BOX, "/home/user")} == {"x", "late"}


async def test_a_paused_sandbox_stays_paused() -> None:
    async with MemoryHost().node() as node:
        await begin(node)
        await node.pause(BOX)
        await node.state.pack(BOX, PackRequest(name="packed"))
        assert (await node.inspect(BOX)).state is SandboxState.PAUSED


async def test_a_pack_that_is_cancelled_ends_and_leaves_nothing() -> None:
    begun = anyio.Event()

    def wait(order: PackOrder) -> None:
        anyio.from_thread.run_sync(begun.set)
        while True:
            anyio.from_thread.run(anyio.sleep, 0)
            order.check()

    host = MemoryHost(images=SlowImages(wait))
    async with host.node() as node:
        await begin(node)
        async with anyio.create_task_group() as group:
            group.start_soon(node.state.pack, BOX, PackRequest(name="packed"))
            await begun.wait()
            group.cancel_scope.cancel()
        await check_no_leak(host, node)
        assert [image.name for image in host.images.list()] == ["python:latest"]


async def test_a_node_that_is_killed_in_a_pack_leaves_a_whole_image_or_none() -> None:
    step, outcomes = 0, set()
    while True:
        step += 1
        host = MemoryHost()
        async with host.node() as node:
            await begin(node)

        async def act(node: Node) -> None:
            await node.state.pack(BOX, PackRequest(name="packed"))

        was_killed = await killed(host, Faults(kill_at=step), act)
        async with host.node() as node:
            await check_no_leak(host, node)
            assert (await node.inspect(BOX)).state is SandboxState.READY
            try:
                outcomes.add(len(host.images.get("packed").layers))
            except ImageNotFoundError:
                outcomes.add(0)
        if not was_killed:
            break
    assert outcomes == {0, 2}


async def test_a_pack_that_fails_leaves_nothing() -> None:
    def fail(order: PackOrder) -> None:
        raise HostDiskFullError("full")

    host = MemoryHost(images=SlowImages(fail))
    async with host.node() as node:
        await begin(node)
        with pytest.raises(HostDiskFullError):
            await node.state.pack(BOX, PackRequest(name="packed"))
        await check_no_leak(host, node)
        assert (await node.inspect(BOX)).state is SandboxState.READY


async def test_a_sandbox_that_ends_meanwhile_is_packed_as_it_was() -> None:
    def stop(order: PackOrder) -> None:
        anyio.from_thread.run(node.remove, BOX)

    host = MemoryHost(images=SlowImages(stop))
    async with host.node() as node:
        await begin(node)
        assert (await node.state.pack(BOX, PackRequest(name="packed"))).name == "packed:latest"
        await check_no_leak(host, node)


async def test_what_does_not_run_cannot_be_packed() -> None:
    async with MemoryHost().node() as node:
        await begin(node)
        await node.stop(BOX)
        with pytest.raises(InvalidStateError):
            await node.state.pack(BOX, PackRequest(name="packed"))
        with pytest.raises(SandboxNotFoundError):
            await node.state.pack("sbx-nobody", PackRequest(name="packed"))
