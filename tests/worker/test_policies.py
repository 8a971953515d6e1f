"""Policies by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.base.errors import InvalidRequestError, NotFoundError
from dsec.episode.content import Content
from dsec.episode.round import Decision, Done, History
from dsec.episode.tools import Run, WriteFile
from dsec.worker.policies.registry import load_policy
from dsec.worker.policies.script import RecordedPolicy, read_script


def test_each_line_of_a_plain_script_is_a_round(tmp_path: Path) -> None:
    (tmp_path / "fix.sh").write_text("# note\n\n cd /a && make \ntrue\n")
    assert read_script(tmp_path / "fix.sh") == (
        Decision(calls=(Run(script="cd /a && make"),)),
        Decision(calls=(Run(script="true"),)),
    )


def test_rounds_as_json_lines(tmp_path: Path) -> None:
    (tmp_path / "s.jsonl").write_text(
        '{"calls": [{"tool": "run", "argv": ["true"]}], "message": "hm"}\n\n'
        '{"calls": [{"tool": "write_file", "path": "/a", "content": {"text": "x"}}]}\n'
    )
    assert read_script(tmp_path / "s.jsonl") == (
        Decision(calls=(Run(argv=("true",)),), message="hm"),
        Decision(calls=(WriteFile(path="/a", content=Content(text="x")),)),
    )


def test_rounds_as_toml(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('[[rounds]]\nmessage = "hm"\ncalls = [{ tool = "run", script = "true" }]\n')
    assert read_script(tmp_path / "s.toml") == (Decision(calls=(Run(script="true"),), message="hm"),)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("s.jsonl", '{"calls": []}\n{"calls": [{"tool": "fly"}]}\n', r"s\.jsonl:2: not a round"),
        ("s.jsonl", '{"calls": [{"tool": "run"}]}\n', "a script or an argv"),
        ("s.jsonl", '{"call": []}\n', "unknown field"),
        ("s.toml", "rounds = 1\n", "not a list of rounds"),
        ("s.toml", "[[rounds\n", "not a list of rounds"),
    ],
)
def test_a_broken_script_is_refused_with_its_place(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(InvalidRequestError, match=words):
        read_script(tmp_path / name)


@pytest.mark.anyio
async def test_a_recorded_policy_ends_after_its_rounds() -> None:
    policy = RecordedPolicy((Decision(message="a"),), reason="over")
    history = History(instruction="", rounds=(), remaining_s=1.0)
    assert await policy.next_round(history) == Decision(message="a")


def test_a_changed_script_is_another_policy(tmp_path: Path) -> None:
    path = tmp_path / "fix.sh"
    path.write_text("true\n")
    before = load_policy(f"script:{path}").fingerprint
    path.write_text("false\n")
    assert load_policy(f"script:{path}").fingerprint != before


def test_an_attribute_of_a_module_is_a_policy() -> None:
    assert load_policy("dsec.worker.policies.nop:NopPolicy").name == "dsec.worker.policies.nop:NopPolicy"


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("orakle", InvalidRequestError, "no policy 'orakle'"),
        ("no.such.module:x", InvalidRequestError, "cannot be loaded"),
        ("dsec.worker:missing", InvalidRequestError, "cannot be loaded"),
        ("dsec.worker.layout:RESULTS_NAME", InvalidRequestError, "not callable"),
        ("script:/missing", NotFoundError, "cannot be read"),
        ("replay:/missing", NotFoundError, "no recorded attempts"),
    ],
)
def test_what_is_no_policy_is_refused(name: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        load_policy(name)


def test_done_and_decisions_are_told_apart() -> None:
    assert not isinstance(Done(), Decision)
