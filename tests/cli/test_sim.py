"""`dsec sim` from the outside."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dsec.cli.main import cli

SMALL = """
model = "rounds"
title = "Small"
duration = "20 s"
tool = "1 s"
cores = 2
arrivals = { kind = "bursts", every = "1 h", group = 4 }
columns = ["figures.tool_wait_s.mean", "counts.completed"]

[[cases]]
name = "two cores"

[[cases]]
name = "four cores"
set = { cores = 4 }

[[claims]]
text = "two more cores take the wait away"
source = "arithmetic"
value = { case = "four cores", of = "figures.tool_wait_s.mean" }
published = 0
high = 0

[[claims]]
text = "they do not"
source = "nobody"
value = { case = "four cores", of = "figures.tool_wait_s.mean" }
low = 1

[[pictures]]
name = "waits"
kind = "bars"
values = ["figures.tool_wait_s.mean"]
"""


def _run(*argv: str) -> Result:
    return CliRunner().invoke(cli, ["sim", *argv])


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def test_a_run_prints_its_cases_and_which_claims_hold(small: Path) -> None:
    result = _run("run", str(small))
    assert result.exit_code == 0, result.output
    assert [line.split() for line in result.stdout.splitlines()[1:3]] == [
        ["two", "cores", "0.5", "4"],
        ["four", "cores", "0", "4"],
    ]
    assert "holds" in result.stdout
    assert "differs" in result.stdout


def test_json_holds_results_and_claims_and_the_seed_decides_them(small: Path) -> None:
    one, two = _run("run", str(small), "--json", "--seed", "3"), _run("run", str(small), "--json", "--seed", "3")
    assert one.stdout == two.stdout
    value = json.loads(one.stdout)
    assert [result["case"] for result in value["results"]] == ["two cores", "four cores"]
    assert [finding["holds"] for finding in value["claims"]] == [True, False]


def test_a_case_may_run_alone_and_claims_about_others_are_left_out(small: Path) -> None:
    value = json.loads(_run("run", str(small), "--json", "--case", "two cores").stdout)
    assert [result["case"] for result in value["results"]] == ["two cores"]
    assert value["claims"] == []


@pytest.mark.slow
def test_pictures_are_drawn_twice_alike(small: Path, tmp_path: Path) -> None:
    for name in ("one", "two"):
        result = _run("run", str(small), "--plot", str(tmp_path / name))
        assert result.exit_code == 0, result.output
    for end in ("svg", "png"):
        first, second = ((tmp_path / name / f"waits.{end}").read_bytes() for name in ("one", "two"))
        assert first == second
        assert len(first) > 1000


def test_nonsense_is_told_with_its_line_and_exits_as_a_callers_error(small: Path) -> None:
    small.write_text(SMALL.replace('"20 s"', '"20 parsec"'))
    result = _run("run", str(small))
    assert result.exit_code == 64
    assert "small.toml:4: duration is '20 parsec'" in result.stderr
    assert result.stdout == ""


def test_an_unknown_scenario_is_answered_with_those_there_are() -> None:
    result = _run("run", "nothing")
    assert result.exit_code == 66
    assert "unit-day" in result.stderr


def test_shipped_scenarios_are_listed_and_shown() -> None:
    names = [row["name"] for row in json.loads(_run("ls", "--json").stdout)]
    assert "collapse" in names
    assert _run("show", "collapse").stdout.startswith('model = "fleet"')
    assert "collapse" in _run("ls").stdout


def test_a_missing_library_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch, small: Path) -> None:
    for name in [name for name in sys.modules if name.startswith("dsec.sim")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "numpy", None)
    result = _run("run", str(small))
    assert result.exit_code == 69
    assert "the simulator needs numpy" in result.stderr
    assert "pip install 'dsec[planning]'" in result.stderr
