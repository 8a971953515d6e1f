"""What every scenario says, whatever it simulates."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from dsec.model.value import Value


class TimedScenario(Value, frozen=True, kw_only=True):
    """A run of a certain length, whose beginning may be forgotten.

    Attributes:
        title, question: for people.
        seed: of all randomness.
        duration_s: how long work arrives.
        warmup_s: what is measured before is forgotten.
    """

    title: str = ""
    question: str = ""
    seed: int = 0
    duration_s: Annotated[float, Meta(gt=0)] = 3600.0
    warmup_s: Annotated[float, Meta(ge=0)] = 0.0

    def __post_init__(self) -> None:
        if self.warmup_s >= self.duration_s:
            raise ValueError("`warmup` must be shorter than `duration`")
