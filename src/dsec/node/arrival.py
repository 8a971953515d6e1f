"""A sandbox on its way to this node: who asks for it waits for the word of the node it was on.

From its decision on the source tells clients that the sandbox is here, and in the same moment sends its release. A
client that follows at once can come before that does. What it asks for is held then, as the source held it while the
sandbox stood still, and answered when the copy is this node's or is given up. It is not held for ever: a source that
died after its decision is waited for by the copy, and not by its clients.
"""

from __future__ import annotations

import anyio

from dsec.node.core import Core
from dsec.node.sandbox import Sandbox

LONGEST_WAIT_S = 10.0
"""Hundreds of times what a release takes, and less than the deadline of any request."""


async def find(core: Core, sandbox_id: str) -> Sandbox:
    """Return a sandbox, once it has arrived; one that does not in `LONGEST_WAIT_S` is returned as it is, migrating.

    Raises:
        NodeUnavailableError: the node is shutting down.
        SandboxNotFoundError, SandboxMovedError, WrongNodeError: see `Registry.find`; also when it was given up here.
    """
    core.check_open()
    sandbox = core.registry.find(sandbox_id)
    if sandbox.arrival is None or sandbox.arrival.is_set():
        return sandbox
    with anyio.move_on_after(LONGEST_WAIT_S):
        await sandbox.arrival.wait()
    core.check_open()
    return core.registry.find(sandbox_id)
