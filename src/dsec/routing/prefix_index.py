"""Which backend holds which prefix: a radix tree of what was sent where, as large as it may be and no larger.

The tree's edges are runs of block fingerprints, and a path from the root is a prompt. Each node says which backends
hold the prompt up to its end, as a set of bits, so that one walk down a prompt finds for all backends at once how much
of it each holds. A backend that holds a node holds every node above it, as it does in a real cache, where a block is
of no use without those before it.

Nobody tells the gateway what backends throw away, so each one's cache is modelled:

- **size**: of each backend at most so many blocks are remembered. When more are, what was used longest ago goes first,
  from the end of its prompt. All backends together bound the tree: a node exists while somebody holds it.
- **lifetime**: where a service keeps a prefix for a time after its last use, so does the model.
- **correction**: a backend that reports less from its cache than was thought has thrown it away, and with it all that
  hung on it; one that reports more has what it was sent, which is remembered in any case.

Prior art: RadixAttention's tree in SGLang (Zheng and others, 2024) and the approximate trees of cache-aware routers
above it, which keep characters or tokens. This one keeps fingerprints: long prompts cost little memory, and nothing of
what was said is kept. Times are passed in, and a time before one that was seen counts as that one.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from itertools import count

Blocks = tuple[int, ...]

_SPARE_PLACES = 64
"""How many places of claims that are gone a queue keeps, beside twice the claims, before they are swept out."""


Level = tuple[int, int]
"""Length of a prefix in blocks, and the backends that hold it, one bit each."""


class _Claim:
    """One backend's hold on one node.

    Attributes:
        node: the node.
        used: which use of the index was its last.
        used_s: when that was.
        below: how many of the node's children the backend holds, too; only a claim without any can go.
        queued: whether it stands in the backend's queue of claims that can go.
    """

    __slots__ = ("below", "node", "queued", "used", "used_s")

    def __init__(self, node: _Node, used: int, used_s: float) -> None:
        self.node = node
        self.used = used
        self.used_s = used_s
        self.below = 0
        self.queued = False


class _Node:
    """A run of blocks that nobody holds in part.

    Attributes:
        label: the run.
        parent: the node above; None for the root.
        children: nodes below by the first block of their run.
        holders: one bit for each backend that holds it.
        claims: the holds by backend.
    """

    __slots__ = ("children", "claims", "holders", "label", "parent")

    def __init__(self, label: Blocks, parent: _Node | None) -> None:
        self.label = label
        self.parent = parent
        self.children: dict[int, _Node] = {}
        self.holders = 0
        self.claims: dict[int, _Claim] = {}


class _Holder:
    """What is remembered of one backend: how much, at most how much and for how long, and what can go first."""

    __slots__ = ("blocks", "capacity", "claims", "lifetime_s", "queue")

    def __init__(self, capacity: int, lifetime_s: float | None) -> None:
        self.capacity = capacity
        self.lifetime_s = lifetime_s
        self.blocks = 0
        self.claims = 0
        self.queue: list[tuple[int, int, _Claim]] = []


def _common(label: Blocks, blocks: Blocks, at: int) -> int:
    """Return how many blocks of a label stand in `blocks` from `at` on."""
    whole = len(label)
    if blocks[at : at + whole] == label:
        return whole
    low, high = 0, min(whole, len(blocks) - at)
    while low < high:
        middle = (low + high + 1) // 2
        if blocks[at : at + middle] == label[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class PrefixIndex:
    """What was sent where.

    Args:
        capacities: the most blocks remembered of each backend; backends are numbered from 0 in this order.
        lifetimes_s: how long each keeps what is not used; None: until it is pushed out. Absent: none of them does.
    """

    def __init__(self, capacities: Sequence[int], lifetimes_s: Sequence[float | None] | None = None) -> None:
        lifetimes = lifetimes_s or [None] * len(capacities)
        self._holders = [_Holder(*one) for one in zip(capacities, lifetimes, strict=True)]
        self._root = _Node((), None)
        self._numbers = count()
        self._now_s = -math.inf
        self._uses = 0
        self._expires_s = math.inf

    def blocks(self, backend: int) -> int:
        """Return how many blocks are remembered of a backend."""
        return self._holders[backend].blocks

    def match(self, blocks: Blocks, now_s: float) -> list[Level]:
        """Return who holds how much of a prompt: the longest prefix first, each with all its holders.

        A backend is in the level of the longest prefix that it holds and in all shorter ones.
        """
        if now_s >= self._expires_s:
            self._expire(now_s)
        levels: list[Level] = []
        children, at, holders, whole = self._root.children, 0, 0, len(blocks)
        while at < whole:
            child = children.get(blocks[at])
            if child is None:
                break
            if child.holders != holders:
                if at:
                    levels.append((at, holders))
                holders = child.holders
            label = child.label
            end = at + len(label)
            if blocks[at:end] != label:
                at += _common(label, blocks, at)
                break
            at, children = end, child.children
        if at:
            levels.append((at, holders))
        levels.reverse()
        return levels

    def held(self, blocks: Blocks, backend: int, now_s: float) -> int:
        """Return how many blocks of a prompt a backend holds."""
        return next((length for length, holders in self.match(blocks, now_s) if holders >> backend & 1), 0)

    def insert(self, blocks: Blocks, backend: int, now_s: float) -> None:
        """Remember that a prompt was sent to a backend, which now holds as much of it as fits."""
        now_s = self._now_s = max(now_s, self._now_s)
        self._uses += 1
        holder = self._holders[backend]
        blocks = blocks[: holder.capacity]
        if not blocks:
            return
        self._hold(blocks, backend, now_s)
        self._shrink(backend)
        if holder.lifetime_s is not None:
            self._expires_s = min(self._expires_s, now_s + holder.lifetime_s)

    def correct(self, blocks: Blocks, backend: int, held: int) -> None:
        """Remember that a backend held only so many blocks of a prompt: what hung on the others is gone there, too."""
        node, at = self._root, 0
        while at < len(blocks) and (child := node.children.get(blocks[at])) is not None and backend in child.claims:
            common = _common(child.label, blocks, at)
            if at + common > held:
                if held > at:
                    self._split(child, held - at)
                self._release_all(child, backend)
                return
            if common < len(child.label):
                return
            node, at = child, at + common

    def drop(self, backend: int) -> None:
        """Forget all of a backend, such as when it was started anew."""
        for child in list(self._root.children.values()):
            if backend in child.claims:
                self._release_all(child, backend)

    # Holding.

    def _hold(self, blocks: Blocks, backend: int, now_s: float) -> None:
        node, at = self._root, 0
        while at < len(blocks):
            child = node.children.get(blocks[at])
            if child is None:
                self._append(node, blocks[at:], backend, now_s)
                return
            common = _common(child.label, blocks, at)
            if common < len(child.label):
                child = self._split(child, common)
            self._claim(child, backend, now_s)
            node, at = child, at + common

    def _append(self, node: _Node, rest: Blocks, backend: int, now_s: float) -> None:
        """Add what is new of a prompt: to the node itself where nothing else hangs on it, or as a child."""
        if node.parent is not None and not node.children and len(node.claims) == 1:
            node.label += rest
            self._holders[backend].blocks += len(rest)
            return
        child = _Node(rest, node)
        node.children[rest[0]] = child
        self._claim(child, backend, now_s)

    def _claim(self, node: _Node, backend: int, now_s: float) -> None:
        claim = node.claims.get(backend)
        if claim is not None:
            claim.used, claim.used_s = self._uses, now_s
            return
        claim = node.claims[backend] = _Claim(node, self._uses, now_s)
        node.holders |= 1 << backend
        self._holders[backend].blocks += len(node.label)
        self._holders[backend].claims += 1
        if node.parent is not None and (above := node.parent.claims.get(backend)) is not None:
            above.below += 1
        self._enqueue(claim, backend)

    def _split(self, node: _Node, at: int) -> _Node:
        """Cut a node in two after so many blocks and return the new upper one; who held it holds both."""
        assert node.parent is not None
        upper = _Node(node.label[:at], node.parent)
        node.parent.children[upper.label[0]] = upper
        node.label = node.label[at:]
        node.parent = upper
        upper.children[node.label[0]] = node
        upper.holders = node.holders
        for backend, claim in node.claims.items():
            above = upper.claims[backend] = _Claim(upper, claim.used, claim.used_s)
            above.below = 1
            self._holders[backend].claims += 1
        return upper

    # Letting go.

    def _enqueue(self, claim: _Claim, backend: int) -> None:
        if claim.queued:
            return
        claim.queued = True
        holder = self._holders[backend]
        heapq.heappush(holder.queue, (claim.used, next(self._numbers), claim))
        if len(holder.queue) > _SPARE_PLACES + 2 * holder.claims:
            holder.queue = [place for place in holder.queue if place[2].node.claims.get(backend) is place[2]]
            heapq.heapify(holder.queue)

    def _oldest(self, backend: int) -> _Claim | None:
        """Return the claim that was used longest ago of those that can go.

        A claim's place in the queue may be older than its last use, never newer: what comes out with an old place is
        put back, so that using a claim costs nothing.
        """
        queue = self._holders[backend].queue
        while queue:
            used, _, claim = queue[0]
            if claim.below or claim.node.claims.get(backend) is not claim:
                heapq.heappop(queue)
                claim.queued = False
            elif claim.used > used:
                heapq.heapreplace(queue, (claim.used, next(self._numbers), claim))
            else:
                return claim
        return None

    def _shrink(self, backend: int) -> None:
        holder = self._holders[backend]
        while holder.blocks > holder.capacity and (claim := self._oldest(backend)) is not None:
            excess = holder.blocks - holder.capacity
            if len(claim.node.label) > excess:
                cut = len(claim.node.label) - excess
                if len(claim.node.claims) == 1 and not claim.node.children:
                    claim.node.label = claim.node.label[:cut]
                    holder.blocks -= excess
                    return
                self._split(claim.node, cut)
            self._release(claim, backend)

    def _release(self, claim: _Claim, backend: int) -> None:
        node = claim.node
        assert node.parent is not None
        del node.claims[backend]
        node.holders &= ~(1 << backend)
        self._holders[backend].blocks -= len(node.label)
        self._holders[backend].claims -= 1
        if not node.claims:
            del node.parent.children[node.label[0]]
        if (above := node.parent.claims.get(backend)) is not None:
            above.below -= 1
            if not above.below:
                self._enqueue(above, backend)

    def _release_all(self, node: _Node, backend: int) -> None:
        for below in reversed(list(_held(node, backend))):
            self._release(below.claims[backend], backend)

    def _expire(self, now_s: float) -> None:
        expires_s = math.inf
        for backend, holder in enumerate(self._holders):
            if holder.lifetime_s is None:
                continue
            while (claim := self._oldest(backend)) is not None and claim.used_s + holder.lifetime_s <= now_s:
                self._release(claim, backend)
            if claim is not None:
                expires_s = min(expires_s, claim.used_s + holder.lifetime_s)
        self._expires_s = expires_s


def _held(node: _Node, backend: int) -> Iterator[_Node]:
    """Yield a node and all below it that a backend holds, each before those below it."""
    todo = [node]
    while todo:
        node = todo.pop()
        yield node
        todo += [child for child in node.children.values() if backend in child.claims]
