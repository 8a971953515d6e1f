"""Mounting images beside the node's other work: each once, however many sandboxes wait for it.

Layers that are loaded when touched are mounted once their metadata is here, which takes as long as its source does, up
to a minute where that is dead. The event loop must not wait for it; nor may a burst of creations hold a thread each,
since other work needs threads too. So a mount belongs to nobody: whoever gives up waiting takes it from no one else,
and who comes meanwhile waits for the same one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from dsec.base.errors import NodeUnavailableError

if TYPE_CHECKING:
    from dsec.node.core import Core

_THREADS = 16
"""Threads of their own. Images of dead sources fill them for a minute at most."""


class _Mount:
    """One that is under way."""

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.error: BaseException | None = NodeUnavailableError("the node is shutting down")


class ImageMounts:
    """Makes images and layers ready to be mounted without waiting.

    Args:
        core: the node's inner state.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._under_way: dict[tuple[str, ...], _Mount] = {}
        self._threads = anyio.CapacityLimiter(_THREADS)

    async def ready(self, names: tuple[str, ...]) -> None:
        """Mount the images that are here and not mounted. They still are when the caller goes on.

        Raises:
            DsecError: as `ImageStore.mount`.
        """
        images = self._core.parts.images
        if images.mounted(names) is None:
            await self._wait(("images", *names), lambda: images.mount(names))

    async def ready_layers(self, digests: tuple[str, ...]) -> None:
        """Mount layers. Raises `DsecError` as `ImageStore.mount_layers`."""
        await self._wait(("layers", *digests), lambda: self._core.parts.images.mount_layers(digests))

    async def _wait(self, key: tuple[str, ...], mount: Callable[[], object]) -> None:
        under_way = self._under_way.get(key)
        if under_way is None:
            under_way = begun = self._under_way[key] = _Mount()
            self._core.supervisor.start(f"mount {' '.join(key)}", lambda: self._carry_out(key, mount, begun))
        await under_way.done.wait()
        if under_way.error is not None:
            raise under_way.error

    async def _carry_out(self, key: tuple[str, ...], mount: Callable[[], object], under_way: _Mount) -> None:
        try:
            # Whoever closes the node does not wait for a dead source.
            await anyio.to_thread.run_sync(mount, limiter=self._threads, abandon_on_cancel=True)
            under_way.error = None
        except anyio.get_cancelled_exc_class():
            raise
        except BaseException as error:  # noqa: BLE001
            # This is the supervisor of a mount: whatever it meets is raised to those who wait for it.
            under_way.error = error
        finally:
            del self._under_way[key]
            under_way.done.set()
