"""The router: what is known of all backends, kept up to date, and decisions on it.

It is a state machine without I/O, clock or randomness. Somebody asks it (`decide`), tells it where calls went and what
became of them, and gets the same decisions again for the same history::

    decide ──► Choice ──► assign ──► start ──► begin ──► finish
                            │          it has a slot   first byte   usage, or a failure
                            └──► withdraw              it was never sent

`decide` changes nothing. `assign` counts the call against every limit at once, so that of two calls that were decided
on the same room only one gets it; the other is told to decide again. What was sent to a backend is remembered from
then on: calls that share a prefix and come at the same moment go together.

For the usual objective (the answer begins as early as can be) decisions are found without looking at every backend
(`dsec.routing.group`); for the others, and for explanations, every one is looked at (`dsec.routing.choose`).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence

from dsec.base.errors import InvalidRequestError, InvalidStateError, NotFoundError
from dsec.model.value import Value
from dsec.routing.backend import Backend
from dsec.routing.choice import Choice, Reason, Refusal, Verdict, Why
from dsec.routing.choose import choose, refusal, refused_by
from dsec.routing.group import Best, Group, is_better
from dsec.routing.policy import RoutingPolicy
from dsec.routing.predict import mixed
from dsec.routing.prefix_index import Level
from dsec.routing.request import Objective, RouteRequest
from dsec.routing.retrying import Failure
from dsec.routing.state import Assignment, BackendState
from dsec.routing.usage import Source, Usage
from dsec.routing.view import BackendView

_NEAR_NAMES = 3
_CONTRADICTION = 0.75
"""A backend that found less than this share of what it should hold has thrown it away. Tokens for each byte differ from
part to part of a prompt, so that smaller differences say nothing."""


class BackendStatistics(Value, frozen=True):
    """What the router knows of one backend.

    Attributes:
        backend, group: names.
        running, waiting: calls there.
        queue_s: predicted wait of the next call.
        hold_s: how long calls hold a slot.
        hit_share: share of predicted hits that were real.
        cached_blocks: remembered of its cache.
        requests_in_minute, tokens_in_minute: used of its limits.
        failures: in a row.
        closed_until_s: until when it is left alone or out; None: it is open.
        prediction_error_s: mean distance of the predicted from the real time to the first token.
    """

    backend: str
    group: str
    running: int
    waiting: int
    queue_s: float
    hold_s: float
    hit_share: float
    cached_blocks: int
    requests_in_minute: int
    tokens_in_minute: int
    failures: int
    closed_until_s: float | None
    prediction_error_s: float


class Router:
    """Choose backends.

    Args:
        backends: all of them; their order is the last word among equals.
        routes: model groups by the name of a route, where a name stands for several; each group is a route by itself.
        policy: how to choose.

    Raises:
        InvalidRequestError: two backends of one name, or a route to a group that has no backend.
    """

    def __init__(
        self,
        backends: Iterable[Backend],
        *,
        routes: Mapping[str, Sequence[str]] | None = None,
        policy: RoutingPolicy | None = None,
    ) -> None:
        self.policy = policy or RoutingPolicy()
        declared = list(backends)
        members: dict[str, list[tuple[int, Backend]]] = {}
        for rank, backend in enumerate(declared):
            members.setdefault(backend.group, []).append((rank, backend))
        self._groups = {name: Group(name, ranked, self.policy) for name, ranked in members.items()}
        self._states = {state.backend.name: state for group in self._groups.values() for state in group.states}
        if len(self._states) < len(declared):
            names = [backend.name for backend in declared]
            twice = sorted({name for name in names if names.count(name) > 1})
            raise InvalidRequestError(f"backends named twice: {', '.join(twice)}", resolution="give each its own name")
        self._routes: dict[str, tuple[Group, ...]] = {name: (group,) for name, group in self._groups.items()}
        for name, groups in (routes or {}).items():
            self._routes[name] = tuple(self._group(name, group) for group in groups)
        self._homes: dict[str, str] = {}

    def _group(self, route: str, name: str) -> Group:
        if name not in self._groups:
            raise InvalidRequestError(
                f"route {route!r} leads to {name!r}, which no backend serves",
                resolution=f"name groups of backends: {', '.join(sorted(self._groups))}",
            )
        return self._groups[name]

    @property
    def models(self) -> tuple[str, ...]:
        """Names that a call may ask for."""
        return tuple(self._routes)

    # Decisions.

    def decide(self, request: RouteRequest, now_s: float) -> Choice | Refusal:
        """Choose a backend for a call.

        Returns:
            The choice, or why there is none; without candidates.
        """
        groups = self._routes.get(request.model)
        if groups is None:
            return self._unknown(request)
        if request.objective is not Objective.FIRST_TOKEN:
            return self._by_rule(request, now_s, explained=False)
        home = self._states.get(self._homes.get(request.episode, "")) if request.episode else None
        best: Best | None = None
        stay: Best | None = None
        for group in groups:
            mask = group.candidates(request, now_s)
            levels = group.index.match(request.blocks, now_s) if request.blocks else []
            found = group.first(request, now_s, mask, levels) if mask else None
            if found is not None and (best is None or is_better(found[0], found[1], best)):
                best = found
            if home is not None and home.backend.group == group.name and home.bit & mask:
                stay = self._at_home(request, group, home, levels, now_s)
        if best is None:
            return self._closed(request, groups, now_s)
        if stay is not None and stay[1] is not best[1] and stay[0] <= best[0] + self.policy.sticky_s:
            return _choice(request, stay, Reason.STICKY)
        return _choice(request, best, Reason.CACHED if best[2] else Reason.SHORTEST)

    def explain(self, request: RouteRequest, now_s: float) -> Choice | Refusal:
        """Make the same decision and say of every candidate why it was or was not taken."""
        if request.model not in self._routes:
            return self._unknown(request)
        return self._by_rule(request, now_s, explained=True)

    def _by_rule(self, request: RouteRequest, now_s: float, *, explained: bool) -> Choice | Refusal:
        home = self._homes.get(request.episode, "") if request.episode else ""
        views = self.views(request, now_s)
        return choose(request, views, self.policy, now_s, home=home, explained=explained)

    def views(self, request: RouteRequest, now_s: float) -> list[BackendView]:
        """Return the facts that a decision on this call rests on."""
        views = []
        for group in self._routes.get(request.model, ()):
            levels = group.index.match(request.blocks, now_s) if request.blocks else []
            for state in group.states:
                tokens = group.hit_tokens(state, request, levels)
                views.append(state.view(tokens, request.bound_tokens, request.project, now_s))
        return views

    def _at_home(
        self, request: RouteRequest, group: Group, home: BackendState, levels: list[Level], now_s: float
    ) -> Best | None:
        if not group.admits(home, request, now_s):
            return None
        return group.at(request, home, group.hit_tokens(home, request, levels))

    def _unknown(self, request: RouteRequest) -> Refusal:
        near = difflib.get_close_matches(request.model, self._routes, n=_NEAR_NAMES, cutoff=0.4)
        return Refusal(
            model=request.model,
            why=Why.UNKNOWN_MODEL,
            brief=f"no backend serves the model {request.model!r}",
            alternatives=(*near, *sorted(set(self._routes) - set(near))),
        )

    def _closed(self, request: RouteRequest, groups: Sequence[Group], now_s: float) -> Refusal:
        verdicts = []
        for group in groups:
            for state in group.states:
                verdict, opens = refused_by(request, state.view(0, request.bound_tokens, request.project, now_s), now_s)
                verdicts.append((state.backend.name, verdict or Verdict.FULL, opens))
        return refusal(request, verdicts, now_s)

    # What becomes of calls.

    def assign(self, request: RouteRequest, choice: Choice, now_s: float) -> Assignment:
        """Count a call against the limits of the backend that was chosen for it.

        Raises:
            InvalidStateError: the backend has no room for it any more; decide again.
        """
        state = self._state(choice.backend)
        group = self._groups[state.backend.group]
        if not group.candidates(request, now_s) & state.bit or not group.admits(state, request, now_s):
            raise InvalidStateError(
                f"backend {choice.backend!r} has no room for the call any more", resolution="decide again"
            )
        call = Assignment(
            state=state,
            project=request.project,
            blocks=request.blocks,
            input_tokens=request.input_tokens,
            counted_tokens=request.bound_tokens,
            hit_tokens=choice.hit_tokens,
            first_token_s=choice.first_token_s,
            assigned_s=now_s,
        )
        state.assign(call, _hold_s(request, state.backend, choice.hit_tokens))
        if state.backend.keeps(request.cacheable_tokens):
            group.index.insert(request.blocks, state.number, now_s)
        group.update(state, now_s)
        if request.episode:
            self._settle(request.episode, choice.backend)
        return call

    def start(self, call: Assignment, now_s: float) -> None:
        """Take in that a call has a slot and is sent."""
        _check_open(call, started=False)
        call.state.start(call, now_s)
        self._groups[call.state.backend.group].update(call.state, now_s)

    def begin(self, call: Assignment, now_s: float) -> None:
        """Take in that the first byte of an answer came."""
        _check_open(call, started=True)
        call.state.begin(call, now_s)

    def withdraw(self, call: Assignment, now_s: float) -> None:
        """Take a call back that was not sent; nothing of it counts."""
        _check_open(call, started=False)
        call.state.leave(call)
        self._groups[call.state.backend.group].update(call.state, now_s)

    def finish(
        self, call: Assignment, now_s: float, *, usage: Usage | None = None, failure: Failure | None = None
    ) -> None:
        """Take in how a call that was sent ended.

        Args:
            call: the call.
            now_s: the present.
            usage: what it used, if it is known; of failed ones too.
            failure: what went wrong; None: nothing.
        """
        _check_open(call, started=True)
        state = call.state
        state.leave(call)
        if failure is None:
            state.succeeded(call, now_s)
        else:
            state.failed(failure, now_s)
        if usage is not None:
            self._learn(call, usage, now_s)
        self._groups[state.backend.group].update(state, now_s)

    def report_queue(self, backend: str, queue_s: float, now_s: float) -> None:
        """Take in what a backend says of the queue inside of it.

        Raises:
            InvalidRequestError: the time is negative or infinite.
        """
        if not 0 <= queue_s < float("inf"):
            raise InvalidRequestError(
                f"queue_s of {backend!r} is {queue_s}", resolution="give a time of 0 or more in seconds"
            )
        state = self._state(backend)
        state.reported_queue_s = queue_s
        self._groups[state.backend.group].update(state, now_s)

    def restarted(self, backend: str) -> None:
        """Take in that a backend was started anew: its cache is empty."""
        state = self._state(backend)
        self._groups[state.backend.group].index.drop(state.number)

    def _learn(self, call: Assignment, usage: Usage, now_s: float) -> None:
        state = call.state
        state.tokens.correct(call.token_cell, usage.input_tokens + usage.output_tokens - call.counted_tokens)
        if usage.cache_read.source is not Source.REPORTED or not call.blocks or not call.input_tokens:
            return
        if call.hit_tokens:
            state.learn_hits(min(usage.cache_read.tokens / call.hit_tokens, 1.0))
        held = round(usage.cache_read.tokens * len(call.blocks) / call.input_tokens)
        believed = call.hit_tokens * len(call.blocks) // call.input_tokens
        if held < _CONTRADICTION * believed:
            index, number = self._groups[state.backend.group].index, state.number
            index.correct(call.blocks, number, held)
            index.insert(call.blocks, number, now_s)

    def _settle(self, episode: str, backend: str) -> None:
        self._homes.pop(episode, None)
        if len(self._homes) >= self.policy.episodes:
            del self._homes[next(iter(self._homes))]
        self._homes[episode] = backend

    # Looking.

    def statistics(self, now_s: float) -> tuple[BackendStatistics, ...]:
        """Return what is known of each backend."""
        return tuple(
            BackendStatistics(
                backend=state.backend.name,
                group=group.name,
                running=state.running,
                waiting=state.waiting,
                queue_s=state.queue_s,
                hold_s=state.hold_s,
                hit_share=state.hits,
                cached_blocks=group.index.blocks(number),
                requests_in_minute=state.requests.used(now_s),
                tokens_in_minute=state.tokens.used(now_s),
                failures=state.failures,
                closed_until_s=state.closed_until_s() if state.closed_until_s() > now_s else None,
                prediction_error_s=state.error_s,
            )
            for group in self._groups.values()
            for number, state in enumerate(group.states)
        )

    def _state(self, backend: str) -> BackendState:
        if backend not in self._states:
            raise NotFoundError(
                f"there is no backend {backend!r}", resolution=f"name one of: {', '.join(sorted(self._states))}"
            )
        return self._states[backend]


def _choice(request: RouteRequest, best: Best, reason: Reason) -> Choice:
    _, entry, tokens = best
    state = entry[4]
    return Choice(
        backend=state.backend.name,
        group=state.backend.group,
        reason=reason,
        queue_s=state.queue_s,
        hit_tokens=tokens,
        first_token_s=_first_token_s(request, state, tokens),
    )


def _first_token_s(request: RouteRequest, state: BackendState, tokens: int) -> float:
    """Return the predicted time; the same sums as in `dsec.routing.predict`, in the same order."""
    backend, whole = state.backend, request.input_tokens
    miss_s = backend.network_s + state.queue_s + backend.prefill_s(whole, 0)
    if not tokens:
        return miss_s
    return mixed(state.hit_share, backend.network_s + state.queue_s + backend.prefill_s(whole, tokens), miss_s)


def _hold_s(request: RouteRequest, backend: Backend, hit_tokens: int) -> float:
    """Return how long a call should hold a slot with all slots taken; the first guess until calls have ended."""
    pace = backend.s_per_token(backend.limits.slots or 1)
    tokens = request.output_tokens + request.thinking(backend.thinking_tokens)
    return backend.prefill_s(request.input_tokens, hit_tokens) + tokens * pace


def _check_open(call: Assignment, *, started: bool) -> None:
    if call.is_done or (call.started_s is not None) is not started:
        state = "ended" if call.is_done else "sent" if call.started_s is not None else "not sent yet"
        raise InvalidStateError(
            f"the call at {call.backend!r} is {state}", resolution="assign, start, begin and finish, in this order"
        )
