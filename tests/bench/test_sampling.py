"""Contestants are measured in turn."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from dsec.bench.distribution import distribution
from dsec.bench.progress import Progress
from dsec.bench.report import make_report
from dsec.bench.sampling import Sample, alternate, timed

pytestmark = pytest.mark.anyio


def silent() -> Progress:
    return Progress(Console(file=io.StringIO()))


def contestant(name: str, heard: list[str]) -> Sample:
    async def sample() -> float:
        heard.append(name)
        return float(len(heard))

    return sample


async def test_every_contestant_is_sampled_once_a_round_and_none_has_a_fixed_place() -> None:
    heard: list[str] = []
    contestants = {name: contestant(name, heard) for name in "abc"}
    await alternate(contestants, rounds=40, progress=silent(), warm_ups=0)
    rounds = ["".join(heard[at : at + 3]) for at in range(0, len(heard), 3)]
    assert {"".join(sorted(order)) for order in rounds} == {"abc"}
    assert len(set(rounds)) == 6


async def test_warm_ups_are_done_but_not_counted() -> None:
    heard: list[str] = []
    seconds = await alternate({"a": contestant("a", heard)}, rounds=2, progress=silent(), warm_ups=3)
    assert len(heard) == 5
    assert seconds == {"a": [4.0, 5.0]}


async def test_a_failure_of_a_contestant_is_not_hidden() -> None:
    async def sample() -> float:
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        await alternate({"a": sample}, rounds=1, progress=silent())


def test_a_stopwatch_counts_its_block_only() -> None:
    with timed() as watch:
        pass
    kept = watch.seconds
    assert kept >= 0.0
    assert watch.seconds == kept


def test_ratios_are_ours_over_the_reference() -> None:
    ours, other = distribution([2.0]), distribution([8.0])
    report = make_report("x", "ms", "lower", ours=ours, references={"other": other}, series=(), host={})
    assert report.ratios == {"other": 0.25}
