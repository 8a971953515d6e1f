"""What a workload's combinations come to: the values that are printed, drawn and encoded."""

from __future__ import annotations

from dataclasses import dataclass

from dsec.planner.additions import Addition
from dsec.planner.combination import Combination, Shortfall
from dsec.planner.outer import Outer
from dsec.planner.space import Size
from dsec.planner.table import Table
from dsec.planner.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A policy with a service on a kind of host, at its best counts.

    Attributes:
        line: of the table.
        combination: at those counts; where none is feasible, at the largest that are offered.
        shortfalls: what it lacks there.
        addition: the least that would make it feasible; None: it is feasible, or nothing would.
        extended: the combination with the addition; None: there is none.
    """

    line: int
    combination: Combination
    shortfalls: tuple[Shortfall, ...]
    addition: Addition | None
    extended: Combination | None

    @property
    def best(self) -> Combination:
        """The combination that would be run: the feasible one, or the one with the addition."""
        return self.extended if self.extended is not None else self.combination

    @property
    def is_possible(self) -> bool:
        """Whether it is feasible, if need be with an addition."""
        return self.combination.feasible or self.extended is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """What happens to the answer when one input changes and all others stay.

    Attributes:
        name: of the input, as in the file.
        value: as it is, as text.
        down, up: the nearest values at which the answer changes, and what it changes to; empty: it does not.
        usd_per_ten_percent: change of the chosen combination's cost per thousand when the input grows by 10 %.
    """

    name: str
    value: str
    down: str
    up: str
    usd_per_ten_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer.

    Attributes:
        workload: what was asked.
        size: how many combinations there are.
        outer, table: what was computed, as arrays; of a search only the candidates.
        combinations: of the table, line by line.
        options: the best of each policy, service, sessions and kind of host, cheapest first.
        chosen: the recommendation; None: nothing reaches the goal.
        reasons: why, one line each.
        front: combinations of which no other is both cheaper and faster.
        front_is_exact: whether all combinations were looked at for it.
        levers: what would change the answer.
        break_evens: lines about where two ways cost the same.
        warnings: what the formulas assume and this workload may not keep.
    """

    workload: Workload
    size: Size
    outer: Outer
    table: Table
    combinations: tuple[Combination, ...]
    options: tuple[Option, ...]
    chosen: Option | None
    reasons: tuple[str, ...]
    front: tuple[Combination, ...]
    front_is_exact: bool
    levers: tuple[Lever, ...]
    break_evens: tuple[str, ...]
    warnings: tuple[str, ...]
