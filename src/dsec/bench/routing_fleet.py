"""A fleet of model backends in virtual time, for comparing ways to choose among them on one and the same trace.

A backend serves so many calls side by side; further ones wait in a line. A call in a slot has its prompt processed,
quickly as far as the backend's cache holds it, and then gets its tokens, each later the more calls are beside it: the
service times of `dsec.costs.first_token` and `dsec.costs.model_service`, followed through every change of the number
of calls. The cache is a plain one, block by block, least recently used first, with everything that the backend has
read and said. It shares no code with the router's index, which has to guess what it holds.

The trace is one of agents: tasks come at random, each is tried several times at once (the attempts share instructions
and task), and each attempt is an episode of rounds whose prompt is all of the round before, its answer and the result
of a tool. Times of arrival are part of the trace, so that every way of choosing meets the same load.
"""

from __future__ import annotations

import heapq
import random
from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from dsec.routing.backend import Backend
from dsec.routing.choice import Choice
from dsec.routing.group import BLOCK_TOKENS
from dsec.routing.request import Objective, RouteRequest
from dsec.routing.router import Router
from dsec.routing.state import Assignment
from dsec.routing.usage import Count, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What comes.

    Attributes:
        calls_per_s: on average.
        duration_s: for so long tasks begin.
        common_blocks: instructions and tools that all share.
        task_blocks: what the attempts at one task share beyond that.
        attempts: at each task, beginning together.
        rounds: of an episode, on average; the number is geometric.
        result_blocks: the most that a tool's result adds; at least one.
        output_tokens: of an answer.
        round_s: from one call of an episode to its next, on average.
    """

    calls_per_s: float
    duration_s: float = 240.0
    common_blocks: int = 12
    task_blocks: int = 12
    attempts: int = 8
    rounds: float = 10.0
    result_blocks: int = 8
    output_tokens: int = 355
    round_s: float = 12.0


class Call(NamedTuple):
    """One call of a trace.

    Attributes:
        at_s: when it comes.
        episode: its episode.
        prompt: blocks of its prompt.
        answer: blocks of its answer.
    """

    at_s: float
    episode: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...]


@dataclass(slots=True)
class _Job:
    """A call at a backend."""

    call: Call
    server: _Server
    ticket: Assignment | None
    hit_blocks: int = 0
    started_s: float = 0.0
    first_token_s: float = 0.0


@dataclass(slots=True)
class _Server:
    """One backend: who waits, who is served, how far the tokens are, and what its cache holds."""

    backend: Backend
    cache_blocks: int
    waiting: deque[_Job] = field(default_factory=deque)
    running: int = 0
    decoding: list[tuple[float, int, _Job]] = field(default_factory=list)
    tokens: float = 0.0
    as_of_s: float = 0.0
    version: int = 0
    cache: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def advance(self, now_s: float) -> None:
        """Let everyone get their tokens up to now."""
        if self.running:
            self.tokens += (now_s - self.as_of_s) / self.backend.s_per_token(self.running)
        self.as_of_s = now_s

    def hits(self, prompt: Sequence[int]) -> int:
        """Return how many blocks of a prompt the cache holds."""
        for at, block in enumerate(prompt):
            if block not in self.cache:
                return at
        return len(prompt)

    def keep(self, blocks: Sequence[int]) -> None:
        """Put blocks into the cache, the first ones as the last to go."""
        for block in reversed(blocks):
            self.cache[block] = None
            self.cache.move_to_end(block)
        while len(self.cache) > self.cache_blocks:
            self.cache.popitem(last=False)


class Chooser(Protocol):
    """A way to choose."""

    def choose(self, call: Call, servers: Sequence[_Server], now_s: float) -> tuple[int, Assignment | None]:
        """Return the number of the backend, and the router's ticket if it has one."""

    def started(self, job: _Job, now_s: float) -> None:
        """Hear that a call has a slot."""

    def began(self, job: _Job, now_s: float) -> None:
        """Hear that its answer began."""

    def ended(self, job: _Job, now_s: float) -> None:
        """Hear that it ended."""


class _Deaf:
    """A way to choose that hears of nothing."""

    def started(self, job: _Job, now_s: float) -> None:
        del job, now_s

    def began(self, job: _Job, now_s: float) -> None:
        del job, now_s

    def ended(self, job: _Job, now_s: float) -> None:
        del job, now_s


class RoundRobin(_Deaf):
    """Each backend in turn."""

    def __init__(self) -> None:
        self._turn = -1

    def choose(self, call: Call, servers: Sequence[_Server], now_s: float) -> tuple[int, None]:
        del call, now_s
        self._turn = (self._turn + 1) % len(servers)
        return self._turn, None


class LeastLoaded(_Deaf):
    """The backend with the fewest calls."""

    def choose(self, call: Call, servers: Sequence[_Server], now_s: float) -> tuple[int, None]:
        del call, now_s
        return min(range(len(servers)), key=lambda at: servers[at].running + len(servers[at].waiting)), None


class ByEpisode(_Deaf):
    """All calls of an episode at one backend, the one with the fewest calls when it began."""

    def __init__(self) -> None:
        self._homes: dict[str, int] = {}
        self._first = LeastLoaded()

    def choose(self, call: Call, servers: Sequence[_Server], now_s: float) -> tuple[int, None]:
        if call.episode not in self._homes:
            self._homes[call.episode], _ = self._first.choose(call, servers, now_s)
        return self._homes[call.episode], None


class Routed:
    """The router, told what a gateway would tell it."""

    def __init__(
        self, backends: Sequence[Backend], output_tokens: int, objective: Objective = Objective.FIRST_TOKEN
    ) -> None:
        self.router = Router(backends)
        self._objective = objective
        self._numbers = {backend.name: at for at, backend in enumerate(backends)}
        self._output_tokens = output_tokens

    def request(self, call: Call) -> RouteRequest:
        """Return a call as the router sees it."""
        return RouteRequest(
            model="model",
            blocks=call.prompt,
            input_tokens=len(call.prompt) * BLOCK_TOKENS,
            output_tokens=self._output_tokens,
            episode=call.episode,
            objective=self._objective,
        )

    def choose(self, call: Call, servers: Sequence[_Server], now_s: float) -> tuple[int, Assignment]:
        del servers
        request = self.request(call)
        choice = self.router.decide(request, now_s)
        assert isinstance(choice, Choice), choice
        return self._numbers[choice.backend], self.router.assign(request, choice, now_s)

    def started(self, job: _Job, now_s: float) -> None:
        assert job.ticket is not None
        self.router.start(job.ticket, now_s)

    def began(self, job: _Job, now_s: float) -> None:
        assert job.ticket is not None
        self.router.begin(job.ticket, now_s)

    def ended(self, job: _Job, now_s: float) -> None:
        assert job.ticket is not None
        read, whole = job.hit_blocks * BLOCK_TOKENS, len(job.call.prompt) * BLOCK_TOKENS
        usage = Usage(
            plain_input=Count(tokens=whole - read),
            cache_read=Count(tokens=read),
            visible=Count(tokens=self._output_tokens),
        )
        self.router.finish(job.ticket, now_s, usage=usage)


def make_trace(workload: Workload, seed: int) -> list[Call]:
    """Return the calls of a workload by the time at which they come."""
    source = random.Random(seed)
    fresh = iter(range(1, 1 << 60))
    common = _take(fresh, workload.common_blocks)
    tasks_per_s = workload.calls_per_s / (workload.attempts * workload.rounds)
    calls: list[Call] = []
    at_s, task = 0.0, 0
    while (at_s := at_s + source.expovariate(tasks_per_s)) < workload.duration_s:
        task += 1
        prompt = common + _take(fresh, workload.task_blocks)
        for attempt in range(workload.attempts):
            calls += _episode(workload, f"{task}.{attempt}", at_s + source.random(), prompt, source, fresh)
    return sorted(calls)


def _episode(
    workload: Workload, name: str, at_s: float, prompt: tuple[int, ...], source: random.Random, fresh: Iterator[int]
) -> Iterator[Call]:
    answer_blocks = -(-workload.output_tokens // BLOCK_TOKENS)
    while True:
        answer = _take(fresh, answer_blocks)
        yield Call(at_s, name, prompt, answer)
        if source.random() < 1 / workload.rounds:
            return
        prompt = prompt + answer + _take(fresh, source.randint(1, workload.result_blocks))
        at_s += workload.round_s * (0.5 + source.random())


def _take(fresh: Iterator[int], count: int) -> tuple[int, ...]:
    return tuple(next(fresh) for _ in range(count))


class Outcome(NamedTuple):
    """What became of a trace.

    Attributes:
        first_token_s: time to the first token of each call, in the order in which they came.
        completion_s: time to its end.
        hit_share: input tokens found in a cache over all input tokens.
        used_share: slots in use, on average.
    """

    first_token_s: list[float]
    completion_s: list[float]
    hit_share: float
    used_share: float


class Fleet:
    """The event loop.

    Args:
        backends: the fleet.
        cache_blocks: what each one's cache holds.
        chooser: how calls are sent.
        output_tokens: of each answer.
    """

    def __init__(self, backends: Sequence[Backend], cache_blocks: int, chooser: Chooser, output_tokens: int) -> None:
        self._servers = [_Server(backend, cache_blocks) for backend in backends]
        self._chooser = chooser
        self._output_tokens = output_tokens
        self._events: list[tuple[float, int, _Job | None, _Server, int]] = []
        self._count = 0
        self._ended: list[tuple[_Job, float]] = []
        self._busy_s = 0.0
        self._from_s = self._until_s = 0.0

    def run(self, calls: Sequence[Call], *, from_s: float, until_s: float) -> Outcome:
        """Serve a trace to its end.

        Args:
            calls: the trace.
            from_s, until_s: only calls that come in this time are told of. Before it the fleet fills, after it empties.
        """
        self._from_s, self._until_s = from_s, until_s
        for call in calls:
            self._play(call.at_s)
            at, ticket = self._chooser.choose(call, self._servers, call.at_s)
            server = self._servers[at]
            server.waiting.append(_Job(call, server, ticket))
            self._fill(server, call.at_s)
        self._play(float("inf"))
        order = sorted(
            (one for one in self._ended if from_s <= one[0].call.at_s < until_s), key=lambda one: one[0].call
        )
        hits = sum(job.hit_blocks for job, _ in order)
        slots = sum(server.backend.limits.slots or 0 for server in self._servers)
        return Outcome(
            first_token_s=[job.first_token_s - job.call.at_s for job, _ in order],
            completion_s=[end_s - job.call.at_s for job, end_s in order],
            hit_share=hits / sum(len(job.call.prompt) for job, _ in order),
            used_share=self._busy_s / (slots * (until_s - from_s)),
        )

    def _play(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            now_s, _, job, server, version = heapq.heappop(self._events)
            if job is not None:
                self._prefilled(job, now_s)
            elif version == server.version:
                self._decoded(server, now_s)

    def _push(self, at_s: float, job: _Job | None, server: _Server, version: int) -> None:
        self._count += 1
        heapq.heappush(self._events, (at_s, self._count, job, server, version))

    def _fill(self, server: _Server, now_s: float) -> None:
        """Give free slots to those who wait."""
        slots = server.backend.limits.slots
        assert slots is not None
        while server.waiting and server.running < slots:
            job = server.waiting.popleft()
            server.advance(now_s)
            server.running += 1
            job.started_s = now_s
            self._chooser.started(job, now_s)
            job.hit_blocks = server.hits(job.call.prompt)
            whole = len(job.call.prompt) * BLOCK_TOKENS
            prefill_s = server.backend.prefill_s(whole, job.hit_blocks * BLOCK_TOKENS)
            self._push(now_s + prefill_s, job, server, 0)
        self._expect(server, now_s)

    def _prefilled(self, job: _Job, now_s: float) -> None:
        server = job.server
        server.advance(now_s)
        server.keep(job.call.prompt)
        job.first_token_s = now_s + server.backend.network_s
        self._chooser.began(job, job.first_token_s)
        self._count += 1
        heapq.heappush(server.decoding, (server.tokens + self._output_tokens, self._count, job))
        self._expect(server, now_s)

    def _decoded(self, server: _Server, now_s: float) -> None:
        server.advance(now_s)
        _, _, job = heapq.heappop(server.decoding)
        server.running -= 1
        self._busy_s += max(min(now_s, self._until_s) - max(job.started_s, self._from_s), 0.0)
        server.keep(job.call.prompt + job.call.answer)
        self._ended.append((job, now_s + server.backend.network_s))
        self._chooser.ended(job, now_s)
        self._fill(server, now_s)

    def _expect(self, server: _Server, now_s: float) -> None:
        """Say when the next answer ends if nothing changes; what was expected before is void."""
        server.advance(now_s)
        server.version += 1
        if server.decoding:
            left = max(server.decoding[0][0] - server.tokens, 0.0)
            self._push(now_s + left * server.backend.s_per_token(server.running), None, server, server.version)
