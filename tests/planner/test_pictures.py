"""Pictures of plans: for light and dark pages, the same each time; what a file says stays text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from dsec.base.errors import InvalidRequestError
from dsec.planner.picture import (
    Area,
    Bar,
    BarPart,
    Bars,
    Caption,
    Curve,
    Curves,
    Dots,
    Lane,
    Mark,
    Picture,
    Span,
    Steps,
    Timeline,
)
from dsec.planner.pictures.drawing import draw, write_pictures
from dsec.planner.pictures.page import render_page
from dsec.planner.pictures.theme import DARK, LIGHT, Palette, ink_on

CAPTION = Caption(name="one", title="A title", where="figure 11-1", text="What it says")
PICTURES: list[Picture] = [
    Timeline(
        caption=CAPTION,
        unit="s",
        lanes=(Lane(label="model", spans=(Span(start=0.0, end=9.0, role="model", label="9 s"),), dots=(0.0,)),),
        marks=(Mark(at=8.9, label="deadline"),),
    ),
    Area(
        caption=CAPTION,
        x_unit="s",
        y_unit="GiB",
        series=(Steps(label="kept", role="memory", points=((0.0, 2.0), (30.0, 0.0))),),
        limits=(Mark(at=3.0, label="host"),),
    ),
    Bars(
        caption=CAPTION,
        bars=(
            Bar(label="memory", parts=(BarPart(label="", value=600.0, role="memory"),), unit="GiB", capacity=358.0),
        ),
        as_share=True,
    ),
    Curves(
        caption=CAPTION,
        x_label="hit rate",
        x_unit="%",
        y_label="cost",
        y_unit="USD",
        curves=(
            Curve(label="A", role="", points=((0.0, 1.0), (100.0, 2.0))),
            Curve(label="B", role="", points=((0.0, 2.0),)),
        ),
    ),
    Dots(
        caption=CAPTION,
        x_label="time",
        x_unit="s",
        y_label="cost",
        y_unit="USD",
        points=((1.0, 2.0, "best", "chosen"),),
    ),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: type(picture).__name__)
@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=lambda theme: theme.name)
def test_a_picture_is_drawn_the_same_each_time(picture, theme):
    first = draw(picture, theme, "svg")
    assert first == draw(picture, theme, "svg")
    assert theme.ground.encode() in first


@pytest.mark.slow
def test_pictures_are_written_for_light_and_dark_pages(tmp_path):
    written = write_pictures(PICTURES[:1], tmp_path / "new")
    assert [path.name for path in written] == ["one.svg", "one.png", "one.dark.svg", "one.dark.png"]
    assert written[1].read_bytes().startswith(b"\x89PNG")


def test_things_that_are_told_apart_have_different_colours():
    palette = Palette(LIGHT)
    roles = ("wait", "idle", "wait", "tool", "cpu", "unknown")
    colours = [palette.colour(role, f"{index}") for index, role in enumerate(roles)]
    assert len(set(colours)) == len(colours)
    assert palette.colour("wait", "0") == colours[0]
    assert palette.colour("tool") == Palette(LIGHT).colour("tool"), "a role alone always has its own colour"


def test_writing_on_a_colour_has_enough_contrast():
    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    for theme in (LIGHT, DARK):
        for role in ("model", "tool", "prepare", "idle", "wasted", "memory", "failure", "publish"):
            colour = Palette(theme).colour(role)
            high, low = sorted((luminance(colour), luminance(ink_on(colour))), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 3.0, (theme.name, role)


@pytest.mark.slow
def test_a_page_holds_the_answer_the_pictures_and_nothing_from_outside(plan_of_example):
    page = render_page(plan_of_example("example-11-9.toml"))
    assert "fast.rebuilt" in page
    assert page.count("data:image/svg+xml;base64,") >= 4
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "<script" not in page


@pytest.mark.parametrize("name", ["../../evil", "/tmp/evil", "a/b", ".."])
def test_a_picture_whose_name_is_a_path_is_refused(plan_of_text, name):
    with pytest.raises(InvalidRequestError, match="is not a name"):
        plan_of_text(
            f'kind = "worksheet"\ntitle = "t"\n[given]\na = 1\n[picture."{name}"]\nkind = "bars"\n'
            'bars = [{ label = "a", value = "$a" }]\n'
        )


def test_what_a_file_says_is_text_on_the_page(plan_of_text):
    page = render_page(
        plan_of_text(
            'kind = "worksheet"\ntitle = "<script>alert(1)</script>"\n'
            "[given]\na = 1\n[calculation.b]\ncalculate = '$a'\n"
        )
    )
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


@pytest.fixture
def plan_of_text():
    from dsec.planner.making import make_plan

    return lambda text: make_plan(text, name="test.toml")


@pytest.fixture
def plan_of_example(plan_of_text):
    examples = Path(__file__).parents[2] / "examples" / "planner"
    return lambda name: plan_of_text((examples / name).read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_a_legend_of_long_names_leaves_the_curves_their_room(monkeypatch):
    """Six long names in one row used to press the axes to a third of the picture, or to nothing."""
    widths = []
    figure_of = Figure.savefig

    def save(figure, *args, **kwargs):
        figure_of(figure, *args, **kwargs)
        widths.append(figure.axes[0].get_position().width)

    monkeypatch.setattr(Figure, "savefig", save)
    curves = tuple(
        Curve(label=f"flash.rebuilt.sessions16.units{units}.hosts10", role="", points=((1.0, 2.0), (2.0, 1.0)))
        for units in range(6)
    )
    draw(Curves(caption=CAPTION, x_label="x", x_unit="s", y_label="y", y_unit="USD", curves=curves), LIGHT, "png")
    assert widths[0] > 0.8


@pytest.mark.slow
def test_a_deadline_after_the_last_span_stands_inside_the_timeline(monkeypatch):
    ends = []
    figure_of = Figure.savefig

    def save(figure, *args, **kwargs):
        figure_of(figure, *args, **kwargs)
        ends.append(figure.axes[0].get_xlim()[1])

    monkeypatch.setattr(Figure, "savefig", save)
    lanes = (Lane(label="model", spans=(Span(start=0.0, end=100.0, role="model"),)),)
    draw(Timeline(caption=CAPTION, unit="s", lanes=lanes, marks=(Mark(at=120.0, label="deadline"),)), LIGHT, "png")
    assert ends[0] >= 120.0


@pytest.mark.slow
@pytest.mark.parametrize("title", ["$\\frac{1}{$", "costs 5 $ or 6 $", "<b>&\\alpha_$x$"])
def test_a_title_with_dollars_is_drawn_as_it_is(title):
    caption = Caption(name="one", title=title, where="", text=title)
    assert draw(Dots(caption=caption, x_label="x", x_unit="", y_label="y", y_unit="", points=()), LIGHT, "svg")
