"""What is measured by the amount written: the amounts, and a picture that shows whether time grows with them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dsec.base.units import GIB, MIB
from dsec.bench.distribution import Distribution
from dsec.bench.report import Report

if TYPE_CHECKING:
    from dsec.planner.picture import Curve

_POINTS = (MIB, 16 * MIB, 256 * MIB, GIB, 4 * GIB)


def amounts_up_to(largest_bytes: int) -> tuple[int, ...]:
    """Return the amounts to write: those of a common scale that are smaller, and the largest."""
    return (*(point for point in _POINTS if point < largest_bytes), largest_bytes)


def draw_by_size(report: Report, directory: Path, *, title: str, goal_ms: float) -> list[Path]:
    """Draw p50 of every distribution of the series over the amount written, and p95 of the first of each row.

    Args:
        report: rows of its series have `written_bytes`, distributions, and perhaps what tells them apart (`how`).
        directory: gets ``NAME.svg`` and ``NAME.png``, each for a light and a dark page.
        title: above the picture.
        goal_ms: drawn as a limit.

    Raises:
        CapabilityMissingError: matplotlib is not installed.
    """
    from dsec.planner.picture import Caption, Curves, Mark
    from dsec.planner.pictures.drawing import write_pictures

    text = f"{report.host.get('cores', '?')} cores, n={report.ours.n} of each; dsec bench {report.benchmark}"
    picture = Curves(
        caption=Caption(name=f"{report.benchmark}-by-size", title=title, text=text),
        x_label="written",
        x_unit="MiB",
        y_label="time",
        y_unit="ms",
        curves=(*_curves(report, "p50", most=None), *_curves(report, "p95", most=1)),
        log=True,
        limits=(Mark(at=goal_ms, label=f"goal: {goal_ms:g} ms"),),
    )
    return write_pictures([picture], directory)


def _curves(report: Report, which: Literal["p50", "p95"], *, most: int | None) -> tuple[Curve, ...]:
    """Return a curve for each of the first `most` distributions of the rows."""
    from dsec.planner.picture import Curve

    lines: dict[str, list[tuple[float, float]]] = {}
    for row in report.series:
        if row.get("written_bytes"):
            for name, value in islice(_distributions(row).items(), most):
                label = ", ".join(filter(None, (name, str(row.get("how", "")), which)))
                lines.setdefault(label, []).append((row["written_bytes"] / MIB, getattr(value, which)))
    return tuple(Curve(label=label, role="fixed", points=tuple(points)) for label, points in lines.items())


def _distributions(row: Mapping[str, Any]) -> dict[str, Distribution]:
    return {
        name.removesuffix("_ms").replace("_", " "): value
        for name, value in row.items()
        if isinstance(value, Distribution)
    }
