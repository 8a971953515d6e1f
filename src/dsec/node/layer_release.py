"""Layers that no sandbox uses are unmounted after a while; with the last lazy one, who serves those ends.

Not at once: the next batch of tasks of the same environment would mount them again, and read again what the kernel has
in its page cache.
"""

from __future__ import annotations

import anyio
import anyio.to_thread
import structlog

from dsec.base.errors import DsecError
from dsec.node.core import Core

_log = structlog.get_logger(__name__)
_LONGEST_LOOK_S = 60.0
_SHORTEST_LOOK_S = 0.05
_LOOKS = 4
"""Within the time for which layers are kept."""


class LayerRelease:
    """Unmount what is not used.

    Args:
        core: the node's inner state.
    """

    def __init__(self, core: Core) -> None:
        self._core = core

    async def run(self) -> None:
        """Look now and then, for ever."""
        kept_s = self._core.settings.layers_kept_s
        while True:
            await anyio.sleep(max(_SHORTEST_LOOK_S, min(_LONGEST_LOOK_S, kept_s / _LOOKS)))
            await self.look()

    async def look(self) -> None:
        """Unmount what was not used for long enough."""
        kept_s, images = self._core.settings.layers_kept_s, self._core.parts.images
        try:
            # In a thread: unmounting waits for the kernel, and for who serves lazy layers.
            await anyio.to_thread.run_sync(lambda: images.release(idle_s=kept_s))
        except (DsecError, OSError) as error:
            _log.warning("layers_not_released", error=str(error))
