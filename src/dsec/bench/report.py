"""The one form in which every benchmark reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dsec.bench.distribution import Distribution, ratio
from dsec.model.value import Value


class Report(Value, frozen=True):
    """One run of one benchmark.

    Attributes:
        benchmark: its name.
        unit: of every distribution here.
        better: whether lower or higher values are.
        ours: what DSec takes.
        references: what else was measured in the same run, by name.
        ratios: ours.p50 / reference.p50 by the reference's name.
        series: further figures; each row names its own units.
        host: where it was measured.
    """

    benchmark: str
    unit: str
    better: Literal["lower", "higher"]
    ours: Distribution
    references: dict[str, Distribution]
    ratios: dict[str, float]
    series: list[dict[str, Any]]
    host: dict[str, Any]


def make_report(
    benchmark: str,
    unit: str,
    better: Literal["lower", "higher"],
    *,
    ours: Distribution,
    references: Mapping[str, Distribution],
    series: Sequence[Mapping[str, Any]],
    host: Mapping[str, Any],
) -> Report:
    """Put a report together, its ratios included."""
    return Report(
        benchmark=benchmark,
        unit=unit,
        better=better,
        ours=ours,
        references=dict(references),
        ratios={name: ratio(ours.p50, reference.p50) for name, reference in references.items() if reference.p50},
        series=[dict(row) for row in series],
        host=dict(host),
    )
