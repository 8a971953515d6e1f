"""Long work that a node tells of while it goes on: progress now and then, and its report as the last word."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from dsec.base.errors import NodeUnavailableError

R = TypeVar("R")
P = TypeVar("P")


async def report_of(
    what: str,
    work: AbstractAsyncContextManager[AsyncIterator[object]],
    report: type[R],
    progress: type[P],
    on_progress: Callable[[P], None] | None,
) -> R:
    """Watch work until it is done, and return its report.

    Args:
        what: is done, for the error.
        work: its events.
        report: the one that ends it.
        progress: those of which `on_progress` is told; others are passed over.
        on_progress: None: nobody is told.

    Raises:
        NodeUnavailableError: the node told no report.
        DsecError: as the work failed.
    """
    async with work as events:
        async for event in events:
            if isinstance(event, report):
                return event
            if on_progress is not None and isinstance(event, progress):
                on_progress(event)
    raise NodeUnavailableError(f"the node told no outcome of the {what}", resolution="ask again")
