"""Wait for kernel events without polling: a readable descriptor, a control group that is empty or frozen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anyio

from dsec.base.errors import RuntimeFailedError
from dsec.linux.processes import describe
from dsec.runtimes.container.groups import Groups

END_LIMIT_S = 30.0
"""A killed process ends as soon as it leaves the kernel; one that does not in this time is stuck in a driver."""

_TOLD = 5
"""Processes that are told about when they do not end."""

_REAPED_S, _LOOK_S = 1.0, 0.002
_FEW = 8
"""That many are in nobody's way, and gone before anything could be started."""

_SWALLOWED_S = 0.05
"""The kernel announces changes of one file at most every 10 ms, by a timer, and drops the timer with the group: when
somebody else removes an emptied group at once, its last change is never announced. So we look again."""


async def wait_readable(descriptor: int, until: asyncio.Future[Any] | None = None) -> None:
    """Wait until a descriptor is readable (or hung up), or until a future is done."""
    loop = asyncio.get_running_loop()
    await _first(loop.add_reader, loop.remove_reader, descriptor, until)


async def wait_writable(descriptor: int, until: asyncio.Future[Any] | None = None) -> None:
    """Wait until a descriptor takes bytes (or is broken), or until a future is done."""
    loop = asyncio.get_running_loop()
    await _first(loop.add_writer, loop.remove_writer, descriptor, until)


async def _first(
    add: Callable[..., None], remove: Callable[[int], object], descriptor: int, until: asyncio.Future[Any] | None
) -> None:
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def report(*_: object) -> None:
        if not ready.done():
            ready.set_result(None)

    add(descriptor, report)
    if until is not None:
        until.add_done_callback(report)
    try:
        await ready
    finally:
        remove(descriptor)
        if until is not None:
            until.remove_done_callback(report)


async def _wait_for(cgroups: Groups, group: str, child: str | None, condition: Callable[[], bool], what: str) -> None:
    try:
        with anyio.fail_after(END_LIMIT_S):
            while not condition():
                watch = cgroups.watch_events(group, child)
                if watch is None:
                    return
                try:
                    if condition():
                        return
                    with anyio.move_on_after(_SWALLOWED_S):
                        await wait_readable(watch.fileno())
                finally:
                    watch.close()
    except TimeoutError as error:
        raise RuntimeFailedError(
            f"{group}: {what} within {END_LIMIT_S:.0f} s",
            detail="; ".join(describe(pid) for pid in cgroups.process_ids(group, _TOLD)),
            resolution="processes in state D wait for a device or file system of the host: look at that",
        ) from error


async def wait_empty(cgroups: Groups, group: str, child: str | None = None) -> None:
    """Wait until every process of a group is seen to be gone; at once when the group does not exist.

    Raises:
        RuntimeFailedError: a process is still there after `END_LIMIT_S`.
    """
    await _wait_for(cgroups, group, child, lambda: not cgroups.is_populated(group, child), "its processes did not end")


async def wait_reaped(cgroups: Groups, group: str) -> None:
    """Wait until what has ended in a group no longer counts against its limit of processes, or for `_REAPED_S`: killed
    children of killed parents count until the init of the instance has asked for each, and until then a command that is
    started next may meet the limit.
    """
    with anyio.move_on_after(_REAPED_S):
        while cgroups.unreaped(group) > _FEW:  # noqa: ASYNC110 - the kernel announces no reaping
            await anyio.sleep(_LOOK_S)


async def wait_frozen(cgroups: Groups, group: str) -> None:
    """Wait until every process of a group is frozen. Raises as `wait_empty`."""
    await _wait_for(cgroups, group, None, lambda: cgroups.is_frozen(group), "its processes did not freeze")
