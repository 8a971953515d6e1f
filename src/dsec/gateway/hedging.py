"""Two attempts of one call side by side, when the first is silent for long: who begins to answer first goes on.

Both are paid for, and both are in the ledger; the caller sees one. Off unless the model's settings say after what time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from dsec.base.errors import DsecError
from dsec.gateway.attempt import Attempt
from dsec.gateway.failing import AttemptFailedError, ToldError
from dsec.gateway.fronts.asked import Target
from dsec.gateway.ledger_record import Outcome
from dsec.routing.retrying import Failure, FailureKind

Started = tuple[Attempt, Target]


class Race:
    """One race.

    Args:
        lead: the first attempt, which was begun.
        target: what its backend is told.
        after_s: how long it may be silent before a second one starts.
        start: starts the second one.
    """

    def __init__(self, lead: Attempt, target: Target, after_s: float, start: Callable[[], Awaitable[Started]]) -> None:
        self._lead = lead
        self._target = target
        self._after_s = after_s
        self._start = start
        self._lead_over = anyio.Event()
        self._won: tuple[Attempt, bytes] | None = None
        self.errors: list[AttemptFailedError] = []

    async def run(self) -> tuple[Attempt, bytes]:
        """Return who began to answer, and the beginning.

        Raises:
            AttemptFailedError: nobody did; `errors` has every failure, and every attempt has its end.
        """
        try:
            async with anyio.create_task_group() as group:
                self._group = group
                group.start_soon(self._open, self._lead, self._target)
                with anyio.move_on_after(self._after_s):
                    await self._lead_over.wait()
                if not self._lead_over.is_set():
                    group.start_soon(self._second)
        except anyio.get_cancelled_exc_class():
            if self._won is not None:
                self._won[0].abandon()  # It began to answer at the moment in which nobody wanted it any more.
            raise
        if self._won is None:
            raise self.errors[-1]
        return self._won

    async def _second(self) -> None:
        try:
            attempt, target = await self._start()
        except (ToldError, DsecError):
            return  # There is nobody else; the first goes on alone.
        await self._open(attempt, target)

    async def _open(self, attempt: Attempt, target: Target) -> None:
        try:
            first = await attempt.open(target)
        except AttemptFailedError as error:
            attempt.fail(error.failure)
            self.errors.append(error)
        except anyio.get_cancelled_exc_class():
            if self._won is not None:
                _lose(attempt)
            else:
                attempt.abandon()
            raise
        else:
            if self._won is None:
                self._won = attempt, first
            else:
                _lose(attempt)  # Both began at once, so that no cancellation came in time.
            self._group.cancel_scope.cancel()
        finally:
            if attempt is self._lead:
                self._lead_over.set()


def _lose(attempt: Attempt) -> None:
    lost = Failure(kind=FailureKind.CANCELLED, brief="another attempt of the call was quicker")
    attempt.end(Outcome.CANCELLED, failure=lost)
