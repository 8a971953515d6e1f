"""`dsec doctor`: rows, advice, verdict and exit code."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from dsec.cli import host_checks
from dsec.cli.doctor import report
from dsec.cli.host_checks import Check, Need, can_run, checks, run_checks
from dsec.cli.main import cli
from dsec.linux.probe import Finding, found, missing
from dsec.model.capability import Capability


def _check(name: str, need: Need, finding: Finding, *, as_user: Need | None = None) -> Check:
    return Check(
        name=name, title=f"the {name}", enables="much", resolution="general advice", need=need, need_as_user=as_user,
        probe=lambda: finding, capabilities=(Capability.SECCOMP,),
    )  # fmt: skip


@pytest.fixture
def use_table(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def use(*table: Check) -> None:
        monkeypatch.setattr(host_checks, "checks", lambda state_dir: table)

    return use


def _doctor(*argv: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, ["--state-dir", "/nonexistent", "doctor", *argv])
    return result.exit_code, result.stdout


def test_exit_code_is_0_when_all_that_is_needed_is_there(use_table: Callable[..., None]) -> None:
    use_table(_check("a", Need.NEEDED, found()), _check("b", Need.RECOMMENDED, missing("no b")))
    code, text = _doctor()
    assert code == 0
    assert "Sandboxes can run here" in text
    assert "1 recommended missing" in text


def test_exit_code_is_69_and_the_verdict_names_what_is_missing(use_table: Callable[..., None]) -> None:
    use_table(_check("a", Need.NEEDED, missing("no a", "exact advice")), _check("b", Need.NEEDED, found()))
    code, text = _doctor()
    assert code == 69
    assert "Sandboxes cannot run here" in text
    assert "Missing: the a." in text
    assert "exact advice" in text
    assert "general advice" not in text


def test_json_holds_every_row_and_nothing_else_is_printed(use_table: Callable[..., None]) -> None:
    use_table(_check("a", Need.NEEDED, found("1.2")), _check("b", Need.OPTIONAL, missing("no b")))
    code, text = _doctor("--json")
    answer = json.loads(text)
    assert code == 0
    assert answer["can_run"] is True
    *rows, worker = answer["checks"]
    assert (worker["name"], worker["need"], worker["seen"]) == ("worker", "optional", "none runs")
    assert rows == [
        {
            "name": "a", "title": "the a", "need": "needed", "present": True, "seen": "1.2", "enables": "much",
            "capabilities": ["seccomp"], "resolution": "",
        },
        {
            "name": "b", "title": "the b", "need": "optional", "present": False, "seen": "no b", "enables": "much",
            "capabilities": ["seccomp"], "resolution": "general advice",
        },
    ]  # fmt: skip


def test_an_ordinary_user_may_do_without_what_root_needs() -> None:
    table = [_check("a", Need.NEEDED, missing("no a"), as_user=Need.RECOMMENDED)]
    assert not can_run(run_checks(table, as_root=True))
    assert can_run(run_checks(table, as_root=False))


def test_text_of_a_finding_is_not_markup(use_table: Callable[..., None]) -> None:
    use_table(_check("a", Need.NEEDED, found("[bold]x[/bold] [/]")))
    assert "[bold]x[/bold] [/]" in _doctor()[1]


def test_names_in_the_table_are_unique_and_every_row_that_can_be_helped_says_how() -> None:
    table = checks(Path("/"))
    assert len({check.name for check in table}) == len(table)
    for check in table:
        assert check.enables, check.name
        assert check.resolution or check.need is Need.OPTIONAL, check.name


def test_every_capability_that_a_host_gives_is_in_the_table() -> None:
    told = {capability for check in checks(Path("/")) for capability in check.capabilities}
    not_the_hosts = {Capability.TERMINAL, Capability.NETWORK_ALLOW, Capability.POOLS}
    assert told == set(Capability) - not_the_hosts


@pytest.mark.root
@pytest.mark.slow
def test_this_host_is_told_as_it_is(tmp_path: Path) -> None:
    results = run_checks(checks(tmp_path), as_root=True)
    answer = report(results)
    assert [row["name"] for row in answer["checks"]] == [check.name for check in checks(tmp_path)]
    assert all(row["seen"] for row in answer["checks"])
    assert not _overdue(answer["checks"])


def _overdue(rows: Sequence[dict[str, str]]) -> list[str]:
    return [row["name"] for row in rows if "did not end" in row["seen"]]
