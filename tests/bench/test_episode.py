"""The rounds that benchmarks of episodes play are ones that a log takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.bench.episode import announcements, bench_identity, bench_round, outside_round
from dsec.bench.replay import _written
from dsec.stores.episode_log import create_log
from dsec.stores.episode_log_place import LogPlace
from dsec.stores.episode_log_reading import read_episode_log


@pytest.mark.parametrize("size", [0, 10, 100_000])
def test_a_result_has_as_many_bytes_as_was_asked_for(size: int) -> None:
    (result,) = bench_round(1, size).record.results
    assert len(result.stdout.data) == size  # type: ignore[union-attr]


def test_announced_rounds_are_committed(tmp_path: Path) -> None:
    with create_log(LogPlace(directory=tmp_path / "ep-bench"), bench_identity("ep-bench")) as log:
        for number in (1, 2):
            for event in announcements(number):
                log.append(event)
            log.append(outside_round(number, 100))
        log.save()
        assert log.progress.last_round == 2


def test_the_log_that_is_replayed_holds_every_round(tmp_path: Path) -> None:
    assert len(read_episode_log(_written(tmp_path, 5)).rounds) == 5
