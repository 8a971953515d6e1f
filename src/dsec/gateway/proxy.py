"""A call's way: choose a backend, try it, and where nothing has reached the caller yet, try again elsewhere.

Two answers are never spliced: from the first byte on the caller has one attempt's answer, and if that breaks off, an
error in the protocol's own shape ends it. Every attempt is a record, whether or not the caller saw it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Protocol

import structlog

from dsec.base.clock import Clock
from dsec.base.errors import (
    BackendFailedError,
    BackendTimeoutError,
    BudgetExhaustedError,
    DeadlineExceededError,
    DsecError,
    GatewayBusyError,
    InvalidRequestError,
    InvalidStateError,
    NotFoundError,
    RateLimitedError,
)
from dsec.base.ids import RandomBytes, new_id
from dsec.gateway.attempt import Attempt
from dsec.gateway.budgets import Accounts
from dsec.gateway.call import Call, read_wishes
from dsec.gateway.choosing import Chooser, considered_of
from dsec.gateway.config import Api, GatewayConfig
from dsec.gateway.continuity import Continuity
from dsec.gateway.failing import AttemptFailedError, RefusedError, ToldError
from dsec.gateway.fronts.asked import Target
from dsec.gateway.fronts.complaint import Complaint
from dsec.gateway.fronts.front import Front
from dsec.gateway.hedging import Race
from dsec.gateway.json_object import read_object
from dsec.gateway.key_ring import KeyRing
from dsec.gateway.keys import Key, check_scope
from dsec.gateway.ledger import Ledger
from dsec.gateway.ledger_record import Cut, Outcome
from dsec.gateway.line import Line
from dsec.gateway.thinking import ThinkingAllowance
from dsec.gateway.way import needs_translation, speaks, translate
from dsec.routing.blocks import prefix_blocks
from dsec.routing.request import RouteRequest
from dsec.routing.retrying import Again, Failure, FailureKind, RetryPolicy, Where
from dsec.routing.router import Router

log = structlog.get_logger(__name__)
_DECISIONS = 8
"""How often a call is decided anew when others took its place between decision and assignment."""


class Reply(Protocol):
    """The way back to a caller."""

    async def whole(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send an answer as a whole."""

    async def begin(self, headers: Mapping[str, str]) -> None:
        """Begin a stream of events."""

    async def write(self, data: bytes) -> None:
        """Send events; returns when there is room for more."""

    async def end(self) -> None:
        """End the stream."""


class Proxy:
    """Everything between a parsed request and its answer.

    Args:
        config: the configuration.
        lines: the backends, by name.
        router: knows them.
        ledger, keys, accounts: of this gateway.
        clock, random_bytes: where time and ids come from.
    """

    def __init__(
        self,
        config: GatewayConfig,
        lines: Mapping[str, Line],
        router: Router,
        ledger: Ledger,
        keys: KeyRing,
        accounts: Accounts,
        thinking: ThinkingAllowance,
        *,
        clock: Clock,
        random_bytes: RandomBytes,
    ) -> None:
        self.config = config
        self.lines = lines
        self.router = router
        self.ledger = ledger
        self.keys = keys
        self.accounts = accounts
        self.thinking = thinking
        self.models = callable_models(config, router.models)
        self.under_way: dict[str, Call] = {}
        self._clock = clock
        self._random_bytes = random_bytes
        self._retries = {
            name: RetryPolicy(attempts=config.model(name).attempts, hedge_after_s=config.model(name).hedge_after_s)
            for name in router.models
        }
        self._continuity = Continuity()
        self._chooser = Chooser(config, lines, router, clock)
        self._mute = {
            api: frozenset(name for name, line in lines.items() if not speaks(line.service, api)) for api in Api
        }
        self._foreign = frozenset(
            name
            for name, line in lines.items()
            if speaks(line.service, Api.MESSAGES) and needs_translation(line.service)
        )

    # -- reading a call -----------------------------------------------------------------------------------------------

    def call_of(self, front: Front, headers: Mapping[str, str], body: bytes) -> Call:
        """Return a call, checked against its key.

        Raises:
            DsecError: the key or the body is not in order.
        """
        key = self.keys.find(sent_key(headers))
        asked = front.ask(read_object(body))
        check_scope(key, asked.model)
        self._check_model(key, asked.model)
        self._continuity.check(asked, key.project)
        wishes = read_wishes(headers)
        model = self.config.model(asked.model)
        now_s = self._clock.boot_s()
        limit_s = model.deadline_s if wishes.deadline_s is None else min(wishes.deadline_s, model.deadline_s)
        call = Call(
            call_id=new_id("call", self._random_bytes, length=16),
            front=front,
            asked=asked,
            key=key,
            wishes=wishes,
            headers=headers,
            model=model,
            accounts=(),
            blocks=prefix_blocks(asked.prompt),
            began_s=now_s,
            deadline_s=now_s + limit_s,
        )
        project = self.config.projects.get(key.project)
        call.accounts = (
            *((self.accounts.find("key", key.key_id, key.budget),) if key.key_id else ()),
            *((self.accounts.find("project", key.project, project.budget),) if project is not None else ()),
        )
        self.thinking.prepare(call, project)
        if asked.api is Api.MESSAGES and self._foreign:
            translate(call)
        return call

    def _check_model(self, key: Key, model: str) -> None:
        if model not in self.models:
            known = [name for name in self.models if key.allows(name)]
            near = get_close_matches(model, known, n=3, cutoff=0.4)
            raise NotFoundError(
                f"the model {model!r} is not served here",
                resolution=f"ask for one of: {', '.join([*near, *(name for name in known if name not in near)])}",
            )

    def request(self, call: Call, excluded: frozenset[str] = frozenset()) -> RouteRequest:
        """Return what routing needs to know of a call."""
        asked, model = call.asked, call.model
        expected = model.expected_output_tokens
        maximum = asked.maximum_output_tokens or 0
        return RouteRequest(
            model=asked.model,
            blocks=call.blocks,
            input_tokens=asked.input_tokens,
            output_tokens=min(expected, maximum) if maximum else expected,
            maximum_output_tokens=maximum,
            cacheable_tokens=asked.input_tokens if asked.cacheable else 0,
            project=call.key.project,
            episode=f"{call.key.project}/{call.wishes.episode}" if call.wishes.episode else "",
            objective=model.objective,
            complete_within_s=max(0.001, call.deadline_s - self._clock.boot_s()),
            required_success=model.required_success,
            excluded=(self._foreign if call.untranslatable is not None else frozenset())
            | self._mute[asked.api]
            | self._continuity.others(asked, self.lines)
            | excluded,
        )

    def now_s(self) -> float:
        """Return the time that routing counts in."""
        return self._clock.boot_s()

    def shut_down(self) -> None:
        """Have calls that are cancelled from now on say why."""
        for call in self.under_way.values():
            call.parting = "the gateway was shut down, or the caller went away"

    def statistics(self) -> dict[str, object]:
        """Return what is known of backends and calls, for people and monitors."""
        return {"calls_under_way": len(self.under_way), "backends": self.router.statistics(self.now_s())}

    # -- serving a call -----------------------------------------------------------------------------------------------

    async def serve(self, call: Call, reply: Reply) -> None:
        """Answer a call, or say in its protocol why not. Cancelled, it ends its attempts and its backends' work."""
        self.under_way[call.call_id] = call
        try:
            await self._answer(call, reply)
        except RefusedError as refused:
            headers = {**self._headers(call), "x-should-retry": "false", "content-type": "application/json"}
            await reply.whole(refused.status, headers, refused.body)
        except ToldError as told:
            await self.refuse(call.front, told.error, reply, call=call, retry_after_s=told.retry_after_s)
        except DsecError as error:
            await self.refuse(call.front, error, reply, call=call)
        finally:
            del self.under_way[call.call_id]

    async def refuse(
        self,
        front: Front,
        error: DsecError,
        reply: Reply,
        *,
        call: Call | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        """Tell a caller of an error, in its protocol."""
        complaint = Complaint(error=error, call=call.call_id if call is not None else "")
        headers = self._headers(call) if call is not None else {}
        if retry_after_s is not None:
            headers["retry-after"] = str(max(1, math.ceil(retry_after_s)))
            headers["retry-after-ms"] = str(max(1, math.ceil(retry_after_s * 1000)))
        if not error.retryable or isinstance(error, DeadlineExceededError):
            headers["x-should-retry"] = "false"
        await reply.whole(front.status(complaint), headers, front.error(complaint))

    def _headers(self, call: Call) -> dict[str, str]:
        headers = {"x-request-id": call.call_id, "request-id": call.call_id, "x-dsec-attempts": str(call.attempts)}
        if call.tried:
            headers["x-dsec-backend"] = call.tried[-1]
        return headers

    async def _answer(self, call: Call, reply: Reply) -> None:
        failures: list[Failure] = []
        excluded: frozenset[str] = frozenset()
        while True:
            try:
                async with asyncio.timeout(call.deadline_s - self._clock.boot_s()) as deadline:
                    attempt = await self._admit_again(call, excluded, failures)
                    async with attempt:
                        try:
                            winner, first = await self._open(call, attempt, excluded, failures)
                        except AttemptFailedError as error:
                            attempt.fail(error.failure)
                            again = self._again(call, failures, error)
                            if again.where is Where.ANOTHER:
                                excluded |= {*call.tried}
                        else:
                            async with winner:
                                await self._deliver(call, winner, first, reply, deadline)
                            return
                    await asyncio.sleep(again.delay_s)
            except TimeoutError as error:
                raise DeadlineExceededError(
                    f"the call was not answered within {call.deadline_s - call.began_s:g} s",
                    resolution="allow more time",
                ) from error

    async def _open(
        self, call: Call, attempt: Attempt, excluded: frozenset[str], failures: list[Failure]
    ) -> tuple[Attempt, bytes]:
        """Send an attempt, and a second one beside it if the first is silent for too long.

        Raises:
            AttemptFailedError: there is no answer.
        """
        target = attempt.begin(self._attempt_id())
        if call.model.hedge_after_s is None:
            return attempt, await attempt.open(target)

        async def start() -> tuple[Attempt, Target]:
            second = await self._admit(call, excluded | {*call.tried}, hedge=True)
            async with _ended_on_error(second):
                return second, second.begin(self._attempt_id())

        race = Race(attempt, target, call.model.hedge_after_s, start)
        try:
            return await race.run()
        except AttemptFailedError:
            failures.extend(error.failure for error in race.errors[:-1])
            raise

    def _attempt_id(self) -> str:
        return new_id("att", self._random_bytes, length=16)

    def _again(self, call: Call, failures: list[Failure], error: AttemptFailedError) -> Again:
        """Return how to go on after a failure.

        Raises:
            RefusedError, DsecError: not at all.
        """
        failures.append(error.failure)
        call.denied = call.denied or error.failure.kind is FailureKind.DENIED
        decision = self._retries[call.asked.model].after(
            failures,
            now_s=self._clock.boot_s(),
            deadline_s=call.deadline_s,
            bits=int.from_bytes(self._random_bytes(8), "big"),
            others=self._others(call),
        )
        if isinstance(decision, Again):
            return decision
        if error.failure.kind in (FailureKind.REFUSED, FailureKind.TOO_LONG) and error.body:
            raise RefusedError(error.failure.status or 400, error.body)
        raise ToldError(error_of(failures), error.failure.retry_after_s)

    def _others(self, call: Call) -> int:
        """Return how many backends could answer a call that it was not at."""
        groups = self.config.groups(call.asked.model)
        silent = self._mute[call.asked.api] | set(call.tried)
        return sum(line.service.group in groups and name not in silent for name, line in self.lines.items())

    async def _admit_again(self, call: Call, excluded: frozenset[str], failures: list[Failure]) -> Attempt:
        """Choose and wait; where nothing is left after failures, the caller is told of those."""
        try:
            return await self._admit(call, excluded)
        except ToldError as told:
            if not failures:
                if call.untranslatable is not None:
                    raise ToldError(call.untranslatable) from told
                raise
            hint_s = failures[-1].retry_after_s
            raise ToldError(error_of(failures), told.retry_after_s if hint_s is None else hint_s) from told

    async def _admit(self, call: Call, excluded: frozenset[str], *, hedge: bool = False) -> Attempt:
        """Choose a backend and wait for a slot there.

        Raises:
            DsecError: there is none.
        """
        for _ in range(_DECISIONS):
            request = self.request(call, excluded)
            choice = await self._chooser.choose(call, request)
            try:
                assignment = self.router.assign(request, choice, self._clock.boot_s())
            except InvalidStateError:
                continue  # Another call took the last place since the decision.
            line = self.lines[choice.backend]
            attempt = Attempt(
                call,
                line,
                choice,
                considered_of(choice.candidates),
                assignment,
                router=self.router,
                ledger=self.ledger,
                clock=self._clock,
                door=self.config.gateway,
                hedge=hedge,
            )
            call.tried.append(choice.backend)
            async with _ended_on_error(attempt):
                await attempt.wait()
            return attempt
        raise GatewayBusyError(f"backends of {call.asked.model!r} fill up faster than calls get there")

    # -- the answer ---------------------------------------------------------------------------------------------------

    async def _deliver(
        self, call: Call, attempt: Attempt, first: bytes, reply: Reply, deadline: asyncio.Timeout
    ) -> None:
        self._continuity.learn(call.asked, attempt.watcher.seen.answer_id, attempt.line.service.name, call.key.project)
        if not call.asked.streaming:
            attempt.end(Outcome.ANSWERED)
            self.thinking.learn(call, attempt)
            deadline.reschedule(None)
            await reply.whole(200, {**self._headers(call), "content-type": "application/json"}, first)
            return
        deadline.reschedule(None)
        call.let_go()
        await reply.begin(self._headers(call))
        await self._stream(call, attempt, first, reply)
        await reply.end()

    async def _stream(self, call: Call, attempt: Attempt, first: bytes, reply: Reply) -> None:
        """Pass a stream on to its end; whatever ends it, the caller is told in its protocol."""
        found = first
        try:
            async with asyncio.timeout(call.deadline_s - self._clock.boot_s()):
                while found:
                    await reply.write(found)
                    if attempt.cut is not None:
                        await self._cut(call, attempt, attempt.cut, reply)
                        return
                    found = await attempt.next()
        except AttemptFailedError as error:
            failure = error.failure
            attempt.fail(failure)
            await self._end_with(call, error_of([failure]), reply)
        except TimeoutError:
            attempt.expire()
            await self._end_with(call, DeadlineExceededError("the deadline passed in the middle of the answer"), reply)
        else:
            attempt.end(Outcome.ANSWERED)
        self.thinking.learn(call, attempt)

    async def _cut(self, call: Call, attempt: Attempt, cut: Cut, reply: Reply) -> None:
        failure = Failure(kind=FailureKind.CANCELLED, brief=f"cut: {cut.value}")
        poor = attempt.meter.broke()
        attempt.end(Outcome.CUT, cut=cut, failure=failure)
        self.thinking.learn(call, attempt, cut=cut)
        if cut is Cut.THINKING:
            await reply.write(attempt.watcher.cut())
        else:
            error = poor.error(poor.exhausted()) if poor is not None else BudgetExhaustedError("the budget is used up")
            await self._end_with(call, error, reply)

    async def _end_with(self, call: Call, error: DsecError, reply: Reply) -> None:
        await reply.write(call.front.error_event(Complaint(error=error, call=call.call_id)))


class _ended_on_error:  # noqa: N801 - It reads as a word.
    """End an attempt that was never sent when its wait ends badly."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None:
            self._attempt.end(Outcome.CANCELLED)


def callable_models(config: GatewayConfig, routes: Sequence[str]) -> tuple[str, ...]:
    """Return what callers may ask for: the models of the configuration, and groups that none of them stands for.

    A group that a model stands for is reached through it alone, so that the model's budgets and limits hold.
    """
    covered = {group for name in config.models for group in config.groups(name)}
    return tuple(name for name in routes if name in config.models or name not in covered)


def sent_key(headers: Mapping[str, str]) -> str | None:
    """Return the key that a caller sent, in either protocol's way."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return token.strip()
    return headers.get("x-api-key") or None


def error_of(failures: Sequence[Failure]) -> DsecError:
    """Return what a caller is told after these failures."""
    last = failures[-1]
    detail = "; ".join(failure.brief for failure in failures)
    tried = f"after {len(failures)} attempts" if len(failures) > 1 else "at the only attempt"
    if last.kind is FailureKind.DENIED:
        # What it says may show a part of the gateway's own key.
        return BackendFailedError(f"the model service does not accept the gateway's key {tried}")
    if last.kind in (FailureKind.REFUSED, FailureKind.TOO_LONG):
        return InvalidRequestError(f"the model service refused the call: {last.brief}")
    kinds = {
        FailureKind.LIMITED: RateLimitedError,
        FailureKind.OVERLOADED: GatewayBusyError,
        FailureKind.SILENT: BackendTimeoutError,
        FailureKind.STALLED: BackendTimeoutError,
    }
    return kinds.get(last.kind, BackendFailedError)(f"the model service failed {tried}: {last.brief}", detail=detail)
