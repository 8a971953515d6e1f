"""Pictures of results, as SVG and PNG.

They stand on a light ground of their own with dark writing, so that they read the same on a light and on a dark page.
Colours are those of Okabe and
Ito, which people with any colour vision tell apart; lines differ in their dashes too. Nothing in a file depends on
when it was made.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsec.base.errors import CapabilityMissingError, InvalidRequestError
from dsec.sim.numbers import number_of
from dsec.sim.result import Result
from dsec.sim.scenario_file import Case, Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#7A6A00", "#56B4E9", "#444444", "#E69F00")
_DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (3, 1)), (0, (1, 1)), (0, (8, 2)))
_GROUND, _INK, _GRID = "#FCFCFA", "#202020", "#D8D8D4"
_STYLE = {
    "figure.facecolor": _GROUND, "axes.facecolor": _GROUND, "savefig.facecolor": _GROUND, "axes.edgecolor": _INK,
    "axes.labelcolor": _INK, "text.color": _INK, "xtick.color": _INK, "ytick.color": _INK, "grid.color": _GRID,
    "axes.grid": True, "axes.axisbelow": True, "axes.spines.top": False, "axes.spines.right": False, "font.size": 10.5,
    "axes.titlesize": 11.5, "axes.titlelocation": "left", "legend.frameon": False, "svg.hashsalt": "dsec",
    "svg.fonttype": "path", "lines.linewidth": 1.8,
}  # fmt: skip
_WIDTH_IN, _HEIGHT_IN, _DPI = 8.0, 4.2, 110
_HOUR_S, _MINUTE_S = 3600.0, 60.0
_LINE, _HANDLE = 100, 8
"""Characters of a legend that fit beside each other, and what the handle of an entry takes."""
_LARGE = 10_000
"""From here on the numbers of an axis are written out with separators."""


def draw(picture: Picture, cases: Sequence[Case], results: Sequence[Result], directory: Path) -> list[Path]:
    """Draw one picture into ``NAME.svg`` and ``NAME.png``.

    Raises:
        CapabilityMissingError: matplotlib is not installed.
        InvalidRequestError: the picture names a number or series that there is not.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise CapabilityMissingError(
            "pictures need matplotlib", resolution="pip install 'dsec[planning]', or leave --plot out"
        ) from error
    chosen = [
        (case, result)
        for case, result in zip(cases, results, strict=True)
        if not picture.cases or case.name in picture.cases
    ]
    directory.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(_STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(_WIDTH_IN, _HEIGHT_IN), layout="constrained")
        axes = figure.subplots()
        _DRAWERS[picture.kind](axes, picture, chosen)
        axes.set_title(picture.title)
        if picture.y_label:
            axes.set_ylabel(picture.y_label)
        return _save(figure, directory / picture.name)


def _save(figure: Figure, stem: Path) -> list[Path]:
    paths = [stem.with_suffix(".svg"), stem.with_suffix(".png")]
    figure.savefig(paths[0], metadata={"Date": None})
    figure.savefig(paths[1], dpi=_DPI, metadata={"Software": None})
    return paths


Chosen = Sequence[tuple[Case, Result]]


def _lines(axes: Axes, picture: Picture, chosen: Chosen) -> None:
    turn = 0
    end_s = max((result.simulated_s for _, result in chosen), default=1.0)
    unit_s, unit = (
        (_HOUR_S, "h") if end_s > 3 * _HOUR_S else (_MINUTE_S, "min") if end_s > 5 * _MINUTE_S else (1.0, "s")
    )
    for case, result in chosen:
        for name in picture.values:
            series = result.series.get(name)
            if series is None:
                known = ", ".join(result.series)
                raise InvalidRequestError(
                    f"picture {picture.name}: no series {name!r}", resolution=f"there are: {known}"
                )
            label = " ".join(filter(None, (case.name, name.replace("_", " ") if len(picture.values) > 1 else "")))
            axes.plot(
                [time_s / unit_s for time_s in series.times_s],
                [value * picture.unit_factor for value in series.values],
                label=label or name,
                color=_COLOURS[turn % len(_COLOURS)],
                linestyle=_DASHES[turn % len(_DASHES)],
            )
            turn += 1
    axes.set_xlabel(picture.x_label or f"time / {unit}")
    _scale(axes, picture)
    _legend(axes, turn)


def _curves(axes: Axes, picture: Picture, chosen: Chosen) -> None:
    groups = list(dict.fromkeys(case.group for case, _ in chosen))
    turn = 0
    for group in groups:
        members = sorted((case.x, at) for at, (case, _) in enumerate(chosen) if case.group == group)
        for name in picture.values:
            values = [number_of(chosen[at][1], name) * picture.unit_factor for _, at in members]
            label = " ".join(filter(None, (group, name if len(picture.values) > 1 else "")))
            axes.plot(
                [x for x, _ in members],
                values,
                label=label or name,
                marker="o",
                markersize=5,
                color=_COLOURS[turn % len(_COLOURS)],
                linestyle=_DASHES[turn % len(_DASHES)],
            )
            turn += 1
    axes.set_xlabel(picture.x_label)
    _scale(axes, picture)
    _legend(axes, turn)


def _bars(axes: Axes, picture: Picture, chosen: Chosen) -> None:
    count = len(picture.values)
    height = 0.8 / count
    for turn, name in enumerate(picture.values):
        values = [number_of(result, name) * picture.unit_factor for _, result in chosen]
        places = [at + (turn - (count - 1) / 2) * height for at in range(len(chosen))]
        bars = axes.barh(places, values, height * 0.92, label=_words(name), color=_COLOURS[turn % len(_COLOURS)])
        axes.bar_label(bars, labels=[_short(value) for value in values], padding=3, fontsize=9)
    axes.set_yticks(range(len(chosen)), [case.name for case, _ in chosen])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlabel(picture.x_label)
    if picture.scale == "log":
        axes.set_xscale("log")
    axes.margins(x=0.12)
    _legend(axes, count)


def _short(value: float) -> str:
    if value and not 0.01 <= abs(value) < 1e5:
        return f"{value:.2g}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _words(name: str) -> str:
    """Return a number's name for a legend; the axis says the unit."""
    return " ".join(part.removesuffix("_s") for part in name.split(".")[1:]).replace("_", " ")


def _scale(axes: Axes, picture: Picture) -> None:
    """Begin a linear axis at 0: lengths are compared by eye."""
    axes.set_yscale(picture.scale)
    if picture.scale == "linear":
        axes.set_ylim(bottom=0.0)
        if axes.get_ylim()[1] >= _LARGE:
            axes.yaxis.set_major_formatter("{x:,.0f}")


def _legend(axes: Axes, entries: int) -> None:
    """Put the legend below, in as many columns as fit: a wider one would squeeze the picture."""
    if entries > 1:
        longest = max(len(str(text)) for text in axes.get_legend_handles_labels()[1])
        columns = max(1, min(4, entries, _LINE // (longest + _HANDLE)))
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=columns, fontsize=9.5)


_DRAWERS: dict[str, Any] = {"lines": _lines, "bars": _bars, "curves": _curves}
