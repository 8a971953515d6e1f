"""A system outside that is a dictionary: for tests of whoever uses one, of every kind of effect."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from dsec.base.errors import UnknownOutcomeError
from dsec.episode.operations import Effect
from dsec.episode.tools import OutsideAnswer, ToolFailed
from dsec.worker.outside.port import OutsideRequest, bounded_answer, fenced


@dataclass(slots=True)
class MemoryLedger:
    """What is true outside, whoever asks.

    Attributes:
        done: how often each operation is in effect.
        answers: the first answer to each.
        epochs: the highest epoch that was seen of each episode.
        refuses: says of which requests the system wants to know nothing.
        says: what it answers.
    """

    done: Counter[str] = field(default_factory=Counter)
    answers: dict[str, OutsideAnswer] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    refuses: Callable[[OutsideRequest], bool] = lambda request: False
    says: Callable[[OutsideRequest], bytes] = lambda request: msgspec.json.encode(request.arguments)


@dataclass(slots=True)
class MemoryOutside:
    """Implements `dsec.worker.outside.port.OutsideSystem`.

    Args:
        ledger: shared by all workers.
        effect: what it can do about an operation whose answer was lost.
        loses_answer: says of which sends the effect happens and the answer is lost.
        on_step: called before and after each effect; may raise what a death raises.
    """

    ledger: MemoryLedger
    effect: Effect = Effect.ASKED
    loses_answer: Callable[[OutsideRequest], bool] = lambda request: False
    on_step: Callable[[], None] = lambda: None

    async def send(self, request: OutsideRequest) -> OutsideAnswer | ToolFailed:
        """See the port."""
        self._fence(request)
        name, ledger = request.operation_id, self.ledger
        if ledger.refuses(request):
            return ToolFailed(code="outside_refused", brief="the system refused it")
        self.on_step()
        if self.effect is not Effect.DEDUPLICATED or not ledger.done[name]:
            ledger.done[name] += 1
            ledger.answers[name] = bounded_answer(ledger.says(request), status="done")
        self.on_step()
        if self.loses_answer(request):
            raise UnknownOutcomeError(f"the answer to {name} was lost")
        return ledger.answers[name]

    async def ask(self, request: OutsideRequest) -> OutsideAnswer | ToolFailed | None:
        """See the port."""
        self._fence(request)
        return self.ledger.answers[request.operation_id] if self.ledger.done[request.operation_id] else None

    async def compensate(self, request: OutsideRequest) -> None:
        """See the port."""
        self._fence(request)
        self.on_step()
        self.ledger.done[request.operation_id] = 0
        self.on_step()

    def _fence(self, request: OutsideRequest) -> None:
        epochs = self.ledger.epochs
        newest = epochs[request.episode_id] = max(epochs.get(request.episode_id, 0), request.epoch)
        if newest > request.epoch:
            raise fenced(request, newest)
