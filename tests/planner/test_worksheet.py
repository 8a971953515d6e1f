"""Worksheets from text to results."""

from __future__ import annotations

import pytest

from dsec.base.errors import InvalidRequestError
from dsec.planner.figure import explain
from dsec.planner.making import make_plan
from dsec.planner.picture import Bars, Curves, Timeline

_HEAD = 'kind = "worksheet"\ntitle = "t"\nsource = "a book"\n'
_SHEET = (
    _HEAD
    + """
[given]
rate = "10 /s"
stay = "30 s"
[calculation.memory]
formula = "littles_law.mean_memory_gib"
inputs.arrivals = "$rate"
inputs.task = "=$stay * '2 GiB'"
expect = "600 GiB"
[calculation.share]
calculate = "$memory / '358 GiB'"
expect = "168 %"
"""
)


def _plan(text: str) -> object:
    return make_plan(_HEAD + text, name="w.toml")


def test_a_worksheet_prints_every_expected_number_beside_the_computed_one() -> None:
    plan = make_plan(_SHEET, name="w.toml")
    assert [(check.name, check.holds) for check in plan.checks] == [("memory", True), ("share", True)]
    assert plan.holds


def test_an_expected_number_that_does_not_come_out_is_said() -> None:
    plan = make_plan(_SHEET.replace("168 %", "169 %"), name="w.toml")
    assert not plan.holds
    failed = plan.checks[1]
    assert (failed.expected, failed.computed, failed.place) == ("169 %", "167.5978 %", "w.toml:15")


def test_every_figure_can_be_asked_where_it_comes_from() -> None:
    lines = "\n".join(explain(make_plan(_SHEET, name="w.toml").figure("share")))
    assert "formula: $memory / '358 GiB'" in lines
    assert "λ" in lines  # The formula of the result that went in,
    assert "rate = 10 /s" in lines  # and what went into that.
    assert "given by: a book" in lines
    assert "w.toml:6" in lines


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[calculation.a]\ncalculate = "$b"\n[calculation.b]\ncalculate = "$a"\n', "in a circle: a -> b -> a"),
        ('[calculation.a]\ncalculate = "$nothing"\n', "there is no \\$nothing"),
        ('[calculation.a]\nformula = "no.such"\n', "there is no formula"),
        ('[calculation.a]\nformula = "amdahl.speedup_limit"\n', "input 'part_share' is missing"),
        (
            '[calculation.a]\nformula = "amdahl.speedup_limit"\ninputs.part_share = "3 s"\n',
            "'3 s' is in s, expected a pure",
        ),
        ('[calculation.a]\nformula = "amdahl.speedup_limit"\ninputs.part_share = 2\n', "w.toml:4: calculation.a"),
        ('[calculation.a]\nformula = "amdahl.speedup_limit"\ninputs.part_share = 0.5\ninputs.x = 1\n', "no such key"),
        ('[calculation.a]\nformula = "x"\ncalculate = "1"\n', "either a formula or an expression"),
        ('[calculation.a]\ncalculate = "1"\nexpect = "1 s"\n', "expected a pure number"),
        ('[calculation.a]\ncalculate = "1"\nexpct = 1\n', "did you mean 'expect'"),
        ("[given]\nA = 1\n", "is not a name"),
        ('[given]\na = 1\n[calculation.a]\ncalculate = "1"\n', "is the name of a given value"),
        ('[picture.p]\nkind = "portrait"\n', "is not known here"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, says: str) -> None:
    with pytest.raises(InvalidRequestError, match=says) as caught:
        _plan(text)
    assert caught.value.brief.startswith("w.toml:")


def test_a_kind_or_a_version_that_is_not_known_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="'novel' is not known here"):
        make_plan('kind = "novel"\ntitle = "t"\n', name="w.toml")
    with pytest.raises(InvalidRequestError, match="version 9 is not known"):
        make_plan('kind = "worksheet"\nversion = 9\ntitle = "t"\n', name="w.toml")


def test_a_tolerance_is_relative_or_absolute() -> None:
    for tolerance, holds in (('"1 %"', True), ('"0.1 %"', False), ('"2 s"', True), ('"0.5 s"', False)):
        text = f'[calculation.a]\ncalculate = "\'101 s\'"\nexpect = "100 s"\ntolerance = {tolerance}\n'
        assert make_plan(_HEAD + text, name="w.toml").holds is holds


_PICTURES = """
[calculation.burst]
formula = "burst.queue_run"
inputs.arrivals = ["0 s", "0 s", "0 s"]
inputs.services = ["1 s", "1 s", "1 s"]
inputs.servers = 2
[picture.queue]
kind = "timeline"
lanes_from.label = "call"
lanes_from.role = "tool"
lanes_from.start = "$burst.starts"
lanes_from.end = "$burst.ends"
lanes_from.wait_from = "$burst.arrivals"
marks = [{ at = "=$burst.makespan / 2", label = "half" }]
[picture.loads]
kind = "bars"
as_share = true
bars = [{ label = "cores", value = "3 CPU", capacity = "2 CPU" }]
[picture.gain]
kind = "curves"
x = { label = "speed-up", from = 1, to = 4, points = 4 }
curves = [
  { label = "by formula", formula = "amdahl.overall_speedup", vary = "part_speedup", inputs.part_share = 0.5 },
  { label = "by hand", calculate = "1 / (0.5 + 0.5 / $x)", until = 3 },
]
"""


def test_pictures_are_read_with_their_numbers_computed() -> None:
    queue, loads, gain = make_plan(_HEAD + _PICTURES, name="w.toml").pictures
    assert isinstance(queue, Timeline)
    assert [len(lane.spans) for lane in queue.lanes] == [1, 1, 2]  # The third call waits.
    assert queue.marks[0].at == 1.0
    assert isinstance(loads, Bars)
    assert loads.bars[0].capacity == 2.0
    assert isinstance(gain, Curves)
    by_formula, by_hand = gain.curves
    assert [y for _, y in by_formula.points[:3]] == pytest.approx([y for _, y in by_hand.points])
    assert len(by_hand.points) == 3
