"""`dsec pool` and `dsec diagnose` against a node of fakes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from dsec.cli.pool_picture import bars
from dsec.model.event import EventKind, NodeEvent
from dsec.testing.command_line import Dsec

PATIENCE_S = 60.0
SET = ("pool", "set", "python", "--floor", "2", "--maximum", "5", "--share", "0", "--spreads", "0")


@pytest.fixture(autouse=True)
def no_pools_left(dsec: Dsec) -> Iterator[None]:
    """The node is shared: leave no pool to the next test."""
    yield
    for pool in dsec.json("pool", "ls", "--json"):
        dsec.ok("pool", "rm", pool["pool_id"])
    for info in dsec.json("sandbox", "ls", "--all", "--json"):
        dsec.ok("sandbox", "rm", info["sandbox_id"])


def filled(dsec: Dsec) -> dict[str, object]:
    """Make a pool and wait until two stand ready."""
    name = dsec.ok(*SET).strip()
    ends_at = time.monotonic() + PATIENCE_S
    while True:
        (pool,) = dsec.json("pool", "ls", "--json")
        assert pool["pool_id"] == name
        if pool["statistics"]["ready"] == 2:
            return pool  # type: ignore[no-any-return]
        assert time.monotonic() < ends_at


def test_a_pool_is_set_listed_used_and_taken_away(dsec: Dsec) -> None:
    pool = filled(dsec)
    assert pool["policy"]["maximum"] == 5  # type: ignore[index]
    dsec.create("--id", "sbx-a", "-l", "task_id=task-789")
    (now,) = dsec.json("pool", "ls", "--json")
    assert (now["statistics"]["hand_outs"], now["statistics"]["in_use"]) == (1, 1)
    shown = dsec.ok("pool", "ls")
    assert "1 of 5" in shown
    assert str(pool["pool_id"]) in shown
    dsec.ok("sandbox", "rm", "sbx-a")
    dsec.ok("pool", "rm", str(pool["pool_id"]))
    assert dsec.json("pool", "ls", "--json") == []


def test_what_is_not_given_stays_as_it_was(dsec: Dsec) -> None:
    filled(dsec)
    changed = dsec.json("pool", "set", "python", "--fixed", "1", "--json")["policy"]
    assert (changed["floor"], changed["maximum"], changed["fixed_level"]) == (2, 5, 1)
    changed = dsec.json("pool", "set", "python", "--follow", "--no-maximum", "--json")["policy"]
    assert (changed["floor"], changed["maximum"], changed["fixed_level"]) == (2, None, None)


def test_other_limits_are_another_pool(dsec: Dsec) -> None:
    one = dsec.ok("pool", "set", "python", "--floor", "0").strip()
    other = dsec.ok("pool", "set", "python", "--memory", "64M", "--qos", "best_effort", "--floor", "0").strip()
    assert one != other
    assert len(dsec.json("pool", "ls", "--json")) == 2


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        (("pool", "set", "python", "--horizon", "2h"), 64, "horizon_s is 7200"),
        (("pool", "set", "python", "--share", "-1"), 64, "concurrency_share is -1.0; it must be 0 to 10"),
        (("pool", "set", "python", "--fixed", "3", "--follow"), 2, "exclude each other"),
        (("pool", "set", "nowhere"), 66, "there is no image 'nowhere'"),
        (("pool", "rm", "none-such"), 66, "there is no pool 'none-such'"),
        (("pool", "set", "python", "--floor", "-3"), 2, "-3"),
        (("diagnose", "sandbox-create", "--task-id", "nobody"), 66, "no event tells of a creation for task 'nobody'"),
        (("diagnose", "sandbox-create", "--trace", "/nonexistent/x"), 66, "/nonexistent/x cannot be read"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(dsec: Dsec, argv: tuple[str, ...], code: int, said: str) -> None:
    result = dsec(*argv)
    assert result.exit_code == code
    assert said in result.stderr
    assert result.stdout == ""


def test_watch_draws_queues_and_levels_and_stops_when_told(dsec: Dsec) -> None:
    assert "no pools" in dsec.ok("pool", "watch", "--count", "1")
    filled(dsec)
    drawn = dsec.ok("pool", "watch", "--count", "2", "--interval", "10ms")
    assert drawn.count("  ready   ") == 2
    assert "█" in drawn
    assert "HANDED OUT" in drawn


def test_bars_show_shares_of_the_highest() -> None:
    assert bars([0, 1, 2, 4], 4) == " ▂▄█"
    assert bars([9], 4) == "█"
    assert bars([1, 2], 0) == "  "


def test_diagnose_tells_both_sides_with_thresholds_and_each_creation(dsec: Dsec) -> None:
    filled(dsec)
    dsec.create("--id", "sbx-a", "-l", "task_id=task-789")
    told = dsec.ok("diagnose", "sandbox-create", "--task-id", "task-789", "--verbose")
    lines = told.splitlines()
    assert lines[0].startswith("[scheduler] ok ")
    assert any(line.startswith("[node] ok image load, p99:") and "(threshold 8 s)" in line for line in lines)
    assert any(line.startswith("suggestion: ") for line in lines)
    assert any(line.startswith("sbx-a ") and "ready" in line for line in lines)
    found = dsec.json("diagnose", "sandbox-create", "--task-id", "task-789", "--json")
    assert found["task"] == "task-789"
    assert {finding["side"] for finding in found["findings"]} == {"scheduler", "node"}


def test_diagnose_reads_a_saved_trace_and_names_a_broken_line(dsec: Dsec, tmp_path: Path) -> None:
    events = [
        NodeEvent(at_s=1.0, kind=EventKind.ARRIVED, sandbox_id="sbx-a", task="t"),
        NodeEvent(at_s=2.0, kind=EventKind.IMAGE_LOADED, duration_s=12.3),
        NodeEvent(at_s=14.0, kind=EventKind.READY, sandbox_id="sbx-a", task="t", duration_s=13.0),
    ]
    trace = tmp_path / "events.jsonl"
    trace.write_bytes(b"\n".join(map(msgspec.json.encode, events)))
    told = dsec.ok("diagnose", "sandbox-create", "--task-id", "t", "--trace", str(trace))
    assert "[node] !! image load, p99: 12.3 s, above 8.0 s" in told
    assert "suggestion: keep sandboxes ready" in told
    trace.write_bytes(trace.read_bytes() + b"\nnonsense\n")
    result = dsec("diagnose", "sandbox-create", "--trace", str(trace))
    assert result.exit_code == 64
    assert "line 4: this is no event" in result.stderr


@pytest.mark.parametrize("words", [["pool"], ["pool", "ls"], ["pool", "set"], ["pool", "watch"], ["pool", "rm"],
                                   ["diagnose"], ["diagnose", "sandbox-create"]])  # fmt: skip
def test_help_is_there(dsec: Dsec, words: list[str]) -> None:
    assert "Usage:" in dsec.ok(*words, "-h")
