"""What a run hands back."""

from __future__ import annotations

from dsec.model.value import Value
from dsec.sim.figures import Figure, Level, Series


class LevelFigure(Value, frozen=True):
    """A quantity over time, summed up: its mean over time and its largest value."""

    mean: float
    maximum: float

    @classmethod
    def of(cls, level: Level, now_s: float) -> LevelFigure:
        """Sum up a level."""
        return cls(mean=level.mean(now_s), maximum=level.maximum)


class Result(Value, frozen=True):
    """One run of one case. Names say their units.

    Attributes:
        scenario, case, seed: what was run; these three determine everything below.
        simulated_s: how much time passed in the simulation.
        events: how many events it took.
        counts: things that were counted, and single numbers.
        figures: distributions, mostly of times.
        levels: quantities over time.
        series: the same for pictures.
    """

    scenario: str
    case: str = ""
    seed: int = 0
    simulated_s: float = 0.0
    events: int = 0
    counts: dict[str, float] = {}
    figures: dict[str, Figure] = {}
    levels: dict[str, LevelFigure] = {}
    series: dict[str, Series] = {}
