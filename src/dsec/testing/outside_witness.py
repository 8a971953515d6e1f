"""Systems outside that remember all they did, lie about nothing, and lose answers: the world of the crash tests."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from dsec.base.errors import OutsideUnavailableError, UnknownOutcomeError
from dsec.episode.content import Content
from dsec.episode.operations import Effect as Kind
from dsec.episode.tools import OutsideAnswer, ToolFailed
from dsec.testing.episode_checker import Effect
from dsec.worker.outside.port import REFUSED, OutsideRequest, fenced

_REFUSAL = ToolFailed(code=REFUSED, brief="no")


async def no_step() -> None:
    """Let nothing die."""


@dataclass(slots=True)
class Witness:
    """What truly happened outside.

    Attributes:
        effects: in order.
        times: how often each operation is in effect.
        refused: operations that a system that deduplicates has refused, and refuses for ever.
        epochs: the highest that was seen of each episode.
        on_their_way: requests that were sent and did not arrive yet; they may, later.
    """

    effects: list[Effect] = field(default_factory=list)
    times: Counter[str] = field(default_factory=Counter)
    refused: set[str] = field(default_factory=set)
    epochs: dict[str, int] = field(default_factory=dict)
    on_their_way: list[tuple[OutsideRequest, Kind]] = field(default_factory=list)

    def act(self, request: OutsideRequest, kind: Kind) -> None:
        """Let an operation take effect."""
        name = request.operation_id
        if kind is Kind.DEDUPLICATED and (self.times[name] or name in self.refused):
            return
        self.times[name] += 1
        self.effects.append(Effect(operation=name))

    def undo(self, name: str) -> None:
        """Take an operation back, if it is in effect."""
        if self.times[name]:
            self.times[name] -= 1
            self.effects.append(Effect(operation=name, by=-1))

    def settle_down(self, name: str, draw: random.Random) -> None:
        """Let what is on its way of an operation arrive, or get lost for good."""
        for request, kind in [each for each in self.on_their_way if each[0].operation_id == name]:
            self.on_their_way.remove((request, kind))
            if draw.random() < 0.5:
                self.act(request, kind)


@dataclass(slots=True)
class WitnessedSystem:
    """Implements `dsec.worker.outside.port.OutsideSystem`, for one kind of effect.

    Attributes:
        witness: shared by all systems and workers.
        effect: the kind.
        draw: what goes wrong.
        trouble: share of the calls in which something does.
        step: a point at which the worker may die; between two of them, an effect.
    """

    witness: Witness
    effect: Kind
    draw: random.Random
    trouble: float = 0.2
    step: Callable[[], Awaitable[None]] = no_step

    async def send(self, request: OutsideRequest) -> OutsideAnswer | ToolFailed:
        """See the port."""
        self._fence(request)
        self.witness.on_their_way.append((request, self.effect))
        await self.step()
        self.witness.on_their_way.remove((request, self.effect))
        if self.effect is Kind.DEDUPLICATED and request.operation_id in self.witness.refused:
            return _REFUSAL
        match self._fault("refused", "unavailable", "dropped", "lost", "late"):
            case "refused" if not self.witness.times[request.operation_id]:
                if self.effect is Kind.DEDUPLICATED:
                    self.witness.refused.add(request.operation_id)
                return _REFUSAL
            case "unavailable":
                raise OutsideUnavailableError("it is not there")
            case "dropped":
                raise UnknownOutcomeError("nobody answered")
            case "late":
                self.witness.on_their_way.append((request, self.effect))
                raise UnknownOutcomeError("nobody answered")
            case "lost":
                self.witness.act(request, self.effect)
                raise UnknownOutcomeError("nobody answered")
            case _:
                self.witness.act(request, self.effect)
        await self.step()
        return answer(request.operation_id)

    async def ask(self, request: OutsideRequest) -> OutsideAnswer | ToolFailed | None:
        """See the port."""
        self._fence(request)
        await self.step()
        if self._fault("unavailable"):
            raise OutsideUnavailableError("it does not say")
        self.witness.settle_down(request.operation_id, self.draw)
        await self.step()
        return answer(request.operation_id) if self.witness.times[request.operation_id] else None

    async def compensate(self, request: OutsideRequest) -> None:
        """See the port."""
        self._fence(request)
        await self.step()
        if self._fault("unavailable"):
            raise OutsideUnavailableError("it does not say")
        self.witness.settle_down(request.operation_id, self.draw)
        self.witness.undo(request.operation_id)
        await self.step()

    def _fault(self, *kinds: str) -> str:
        return self.draw.choice(kinds) if self.draw.random() < self.trouble else ""

    def _fence(self, request: OutsideRequest) -> None:
        epochs = self.witness.epochs
        newest = epochs[request.episode_id] = max(epochs.get(request.episode_id, 0), request.epoch)
        if newest > request.epoch:
            raise fenced(request, newest)


def answer(name: str) -> OutsideAnswer:
    """Return what the systems answer to an operation."""
    return OutsideAnswer(content=Content(text=name), status="done")
