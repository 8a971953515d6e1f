"""`dsec cost`: real logs on a disk, verdicts of rollouts, and what nobody priced."""

from __future__ import annotations

import asyncio
import json
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from dsec.base.units import GIB
from dsec.cli.main import cli
from dsec.episode.failure_kinds import FailureKind
from dsec.episode.identity import EpisodeIdentity, ModelIdentity
from dsec.episode.log_events import EnvironmentUsed, EpisodeEnded, LifeBegan, LogEvent, ModelFailed, RoundCommitted
from dsec.episode.operations import TokenUsage
from dsec.episode.recovery_experience import Step, StepTaken
from dsec.episode.spec import AgentPolicy, EpisodeGrade, EpisodeLimits, EpisodeSpec, ModelEndpoint
from dsec.episode.totals import EnvironmentKind
from dsec.stores.episode_log import create_log
from dsec.stores.episode_log_place import LogPlace
from dsec.testing.episodes import round_record
from dsec.verification.attempt_result import AttemptResult, encode_result
from dsec.verification.outcome import Outcome, Verdict
from dsec.worker.episodes.shelf import KeptSpec
from dsec.worker.experience import ExperienceBook
from dsec.worker.framed_log import FramedLog
from dsec.worker.grades import GradeBook
from dsec.worker.layout import MANIFEST_NAME, RESULTS_NAME
from dsec.worker.manifest import Manifest

SONNET = ModelIdentity(name="claude-sonnet-5")
USAGE = TokenUsage(input_tokens=2500, output_tokens=500)


def cost(*argv: str) -> Result:
    return CliRunner().invoke(cli, ["cost", *argv])


def report(*argv: str) -> dict[str, object]:
    result = cost(*argv, "--json")
    assert result.exit_code == 0, result.stderr
    found: dict[str, object] = json.loads(result.stdout)
    return found


def episode(
    worker: Path, name: str, *, task: str, passed: bool | None, price: float | None = None, took_s: float = 10.0
) -> None:
    """Write the log, spec and grade of an episode that one call failed in and one round was decided in."""
    endpoint = ModelEndpoint(
        url="http://127.0.0.1:1/v1", name=SONNET.name, input_usd=price, output_usd=price and 5 * price
    )
    spec = EpisodeSpec(
        task=task, job="night", policy=AgentPolicy(model=endpoint), limits=EpisodeLimits(deadline_s=15.0)
    )
    kept = KeptSpec(version=1, created_at_s=100.0, spec=spec)
    decided = msgspec.structs.replace(round_record(1).decision, model=SONNET, usage=USAGE, operations=())
    record = msgspec.structs.replace(
        round_record(1), decision=decided, results=(), attempts=(), committed_at_s=100.0 + took_s, decide_s=took_s
    )
    events: Sequence[LogEvent] = (
        LifeBegan(at_s=100.0, model=SONNET),
        ModelFailed(number=1, model=SONNET, usage=USAGE, duration_s=1.0),
        RoundCommitted(record),
        EnvironmentUsed(
            sandbox_id="sb-1",
            kind=EnvironmentKind.RESIDENT,
            began_s=100.0,
            ended_s=100.0 + took_s,
            memory_byte_s=20 * GIB,
            cpu_s=3.0,
        ),
        EpisodeEnded(reason="submitted", at_s=100.0 + took_s),
    )
    (worker / "episodes").mkdir(parents=True, exist_ok=True)
    (worker / "episodes" / f"{name}.json").write_bytes(msgspec.json.encode(kept))
    log = create_log(LogPlace(directory=worker / "episodes" / name), EpisodeIdentity(episode_id=name, task=task))
    for event in events:
        log.append(event)
    log.save()
    log.close()
    if passed is not None:
        with GradeBook(worker) as book:
            asyncio.run(book.grade(name, EpisodeGrade(passed=passed), at_s=200.0))


@pytest.fixture
def worker(tmp_path: Path) -> Path:
    place = tmp_path / "worker"
    episode(place, "ep-a1", task="a", passed=True)
    episode(place, "ep-a2", task="a", passed=False)
    episode(place, "ep-b1", task="b", passed=True, took_s=20.0)
    episode(place, "ep-c1", task="c", passed=None)
    return place


def test_a_job_costs_what_its_attempts_cost_by_submitted_passed_and_timely_task(worker: Path) -> None:
    found = report("night", "--worker", str(worker), "--prices", "chapter")
    total, rows = found["total"], found["rows"]
    assert isinstance(total, dict)
    assert isinstance(rows, list)
    each = 2 * 0.010 + 20 * 0.0000045 + 3 * 0.000014
    assert total["usd"] == pytest.approx(4 * each)
    assert total["is_whole"]
    assert (total["tasks"], total["passed"], total["timely"], total["ungraded"]) == (3, 2, 1, 1)
    assert total["submitted_usd"] == pytest.approx(4 * each / 3)
    assert total["passed_usd"] == pytest.approx(2 * each)
    assert total["timely_usd"] == pytest.approx(4 * each)
    assert (total["calls"], total["failed_calls"]) == (8, 4)
    assert [row["name"] for row in rows] == ["a", "b", "c"]
    assert sum(row["usd"] for row in rows) == pytest.approx(total["usd"])
    later = report("night", "--worker", str(worker), "--deadline", "25")["total"]
    assert isinstance(later, dict)
    assert later["timely"] == 2


def test_tables_show_each_group_and_no_price_is_no_zero(worker: Path) -> None:
    result = cost("night", "--worker", str(worker), "--by", "attempt")
    assert result.exit_code == 0, result.stderr
    assert "ep-a1" in result.stdout
    assert "0.000000" not in result.stdout
    assert "no price is known of claude-sonnet-5 input" in result.stderr
    assert "1 of 4 attempts are not graded" in result.stderr
    jobs = cost(str(worker), "--by", "job").stdout
    assert "night" in jobs
    assert "JOB" in jobs
    models = cost("night", "--worker", str(worker), "--by", "model", "--prices", "chapter").stdout
    assert "claude-sonnet-5" in models
    assert "GIVEN UP" in models


def test_the_specs_of_episodes_may_say_what_their_models_cost(tmp_path: Path) -> None:
    episode(tmp_path, "ep-p", task="p", passed=True, price=2.0)
    total = report(str(tmp_path / "episodes" / "ep-p"))["total"]
    assert isinstance(total, dict)
    assert total["usd"] == pytest.approx(2 * 0.010)
    assert not total["is_whole"]
    own = tmp_path / "own.toml"
    own.write_text(
        '[table]\nname = "own"\nrecorded_on = 2026-11-30\nsource = "us"\n'
        '[[model]]\nname = "claude-sonnet-5"\ninput_usd_per_mtoken = 0\noutput_usd_per_mtoken = 2\n'
        "[environment]\nmemory_usd_per_gib_s = 0\ncpu_usd_per_s = 0\n"
    )
    total = report("ep-p", "--worker", str(tmp_path), "--prices", str(own))["total"]
    assert isinstance(total, dict)
    assert (total["usd"], total["is_whole"]) == (pytest.approx(0.002), True)


def test_the_picture_is_well_formed_whatever_tasks_are_called(tmp_path: Path) -> None:
    episode(tmp_path / "w", "ep-x", task="<b>&\x1b[31m\u202e", passed=True)
    picture = tmp_path / "money.svg"
    result = cost(str(tmp_path / "w"), "--prices", "chapter", "--plot", str(picture))
    assert result.exit_code == 0, result.stderr
    assert "\x1b" not in result.stdout
    root = ET.fromstring(picture.read_text())
    assert root.tag.endswith("svg")
    assert sum(element.tag.endswith("rect") for element in root.iter()) >= 4


def test_a_rollout_without_models_costs_its_environment(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    manifest = Manifest(
        rollout_id="rol-1",
        created_at_s=1.0,
        policy="oracle",
        policy_fingerprint="",
        attempts=1,
        verify_in="same",
        without_network=True,
        tasks={"a": "0", "b": "0"},
    )
    (out / MANIFEST_NAME).write_bytes(msgspec.json.encode(manifest))
    totals = {"wait": 5.0, "create": 1.0, "decide": 2.0, "tools": 3.0, "verify": 4.0}
    with FramedLog(out / RESULTS_NAME) as log:
        for task, outcome in (("a", Outcome.PASSED), ("b", Outcome.INFRASTRUCTURE_ERROR)):
            verdict = Verdict(outcome=outcome, reason="")
            result = AttemptResult(
                task=task, attempt=1, verdict=verdict, started_at_s=9.0, duration_s=15.0, totals_s=totals
            )
            asyncio.run(log.append(encode_result(result)))
    total = report(str(out), "--prices", "chapter")["total"]
    assert isinstance(total, dict)
    assert (total["usd"], total["passed"], total["ungraded"]) == (None, 1, 1)
    total = report(str(out), "--prices", "chapter", "--memory", "2GiB")["total"]
    assert isinstance(total, dict)
    assert total["usd"] == pytest.approx(2 * 10 * 2 * 0.0000045)
    # An episode of the same attempt says more than the record of its sandbox.
    episode(out / "worker", "ep-a", task="a", passed=None)
    total = report(str(out), "--prices", "chapter")["total"]
    assert isinstance(total, dict)
    assert (total["calls"], total["passed"], total["attempts"]) == (2, 1, 2)


def test_a_log_that_cannot_be_read_is_named_and_not_left_out(worker: Path) -> None:
    log = worker / "episodes" / "ep-b1"
    (segment,) = [path for path in log.iterdir() if path.suffix == ".jsonl"]
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join([*lines[:2], b"x" + lines[2], *lines[3:]]))
    result = cost("night", "--worker", str(worker), "--prices", "chapter")
    assert result.exit_code == 0, result.stderr
    assert "1 of 4 attempts: its log is not whole" in result.stderr


def test_copies_of_a_log_count_once_and_the_longer_one_counts(worker: Path, tmp_path: Path) -> None:
    episode(tmp_path / "copy", "ep-a1", task="a", passed=None)
    total = report(str(worker), str(tmp_path / "copy"))["total"]
    assert isinstance(total, dict)
    assert (total["attempts"], total["passed"]) == (4, 2)


def test_what_is_not_there_is_named_with_what_is(worker: Path, tmp_path: Path) -> None:
    result = cost("nihgt", "--worker", str(worker))
    assert result.exit_code != 0
    assert "did you mean night?" in result.stderr
    (tmp_path / "empty").mkdir()
    assert "neither a rollout nor episodes" in cost(str(tmp_path / "empty")).stderr
    assert "cannot be read" in cost("night", "--worker", str(worker), "--prices", "none.toml").stderr
    assert "there are: chapter" in cost("night", "--worker", str(worker), "--prices", "cheap").stderr


def test_recovery_shows_what_was_learned_and_what_would_be_tried(tmp_path: Path) -> None:
    def recovery(*argv: str) -> Result:
        return CliRunner().invoke(cli, ["recovery", "--worker", str(tmp_path), *argv])

    result = recovery("--model", "small", "--model", "big")
    assert result.exit_code == 0, result.stderr
    assert "nothing was learned yet" in result.stderr
    assert "repair (small)" in result.stdout
    check = FailureKind.CHECK_FAILED
    repair = StepTaken(step=Step.REPAIR, model="small", after=check, failed=check, time_s=4.0, cost_usd=0.006)
    escalate = StepTaken(step=Step.ESCALATE, model="big", after=check, time_s=8.0, cost_usd=0.03)
    with ExperienceBook(tmp_path) as book:
        asyncio.run(book.learn("ep-a", (repair, escalate) * 30))
    found = json.loads(recovery("--json", "--model", "small", "--model", "big").stdout)
    (after_check,) = [one for one in found["decisions"] if one["after"] == "check_failed"]
    assert (after_check["step"], after_check["model"]) == ("escalate", "big")
    assert [(one["tries"], one["within_s"]) for one in found["steps"]] == [(30, 8.0), (30, 4.0)]
    late = json.loads(recovery("--json", "--model", "small", "--model", "big", "--deadline", "5s").stdout)
    assert late["decisions"][0]["step"] == "stop"
    assert found["expected"] is None
    with ExperienceBook(tmp_path) as book:
        first = StepTaken(step=Step.FIRST, model="small", failed=check, time_s=10.0, cost_usd=0.01)
        asyncio.run(book.learn("ep-b", (first, replace(first, failed=None)) * 50))
    expected = json.loads(recovery("--json", "--model", "small", "--model", "big").stdout)["expected"]
    assert expected["passes"] == pytest.approx(0.5 + 0.5 * 0.99, abs=0.02)
    assert expected["cost_usd"] == pytest.approx(0.01 + 0.5 * 0.03, abs=0.002)
    assert "a submitted task passes with" in recovery("--model", "small", "--model", "big").stderr
    assert "8.0 s" in recovery().stdout
