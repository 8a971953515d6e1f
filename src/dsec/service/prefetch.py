"""The contract by which a node is told what comes next, beside `dsec.service.port.SandboxService`.

Nobody needs it: whatever was not brought comes when it is read. `dsec.node.prefetch.NodePrefetches` implements it on a
host, `dsec.sdk.prefetch.HttpPrefetches` against a server.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from dsec.distribution.prefetch import PrefetchProgress
from dsec.model.prefetch import PrefetchHint


class PrefetchService(Protocol):
    """Hear what will be done, and bring what that will read of images."""

    async def hint(self, hint: PrefetchHint) -> PrefetchProgress:
        """Take what comes next, in place of what the same one said before, and return what that amounts to. Steps of
        which nothing is known bring nothing. Without steps, nothing more is brought. Idempotent.

        Raises:
            SandboxNotFoundError: there is no such sandbox.
            InvalidRequestError: it names neither an owner nor a sandbox.
        """


@runtime_checkable
class HasPrefetch(Protocol):
    """A service whose node prefetches."""

    prefetch: PrefetchService
