"""The settings of routing, each with the reason for its default."""

from __future__ import annotations

from dsec.base.errors import InvalidRequestError
from dsec.model.value import Value


class RoutingPolicy(Value, frozen=True):
    """How backends are chosen.

    Attributes:
        crowding_s: a backend whose slots are all taken counts as this much later than an empty one, one that is half
            full as half of it. Without it, calls that share a prefix fill the backend that holds it up to the point at
            which each of them gains nothing, and those that come next pay for it. On traces of agents 1 to 2 s
            shortened both the first token and the whole answer (`dsec bench routing`).
        sticky_s: an episode stays where it was unless another backend is better by more than this. Moving leaves a
            prefix behind that is worth something for all rounds to come, and predictions are not exact.
        sticky_share: the same for prices: it stays up to this share above the cheapest.
        episodes: how many episodes are remembered; the one used longest ago makes room.
        index_blocks: blocks remembered of a backend that does not declare how much it keeps: 16,384 blocks of 1 KiB
            are about four million tokens.
        hold_weight: weight of the newest call in the mean time that calls hold a slot.
        hit_weight: weight of the newest report in the share of predicted hits that are real.
        suspend_after: failures in a row after which a backend is left out for a while.
        suspend_s: how long, doubled with each further failure.
        suspend_limit_s: the longest.
        pause_s: how long a backend that is limited or overloaded is left alone if it does not say; doubled each time.
        pause_limit_s: the longest, and the longest that a backend may ask for.
    """

    crowding_s: float = 1.5
    sticky_s: float = 0.5
    sticky_share: float = 0.05
    episodes: int = 100_000
    index_blocks: int = 16_384
    hold_weight: float = 0.05
    hit_weight: float = 0.1
    suspend_after: int = 3
    suspend_s: float = 5.0
    suspend_limit_s: float = 300.0
    pause_s: float = 1.0
    pause_limit_s: float = 600.0

    def __post_init__(self) -> None:
        for name, least in (("episodes", 1), ("index_blocks", 0), ("suspend_after", 1)):
            if getattr(self, name) < least:
                raise InvalidRequestError(
                    f"routing: {name} is {getattr(self, name)}", resolution=f"give a {name} of {least} or more"
                )
        for name in (
            "crowding_s",
            "sticky_s",
            "sticky_share",
            "suspend_s",
            "suspend_limit_s",
            "pause_s",
            "pause_limit_s",
        ):
            if not getattr(self, name) >= 0:
                raise InvalidRequestError(
                    f"routing: {name} is {getattr(self, name)}", resolution=f"give a {name} of 0 or more"
                )
        for name in ("hold_weight", "hit_weight"):
            if not 0 < getattr(self, name) <= 1:
                raise InvalidRequestError(
                    f"routing: {name} is {getattr(self, name)}", resolution=f"give a {name} above 0 and at most 1"
                )
