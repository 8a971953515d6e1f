"""Amounts of a common scale, and a picture of times over them."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.base.units import GIB, MIB
from dsec.bench.by_size import amounts_up_to, draw_by_size
from dsec.bench.distribution import distribution
from dsec.bench.report import make_report


@pytest.mark.parametrize(
    ("largest", "amounts"),
    [
        (1024, (1024,)),
        (MIB, (MIB,)),
        (64 * MIB, (MIB, 16 * MIB, 64 * MIB)),
        (4 * GIB, (MIB, 16 * MIB, 256 * MIB, GIB, 4 * GIB)),
    ],
)
def test_amounts_end_with_what_was_asked_for(largest: int, amounts: tuple[int, ...]) -> None:
    assert amounts_up_to(largest) == amounts


@pytest.mark.slow
def test_a_picture_has_a_line_for_each_distribution(tmp_path: Path) -> None:
    times = distribution([0.01, 0.02], scale=1e3)
    series = [
        {"written_bytes": size, "how": how, "checkpoint_ms": times, "frozen_ms": times}
        for size in (0, MIB, GIB)
        for how in ("settled", "just written")
    ]
    report = make_report("checkpoint", "ms", "lower", ours=times, references={}, series=series, host={"cores": 2})
    files = draw_by_size(report, tmp_path, title="Checkpoint", goal_ms=15.0)
    assert {path.name for path in files} >= {"checkpoint-by-size.svg", "checkpoint-by-size.dark.png"}
    assert all(path.stat().st_size for path in files)
