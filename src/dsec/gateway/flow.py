"""Slots of one backend and the queue before them.

A call waits its turn; the turn goes from who leaves to who is next without a moment in between, so that no newcomer
passes those who wait. Whose turn it is is decided by a pure queue that is fair between projects.
"""

from __future__ import annotations

import asyncio

from dsec.base.errors import GatewayBusyError
from dsec.routing.fairness import FairQueue


class Ticket:
    """A place in a queue."""

    __slots__ = ("project", "turn", "work")

    def __init__(self, project: str, work: float, turn: asyncio.Future[None]) -> None:
        self.project = project
        self.work = work
        self.turn = turn


class Turnstile:
    """The slots of one backend.

    Args:
        name: of the backend, for errors.
        slots: calls at a time; None: no limit.
        waiting: who waits.
    """

    def __init__(self, name: str, slots: int | None, waiting: FairQueue[Ticket]) -> None:
        self._name = name
        self._slots = slots
        self._waiting = waiting
        self.running = 0

    async def enter(self, project: str, work: float, timeout_s: float) -> None:
        """Wait for a slot and take it; `leave` gives it back. Cancelled, it takes none.

        Args:
            project: who waits.
            work: how much the call asks of the backend, in tokens; what fairness counts.
            timeout_s: how long to wait at most.

        Raises:
            GatewayBusyError: there was none in time.
        """
        if self._slots is None or (self.running < self._slots and not len(self._waiting)):
            self.running += 1
            return
        ticket = Ticket(project, work, asyncio.get_running_loop().create_future())
        self._waiting.offer(ticket)
        try:
            async with asyncio.timeout(timeout_s):
                await ticket.turn
        except TimeoutError as error:
            self._give_up(ticket)
            raise GatewayBusyError(
                f"no slot of {self._name} was free within {timeout_s:g} s", resolution="try again later"
            ) from error
        except asyncio.CancelledError:
            self._give_up(ticket)
            raise

    def leave(self, project: str, unforeseen: float = 0.0) -> None:
        """Give a slot back, to who is next if somebody waits.

        Args:
            project: who had it.
            unforeseen: how much more work it was than `enter` was told.
        """
        if self._slots is None:
            self.running -= 1
            return
        self._waiting.charge(project, unforeseen)
        while (ticket := self._waiting.take()) is not None:
            if not ticket.turn.done():
                ticket.turn.set_result(None)
                return
        self.running -= 1

    def _give_up(self, ticket: Ticket) -> None:
        if ticket.turn.done() and not ticket.turn.cancelled():
            self.leave(ticket.project, -ticket.work)  # The turn came in the very moment in which the wait ended.
        else:
            self._waiting.withdraw(ticket)
