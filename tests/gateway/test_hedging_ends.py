"""Two attempts that begin to answer at the same moment: one goes on, and the other has its end."""

from __future__ import annotations

from typing import Any, cast

import anyio
import pytest

from dsec.gateway.hedging import Race
from dsec.gateway.ledger_record import Outcome

pytestmark = pytest.mark.anyio


class Runner:
    """An attempt that begins to answer when it is let go, and keeps its end."""

    def __init__(self, go: anyio.Event) -> None:
        self._go = go
        self.ends: list[Outcome] = []

    async def open(self, target: Any) -> bytes:
        await self._go.wait()
        return b"first"

    def end(self, outcome: Outcome, *, failure: Any = None) -> None:
        self.ends.append(outcome)

    def abandon(self) -> None:
        self.ends.append(Outcome.CANCELLED)


def race_of(go: anyio.Event) -> tuple[Race, Runner, Runner, anyio.Event]:
    lead, second = Runner(go), Runner(go)
    started = anyio.Event()

    async def start() -> Any:
        started.set()
        return second, None

    return Race(cast("Any", lead), cast("Any", None), 0.0, start), lead, second, started


async def test_the_one_that_is_not_taken_is_ended_even_if_both_began_at_once() -> None:
    go = anyio.Event()
    race, lead, second, started = race_of(go)
    async with anyio.create_task_group() as group:

        async def let_both_go() -> None:
            await started.wait()
            await anyio.wait_all_tasks_blocked()
            go.set()

        group.start_soon(let_both_go)
        winner, first = await race.run()
    loser = second if cast("Any", winner) is lead else lead
    assert first == b"first"
    assert loser.ends == [Outcome.CANCELLED]
    assert cast("Any", winner).ends == []


async def test_who_began_when_nobody_wanted_it_any_more_is_ended() -> None:
    go = anyio.Event()
    race, lead, second, started = race_of(go)
    async with anyio.create_task_group() as group:
        group.start_soon(race.run)
        await started.wait()
        await anyio.wait_all_tasks_blocked()
        go.set()
        group.cancel_scope.cancel()
    assert len(lead.ends) == len(second.ends) == 1
