"""Rules name what a pack leaves out, whatever bytes a guest calls its files."""

from __future__ import annotations

import pytest

from dsec.base.errors import InvalidRequestError, LimitExceededError
from dsec.images.scrub import MAXIMUM_PATTERNS, Scrub, shown
from dsec.model.state import ScrubRules


def rule(path: bytes, rules: ScrubRules = ScrubRules()) -> str | None:
    return Scrub(rules).rule_for(path.rstrip(b"/"), is_directory=path.endswith(b"/"))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (b"root/.bash_history", "histories"),
        (b"home/user/.local/share/fish/fish_history", "histories"),
        (b"home/user/.claude/projects/x.jsonl", "histories"),
        (b"home/user/.cache/pip/wheels/a", "package caches"),
        (b"var/lib/apt/lists/x", "package caches"),
        (b"srv/app/__pycache__/", "compiler caches"),
        (b"srv/app/__pycache__/solution.pyc", "compiler caches"),
        (b"home/user/.cache/go-build/00/x", "compiler caches"),
        (b"tmp/x", "temporary files"),
        (b"var/log/dpkg.log", "logs"),
        (b"srv/.notes.swp", "editor leftovers"),
        (b"srv/#notes#", "editor leftovers"),
        (b"srv/.#notes", "editor leftovers"),
        (b"root/.ssh/id_ed25519", "credentials"),
        (b"root/.aws/credentials", "credentials"),
        (b"home/user/.npmrc", "credentials"),
        (b"etc/machine-id", "identity"),
    ],
)
def test_residue_is_named_by_its_rule(path: bytes, expected: str) -> None:
    assert rule(path) == expected


@pytest.mark.parametrize(
    "path",
    [
        b"tmp/",
        b"srv/tmp/x",
        b"srv/__pycache__",
        b"srv/.npmrc",
        b"srv/history",
        b"root/.ssh/authorized_keys",
        b"root/.m2/repository/x.jar",
        b"root/.cargo/registry/cache/x.crate",
        b"root/go/pkg/mod/x",
        b"root/.cache/huggingface/hub/model",
        b"srv/a.swap",
        b"srv/core.0a1b.js",
        b"srv/.nfsrc",
    ],
)
def test_what_a_session_may_need_stays(path: bytes) -> None:
    assert rule(path) is None


def test_line_ends_and_bytes_that_are_no_text_hide_nothing() -> None:
    assert rule(b"a\nb\r/.netrc") == "credentials"
    assert rule(b"\xff\xfe/.netrc") == "credentials"
    assert rule(b".netrc\n") is None


def test_kept_wins_over_every_rule_and_over_what_a_directory_inherits() -> None:
    scrub = Scrub(ScrubRules(remove=("answers/",), keep=("/tmp/model/", "/srv/answers/README")))
    assert scrub.rule_for(b"tmp/model/w", is_directory=False) is None
    assert scrub.rule_for(b"srv/answers/README", is_directory=False, inherited="answers/") is None
    assert scrub.rule_for(b"srv/answers/1", is_directory=False, inherited="answers/") == "answers/"
    assert scrub.rule_for(b"srv/answers", is_directory=True) == "answers/"


def test_own_patterns_stand_alone_without_the_defaults() -> None:
    rules = ScrubRules(defaults=False, remove=("*.key",))
    assert rule(b"srv/a.key", rules) == "*.key"
    assert rule(b"root/.netrc", rules) is None


@pytest.mark.parametrize("pattern", ["", "  ", "#x", "!x", "a\nb", "\\"])
def test_a_text_that_is_no_pattern_is_refused(pattern: str) -> None:
    for rules in (ScrubRules(remove=(pattern,)), ScrubRules(keep=(pattern,))):
        with pytest.raises(InvalidRequestError):
            Scrub(rules)


@pytest.mark.parametrize(
    "patterns", [("a*b*c*d",), ("**/a/**/b/**/c",), ("x" * 2000,), ("x",) * (MAXIMUM_PATTERNS + 1)]
)
def test_patterns_whose_time_a_guest_could_choose_are_refused(patterns: tuple[str, ...]) -> None:
    with pytest.raises(LimitExceededError):
        Scrub(ScrubRules(remove=patterns))


def test_names_are_shown_so_that_none_steers_a_terminal_and_no_two_look_the_same() -> None:
    names = [b"a\xff", b"a\\xff", b"a\xc3\xbf", b"\x1b[2J", b"a\nb", b"a\\nb", "\u202egpj".encode()]
    told = [shown(name) for name in names]
    assert told[0] == "/a\\xff"
    assert len(set(told)) == len(names)
    assert all(text.isprintable() for text in told)
