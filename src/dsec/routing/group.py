"""The backends of one model group, kept so that the one which begins first is found without looking at all.

What is compared is (network + queue + crowding) + prefill. Of backends that process input equally fast and hold equally
much of the prompt, the first is therefore the one with the least of the three in brackets, its *base*, whatever the
call. So backends are kept in *lanes* of equal speed and equal trust in their caches, each in the order of base, then
load, then rank; and the prefix index says for all backends at once who holds how much. A decision compares one backend
for each lane and each length of prefix, instead of all.

A backend that holds a longer prefix is among the holders of every shorter one, too. That does no harm: there it is
compared as if it held less than it does, and is beaten by itself.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterable

from dsec.routing.backend import Backend
from dsec.routing.policy import RoutingPolicy
from dsec.routing.predict import mixed
from dsec.routing.prefix_index import Level, PrefixIndex
from dsec.routing.request import RouteRequest
from dsec.routing.state import BackendState

BLOCK_TOKENS = 256
"""About how many tokens a block is; only to turn a declared size of a cache into blocks."""

_FEW = 4
"""Up to so many holders are looked at one by one; of more, the first in the lane's order is soon found."""

Entry = tuple[float, float, int, int, BackendState]
"""Base, load, rank, bit, state: the first three order a lane."""

Best = tuple[float, Entry, int]
"""Counted time to the first token, the backend's entry, tokens of the prompt in its cache; the first two order."""


class _Lane:
    """Backends of equal speed and equal trust in their caches, in order.

    Attributes:
        backend: one of them, to ask how fast they are.
        hit_share: the trust.
        minimum_tokens: shorter prefixes are not kept by them.
        members: one bit each.
        entries: in order.
    """

    __slots__ = ("backend", "entries", "hit_share", "members", "minimum_tokens")

    def __init__(self, backend: Backend, hit_share: float) -> None:
        self.backend = backend
        self.hit_share = hit_share
        self.minimum_tokens = backend.cache.minimum_tokens if backend.cache is not None else 0
        self.members = 0
        self.entries: list[Entry] = []


class Group:
    """The backends of one model group.

    Attributes:
        name: of the group.
        states: its backends.
        index: what was sent to which.
    """

    def __init__(self, name: str, backends: Iterable[tuple[int, Backend]], policy: RoutingPolicy) -> None:
        self.name = name
        self.states = [BackendState(one, rank, number, policy) for number, (rank, one) in enumerate(backends)]
        declared = [state.backend for state in self.states]
        self.index = PrefixIndex(
            [_capacity(backend, policy) for backend in declared],
            [backend.cache.lifetime_s if backend.cache is not None else None for backend in declared],
        )
        self._lanes: dict[object, _Lane] = {}
        self._places: list[tuple[_Lane, Entry] | None] = [None] * len(self.states)
        self._open = 0
        self._opens_s = math.inf
        self._limited = 0
        self._bits = {state.backend.name: state.bit for state in self.states}
        self._least_context = min((_context(backend) for backend in declared), default=math.inf)
        for state in self.states:
            self.update(state, -math.inf)

    def update(self, state: BackendState, now_s: float) -> None:
        """Take in that a backend changed."""
        state.refresh()
        backend = state.backend
        entry: Entry = (state.base_s, state.load, state.rank, state.bit, state)
        number = state.number
        lane = self._lane(state)
        if (place := self._places[number]) is not None:
            old_lane, old = place
            if old_lane is not lane or old[0] != entry[0] or old[1] != entry[1]:
                del old_lane.entries[bisect_left(old_lane.entries, old)]
                old_lane.members &= ~state.bit
                place = None
        if place is None:
            insort(lane.entries, entry)
            lane.members |= state.bit
            self._places[number] = (lane, entry)
        closed_until_s = state.closed_until_s()
        if closed_until_s > now_s:
            self._opens_s = min(self._opens_s, closed_until_s)
        limited = _is_limited(backend) or state.is_crowded
        self._limited = self._limited | state.bit if limited else self._limited & ~state.bit
        if closed_until_s > now_s or state.is_full:
            self._open &= ~state.bit
        else:
            self._open |= state.bit

    def hit_tokens(self, state: BackendState, request: RouteRequest, levels: list[Level]) -> int:
        """Return how many tokens of a prompt a backend's cache should hold."""
        if not state.backend.keeps(request.cacheable_tokens):
            return 0
        for blocks, holders in levels:
            if holders & state.bit:
                tokens = _tokens(blocks, request)
                least = state.backend.cache.minimum_tokens if state.backend.cache is not None else 0
                return tokens if tokens >= least else 0
        return 0

    def candidates(self, request: RouteRequest, now_s: float) -> int:
        """Return the backends that a call may go to now, one bit each, but for what `admits` looks at."""
        if now_s >= self._opens_s:
            self._reopen(now_s)
        mask = self._open
        for name in request.excluded:
            mask &= ~self._bits.get(name, 0)
        if self._least_context < math.inf and request.bound_tokens > self._least_context:
            for state in self.states:
                if request.bound_tokens > _context(state.backend):
                    mask &= ~state.bit
        return mask

    def first(self, request: RouteRequest, now_s: float, mask: int, levels: list[Level]) -> Best | None:
        """Return the backend where the answer begins first; None when none is open."""
        best: Best | None = None
        for lane in self._lanes.values():
            members = lane.members & mask
            if members:
                best = self._first_of(lane, request, now_s, members, levels, best)
        return best

    def _first_of(
        self, lane: _Lane, request: RouteRequest, now_s: float, members: int, levels: list[Level], best: Best | None
    ) -> Best | None:
        """Return the better of `best` and the best of a lane. The sums are those of `dsec.routing.predict`."""
        share, prefill_s, whole = lane.hit_share, lane.backend.prefill_s, request.input_tokens
        miss_s = prefill_s(whole, 0)
        if not lane.backend.keeps(request.cacheable_tokens):
            levels = []
        for blocks, holders in levels:
            if not (among := holders & members):
                continue
            tokens = _tokens(blocks, request)
            if tokens < lane.minimum_tokens or (entry := self._first_entry(request, now_s, lane, among)) is None:
                continue
            base_s = entry[0]
            counted_s = share * (base_s + prefill_s(whole, tokens)) + (1 - share) * (base_s + miss_s)
            if best is None or is_better(counted_s, entry, best):
                best = (counted_s, entry, tokens)
            if entry is lane.entries[0]:
                return best  # None of the lane is as free, so that none that holds less can be better.
        if (entry := self._first_entry(request, now_s, lane, members)) is not None:
            counted_s = entry[0] + miss_s
            if best is None or is_better(counted_s, entry, best):
                best = (counted_s, entry, 0)
        return best

    def admits(self, state: BackendState, request: RouteRequest, now_s: float) -> bool:
        """Say whether the limits per minute, and the project's part of the queue, have room for a call."""
        return (
            state.has_room(request.project)
            and state.requests.admits(1, now_s)
            and state.tokens.admits(request.bound_tokens, now_s)
        )

    def at(self, request: RouteRequest, state: BackendState, tokens: int) -> Best:
        """Return what a call would meet at one backend."""
        place = self._places[state.number]
        assert place is not None
        base_s, prefill_s = place[1][0], state.backend.prefill_s
        counted_s = base_s + prefill_s(request.input_tokens, 0)
        if tokens:
            counted_s = mixed(state.hit_share, base_s + prefill_s(request.input_tokens, tokens), counted_s)
        return counted_s, place[1], tokens

    def _first_entry(self, request: RouteRequest, now_s: float, lane: _Lane, mask: int) -> Entry | None:
        """Return the first of a lane that is in the mask and admits the call."""
        limited = self._limited & mask
        if mask.bit_count() > _FEW:
            if not limited:
                return next(entry for entry in lane.entries if entry[3] & mask)
            for entry in lane.entries:
                if entry[3] & mask and not (entry[3] & limited and not self.admits(entry[4], request, now_s)):
                    return entry
            return None
        first: Entry | None = None
        while mask:
            bit = mask & -mask
            mask ^= bit
            place = self._places[bit.bit_length() - 1]
            assert place is not None
            entry = place[1]
            if (first is None or entry < first) and not (bit & limited and not self.admits(entry[4], request, now_s)):
                first = entry
        return first

    def _lane(self, state: BackendState) -> _Lane:
        backend = state.backend
        cache = (backend.cache.minimum_tokens, backend.cache.explicit) if backend.cache is not None else None
        traits = (backend.prefill_tokens_per_s, backend.cached_tokens_per_s, cache, state.hit_share)
        if (lane := self._lanes.get(traits)) is None:
            self._lanes = {key: lane for key, lane in self._lanes.items() if lane.entries}
            lane = self._lanes[traits] = _Lane(backend, state.hit_share)
        return lane

    def _reopen(self, now_s: float) -> None:
        self._opens_s = math.inf
        for state in self.states:
            self.update(state, now_s)


def is_better(counted_s: float, entry: Entry, best: Best) -> bool:
    """Say whether an answer that begins in `counted_s` at this backend is better than the best so far."""
    return counted_s < best[0] or (counted_s == best[0] and entry < best[1])


def _tokens(blocks: int, request: RouteRequest) -> int:
    """Return how many tokens so many blocks of the prompt are; its last token is never found in a cache."""
    tokens = request.input_tokens
    return max(tokens - 1, 0) if blocks == len(request.blocks) else tokens * blocks // len(request.blocks)


def _capacity(backend: Backend, policy: RoutingPolicy) -> int:
    if backend.cache is None:
        return 0
    declared = backend.cache.capacity_tokens
    return policy.index_blocks if declared is None else min(declared // BLOCK_TOKENS, policy.index_blocks)


def _context(backend: Backend) -> float:
    return math.inf if backend.limits.context_tokens is None else backend.limits.context_tokens


def _is_limited(backend: Backend) -> bool:
    limits = backend.limits
    return limits.requests_per_minute is not None or limits.tokens_per_minute is not None
