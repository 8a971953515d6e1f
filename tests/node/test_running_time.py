"""A clock that stands still while a sandbox is paused."""

from __future__ import annotations

import math

import anyio
import pytest

from dsec.node.running_time import RunningTime

pytestmark = pytest.mark.anyio


def left_s(scope: anyio.CancelScope) -> float:
    return scope.deadline - anyio.current_time()


async def test_a_limit_counts_only_while_the_clock_runs() -> None:
    time = RunningTime()
    with time.limit(100.0) as scope:
        assert 99 < left_s(scope) <= 100
        for _ in range(2):
            time.stop()
            assert scope.deadline == math.inf
        for _ in range(2):
            time.go()
            assert 99 < left_s(scope) <= 100


async def test_a_limit_that_begins_while_it_stands_begins_when_it_goes_on() -> None:
    time = RunningTime(stands=True)
    with time.limit(100.0) as scope:
        assert scope.deadline == math.inf
        time.go()
        assert 99 < left_s(scope) <= 100


async def test_a_limit_that_is_over_is_forgotten() -> None:
    time = RunningTime()
    with time.limit(100.0) as over:
        pass
    time.stop()
    time.go()
    with time.limit(0.0) as scope:
        await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert over.deadline != math.inf


async def test_sleeping_ends_when_the_clock_goes_on_and_not_before() -> None:
    time = RunningTime(stands=True)
    woken = anyio.Event()

    async def sleep() -> None:
        await time.sleep(0.0)
        woken.set()

    async with anyio.create_task_group() as group:
        group.start_soon(sleep)
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        assert not woken.is_set()
        time.go()
        with anyio.fail_after(60):
            await woken.wait()
