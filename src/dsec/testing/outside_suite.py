"""What every implementation of `dsec.worker.outside.port.OutsideSystem` does: subclass with a fixture `world`.

The suite is the loop: it sends, and where it does not know what happened it does what the kind of effect asks for. The
world says what truly happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import anyio
import pytest

from dsec.base.errors import OutsideUnavailableError, UnknownOutcomeError, WriterFencedError
from dsec.episode.operations import Effect
from dsec.episode.tools import OutsideAnswer, ToolFailed
from dsec.worker.outside.port import ANSWER_BYTES, OutsideRequest, OutsideSystem

ARGUMENTS: Mapping[str, Any] = {"account": "ada", "amount": 7}


class OutsideWorld(Protocol):
    """A system outside, and how to make it misbehave.

    Attributes:
        system: the adapter to it; another one for each call of `again`, as in another process.
        fences: whether it refuses lower epochs.
    """

    system: OutsideSystem
    fences: bool

    def again(self) -> OutsideSystem:
        """Return another adapter to the same system."""

    async def times(self, operation_id: str) -> int:
        """Return how often an operation is in effect."""

    def lose_next_answer(self) -> None:
        """The next operation happens, and its answer gets lost."""

    def drop_next_request(self) -> None:
        """The next request does not arrive, or is not carried out; nobody hears of that."""


def request(number: int = 1, *, epoch: int = 1, **arguments: Any) -> OutsideRequest:
    """Return a request of the suite's episode."""
    return OutsideRequest(operation_id=f"ep-outside.r{number}.d1.c0", epoch=epoch, arguments={**ARGUMENTS, **arguments})


async def resolve(system: OutsideSystem, wanted: OutsideRequest) -> OutsideAnswer | ToolFailed:
    """Do what recovery does about an operation that began and has no result."""
    match system.effect:
        case Effect.ASKED:
            found = await system.ask(wanted)
            if found is not None:
                return found
        case Effect.COMPENSATED:
            await system.compensate(wanted)
        case Effect.DEDUPLICATED:
            pass
        case _:
            pytest.skip("an operation that must not run twice is settled by a person")
    return await system.send(wanted)


async def send_or_not(system: OutsideSystem, wanted: OutsideRequest) -> OutsideAnswer | ToolFailed | None:
    """Send; None: nobody knows, or it did not happen."""
    try:
        return await system.send(wanted)
    except (UnknownOutcomeError, OutsideUnavailableError):
        return None


class OutsideSystemSuite:
    @pytest.mark.anyio
    async def test_what_is_sent_happens_once_and_answers(self, world: OutsideWorld) -> None:
        assert world.system.effect.is_announced
        answer = await world.system.send(request())
        assert isinstance(answer, OutsideAnswer)
        assert answer.status
        assert b"ada" in answer.content.data
        assert await world.times(request().operation_id) == 1

    @pytest.mark.anyio
    async def test_other_operations_happen_beside_each_other(self, world: OutsideWorld) -> None:
        async with anyio.create_task_group() as tasks:
            for number in range(1, 6):
                tasks.start_soon(world.system.send, request(number))
        assert [await world.times(request(number).operation_id) for number in range(1, 6)] == [1] * 5

    @pytest.mark.anyio
    @pytest.mark.parametrize("happens", [True, False], ids=["answer lost", "request lost"])
    async def test_what_nobody_knows_of_is_resolved_to_one_effect_and_its_answer(
        self, world: OutsideWorld, happens: bool
    ) -> None:
        (world.lose_next_answer if happens else world.drop_next_request)()
        first = await send_or_not(world.system, request())
        if first is None and world.system.effect is Effect.ONCE:
            with anyio.fail_after(60):  # Whoever is cut off hears nothing of when it happens.
                while happens and not await world.times(request().operation_id):  # noqa: ASYNC110 - nobody tells.
                    await anyio.sleep(0.01)
            assert await world.times(request().operation_id) == int(happens)
            return
        answer = first or await resolve(world.again(), request())
        assert isinstance(answer, OutsideAnswer)
        assert b"ada" in answer.content.data
        assert await world.times(request().operation_id) == 1

    @pytest.mark.anyio
    async def test_asking_again_after_an_answer_changes_nothing(self, world: OutsideWorld) -> None:
        first = await world.system.send(request())
        assert isinstance(first, OutsideAnswer)
        for _ in range(2):
            again = await resolve(world.again(), request())
            assert isinstance(again, OutsideAnswer)
            assert again.content == first.content
        assert await world.times(request().operation_id) == 1

    @pytest.mark.anyio
    async def test_of_what_was_never_sent_nothing_is_known(self, world: OutsideWorld) -> None:
        if world.system.effect is Effect.ASKED:
            assert await world.system.ask(request()) is None
        if world.system.effect is Effect.COMPENSATED:
            await world.system.compensate(request())
            await world.system.compensate(request())
        assert await world.times(request().operation_id) == 0

    @pytest.mark.anyio
    async def test_what_is_undone_is_undone_once_and_can_be_done_again(self, world: OutsideWorld) -> None:
        if world.system.effect is not Effect.COMPENSATED:
            pytest.skip("it does not undo")
        await world.system.send(request())
        await world.system.send(request(2))
        await world.system.compensate(request())
        await world.system.compensate(request())
        assert await world.times(request().operation_id) == 0
        assert await world.times(request(2).operation_id) == 1
        await world.system.send(request())
        assert await world.times(request().operation_id) == 1

    @pytest.mark.anyio
    async def test_what_is_refused_is_a_result_and_did_not_happen(self, world: OutsideWorld) -> None:
        refused = await world.system.send(request(amount=100_000))
        assert isinstance(refused, ToolFailed)
        assert refused.brief
        assert await world.times(request().operation_id) == 0

    @pytest.mark.anyio
    async def test_an_answer_that_is_too_long_is_cut_and_the_effect_stays(self, world: OutsideWorld) -> None:
        answer = await world.system.send(request(long=500_000))
        assert isinstance(answer, OutsideAnswer)
        assert answer.truncated
        assert 1000 < len(answer.content.data) <= ANSWER_BYTES
        assert await world.times(request().operation_id) == 1

    @pytest.mark.anyio
    async def test_a_writer_that_was_given_up_does_nothing(self, world: OutsideWorld) -> None:
        if not world.fences:
            pytest.skip("it knows no epochs")
        await world.again().send(request(1, epoch=5))
        with pytest.raises(WriterFencedError):
            await world.system.send(request(2, epoch=4))
        if world.system.effect is Effect.ASKED:
            with pytest.raises(WriterFencedError):
                await world.system.ask(request(2, epoch=4))
        assert await world.times(request(2).operation_id) == 0
        await world.again().send(request(2, epoch=6))
        assert await world.times(request(2).operation_id) == 1

    @pytest.mark.anyio
    async def test_a_cancelled_send_is_resolved_to_one_effect(self, world: OutsideWorld) -> None:
        if world.system.effect is Effect.ONCE:
            pytest.skip("a person decides")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send_or_not, world.system, request())
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        await resolve(world.again(), request())
        assert await world.times(request().operation_id) == 1


class UnreachableSuite:
    """Of an adapter whose system is not there: subclass with a fixture `nowhere`."""

    @pytest.mark.anyio
    async def test_a_system_that_is_not_there_did_nothing(self, nowhere: OutsideSystem) -> None:
        with pytest.raises(OutsideUnavailableError):
            await nowhere.send(request())

    @pytest.mark.anyio
    async def test_a_system_that_is_not_there_says_nothing(self, nowhere: OutsideSystem) -> None:
        if nowhere.effect is Effect.ASKED:
            with pytest.raises(OutsideUnavailableError):
                await nowhere.ask(request())
        elif nowhere.effect is Effect.COMPENSATED:
            with pytest.raises(OutsideUnavailableError):
                await nowhere.compensate(request())
