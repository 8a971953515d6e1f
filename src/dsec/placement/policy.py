"""The settings of placement, each with the reason for its default."""

from __future__ import annotations

from dsec.base.errors import InvalidRequestError
from dsec.model.value import Value


def _check_share(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise InvalidRequestError(f"{name} is {value}", resolution=f"give a {name} from 0 to 1")


def _check_above_nothing(name: str, value: float) -> None:
    if not value > 0:
        raise InvalidRequestError(f"{name} is {value}", resolution=f"give a {name} above 0")


class Expectation(Value, frozen=True):
    """What a sandbox is expected to use of its limits, until a view shows what it does use.

    Attributes:
        cpu_share: of its processor limit. Nine tenths of the containers and microVMs in a week of DeepSeek Elastic
            Compute used at most 5% of what they had asked for (arXiv 2609.22978, section 4).
        memory_share: of its memory limit. No published figure is known; a quarter keeps a burst of agents with 2 GiB
            limits from being placed as if each had 2 GiB, and is replaced by the measured use with the next view.
    """

    cpu_share: float = 0.05
    memory_share: float = 0.25

    def __post_init__(self) -> None:
        for name in ("cpu_share", "memory_share"):
            _check_share(name, getattr(self, name))


class Ageing(Value, frozen=True):
    """How a view loses weight as it grows old.

    Attributes:
        fresh_s: up to this age a view counts in full. Two polls of a watcher that polls each second, and some delay.
        lost_s: from this age on the node counts as lost, unless most nodes do (then the watcher is what is lost).
        floor: the least weight of an old view. Above 0, so that the scheduler's own placements still spread.
        panic_share: when fewer than this share of the nodes are heard of, age is no reason to leave a node out.
            A watcher that fell silent must not empty the fleet; nodes reject what they cannot take.
    """

    fresh_s: float = 5.0
    lost_s: float = 60.0
    floor: float = 0.2
    panic_share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.fresh_s < self.lost_s:
            raise InvalidRequestError(
                f"ageing: fresh_s is {self.fresh_s} and lost_s {self.lost_s}",
                resolution="give seconds with 0 < fresh_s < lost_s",
            )
        _check_share("floor", self.floor)
        _check_share("panic_share", self.panic_share)


class TrustPolicy(Value, frozen=True):
    """How much a node's word is worth after it was wrong.

    Attributes:
        after_rejection: factor for each rejection by a node whose view had room (`surprise_load` or less).
        after_failure: factor for each creation that failed or was not answered there.
        after_slow: factor for each creation that took `slow_factor` times the fleet's usual time or more.
        recovery: share of the lost trust that each success gives back.
        half_life_s: lost trust halves in this time in any case, so that a mended node is tried again.
        floor: the least trust.
        surprise_load: a rejection surprises when the node should have been at this load or less.
        slow_factor: see `after_slow`.
        slow_least_s: what takes less is not slow, whatever is usual: the difference between 2 and 10 ms is chance.
        suspend_after: failures in a row after which a node is left out for a while.
        suspend_s: how long, doubled with each further failure.
        suspend_limit_s: the longest.
    """

    after_rejection: float = 0.8
    after_failure: float = 0.5
    after_slow: float = 0.9
    recovery: float = 0.1
    half_life_s: float = 60.0
    floor: float = 0.05
    surprise_load: float = 0.9
    slow_factor: float = 4.0
    slow_least_s: float = 1.0
    suspend_after: int = 3
    suspend_s: float = 10.0
    suspend_limit_s: float = 300.0

    def __post_init__(self) -> None:
        for name in ("after_rejection", "after_failure", "after_slow", "recovery", "floor"):
            _check_share(name, getattr(self, name))
        for name in ("half_life_s", "slow_factor", "suspend_after", "suspend_s", "suspend_limit_s"):
            _check_above_nothing(name, getattr(self, name))


class PlacementPolicy(Value, frozen=True):
    """How a scheduler chooses.

    Attributes:
        choices: how many nodes are drawn at random (k); the least loaded of them is taken. 1 is random placement.
        overlay: whether own placements count before a view shows them. False only to show what it is good for.
        schedulers: for how many placements each own one counts, until views show how much others place.
        learn: whether it is learnt from the views; see `dsec.placement.others`.
        rejections: after so many nodes refused one sandbox, the refusal is reported.
        draws: how often k nodes are drawn when all of them are full, before every node is looked at.
        expectation, ageing, trust: see there.
        remembered: how many finished placements are kept, so that a repeated request gets the same answer.
        tick_s: how often ages and trust are looked at.
    """

    choices: int = 2
    overlay: bool = True
    schedulers: int = 1
    learn: bool = True
    rejections: int = 5
    draws: int = 2
    expectation: Expectation = Expectation()
    ageing: Ageing = Ageing()
    trust: TrustPolicy = TrustPolicy()
    remembered: int = 100_000
    tick_s: float = 1.0

    def __post_init__(self) -> None:
        for name, least in (("choices", 1), ("schedulers", 1), ("rejections", 1), ("draws", 1), ("remembered", 0)):
            if getattr(self, name) < least:
                raise InvalidRequestError(
                    f"placement: {name} is {getattr(self, name)}", resolution=f"give a {name} of {least} or more"
                )
        _check_above_nothing("tick_s", self.tick_s)
