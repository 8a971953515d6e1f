"""Which sandboxes leave a node that is far fuller than its peers: only where moving beats waiting.

Each node judges for itself, from its own view and those of its peers. It acts when its load (`dsec.placement.load`) is
above 1.5 times the mean for several looks in a row, and then moves what is cheapest for the room that it gives until it
is expected to be at 1.2 times the mean. Waiting is the other way to get there: the load may be falling by itself. So
each move has to take less than half of the wait after what the sandbox loses by it, which is the goal that counts the
delay of the one that is moved as well as that of those that stay (`dsec.costs.relocation`). What it loses is its
processes: a container carries none, and a command that runs begins anew.

Nothing goes back and forth, for four reasons, each enough against one cause: the mark at which a node begins is above
that at which it stops, and no target is filled beyond the latter; a single look decides nothing; after it moved
something a node waits until views can show that; and what came to a node stays for a while.

Sources: the chapter, section 11.4.3, example 11-3 and exercise 11-4; hysteresis and the cost of moving as in T. Wood et
al., *Black-box and Gray-box Strategies for Virtual Machine Migration*, NSDI 2007.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from dsec.base.errors import InvalidRequestError
from dsec.costs.relocation import delay_by_moving_s
from dsec.lifecycle.precopy import predict
from dsec.model.value import Value
from dsec.placement.load import load_of
from dsec.placement.view import Health, NodeView, Usage


class BalancePolicy(Value, frozen=True):
    """When a node moves sandboxes away for its load.

    Attributes:
        trigger: it begins above this multiple of the mean load.
        goal: it stops at this multiple, and fills no other node beyond it.
        least_load: below this load nothing is moved, whatever the others have.
        ceiling: load up to which another node is filled.
        looks: how often in a row the load has to be above the trigger.
        at_once: moves of one look.
        cooldown_s: from a look with moves to the next that may move.
        stay_s: how long a sandbox stays where it came to be.
        horizon_s: no wait counts for longer than this.
        copying_bytes_per_s, fixed_s: of a migration, while nothing is measured.
    """

    trigger: float = 1.5
    goal: float = 1.2
    least_load: float = 0.5
    ceiling: float = 0.85
    looks: int = 3
    at_once: int = 4
    cooldown_s: float = 60.0
    stay_s: float = 600.0
    horizon_s: float = 600.0
    copying_bytes_per_s: float = 100e6
    fixed_s: float = 0.1

    def __post_init__(self) -> None:
        ordered = 1.0 <= self.goal < self.trigger and 0 <= self.least_load <= 1 and 0 < self.ceiling <= 1
        if not ordered or self.looks < 1 or self.at_once < 1 or min(self.cooldown_s, self.stay_s, self.horizon_s) < 0:
            raise InvalidRequestError(
                "a node that begins to move sandboxes at a multiple of the mean has to stop at a lower one, of at "
                "least 1; shares are from 0 to 1, and counts at least 1"
            )


class Movable(Value, frozen=True):
    """A sandbox that could be moved.

    Attributes:
        sandbox_id: its id.
        cpu_millis, memory_bytes: what it uses.
        written_bytes: what its move copies.
        writing_bytes_per_s: how fast it writes.
        lost_s: work of its processes that the move throws away: how long its commands have run; infinite: more than
            any wait.
        here_s: how long it has been on this node.
    """

    sandbox_id: str
    cpu_millis: int = 0
    memory_bytes: int = 0
    written_bytes: int = 0
    writing_bytes_per_s: float = 0.0
    lost_s: float = 0.0
    here_s: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One sandbox that leaves.

    Attributes:
        sandbox_id: which.
        node: where to.
        move_s: how long that is expected to take.
        reason: in words.
    """

    sandbox_id: str
    node: str
    move_s: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a look led to.

    Attributes:
        load, mean: of this node, and of all that answered.
        wait_s: until the load is below the trigger by itself, as its fall tells.
        moves: what leaves now, in this order.
        reason: why nothing does, or what for.
    """

    load: float
    mean: float
    wait_s: float = math.inf
    moves: tuple[Move, ...] = ()
    reason: str = ""


class Balancer:
    """The judgement of one node. Time and views are given; nothing is asked for or carried out here."""

    def __init__(self, policy: BalancePolicy = BalancePolicy()) -> None:
        self.policy = policy
        self._above: deque[tuple[float, float]] = deque(maxlen=policy.looks)
        self._moved_s = -math.inf

    def look(self, now_s: float, here: NodeView, peers: Sequence[NodeView], movable: Sequence[Movable]) -> Look:
        """Judge the present views.

        Args:
            now_s: on a clock that only goes forward.
            here: this node.
            peers: those that answered.
            movable: sandboxes that could leave; none is looked at unless the load calls for it.
        """
        policy = self.policy
        load = load_of(here.used, here.capacity)
        counted = [view for view in (here, *peers) if view.health in (Health.ACCEPTING, Health.CLOSED)]
        mean = sum(load_of(view.used, view.capacity) for view in counted) / len(counted) if counted else load
        if load <= max(policy.trigger * mean, policy.least_load) or here.health is Health.DRAINING:
            self._above.clear()
            return Look(load=load, mean=mean, reason="the load is not above the others'")
        self._above.append((now_s, load))
        if len(self._above) < policy.looks:
            return Look(load=load, mean=mean, reason=f"look {len(self._above)} of {policy.looks} above the trigger")
        if now_s - self._moved_s < policy.cooldown_s:
            return Look(load=load, mean=mean, reason="the last moves may not be seen yet")
        wait_s = self._wait_s(policy.trigger * mean)
        moves = _Choice(policy, here, peers, mean, wait_s).of(movable)
        if moves:
            self._moved_s = now_s
            self._above.clear()
        reason = f"load {load:.2f} against a mean of {mean:.2f}"
        return Look(load=load, mean=mean, wait_s=wait_s, moves=moves, reason=reason if moves else "no move is worth it")

    def _wait_s(self, bound: float) -> float:
        """How long the load takes to fall to `bound` at the rate of the last looks, at most the horizon."""
        (first_s, first), (last_s, last) = self._above[0], self._above[-1]
        if last >= first or last_s <= first_s:
            return self.policy.horizon_s
        return min((last - bound) * (last_s - first_s) / (first - last), self.policy.horizon_s)


class _Choice:
    """One choice of moves: what each would do is counted before the next is chosen."""

    def __init__(
        self, policy: BalancePolicy, here: NodeView, peers: Sequence[NodeView], mean: float, wait_s: float
    ) -> None:
        self._policy = policy
        self._mean = mean
        self._wait_s = wait_s
        self._capacity = here.capacity
        self._used = here.used
        self._targets = {
            view.node: (view.used, view.capacity)
            for view in peers
            if view.health is Health.ACCEPTING and view.node != here.node
        }

    def of(self, movable: Sequence[Movable]) -> tuple[Move, ...]:
        policy, moves = self._policy, list[Move]()
        worth = sorted(filter(self._is_worth_it, movable), key=lambda one: (-self._relief(one), one.sandbox_id))
        for one in worth:
            if len(moves) == policy.at_once or load_of(self._used, self._capacity) <= policy.goal * self._mean:
                break
            node = self._target(one)
            if node is None:
                continue
            used, capacity = self._targets[node]
            self._targets[node] = (_changed(used, one, 1), capacity)
            self._used = _changed(self._used, one, -1)
            move_s = self._move_s(one)
            reason = f"moving takes {move_s:.3g} s and loses {one.lost_s:.3g} s, waiting {self._wait_s:.3g} s"
            moves.append(Move(sandbox_id=one.sandbox_id, node=node, move_s=move_s, reason=reason))
        return tuple(moves)

    def _is_worth_it(self, one: Movable) -> bool:
        if not math.isfinite(one.lost_s):
            return False
        delay_s = delay_by_moving_s(move_s=self._move_s(one), extra_s=one.lost_s)
        return one.here_s >= self._policy.stay_s and delay_s < self._wait_s

    def _move_s(self, one: Movable) -> float:
        return predict(
            written_bytes=one.written_bytes,
            writing_bytes_per_s=one.writing_bytes_per_s,
            copying_bytes_per_s=self._policy.copying_bytes_per_s,
            fixed_s=self._policy.fixed_s,
        ).move_s

    def _relief(self, one: Movable) -> float:
        """How much less full the fullest resource is without it, for each second of delay."""
        relief = load_of(self._used, self._capacity) - load_of(_changed(self._used, one, -1), self._capacity)
        return relief / delay_by_moving_s(move_s=max(self._move_s(one), 1e-6), extra_s=one.lost_s)

    def _target(self, one: Movable) -> str | None:
        """The node that is least full with it, if that leaves both sides better than before."""
        after = {node: load_of(_changed(used, one, 1), capacity) for node, (used, capacity) in self._targets.items()}
        if not after:
            return None
        node = min(after, key=lambda each: (after[each], each))
        here_after = load_of(_changed(self._used, one, -1), self._capacity)
        bound = min(self._policy.ceiling, self._policy.goal * self._mean)
        relieves = here_after < load_of(self._used, self._capacity)
        return node if relieves and after[node] <= bound and after[node] <= here_after else None


def _changed(used: Usage, one: Movable, sign: int) -> Usage:
    return Usage(
        cpu_millis=max(0, used.cpu_millis + sign * one.cpu_millis),
        memory_bytes=max(0, used.memory_bytes + sign * one.memory_bytes),
        sandboxes=max(0, used.sandboxes + sign),
        creating=used.creating,
    )
