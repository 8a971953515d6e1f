"""Hands that reach outside: calls of systems outside by their adapters, everything else by the hands in the sandbox."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from dsec.base.errors import InvalidRequestError, InvalidStateError, OutsideUnavailableError, UnknownOutcomeError
from dsec.episode.agent_calls import OutsideCall
from dsec.episode.operations import Effect, Operation
from dsec.episode.tools import ToolFailed, ToolResult
from dsec.worker.episodes.ports import Hands
from dsec.worker.outside.port import OutsideRequest, OutsideTool


class OutsideHands:
    """Implements `dsec.worker.episodes.ports.Hands`.

    Args:
        inside: carries out what is not outside.
        tools: by name.
        epoch: of the log's writer.
    """

    def __init__(self, inside: Hands, tools: Mapping[str, OutsideTool], *, epoch: int) -> None:
        self._inside = inside
        self._tools = tools
        self._epoch = epoch

    async def run(self, operation: Operation) -> ToolResult:
        """Carry an operation out.

        Raises:
            OutsideUnavailableError: it did not happen in this attempt.
            UnknownOutcomeError: nobody knows; its kind of effect says what is to be done when the loop goes on.
            DsecError: as the inner hands.
        """
        call = operation.call
        if not isinstance(call, OutsideCall):
            return await self._inside.run(operation)
        tool = self._tools.get(call.name)
        if tool is None:
            return ToolFailed(code=InvalidRequestError.code, brief=f"there is no system outside called {call.name!r}")
        try:
            # A script's arguments come as they were written; a model's were looked at before.
            msgspec.convert(call.arguments, tool.arguments)
        except msgspec.ValidationError as error:
            return ToolFailed(code=InvalidRequestError.code, brief=f"the arguments do not fit: {error}")
        _check_kind(operation, tool)
        return await self._send(operation, tool, self._request(operation, call))

    async def ask(self, operation: Operation) -> ToolResult | None:
        """Return what became of an operation that was sent before; None: it never arrived, and will not.

        Raises:
            OutsideUnavailableError: the system does not say.
        """
        call = operation.call
        if not isinstance(call, OutsideCall):
            return await self._inside.ask(operation)
        return await self._tool(operation, call).system.ask(self._request(operation, call))

    async def compensate(self, operation: Operation) -> None:
        """Undo an operation, if it happened.

        Raises:
            OutsideUnavailableError: the system does not say that it is undone.
        """
        call = operation.call
        if not isinstance(call, OutsideCall):
            await self._inside.compensate(operation)
            return
        await self._tool(operation, call).system.compensate(self._request(operation, call))

    def _tool(self, operation: Operation, call: OutsideCall) -> OutsideTool:
        tool = self._tools.get(call.name)
        if tool is None:
            raise InvalidStateError(
                f"this episode used a system outside called {call.name!r}, which its spec does not name",
                resolution="give the spec its adapter again",
            )
        _check_kind(operation, tool)
        return tool

    def _request(self, operation: Operation, call: OutsideCall) -> OutsideRequest:
        return OutsideRequest(operation_id=operation.operation_id, epoch=self._epoch, arguments=call.arguments)

    async def _send(self, operation: Operation, tool: OutsideTool, request: OutsideRequest) -> ToolResult:
        """Send; where the answer was lost and the system can be asked, ask at once instead of stopping the loop."""
        try:
            return await tool.system.send(request)
        except UnknownOutcomeError as lost:
            if operation.effect is not Effect.ASKED:
                raise
            try:
                found = await tool.system.ask(request)
            except OutsideUnavailableError as error:
                raise lost from error
            return found if found is not None else await tool.system.send(request)


def _check_kind(operation: Operation, tool: OutsideTool) -> None:
    """Refuse what was declared to be of a kind that the system does not keep any more, such as with a newer adapter."""
    if operation.effect not in (Effect.ONCE, tool.system.effect):
        kinds = f"was declared {operation.effect.value}, and {tool.name} is {tool.system.effect.value}"
        raise InvalidStateError(
            f"{operation.operation_id} {kinds}",
            resolution="go on with the adapter that the episode began with",
        )
