"""Whether a node knows the images that an episode asks for, asked before the episode is taken.

Without this a name that was misspelt is found when the loop runs, long after `start` has said that all is well. It is a
courtesy and no promise: an image may be removed before the loop runs, and a node that does not answer in a moment keeps
no episode from being taken.
"""

from __future__ import annotations

import anyio

from dsec.base.errors import DsecError
from dsec.episode.spec import EpisodeSpec
from dsec.images.names import canonical_name, not_found
from dsec.images.recipes import RECIPES
from dsec.service.port import SandboxService

_PATIENCE_S = 3.0


class KnownImages:
    """What a node is known to have.

    Args:
        service: the node.
        patience_s: how long it is waited for.
    """

    def __init__(self, service: SandboxService, *, patience_s: float = _PATIENCE_S) -> None:
        self._service = service
        self._patience_s = patience_s
        self._names: set[str] = set(RECIPES)

    async def check(self, spec: EpisodeSpec) -> None:
        """Refuse an episode whose sandbox could not be made.

        Raises:
            ImageNotFoundError: the node has no such image, and cannot make it on first use.
            InvalidRequestError: that is no name of an image.
        """
        environment = spec.environment
        if environment.sandbox_id:
            return
        wanted = [canonical_name(name) for name in (environment.sandbox.image, *environment.sandbox.layers)]
        if self._names.issuperset(wanted) or not await self._look():
            return
        for name in wanted:
            if name not in self._names:
                raise not_found(name, self._names)

    async def _look(self) -> bool:
        """Ask the node; say whether it has answered."""
        with anyio.move_on_after(self._patience_s):
            try:
                images = await self._service.images()
            except DsecError:
                return False
            self._names = {image.name.removesuffix(":latest") for image in images} | set(RECIPES)
            return True
        return False
