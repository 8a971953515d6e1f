"""Hands of an episode whose commands may end its sandbox: ``kill 1``, ``shutdown``, whatever a guest thinks of.

Once that may be the host's doing, and the command is run again where the files were put back. What ends the sandbox
each time it runs would do so for ever: then that is its result, the files stay put back, and who decides hears of it.
"""

from __future__ import annotations

from collections import Counter

from dsec.base.errors import PlatformError, SandboxExitedError
from dsec.episode.operations import Operation
from dsec.episode.tools import ToolFailed, ToolResult
from dsec.worker.episodes.ports import Hands

ENOUGH = 3
"""Sandboxes that an operation may end; a worker tries as often again, and once more."""


class EnduringHands:
    """Implements `dsec.worker.episodes.ports.Hands`.

    Args:
        hands: that carry out.
        ended: how often the sandbox ended under an operation, by its id; it outlives the hands.
    """

    def __init__(self, hands: Hands, ended: Counter[str]) -> None:
        self._hands = hands
        self._ended = ended

    async def run(self, operation: Operation) -> ToolResult:
        """See the module."""
        times = self._ended[operation.operation_id]
        if times >= ENOUGH:
            return ToolFailed(
                code=SandboxExitedError.code,
                brief=f"the sandbox ended each of the {times} times that this ran",
                detail="its files are those from before",
                resolution="do not end the sandbox's processes, its init process among them",
            )
        try:
            return await self._hands.run(operation)
        except PlatformError as error:
            if isinstance(error, SandboxExitedError) or isinstance(error.__cause__, SandboxExitedError):
                self._ended[operation.operation_id] += 1
            raise

    async def ask(self, operation: Operation) -> ToolResult | None:
        """See the port."""
        return await self._hands.ask(operation)

    async def compensate(self, operation: Operation) -> None:
        """See the port."""
        await self._hands.compensate(operation)
