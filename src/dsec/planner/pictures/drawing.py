"""Draw a picture into files, for a light and for a dark page."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dsec.base.errors import CapabilityMissingError
from dsec.planner.picture import Area, Bars, Curves, Dots, Picture, Timeline
from dsec.planner.pictures import areas, bars, curves, timelines
from dsec.planner.pictures.canvas import Canvas
from dsec.planner.pictures.theme import DARK, LIGHT, Palette, Theme

THEMES = (LIGHT, DARK)
_WIDTH_IN, _HEIGHT_IN, _PAD_IN, _DPI = 9.2, 4.8, 0.16, 144
_NO_DATE = {"svg": {"Date": None}, "png": {"Software": None}}


def draw(picture: Picture, theme: Theme, form: str) -> bytes:
    """Return a picture as ``svg`` or ``png``; the same picture gives the same bytes.

    Raises:
        CapabilityMissingError: matplotlib is not installed.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise CapabilityMissingError(
            "pictures need matplotlib", resolution="pip install 'dsec[planning]', or leave the picture out"
        ) from error
    with matplotlib.rc_context(theme.style()):  # type: ignore[arg-type]
        figure = Figure(figsize=(_WIDTH_IN, _height_in(picture)), layout="constrained")
        figure.get_layout_engine().set(w_pad=_PAD_IN, h_pad=_PAD_IN / 2)  # type: ignore[union-attr, call-arg]
        canvas = Canvas(figure, figure.subplots(), theme, Palette(theme))
        canvas.axes.set_title(picture.caption.title)
        _draw_on(canvas, picture)
        canvas.caption(picture.caption)
        target = io.BytesIO()
        figure.savefig(target, format=form, dpi=_DPI, metadata=_metadata(form))
        return target.getvalue()


def _metadata(form: str) -> dict[str, Any]:
    return dict(_NO_DATE[form])


def _height_in(picture: Picture) -> float:
    if isinstance(picture, Timeline):
        return timelines.height_in(picture)
    return bars.height_in(picture) if isinstance(picture, Bars) else _HEIGHT_IN


def _draw_on(canvas: Canvas, picture: Picture) -> None:
    match picture:
        case Timeline():
            timelines.draw(canvas, picture)
        case Area():
            areas.draw(canvas, picture)
        case Bars():
            bars.draw(canvas, picture)
        case Curves():
            curves.draw_curves(canvas, picture)
        case Dots():
            curves.draw_dots(canvas, picture)


def write_pictures(pictures: Iterable[Picture], directory: Path) -> list[Path]:
    """Write ``NAME.svg``, ``NAME.png`` for light pages and ``NAME.dark.svg``, ``NAME.dark.png`` for dark ones.

    Returns:
        The files, in the order of the pictures.

    Raises:
        CapabilityMissingError: matplotlib is not installed.
        OSError: a file could not be written.
    """
    directory.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for picture in pictures:
        for theme in THEMES:
            for form in ("svg", "png"):
                ending = f".dark.{form}" if theme.is_dark else f".{form}"
                path = directory / (picture.caption.name + ending)
                path.write_bytes(draw(picture, theme, form))
                written.append(path)
    return written
