"""A simulated backend without its HTTP: who is served when, what is found in the cache, what goes wrong.

::

    limits ──► trouble? ──► slot ──► cache ──► prefill ──► tokens, one after the other
    429        500 ...      or 503                         at the pace of the batch

The parts that decide are pure (`batch`, `prefix_store`, `answer`, `dsec.routing.windows`); here they meet the clock.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import random
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dsec.base.clock import Clock
from dsec.gateway.config import Api
from dsec.gateway.fake.answer import FakeAnswer, make_answer
from dsec.gateway.fake.asked import FakeCall
from dsec.gateway.fake.batch import Batch
from dsec.gateway.fake.prefix_store import Part, PrefixStore
from dsec.gateway.fake.settings import FakeSettings, Trouble
from dsec.routing.windows import MinuteWindow

_REMEMBERED = 100_000
"""Calls and answers that are remembered: to count repeats, and to go on from."""


class FakeRefusedError(Exception):
    """A call is refused.

    Args:
        status: of HTTP.
        kind: the protocol's word for it.
        message: for people.
        retry_after_s: when to come back; None: it is not said.
    """

    def __init__(self, status: int, kind: str, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.retry_after_s = retry_after_s


class FakeService:
    """One simulated backend.

    Args:
        settings: what it is like.
        clock: of the host.

    Attributes:
        counts: calls by what became of them ("begun", "answered", "cancelled", "refused 429", a trouble's name), and
            the tokens that answered calls used.
    """

    def __init__(self, settings: FakeSettings, clock: Clock) -> None:
        self.settings = settings
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._backend = settings.backend()
        self._batch = Batch(self._backend)
        self._slots = None if settings.slots is None else asyncio.Semaphore(settings.slots)
        self._waiting = 0
        self._requests = MinuteWindow(settings.requests_per_minute)
        self._tokens = MinuteWindow(settings.tokens_per_minute)
        self._cache = PrefixStore(
            settings.cache_tokens,
            settings.cache_lifetime_s,
            settings.cache_minimum_tokens,
            settings.cache_block_tokens,
        )
        self._repeats: OrderedDict[bytes, int] = OrderedDict()
        self._answers: OrderedDict[str, tuple[Part, ...]] = OrderedDict()

    def now_s(self) -> float:
        """Return the time that everything here counts in: faster than the host's by `speed`."""
        return self._clock.boot_s() * (self.settings.speed if self.settings.waits else 1.0)

    def repeat_of(self, call: FakeCall) -> int:
        """Count a call; return how often the same one came before."""
        before = self._repeats.pop(call.fingerprint, 0)
        self._repeats[call.fingerprint] = before + 1
        if len(self._repeats) > _REMEMBERED:
            self._repeats.popitem(last=False)
        return before

    def trouble_of(self, call: FakeCall, repeat: int) -> Trouble | None:
        """Return what goes wrong with a call: determined by the seed, the call and how often it came before."""
        if call.wish.trouble is not None:
            return call.wish.trouble
        drawn = random.Random(b"trouble %d %d " % (self.settings.seed, repeat) + call.fingerprint).random()
        for trouble, share in self.settings.troubles.items():
            if drawn < share:
                return trouble
            drawn -= share
        return None

    def check(self, call: FakeCall, trouble: Trouble | None) -> None:
        """Refuse a call that is refused before any work.

        Raises:
            FakeRefusedError: it is.
        """
        self._check_limits(call)
        if call.earlier and call.earlier not in self._answers:
            raise FakeRefusedError(404, "not_found", f"there is no earlier answer {call.earlier!r}")
        longest = self.settings.context_tokens
        asked = sum(part.tokens for part in self.prompt_of(call))
        if longest is not None and asked > longest:
            message = f"This model's maximum context length is {longest} tokens; the prompt has {asked}"
            raise FakeRefusedError(400, "context_length_exceeded", message)
        refusals = {
            Trouble.FAILED: (500, "server_error" if call.api is not Api.MESSAGES else "api_error", "it failed"),
            Trouble.OVERLOADED: _overloaded(call.api),
            Trouble.LIMITED: (429, "rate_limit_exceeded", "too many requests"),
            Trouble.LIMITED_SILENTLY: (429, "rate_limit_exceeded", "too many requests"),
            Trouble.REFUSED: (400, "invalid_request_error", "the call is refused"),
        }
        if trouble in refusals:
            raise FakeRefusedError(*refusals[trouble], 0.02 if trouble is Trouble.LIMITED else None)

    def _check_limits(self, call: FakeCall) -> None:
        now_s = self.now_s()
        asked = sum(part.tokens for part in call.parts) + self.settings.visible_tokens
        wanted = ((self._requests, 1, "requests"), (self._tokens, asked, "tokens"))
        for window, amount, what in wanted:
            opens_s = window.opens_at_s(amount, now_s)
            if opens_s is None or opens_s > now_s:
                left_s = None if opens_s is None or not self.settings.tells_when else opens_s - now_s
                raise FakeRefusedError(
                    429,
                    "rate_limit_exceeded",
                    f"more than {window.limit} {what} a minute",
                    left_s and self.host_s(left_s),
                )
        for window, amount, _ in wanted:
            window.reserve(amount)
            window.send(amount, now_s)

    def host_s(self, seconds: float) -> float:
        """Return how long something takes on the host."""
        return seconds / self.settings.speed

    def prompt_of(self, call: FakeCall) -> tuple[Part, ...]:
        """Return the whole prompt, what an earlier answer brings along included."""
        return (*self._answers.get(call.earlier, ()), *call.parts)

    @asynccontextmanager
    async def slot(self, call: FakeCall) -> AsyncIterator[None]:
        """Hold a slot, in the order in which calls came.

        Raises:
            FakeRefusedError: too many wait.
        """
        if self._slots is not None and self._slots.locked() and self._waiting >= self.settings.waiting:
            raise FakeRefusedError(*_overloaded(call.api))
        self._waiting += 1
        try:
            if self._slots is not None:
                await self._slots.acquire()
        finally:
            self._waiting -= 1
        self._batch.enter(self.now_s())
        try:
            yield
        finally:
            self._batch.leave(self.now_s())
            if self._slots is not None:
                self._slots.release()

    async def prefill(self, call: FakeCall, trouble: Trouble | None, repeat: int) -> FakeAnswer:
        """Process the input; return the answer that follows. Holds a slot meanwhile."""
        parts = self.prompt_of(call)
        now_s = self.now_s()
        explicit = call.api is Api.MESSAGES
        found = self._cache.read_and_keep(parts, now_s) if explicit else self._cache.read(parts, now_s)
        whole = sum(part.tokens for part in parts)
        await self._sleep(self._backend.prefill_s(whole, found.read))
        answer = make_answer(self.settings, call, found, trouble, repeat=repeat, now_wall_s=self._clock.wall_s())
        return answer if not call.earlier else _with_input(answer, whole)

    def position(self) -> float:
        """Return where the batch is now: what a call that begins to generate counts from."""
        return self._batch.tokens(self.now_s())

    async def until(self, target: float) -> None:
        """Wait until the batch is at `target`."""
        while self.settings.waits and (left_s := self._batch.wait_s(target, self.now_s())) > 1e-9:
            # The batch may change meanwhile, so nobody sleeps much longer than a token takes.
            pace_s = self._backend.s_per_token(self._batch.running)
            await self._sleep(min(left_s, max(pace_s, 0.001 * self.settings.speed)))

    async def _sleep(self, seconds: float) -> None:
        if self.settings.waits and seconds > 0:
            await asyncio.sleep(self.host_s(seconds))

    def finish(self, call: FakeCall, answer: FakeAnswer) -> None:
        """Keep what was said, for the cache and for calls that go on from it."""
        said = (*self.prompt_of(call), Part("assistant", answer.text.encode()))
        if call.api is not Api.MESSAGES and self.settings.cache_tokens:
            self._cache.keep(said, self.now_s())
        if call.api is Api.RESPONSES:
            self._answers[f"resp_{answer.answer_id}"] = said
            if len(self._answers) > _REMEMBERED:
                self._answers.popitem(last=False)
        self.counts["answered"] += 1
        self.counts["input_tokens"] += answer.input_tokens
        self.counts["cache_read_tokens"] += answer.found.read
        self.counts["cache_write_tokens"] += answer.found.written
        self.counts["thinking_tokens"] += answer.thinking_tokens
        self.counts["visible_tokens"] += answer.visible_tokens

    def statistics(self) -> dict[str, object]:
        """Return what it did."""
        return {
            "running": self._batch.running,
            "waiting": self._waiting,
            "cached_tokens": self._cache.held_tokens,
            "counts": dict(sorted(self.counts.items())),
        }


def _overloaded(api: Api) -> tuple[int, str, str]:
    return (
        (529, "overloaded_error", "overloaded") if api is Api.MESSAGES else (503, "overloaded", "too many calls wait")
    )


def _with_input(answer: FakeAnswer, input_tokens: int) -> FakeAnswer:
    return dataclasses.replace(answer, input_tokens=input_tokens)


def shown_wait(seconds: float) -> str:
    """Return whole seconds for `retry-after`."""
    return str(max(1, math.ceil(seconds)))
