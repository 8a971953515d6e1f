"""Images are mounted beside the node's other work: each once, and nobody waits for somebody else's dead source."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import anyio
import anyio.from_thread
import anyio.lowlevel
import anyio.to_thread
import pytest

from dsec.base.errors import DeadlineExceededError, StoreUnavailableError
from dsec.images.memory import MemoryImages
from dsec.images.port import MountedImage
from dsec.model.sandbox import SandboxSpec
from dsec.testing.memory_node import MemoryHost

pytestmark = pytest.mark.anyio


class LazyImages(MemoryImages):
    """Images that take something to be mounted, in their thread."""

    def __init__(self, *names: str, first: Callable[[str], None]) -> None:
        super().__init__("python", *names)
        self._first = first
        self._ready: set[str] = set()
        self.mounts: list[str] = []

    def mounted(self, names: Sequence[str]) -> MountedImage | None:
        return super().mount(names) if self._ready.issuperset(names) else None

    def mount(self, names: Sequence[str]) -> MountedImage:
        if not self._ready.issuperset(names):
            self.mounts += names
            self._first(names[0])
            self._ready.update(names)
        return super().mount(names)


async def test_an_image_is_mounted_once_for_all_who_wait_and_its_error_is_told_to_all() -> None:
    come, fails = threading.Event(), True

    def first(name: str) -> None:
        come.wait()
        if fails:
            raise StoreUnavailableError("the link is cut")

    images = LazyImages(first=first)
    errors: list[str] = []

    async with MemoryHost(images=images).node() as node:

        async def create() -> None:
            try:
                await node.create(SandboxSpec())
            except StoreUnavailableError as error:
                errors.append(error.brief)

        async def create_many() -> None:
            come.clear()
            async with anyio.create_task_group() as group:
                for _ in range(5):
                    group.start_soon(create)
                while not images.mounts:
                    await anyio.lowlevel.checkpoint()
                come.set()

        await create_many()
        assert (errors, images.mounts) == (["the link is cut"] * 5, ["python"])
        fails = False
        images.mounts.clear()
        await create_many()
        assert (len(await node.list()), images.mounts) == (5, ["python"])


async def test_whoever_waits_for_a_dead_source_gives_up_at_its_deadline_and_keeps_nobody_waiting() -> None:
    over = threading.Event()

    def first(name: str) -> None:
        if name == "dead":
            over.wait()

    try:
        async with MemoryHost(images=LazyImages("dead", first=first)).node() as node:
            for _ in range(3):
                with pytest.raises(DeadlineExceededError):
                    await node.create(SandboxSpec(image="dead"), timeout_s=0.01)
            await node.create(SandboxSpec())
    finally:
        over.set()


async def test_a_store_hears_of_layers_in_use_also_in_the_event_loops_of_work_on_images() -> None:
    async with MemoryHost().node() as node:
        await node.create(SandboxSpec())
        used = node.layers_in_use()
        assert used

        async def ask() -> frozenset[str]:
            assert await anyio.to_thread.run_sync(node.layers_in_use) == used
            return node.layers_in_use()

        def elsewhere() -> frozenset[str]:
            with anyio.from_thread.start_blocking_portal() as portal:
                return portal.call(ask)

        assert await anyio.to_thread.run_sync(elsewhere) == used
