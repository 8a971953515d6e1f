"""Events are kept, bounded, and written without ever standing in a creation's way."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from dsec.base.clock import ManualClock
from dsec.base.errors import NodeUnavailableError
from dsec.model.event import EventKind
from dsec.node.pools.recorder import KEPT_IN_MEMORY, Recorder, older_file
from dsec.pools.diagnosis import read_trace


def test_what_was_kept_is_found_by_time_and_task_and_in_the_file(tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "events.jsonl"
    recorder = Recorder(clock, path, 1 << 20)
    with recorder.creation("sbx-a", "task-1"):
        clock.advance(0.25)
    begin_s = clock.wall_s()
    with suppress(NodeUnavailableError), recorder.creation("sbx-b", "task-2"):
        clock.advance(0.5)
        raise NodeUnavailableError("full")
    kinds = [(each.kind, each.task) for each in recorder.events()]
    assert kinds == [
        (EventKind.ARRIVED, "task-1"), (EventKind.READY, "task-1"),
        (EventKind.ARRIVED, "task-2"), (EventKind.FAILED, "task-2"),
    ]  # fmt: skip
    assert [each.duration_s for each in recorder.events(task="task-1")] == [None, 0.25]
    assert {each.task for each in recorder.events(since_s=begin_s + 0.1)} == {"task-2"}
    recorder.flush()
    assert read_trace(path.read_bytes(), "file") == list(recorder.events())


def test_memory_and_file_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    recorder = Recorder(ManualClock(), path, 10_000)
    for number in range(KEPT_IN_MEMORY + 10):
        recorder.add(EventKind.WARNED, text=str(number))
        if number % 50 == 0:
            recorder.flush()
    assert len(recorder.events()) == KEPT_IN_MEMORY
    assert recorder.events()[0].text == "10"
    assert older_file(path).stat().st_size < 20_000
    assert sorted(entry.name for entry in tmp_path.iterdir()) in (
        ["events.1.jsonl"],
        ["events.1.jsonl", "events.jsonl"],
    )


def test_a_file_that_cannot_be_written_costs_events_and_nothing_else(tmp_path: Path) -> None:
    recorder = Recorder(ManualClock(), tmp_path / "missing" / "events.jsonl", 10_000)
    recorder.add(EventKind.ARRIVED)
    recorder.flush()
    recorder.flush()
    (tmp_path / "missing").mkdir()
    recorder.add(EventKind.READY)
    recorder.flush()
    assert (tmp_path / "missing" / "events.jsonl").read_bytes().count(b"\n") == 1
