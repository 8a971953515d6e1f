"""What happens in a gap between two tools, beside the model's thinking: let go, wait, make ready for what comes next.

One task for each gap. It is told what the model has begun to write (`hear`) and that the call is there (`called`), and
is over when that returns. What was made ready for a tool that does not come is given up at once; what was made ready
for none serves every tool.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

import anyio
from anyio.abc import TaskGroup

from dsec.episode.tool_prediction import Guess


@dataclass(frozen=True, slots=True, kw_only=True)
class GapPlan:
    """What to do in a gap.

    Attributes:
        let_go: done first, whatever comes; None: nothing.
        begin_s: seconds from now at which to make ready for `guess`; None: not before anything is heard.
        guess: what is expected.
        hear: says what a tool needs whose name the model has written; None: no sandbox.
        wait_s: says how long to wait with that, from now.
        make: makes the sandbox ready by a preparation; may be cancelled.
        give_up: undoes that, also of what was cancelled.
    """

    let_go: Callable[[], Awaitable[None]] | None
    begin_s: float | None
    guess: Guess
    hear: Callable[[str], Guess | None]
    wait_s: Callable[[], float]
    make: Callable[[str], Awaitable[None]]
    give_up: Callable[[], Awaitable[None]]


class Gap:
    """One gap.

    Args:
        tasks: in which it goes on.
        plan: what to do in it.
    """

    def __init__(self, tasks: TaskGroup, plan: GapPlan) -> None:
        self._plan = plan
        self._wanted: str | None = None
        self._is_heard = self._is_called = False
        self._made: str | None = None
        self._begin_s = 0.0
        self._changed = anyio.Event()
        self._over = anyio.Event()
        self._letting_go = anyio.CancelScope()
        self._making: anyio.CancelScope | None = None
        self._making_for = ""
        self._whole = anyio.CancelScope()
        tasks.start_soon(self._run)

    def hear(self, tool: str) -> None:
        """The model has begun to call a tool. The first that needs a sandbox counts."""
        if self._is_called or (self._is_heard and self._wanted is not None):
            return
        heard = self._plan.hear(tool)
        self._is_heard = True
        self._begin_s = anyio.current_time() + (self._plan.wait_s() if heard is not None else 0.0)
        self._want(None if heard is None else heard.preparation)

    async def called(self, preparations: Collection[str]) -> None:
        """A call that needs the sandbox is there: wait for what is under way if it is of use, end everything else.

        Args:
            preparations: what its tools need.
        """
        self._is_called = True
        self._letting_go.cancel()
        if self._making is not None and not _serves(self._making_for, preparations):
            self._making.cancel()
        self._changed.set()
        await self._over.wait()

    def not_called(self) -> None:
        """The calls that came need no sandbox. The gap goes on; what was made ready is given up."""
        self._is_heard = False
        self._want(None)

    async def stop(self) -> None:
        """End it wherever it is, but for what cannot be cut short."""
        self._is_called = True
        self._whole.cancel()
        await self._over.wait()

    def _want(self, preparation: str | None) -> None:
        self._wanted = preparation
        if self._making is not None and (preparation is None or not _serves(self._making_for, (preparation,))):
            self._making.cancel()
        self._changed.set()

    async def _run(self) -> None:
        try:
            with self._whole:
                if self._plan.let_go is not None:
                    with self._letting_go:
                        await self._plan.let_go()
                await self._expect()
                while not self._is_called:
                    await self._step()
        finally:
            self._over.set()

    async def _expect(self) -> None:
        """Wait until it is time to begin, or something is known."""
        if self._is_heard or self._is_called or self._plan.begin_s is None:
            return
        with anyio.move_on_after(self._plan.begin_s) as timer:
            await self._wait()
        if timer.cancelled_caught:
            self._wanted = self._plan.guess.preparation

    async def _step(self) -> None:
        wanted = self._wanted
        if self._made is not None and (wanted is None or not _serves(self._made, (wanted,))):
            self._made = None
            await self._plan.give_up()
        elif wanted is None or self._made is not None:
            await self._wait()
        elif (wait_s := self._begin_s - anyio.current_time()) > 0:
            with anyio.move_on_after(wait_s):
                await self._wait()
        else:
            await self._make(wanted)

    async def _make(self, preparation: str) -> None:
        done = False
        with anyio.CancelScope() as self._making:
            self._making_for = preparation
            await self._plan.make(preparation)
            done = True
        self._making = None
        if done:
            self._made = preparation
        else:
            await self._plan.give_up()

    async def _wait(self) -> None:
        self._changed = anyio.Event()
        await self._changed.wait()


def _serves(made_for: str, needed: Collection[str] | None) -> bool:
    """Whether a sandbox that was made ready so is of use for what is needed."""
    if needed is None:
        return False
    return made_for in needed or not made_for or not any(needed)
