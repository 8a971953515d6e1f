"""Do one thing to many, several at a time, and fail as one of them fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import anyio

from dsec.base.errors import DsecError

T = TypeVar("T")
R = TypeVar("R")


async def each(items: Sequence[T], act: Callable[[T], Awaitable[R]], *, at_once: int) -> list[R]:
    """Return what `act` returns for each item, in their order.

    The first error of ours ends those under way, and comes out as itself rather than in a group.
    """
    made: dict[int, R] = {}
    failures: list[DsecError] = []
    limiter = anyio.CapacityLimiter(at_once)

    async def one(number: int) -> None:
        async with limiter:
            try:
                made[number] = await act(items[number])
            except DsecError as error:
                failures.append(error)
                group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for number in range(len(items)):
            group.start_soon(one, number)
    if failures:
        raise failures[0]
    return [made[number] for number in range(len(items))]
