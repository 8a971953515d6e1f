"""The window of rounds that a loop keeps."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

from dsec.base.units import KIB
from dsec.episode.episode_progress import fold
from dsec.episode.log_content import Completeness, LogContent
from dsec.episode.log_events import LogEvent, RoundCommitted, StateSaved
from dsec.episode.operations import RoundRecord
from dsec.testing.episodes import history, identity, round_record
from dsec.worker.episodes.holding import newest_rounds
from dsec.worker.episodes.spill import Spill
from dsec.worker.episodes.window import RoundWindow


def records(count: int, size: int = 0) -> list[RoundRecord]:
    return [round_record(number, size=size) for number in range(1, count + 1)]


def test_a_window_reads_as_the_rounds_that_were_put_in() -> None:
    rounds = records(5)
    window = RoundWindow(rounds)
    assert list(window) == rounds
    assert list(reversed(window)) == rounds[::-1]
    assert window[-1] == rounds[-1]
    assert list(window[1:3]) == rounds[1:3]
    assert len(window) == 5


def test_rounds_that_are_put_away_read_as_if_they_were_not(tmp_path: Path) -> None:
    rounds = records(3_000, size=3 * KIB)
    window = RoundWindow(limit_bytes=600 * KIB, spill=Spill(tmp_path))
    for record in rounds:
        window.append(record)
    kept = len(window)
    assert kept > 100
    assert list(window) == rounds[-kept:]
    assert window[0] == rounds[-kept]
    assert list(tmp_path.iterdir()) == [], "the file has no name"
    window.close()
    window.close()


def test_where_there_is_no_room_to_put_rounds_away_they_stay_in_memory(tmp_path: Path) -> None:
    rounds = records(200, size=3 * KIB)
    window = RoundWindow(rounds, spill=Spill(tmp_path / "absent"))
    assert list(window) == rounds[-len(window) :]
    window.close()


def test_what_is_too_much_goes_the_oldest_first_and_the_newest_stays_however_long_it_is() -> None:
    window = RoundWindow(records(100, size=4 * KIB), limit_bytes=20 * KIB)
    assert [record.number for record in window] == [98, 99, 100]
    window.append(round_record(101, size=100 * KIB))
    assert [record.number for record in window] == [101]


def test_ten_thousand_rounds_take_no_more_than_those_that_are_kept() -> None:
    def taken(count: int) -> int:
        tracemalloc.start()
        window = RoundWindow(limit_bytes=100 * KIB)
        for number in range(1, count + 1):
            window.append(round_record(number, size=2 * KIB))
        gc.collect()
        size = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert window[-1].number == count
        return size

    assert taken(2_000) < 1.5 * taken(100)


def test_what_a_state_holds_stands_in_front_of_the_rounds_behind_it_and_is_not_doubled_where_nothing_was_dropped() -> (
    None
):
    state = StateSaved(number=4, identity=identity(), workspace="w4", recent=tuple(records(4)[1:]))
    behind: list[LogEvent] = [RoundCommitted(record) for record in records(6)[4:]]
    dropped, whole = content([state, *behind]), content([*history(4), state, *behind])
    assert [record.number for record in newest_rounds(dropped)] == [2, 3, 4, 5, 6]
    assert [record.number for record in newest_rounds(whole)] == [1, 2, 3, 4, 5, 6]
    assert [record.number for record in newest_rounds(content([state]))] == [2, 3, 4]


def content(events: list[LogEvent]) -> LogContent:
    return LogContent(
        events=events, first=1, progress=fold(events), completeness=Completeness.OPEN, problem="", torn_bytes=0
    )
