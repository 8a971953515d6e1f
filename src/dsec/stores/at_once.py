"""Many requests to a store at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

import anyio


async def each_at_once(items: Iterable[str], act: Callable[[str], Awaitable[None]]) -> None:
    """Do something for each of some keys at once; raise the first failure as itself, not in a group."""
    failures: list[Exception] = []

    async def one(item: str) -> None:
        try:
            await act(item)
        except Exception as error:  # noqa: BLE001 - a supervisor: the first failure ends its siblings and is raised below.
            failures.append(error)
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for item in items:
            group.start_soon(one, item)
    if failures:
        raise failures[0]
