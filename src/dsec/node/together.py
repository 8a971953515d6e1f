"""Two things at once, both of which have to come to an end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from dsec.base.errors import DsecError

_Result = TypeVar("_Result")


async def together(work: Callable[[], Awaitable[_Result]], other: Callable[[], Awaitable[None]]) -> _Result:
    """Run `work` beside `other`, which begins first, and return what `work` returns once both have ended.

    An error of one does not interrupt the other: half of either would have to be undone. Cancellation reaches both.

    Raises:
        DsecError: of `work`, or else of `other`, as they raised it.
    """
    errors: list[DsecError | None] = [None, None]
    results: list[_Result] = []

    async def run_other() -> None:
        try:
            await other()
        except DsecError as error:
            errors[1] = error

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(run_other)
            await anyio.lowlevel.checkpoint()
            try:
                results.append(await work())
            except DsecError as error:
                errors[0] = error
    except BaseExceptionGroup as several:
        # What is no error of ours ends both, and goes on as it was raised.
        raise several.exceptions[0] from None
    for failure in errors:
        if failure is not None:
            raise failure
    return results[0]
