"""`replay`: read an episode's log back, verified, decoded and added up; beside a bare parse of the same lines.

The references read the same files and parse every line, and that is all: no checksums, no order, no types. The standard
library's parser is what a script would use; msgspec's is ours, without types.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from dsec.base.units import KIB, MIB
from dsec.bench.context import PureContext
from dsec.bench.distribution import distribution, ratio
from dsec.bench.episode import bench_identity, bench_round
from dsec.bench.report import Report, make_report
from dsec.bench.sampling import Sample, alternate, timed
from dsec.episode.log_content import LogContent
from dsec.stores.episode_log import create_log, open_log
from dsec.stores.episode_log_place import LogPlace
from dsec.stores.episode_log_reading import read_episode_log

_ROUNDS = 1_000
_SIZES = (100, 10_000)
_RESULT_BYTES = 4 * KIB
_OURS, _JSON, _MSGSPEC = "ours", "json.loads of each line", "msgspec.json.decode of each line"


async def bench_replay(context: PureContext) -> Report:
    """Measure reading a log of 1,000 rounds, and of other lengths."""
    directory = Path(tempfile.mkdtemp(prefix="dsec-bench-", dir="/var/tmp"))
    try:
        rounds, samples = context.options.count or _ROUNDS, context.options.samples
        seconds = await _measure(context, _written(directory, rounds), rounds, samples)
        series = [_row(rounds, seconds)]
        for other in _SIZES:
            few = max(3, samples // max(5, other // 200))
            series.append(_row(other, await _measure(context, _written(directory, other), other, few)))
        series += _opening(directory / f"ep-{rounds}", max(3, samples // 10))
    finally:
        shutil.rmtree(directory)
    context.note(f"rounds of one call whose result has {_RESULT_BYTES} bytes; the files are in the page cache")
    return make_report(
        "replay",
        "ms",
        "lower",
        ours=distribution(seconds[_OURS], scale=1e3),
        references={name: distribution(seconds[name], scale=1e3) for name in (_JSON, _MSGSPEC)},
        series=series,
        host=context.host,
    )


def _written(directory: Path, rounds: int) -> Path:
    """Write a log of so many rounds."""
    place = LogPlace(directory=directory / f"ep-{rounds}")
    with create_log(place, bench_identity(f"ep-{rounds}")) as log:
        for number in range(1, rounds + 1):
            log.append(bench_round(number, _RESULT_BYTES))
        log.save()
    return place.directory


async def _measure(context: PureContext, log: Path, rounds: int, samples: int) -> dict[str, list[float]]:
    def ours() -> None:
        content: LogContent = read_episode_log(log)
        assert len(content.rounds) == rounds

    contestants: dict[str, Sample] = {
        _OURS: _timed(ours),
        _JSON: _timed(lambda: _parse(log, json.loads)),
        _MSGSPEC: _timed(lambda: _parse(log, msgspec.json.decode)),
    }
    return await alternate(contestants, rounds=samples, progress=context.progress)


def _parse(log: Path, parse: Callable[[bytes], object]) -> None:
    parsed = [parse(line) for file in sorted(log.glob("*.jsonl")) for line in file.read_bytes().splitlines()]
    assert parsed


def _timed(act: Callable[[], None]) -> Sample:
    async def sample() -> float:
        with timed() as watch:
            act()
        return watch.seconds

    return sample


def _row(rounds: int, seconds: dict[str, list[float]]) -> dict[str, Any]:
    p50 = {name: distribution(values, scale=1e3).p50 for name, values in seconds.items()}
    return {
        "what": f"{rounds} rounds",
        "ours_ms": p50[_OURS],
        "us_each": round(1e3 * p50[_OURS] / rounds, 2),
        "json_ms": p50[_JSON],
        "to_json": ratio(p50[_OURS], p50[_JSON]),
        "msgspec_ms": p50[_MSGSPEC],
    }


def _opening(log: Path, samples: int) -> list[dict[str, Any]]:
    """Open a log for writing, which reads it and writes its last segment anew."""
    took = []
    for _ in range(samples):
        with timed() as watch:
            opened, _ = open_log(LogPlace(directory=log))
        opened.close()
        took.append(watch.seconds)
    size = sum(file.stat().st_size for file in log.glob("*.jsonl"))
    return [
        {
            "what": f"open the first one for writing ({size / MIB:.1f} MiB)",
            "ours_ms": distribution(took, scale=1e3).p50,
        }
    ]
