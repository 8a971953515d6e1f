"""Files of downloads, and who may delete them."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from dsec.images.registry.downloads import Downloads


def test_what_somebody_began_anew_meanwhile_is_not_swept_with_what_was_there_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever held the first file deletes it, and the next begins another, between our opening it and the lock."""
    file, flock = tmp_path / "blob", fcntl.flock
    theirs: list[int] = []
    file.write_bytes(b"the first")

    def flock_too_late(descriptor: int, how: int) -> None:
        if not theirs:
            file.unlink()
            theirs.append(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
            flock(theirs[0], fcntl.LOCK_EX)
        flock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock_too_late)
    assert Downloads(tmp_path).sweep(older_than_s=0.0) == 0
    assert file.exists()
    os.close(theirs[0])
    file.write_bytes(b"another")
    assert Downloads(tmp_path).sweep(older_than_s=3600.0) == 0
    assert Downloads(tmp_path).sweep(older_than_s=0.0, dry_run=True) == 7
    assert Downloads(tmp_path).sweep(older_than_s=0.0) == 7
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_file_of_ours_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("directory")
    assert Downloads(tmp_path).sweep(older_than_s=0.0) == 0
    assert len(list(tmp_path.iterdir())) == 2
