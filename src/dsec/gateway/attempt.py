"""One attempt: a call at one backend, from its place in the queue to its last record.

::

    wait ──► begin ──► open ──► next ... ──► end
     slot     ledger    first    the rest     ledger, accounts, routing, slot
              budget    byte

Whatever happens, `end` runs once: leaving the attempt's context ends what is not ended yet, as cancelled. An attempt
that was begun is in the ledger before a byte of it is sent. The answer is passed on event by event, as fast as the
caller takes it: nothing is read from the backend while a write to the caller waits.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

import structlog

from dsec.base.clock import Clock
from dsec.base.errors import DsecError
from dsec.gateway.budgets import Meter, check_call
from dsec.gateway.call import Call
from dsec.gateway.config import Door, ThinkingControl
from dsec.gateway.failing import AttemptFailedError, broken
from dsec.gateway.fronts.asked import Target
from dsec.gateway.fronts.front import Watcher
from dsec.gateway.ledger import Ledger
from dsec.gateway.ledger_record import Began, Considered, Cost, Cut, Ended, Outcome
from dsec.gateway.line import Line
from dsec.gateway.sse import EventSplitter, read_event
from dsec.gateway.tariff import expected_usage, usage_of
from dsec.gateway.upstream import Answer, failed
from dsec.gateway.way import way_to
from dsec.routing.choice import Choice
from dsec.routing.failures import failure_in_stream, failure_of
from dsec.routing.retrying import Failure, FailureKind
from dsec.routing.router import Router
from dsec.routing.state import Assignment
from dsec.routing.usage import Usage

log = structlog.get_logger(__name__)
_ERROR_BYTES = 64 << 10
_AFTER_END_S = 2.0
_TICK_S = 0.01
"""The event loop's clock and the gateway's may differ by so much."""
_LENIENCE = 1.25
"""How far thinking may pass its budget at a backend that holds itself to it: here it is only estimated."""
_UNPAID = (
    FailureKind.UNREACHABLE,
    FailureKind.LIMITED,
    FailureKind.OVERLOADED,
    FailureKind.DENIED,
    FailureKind.REFUSED,
    FailureKind.TOO_LONG,
)
"""Failures before any work was done: nobody is charged for them."""


class Attempt:
    """One attempt.

    Args:
        call: whose it is.
        line: where it goes.
        choice: why.
        considered: the backends beside it, for the ledger.
        assignment: its place in routing's counts.
        router, ledger, clock, door: of the gateway.
        hedge: whether it runs beside an earlier attempt.
    """

    def __init__(
        self,
        call: Call,
        line: Line,
        choice: Choice,
        considered: tuple[Considered, ...],
        assignment: Assignment,
        *,
        router: Router,
        ledger: Ledger,
        clock: Clock,
        door: Door,
        hedge: bool = False,
    ) -> None:
        self.call = call
        self.line = line
        self.attempt_id = ""
        self._way = way_to(call, line.service)
        self.watcher: Watcher = self._way.watcher
        self.meter = Meter(call.accounts)
        self._choice = choice
        self._considered = considered
        self._assignment = assignment
        self._router = router
        self._ledger = ledger
        self._clock = clock
        self._door = door
        self._hedge = hedge
        self._splitter = EventSplitter(door.maximum_event_bytes)
        self._response: Answer | None = None
        self._late: AttemptFailedError | None = None
        self.cut: Cut | None = None
        self._charged_tokens = 0
        self._work = call.asked.input_tokens + call.model.expected_output_tokens
        self._assigned_s = clock.boot_s()
        self._sent_s: float | None = None
        self._first_byte_s: float | None = None
        self._has_slot = False
        self.ended: Ended | None = None
        self._is_over = False
        self._at_end = False
        self._read_whole = False
        self._status: int | None = None
        self.events = 0

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_over:
            return
        if isinstance(error, AttemptFailedError):
            self.fail(error.failure)
        elif error is None or kind is asyncio.CancelledError:
            self.abandon()
        else:
            self.end(Outcome.CANCELLED, failure=Failure(kind=FailureKind.CANCELLED, brief=str(error)))

    def fail(self, failure: Failure) -> None:
        """End it with a failure."""
        refused = failure.kind in (FailureKind.REFUSED, FailureKind.TOO_LONG)
        self.end(Outcome.REFUSED if refused else Outcome.FAILED, failure=failure)

    def abandon(self) -> None:
        """End it because it was cancelled: by the call's deadline, or by a caller that went away."""
        if self._clock.boot_s() >= self.call.deadline_s - _TICK_S:
            self.expire()
        else:
            self.end(Outcome.CANCELLED, failure=Failure(kind=FailureKind.CANCELLED, brief=self.call.parting))

    def expire(self) -> None:
        """End it because the call's deadline passed."""
        brief = f"the deadline of {self.call.deadline_s - self.call.began_s:g} s passed"
        self.end(Outcome.CUT, cut=Cut.DEADLINE, failure=Failure(kind=FailureKind.EXPIRED, brief=brief))

    # -- before the first byte ----------------------------------------------------------------------------------------

    async def wait(self) -> None:
        """Wait for a slot.

        Raises:
            GatewayBusyError: there was none in time.
        """
        call = self.call
        await self.line.turnstile.enter(call.key.project, self._work, call.model.queue_timeout_s)
        self._has_slot = True

    def begin(self, attempt_id: str) -> Target:
        """Hold what it may cost and write it into the ledger; return what the backend is to be told.

        Raises:
            BudgetExhaustedError: somebody who pays for it cannot.
            HostDiskFullError: the ledger does not take it. Nothing is sent then.
        """
        call, tariff = self.call, self.line.tariff
        limit = self._hold()
        if not call.counted:
            check_call(call.accounts)
        expected = expected_usage(call.asked.input_tokens, call.model.expected_output_tokens)
        self._ledger.write(
            Began(
                attempt=attempt_id,
                call=call.call_id,
                number=call.attempts + 1,
                wall_s=self._clock.wall_s(),
                key=call.key.key_id,
                project=call.key.project,
                episode=call.wishes.episode,
                task=call.wishes.task,
                api=call.asked.api.value,
                model=call.asked.model,
                backend=self.line.service.name,
                group=self.line.service.group,
                streaming=call.asked.streaming,
                reason=self._choice.why,
                considered=self._considered,
                client_retry=call.wishes.client_retry,
                repeats=call.repeats,
                hedge=self._hedge,
                thinking_asked=call.asked.thinking_asked,
                thinking_allowed=call.thinking_allowed,
                estimate=expected,
                estimated_usd=tariff.cost(expected, 0.0).total,
                prices=tariff.source,
            )
        )
        self.attempt_id = attempt_id
        call.attempts += 1
        if not call.counted:
            call.counted = True
            for account in call.accounts:
                account.calls += 1
        self._sent_s = self._clock.boot_s()
        self._router.start(self._assignment, self._sent_s)
        control = self.line.service.control
        return Target(
            model=self.line.backend.model_name,
            maximum_output_tokens=limit,
            thinking_tokens=call.thinking_allowed,
            by_tokens=control is ThinkingControl.TOKENS,
            by_effort=control is ThinkingControl.EFFORT,
        )

    def _hold(self) -> int | None:
        """Hold the input, and the longest output of an answer that cannot be stopped; return a lower limit of output.

        Raises:
            BudgetExhaustedError: not even the input can be paid.
        """
        asked, tariff = self.call.asked, self.line.tariff
        if not any(account.is_limited for account in self.call.accounts):
            return None
        self.meter.hold(asked.input_tokens, asked.input_tokens * tariff.usd_per_input_token)
        left = min(account.left_tokens(tariff.usd_per_output_token) for account in self.call.accounts)
        poor = self.meter.broke() or next((one for one in self.call.accounts if left < 1), None)
        if poor is not None:
            raise poor.error(poor.exhausted() or "nothing is left for an answer")
        wanted = asked.maximum_output_tokens or self.call.model.maximum_output_tokens
        most = min(wanted, int(min(left, 1e12)))
        if not asked.streaming:
            self.meter.hold(most, most * tariff.usd_per_output_token)
        return most if most < wanted else None

    async def open(self, target: Target) -> bytes:
        """Send the call; return the whole answer, or the beginning of a stream with its first event.

        Raises:
            AttemptFailedError: there is no answer, or it is not one.
        """
        call = self.call
        body = self._way.front.body(self._way.asked, target)
        try:
            async with asyncio.timeout(call.model.first_byte_timeout_s):
                left_s = max(0.001, call.deadline_s - self._clock.boot_s())
                response = await self.line.upstream.post(self._way.asked.api, body, call.headers, left_s)
                self._response = response
                self._status = response.status
                if response.status != 200:
                    await self._refuse(response)
                first = await (self._first_events(response) if call.asked.streaming else self._whole(response))
        except TimeoutError as error:
            raise failed(
                self.line.service, FailureKind.SILENT, f"no answer within {call.model.first_byte_timeout_s:g} s"
            ) from error
        self._note_first_byte()
        return first

    async def _refuse(self, response: Answer) -> None:
        data = self.line.upstream.cleaned(await self._read(response, _ERROR_BYTES, cut=True))
        # What is said in another protocol than the caller's is told in the gateway's words.
        said = data if self._way.front is self.call.front else None
        raise AttemptFailedError(failure_of(response.status, response.headers, data), said)

    async def _whole(self, response: Answer) -> bytes:
        data = self.line.upstream.cleaned(await self._read(response, self._door.maximum_answer_bytes))
        self._read_whole = True
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise broken(f"{self.line.service.name}: the answer is not UTF-8") from error
        told = self.watcher.whole(data)
        self._check_seen()
        return told

    async def _read(self, response: Answer, maximum: int, *, cut: bool = False) -> bytes:
        parts: list[bytes] = []
        size = 0
        while part := await response.read():
            parts.append(part)
            size += len(part)
            if size > maximum:
                if cut:
                    break
                raise broken(f"{self.line.service.name}: the answer is longer than {maximum} bytes")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _first_events(self, response: Answer) -> bytes:
        if response.content_type != "text/event-stream":
            raise broken(f"{self.line.service.name}: {response.content_type} instead of a stream of events")
        while not self.events:
            first = await self._more(response)
            if self._at_end:
                raise broken(f"{self.line.service.name}: the stream ended before its first event")
        return first

    def _note_first_byte(self) -> None:
        self._first_byte_s = self._clock.boot_s()
        self._router.begin(self._assignment, self._first_byte_s)

    # -- the stream ---------------------------------------------------------------------------------------------------

    async def next(self) -> bytes:
        """Return the next events for the caller; nothing at the end.

        Raises:
            AttemptFailedError: the stream broke off or stalled.
        """
        assert self._response is not None
        stall_s = self.call.model.stall_timeout_s
        while not self._at_end:
            try:
                async with asyncio.timeout(_AFTER_END_S if self.watcher.seen.finished else stall_s):
                    found = await self._more(self._response)
            except TimeoutError as error:
                if self.watcher.seen.finished:
                    self._at_end = True
                    return self.watcher.finish()
                raise failed(self.line.service, FailureKind.STALLED, f"silent for {stall_s:g} s") from error
            if found:
                return found
        return b""

    async def _more(self, response: Answer) -> bytes:
        if self._late is not None:
            raise self._late
        try:
            data = await response.read()
        except AttemptFailedError:
            if self.watcher.seen.finished:
                self._at_end = True
                return self.watcher.finish()
            raise
        if not data:
            return self._finish()
        return self._take(data)

    def _finish(self) -> bytes:
        self._read_whole = True
        found = self._take(b"\n\n") if self._splitter.rest() else b""
        self._at_end = True
        if not self.watcher.seen.finished and self._late is None:
            self._late = broken(f"{self.line.service.name}: the stream ended in the middle of the answer")
        if self._late is not None and not found:
            raise self._late
        return found if self._late is not None else found + self.watcher.finish()

    def _take(self, data: bytes) -> bytes:
        """Return what of some bytes goes to the caller; what is wrong behind it is raised the next time."""
        passed: list[bytes] = []
        try:
            for raw in self._splitter.feed(data):
                event = self.line.upstream.cleaned(raw)  # Before it is understood: errors are told and written down.
                name, content = read_event(event)
                told = self.watcher.event(name, content, event)
                if content:
                    self.events += 1
                    self._check_seen()
                if told:
                    passed.append(told)
                self.cut = self._charge()
                if self.cut is not None:
                    break
        except AttemptFailedError as error:
            if not passed or self._first_byte_s is None:
                raise
            self._late = error
        return self.line.upstream.cleaned(b"".join(passed))

    def _check_seen(self) -> None:
        seen = self.watcher.seen
        if seen.complaint is not None:
            raise AttemptFailedError(failure_in_stream(seen.complaint, began=self._first_byte_s is not None))
        if seen.model and not self.call.model.accept_other_models and not self.line.backend.answers_as(seen.model):
            raise failed(
                self.line.service,
                FailureKind.WRONG_MODEL,
                f"asked for {self.line.backend.model_name!r}, answered as {seen.model[:80]!r}",
            )

    def _charge(self) -> Cut | None:
        """Charge what came since the last time; return why the stream has to be cut here, if it has."""
        seen, call = self.watcher.seen, self.call
        tokens = seen.thinking_tokens + seen.visible_tokens
        fresh = tokens - self._charged_tokens
        if fresh > 0:
            self._charged_tokens = tokens
            self.meter.hold(fresh, fresh * self.line.tariff.usd_per_output_token)
            if self.meter.broke() is not None:
                return Cut.BUDGET
        if call.thinking_allowed is not None and not seen.finished:
            lenience = 1.0 if self.line.service.control is ThinkingControl.NONE else _LENIENCE
            if seen.thinking_tokens > call.thinking_allowed * lenience:
                return Cut.THINKING
        return None

    # -- the end ------------------------------------------------------------------------------------------------------

    def end(self, outcome: Outcome, *, failure: Failure | None = None, cut: Cut | None = None) -> None:
        """Write its end, pay, tell routing, give the slot back. Once only; later calls change nothing."""
        if self._is_over:
            return
        self._is_over = True
        now_s = self._clock.boot_s()
        if self._response is not None:
            self._response.close(whole=self._read_whole)
        if self._sent_s is None:
            self.meter.settle(0, 0.0)
            self._router.withdraw(self._assignment, now_s)
        else:
            ended = self.ended = self._record(outcome, failure, cut, now_s)
            self.meter.settle(ended.usage.input_tokens + ended.usage.output_tokens, ended.cost.total)
            self._router.finish(self._assignment, now_s, usage=ended.usage, failure=failure)
            try:
                self._ledger.write(ended)
            except DsecError as error:
                # The next start finds it without an end and counts it as expected.
                log.error("ledger_lags", attempt=self.attempt_id, error=str(error))
        if self._has_slot:
            self.line.turnstile.leave(self.call.key.project, self._unforeseen())

    def _unforeseen(self) -> float:
        """Return how much more work it was than its turn was given for."""
        used = self.ended.usage if self.ended is not None else Usage()
        return used.input_tokens + used.output_tokens - self._work

    def _record(self, outcome: Outcome, failure: Failure | None, cut: Cut | None, now_s: float) -> Ended:
        assert self._sent_s is not None
        seen = self.watcher.seen
        duration_s = now_s - self._sent_s
        unpaid = failure is not None and failure.kind in _UNPAID and not seen.report
        usage = Usage() if unpaid else usage_of(seen, self.call.asked.input_tokens, self.call.asked.input_bytes)
        return Ended(
            attempt=self.attempt_id,
            wall_s=self._clock.wall_s(),
            outcome=outcome,
            failure=failure.kind.value if failure is not None else "",
            brief=failure.brief[:500] if failure is not None else "",
            status=self._status,
            cut=cut,
            usage=usage,
            cost=Cost() if unpaid else self.line.tariff.cost(usage, duration_s),
            queue_s=self._sent_s - self._assigned_s,
            first_byte_s=None if self._first_byte_s is None else self._first_byte_s - self._sent_s,
            duration_s=duration_s,
            events=self.events,
            answered_model=seen.model[:200],
        )
