"""`dsec plan` from the outside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dsec.cli.main import cli
from dsec.episode.frames import encode_frame
from dsec.verification.attempt_result import AttemptResult, encode_result
from dsec.verification.outcome import Outcome, Verdict

_EXAMPLES = Path(__file__).parents[2] / "examples" / "planner"
_WORKLOAD = str(_EXAMPLES / "example-11-9.toml")

_SCENARIO = """\
model = "rounds"
duration = "600 s"
warmup = "60 s"
rounds = 3
model_call = "9 s"
tool = "1 s"
cores = 48
model_slots = 320
[arrivals]
kind = "uniform"
rate = "10 /s"
[[cases]]
name = "full"
set = { environments = 178 }
"""


def _run(*argv: str) -> Result:
    return CliRunner().invoke(cli, ["plan", *argv])


def test_a_workload_is_printed_with_table_reasons_and_checks() -> None:
    result = _run(_WORKLOAD)
    assert result.exit_code == 0, result.output
    assert "fast.rebuilt needs 2 more replicas of fast, 12 in all" in result.stdout
    assert "52 of 52 expected numbers hold" in result.stdout


def test_json_holds_everything_and_nothing_else_is_printed() -> None:
    plan = json.loads(_run(_WORKLOAD, "--json").stdout)
    assert plan["decision"]["chosen"]["with_addition"]["name"] == "fast.rebuilt"
    assert plan["decision"]["chosen"]["add"]["more_units"] == 2
    assert plan["figures"]["fast.rebuilt.cost_per_thousand"]["text"] == "8.6147 USD"
    assert len(plan["decision"]["combinations"]["listed"]) == 4


def test_a_figure_is_explained_down_to_the_lines_of_the_file() -> None:
    result = _run(_WORKLOAD, "--explain", "fast.rebuilt.cost_per_thousand")
    assert "formula: rounds * gpus * model / sessions * price" in result.stdout
    assert "example-11-9.toml:36" in result.stdout
    explained = json.loads(_run(_WORKLOAD, "--json", "--explain", "fast.rebuilt.memory_mean").stdout)
    assert explained["inputs"]["rate"]["name"] == "arrivals.rate"


def test_a_figure_that_is_not_there_is_answered_with_those_close_to_it() -> None:
    result = _run(_WORKLOAD, "--explain", "fast.rebuilt.cost")
    assert result.exit_code == 66
    assert "cost_per_thousand" in result.stderr
    everything = _run(_WORKLOAD, "--explain", "all").stdout
    assert "class.repair.tool" in everything


def test_numbers_that_do_not_come_out_exit_with_one(tmp_path: Path) -> None:
    sheet = tmp_path / "sheet.toml"
    sheet.write_text('kind = "worksheet"\ntitle = "t"\n[calculation.a]\ncalculate = "1 + 1"\nexpect = 3\n')
    result = _run(str(sheet))
    assert result.exit_code == 1
    assert "0 of 1 expected numbers hold" in result.stdout


def test_an_error_names_file_and_line(tmp_path: Path) -> None:
    broken = tmp_path / "w.toml"
    broken.write_text(Path(_WORKLOAD).read_text(encoding="utf8").replace('rate = "10 /s"', "rate = 10"))
    result = _run(str(broken))
    assert result.exit_code == 64
    assert f"{broken}:8: arrivals.rate: '10' has no unit, expected 1/s" in result.stderr
    assert result.stdout == ""


def test_a_file_that_is_not_there_or_not_named_is_said(tmp_path: Path) -> None:
    assert _run(str(tmp_path / "none.toml")).exit_code == 66
    assert _run().exit_code == 2


def test_formulas_are_listed_with_their_units() -> None:
    formulas = {row["name"]: row for row in json.loads(_run("--formulas", "--json").stdout)}
    assert formulas["littles_law.mean_in_system"]["inputs"] == {"arrivals": "1/s", "stay": "s"}
    assert "littles_law.mean_in_system" in _run("--formulas").stdout


def test_check_simulates_the_recommendation() -> None:
    result = _run("--check", _WORKLOAD, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["agrees"]
    assert found["check"]["combination"]["name"] == "fast.rebuilt"


def test_check_says_where_formulas_and_simulation_part() -> None:
    result = _run("--check", _WORKLOAD, "--combination", "fast.kept")
    assert result.exit_code == 1
    assert "warning: " in result.stdout
    assert "overloaded" in result.stdout


def test_a_scenario_is_checked_as_it_is(tmp_path: Path) -> None:
    scenario = tmp_path / "s.toml"
    scenario.write_text(_SCENARIO)
    assert _run("--check", str(scenario)).exit_code == 0
    full = _run("--check", str(scenario), "--combination", "full")
    assert full.exit_code == 1
    assert "model.kept, replicas: 1, hosts: 1" in full.stdout
    assert "overloaded" in full.stdout


def test_check_has_nothing_to_simulate_in_a_worksheet() -> None:
    result = _run("--check", str(_EXAMPLES / "example-11-2.toml"))
    assert result.exit_code == 64
    assert "is a worksheet" in result.stderr


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    """The output of a rollout of forty attempts."""
    with (tmp_path / "results.jsonl").open("wb") as file:
        for number in range(40):
            stages = {"create": 0.2, "decide": 4.0 + number % 3, "tools": 2.0, "verify": 1.0}
            result = AttemptResult(
                task=f"task-{number}",
                attempt=1,
                verdict=Verdict(outcome=Outcome.FAILED if number % 4 == 0 else Outcome.PASSED, reason=""),
                rounds=2,
                started_at_s=1000.0 + 2 * number,
                duration_s=sum(stages.values()),
                totals_s=stages,
            )
            file.write(encode_frame(encode_result(result)))
    return tmp_path


def test_a_run_is_fitted_with_intervals_and_planned_for_ten_times_its_load(run_directory: Path) -> None:
    result = _run("--from-run", str(run_directory))
    assert result.exit_code == 0, result.output
    assert "95 % INTERVAL" in result.stdout
    assert "10 times the load" in result.stdout
    plan = json.loads(_run("--from-run", str(run_directory), "--times", "20", "--json").stdout)
    assert plan["times"] == 20.0
    assert [case["name"] for case in plan["cases"]] == ["hopeful", "middle", "careful"]
    assert plan["fit"]["groups"][0]["model"]["how"] == "bootstrap"


def test_a_directory_without_results_is_said(tmp_path: Path) -> None:
    result = _run("--from-run", str(tmp_path))
    assert result.exit_code == 66
    assert "results.jsonl cannot be read" in result.stderr


@pytest.mark.slow
def test_pictures_and_a_page_are_written(tmp_path: Path) -> None:
    pictures, page = str(tmp_path / "pictures"), str(tmp_path / "report.html")
    result = _run(str(_EXAMPLES / "platform.toml"), "--plot", pictures, "--html", page)
    assert result.exit_code == 0, result.output
    assert any((tmp_path / "pictures").iterdir())
    assert "normal.rebuilt" in (tmp_path / "report.html").read_text(encoding="utf8")
