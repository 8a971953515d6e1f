"""One creation from request to sandbox: what to do next, after each thing that can happen.

This ties the engine (where?) to the retry policy (again?). It is what a live service and the simulator run for each
sandbox; both only carry messages and watch the time::

    step = creation.begin(now_s)
    while True:
        match step:
            case Send(node=node, at_s=at_s, deadline_s=deadline_s): ...   ask the node; then
                step = creation.created(...) | .rejected(...) | .failed(...) | .timed_out(...)
            case Pause(until_s=until_s): ...                              wait; then
                step = creation.resume(...)
            case Done(node=node): return node
            case GiveUp(error=error): raise error

Rejections are not failures: they cost a round trip and no rung of the ladder. A refusal for want of room pauses; one
that no node could ever serve gives up at once.
"""

from __future__ import annotations

import msgspec

from dsec.base.errors import DsecError, Fault, InvalidStateError, NodeUnavailableError
from dsec.model.retry import Report, RetryPolicy, Where
from dsec.model.value import Value
from dsec.placement.decision import Orphan, Placement, Refusal
from dsec.placement.engine import PlacementEngine
from dsec.placement.request import PlacementRequest
from dsec.placement.view import NodeView


class Send(Value, frozen=True):
    """Ask this node to create the sandbox.

    Attributes:
        node: whom to ask.
        at_s: not before this time.
        deadline_s: an answer after this time comes too late.
        placement: the engine's decision.
    """

    node: str
    at_s: float
    deadline_s: float
    placement: Placement


class Pause(Value, frozen=True):
    """Wait, then call `resume`.

    Attributes:
        until_s: until when.
        reason: what is waited for.
    """

    until_s: float
    reason: str


class Done(Value, frozen=True):
    """The sandbox is there.

    Attributes:
        node: where.
    """

    node: str


class GiveUp(msgspec.Struct, frozen=True, kw_only=True):
    """Tell whoever asked.

    Attributes:
        error: what to tell.
        reason: why it was not tried again.
    """

    error: DsecError
    reason: str


Step = Send | Pause | Done | GiveUp


class Creation:
    """The creation of one sandbox.

    Args:
        request: what to create.
        engine: chooses nodes.
        retry: says when to try again.

    Attributes:
        tries: how often a node was asked.
        ladders: how often the ladder of retries was climbed, or room was looked for, in vain.
        step: what is to be done now; None before the beginning. Only to be read.
    """

    __slots__ = ("_engine", "_failures", "_retry", "ladders", "request", "step", "tries")

    def __init__(self, request: PlacementRequest, engine: PlacementEngine, retry: RetryPolicy | None = None) -> None:
        self.request = request
        self.tries = 0
        self.ladders = 0
        self._engine = engine
        self._retry = retry or RetryPolicy()
        self._failures = 0
        self.step: Step | None = None

    def begin(self, now_s: float) -> Step:
        """Choose the first node."""
        return self._go(self._engine.place(self.request, now_s), now_s)

    def resume(self, now_s: float) -> Step:
        """Begin again after a pause.

        Raises:
            InvalidStateError: it is not pausing.
        """
        if not isinstance(self.step, Pause):
            raise InvalidStateError(
                f"the creation of {self.request.sandbox_id} is not pausing", resolution="call resume after a Pause"
            )
        return self.begin(now_s)

    def admitted(self, node: str, ticket: int, now_s: float) -> None:
        """Take a node's word that it has begun, with its number for it: views that show it are recognised earlier."""
        if self._awaits(node):
            self._engine.admitted(self.request.sandbox_id, node, ticket, now_s)

    def created(
        self, node: str, now_s: float, *, ticket: int | None = None, view: NodeView | None = None
    ) -> tuple[Step, Orphan | None]:
        """Take a node's word that the sandbox is there; return also what to remove if that node was given up before."""
        orphan = self._engine.created(self.request.sandbox_id, node, now_s, ticket=ticket, view=view)
        if self._awaits(node):
            self.step = done = Done(node=node)
            return done, orphan
        return self._known(), orphan

    def rejected(self, node: str, now_s: float, *, view: NodeView | None = None) -> Step:
        """Take another node, because this one refused; an answer that is not awaited changes nothing."""
        if not self._awaits(node):
            return self._known()
        return self._go(self._engine.rejected(self.request.sandbox_id, node, now_s, view=view), now_s)

    def timed_out(self, node: str, now_s: float) -> Step:
        """Take silence until the deadline for a failure. The sandbox may exist all the same."""
        error = NodeUnavailableError(
            f"{node} did not answer the creation of {self.request.sandbox_id}",
            detail=f"waited {self._retry.create_timeout_s:g} s",
            resolution="look at the node; a larger image may need a longer create_timeout_s",
        )
        return self.failed(node, error, now_s)

    def failed(self, node: str, error: DsecError, now_s: float) -> Step:
        """Try again as the retry policy says; an answer that is not awaited changes nothing."""
        if not self._awaits(node):
            return self._known()
        self._failures += 1
        decision = self._retry.after(self._failures, error)
        if isinstance(decision, Report):
            return self._report(error, decision, now_s)
        elsewhere = decision.where is Where.ANOTHER_NODE
        blame = error.fault is Fault.PLATFORM
        outcome = self._engine.failed(self.request.sandbox_id, node, now_s, elsewhere=elsewhere, blame=blame)
        return self._go(outcome, now_s, delay_s=decision.delay_s)

    def _report(self, error: DsecError, decision: Report, now_s: float) -> Step:
        self._engine.withdraw(self.request.sandbox_id, now_s, blame=error.fault is Fault.PLATFORM)
        pause_s = self._retry.pause_s(self.ladders + 1) if error.retryable else None
        if pause_s is None:
            self.step = GiveUp(error=error, reason=decision.reason)
            return self.step
        return self._pause(now_s + pause_s, decision.reason)

    def _pause(self, until_s: float, reason: str) -> Step:
        self.ladders += 1
        self._failures = 0
        self.step = Pause(until_s=until_s, reason=reason)
        return self.step

    def _go(self, outcome: Placement | Refusal, now_s: float, *, delay_s: float = 0.0) -> Step:
        if isinstance(outcome, Placement):
            self.tries += 1
            at_s = now_s + delay_s
            deadline_s = at_s + self._retry.create_timeout_s
            self.step = Send(node=outcome.node, at_s=at_s, deadline_s=deadline_s, placement=outcome)
            return self.step
        pause_s = self._retry.pause_s(self.ladders + 1) if outcome.retryable else None
        if pause_s is not None:
            return self._pause(now_s + pause_s, outcome.brief)
        self.step = GiveUp(error=outcome.error(), reason=outcome.brief)
        return self.step

    def _awaits(self, node: str) -> bool:
        step = self.step
        return isinstance(step, Send) and step.node == node

    def _known(self) -> Step:
        if self.step is None:
            raise InvalidStateError(
                f"the creation of {self.request.sandbox_id} has not begun", resolution="call begin first"
            )
        return self.step
