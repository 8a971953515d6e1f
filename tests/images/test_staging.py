"""Work in progress of an image store, and what is left of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dsec.images import staging
from dsec.images.durable import try_lock
from dsec.images.staging import Staging


def test_a_sweep_passes_over_what_its_worker_takes_away_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = Staging(tmp_path, tmp_path.with_suffix(".lock"))
    dead = [tmp_path / name for name in ("a", "b")]
    for each in dead:
        each.mkdir()
        each.with_suffix(".lock").touch()
    tried: list[Path] = []

    def locked_late(path: Path) -> int | None:
        if not tried:
            path.unlink()  # Its worker is done between the listing and now.
        tried.append(path)
        return try_lock(path)

    monkeypatch.setattr(staging, "try_lock", locked_late)
    work.sweep()
    assert len(tried) == 2
    assert not tried[1].exists()
    assert not tried[1].with_suffix("").exists()
