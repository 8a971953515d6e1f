"""What is known of an episode's environment from what was measured: moving estimates of its times and its memory.

Early on an estimate is the mean of what was seen; later the newest values count more, so that a model that becomes
faster or an environment that grows is followed within some ten rounds. Before anything was seen it is what the caller
expects, which the first measured value takes the place of entirely.
"""

from __future__ import annotations

import math

import msgspec

from dsec.base.errors import InvalidRequestError
from dsec.model.value import Value

NEWEST_WEIGHT = 0.2
"""Share of the newest value once enough were seen."""
WINDOW = 32
"""Times of thinking that are kept one by one: what is asked of them is how they spread."""


def _check(what: str, value: float) -> None:
    if not (math.isfinite(value) and value >= 0):
        raise InvalidRequestError(
            f"{what} is {value:g}", resolution="measure with a clock that does not go back, and give a finite number"
        )


class Estimate(Value, frozen=True, omit_defaults=True):
    """A moving estimate of a quantity that is not negative.

    Attributes:
        value: the estimate; with a `count` of 0, what was expected beforehand.
        count: how many values were seen.
    """

    value: float = 0.0
    count: int = 0

    def __post_init__(self) -> None:
        _check("an estimate", self.value)

    def seen(self, value: float) -> Estimate:
        """Return the estimate with one more value.

        Raises:
            InvalidRequestError: the value is negative, infinite or not a number.
        """
        _check("a measured value", value)
        weight = max(1 / (self.count + 1), NEWEST_WEIGHT)
        return Estimate(value=self.value + weight * (value - self.value), count=self.count + 1)


class EnvironmentTimes(Value, frozen=True, omit_defaults=True):
    """What was measured of an episode's environment.

    The expectations that it begins with are of small sandboxes with resident images on a host with a local disk. They
    decide only whether a mode is tried at all; its first turn replaces them.

    Attributes:
        thinking_s: from the end of a round's tools until the next calls are there.
        tools_s: from there until the last tool has ended.
        memory_gib: what stands in memory after the tools of a round, and so through thinking.
        prepare_s: making an environment anew, until a tool can start in it.
        prepare_cpu_s: processors' time of that.
        save_s: making the files of a round such that the sandbox can go, beyond what each round saves anyway.
        pause_s_per_gib: freezing, and writing memory out.
        resume_s: until a paused one answers again.
        thinking_window_s: the newest times of thinking, the oldest of them first.
        writing_window_s: the newest times from where the model began to write a call until that was there.
        leaves_processes: processes outlived the tools of the last round. They would be lost with the sandbox.
    """

    thinking_s: Estimate = Estimate()
    tools_s: Estimate = Estimate()
    memory_gib: Estimate = Estimate()
    prepare_s: Estimate = Estimate(value=0.15)
    prepare_cpu_s: Estimate = Estimate(value=0.1)
    save_s: Estimate = Estimate(value=0.05)
    pause_s_per_gib: Estimate = Estimate(value=1.6)
    resume_s: Estimate = Estimate(value=0.1)
    thinking_window_s: tuple[float, ...] = ()
    writing_window_s: tuple[float, ...] = ()
    leaves_processes: bool = False

    def seen(self, **values: float) -> EnvironmentTimes:
        """Return the estimates with one more value for each that is named.

        Raises:
            InvalidRequestError: a value is negative, infinite or not a number.
        """
        known = {name: getattr(self, name).seen(value) for name, value in values.items()}
        if "thinking_s" in values:
            known["thinking_window_s"] = (*self.thinking_window_s, values["thinking_s"])[-WINDOW:]
        return msgspec.structs.replace(self, **known)

    def with_writing(self, writing_s: float) -> EnvironmentTimes:
        """Return the estimates with one more time in which a model wrote a call."""
        return msgspec.structs.replace(self, writing_window_s=(*self.writing_window_s, max(writing_s, 0.0))[-WINDOW:])

    def with_processes(self, *, left: bool) -> EnvironmentTimes:
        """Return the estimates, knowing whether processes outlived the newest tools."""
        return msgspec.structs.replace(self, leaves_processes=left)
