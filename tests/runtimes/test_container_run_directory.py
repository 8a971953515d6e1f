"""A node's run directory is in memory where the host lets it be, and goes with the node."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dsec.linux import mounts
from dsec.runtimes.container.run_directory import close_run_directory, open_run_directory

pytestmark = pytest.mark.root


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory on a file system that is a disk to whoever asks."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounts.mount("none", disk, "ramfs")
    yield disk / "node"
    for entry in mounts.mounts_under(disk):
        mounts.unmount(entry.target)


def test_it_is_put_into_memory_once_and_taken_away(directory: Path) -> None:
    for _ in range(2):
        open_run_directory(directory, in_memory=True, owner="/var/lib/some state")
    (entry,) = mounts.mounts_under(directory)
    assert (entry.target, entry.kind, entry.source) == (str(directory), "tmpfs", "/var/lib/some state")
    assert directory.stat().st_mode & 0o777 == 0o711
    close_run_directory(directory)
    assert not directory.exists()


def test_what_an_earlier_node_left_stays_where_it_is(directory: Path) -> None:
    (directory / "sbx-left-g0").mkdir(parents=True)
    open_run_directory(directory, in_memory=True)
    assert (directory / "sbx-left-g0").is_dir()
    with pytest.raises(OSError, match="not empty"):
        close_run_directory(directory)


def test_a_directory_with_something_in_it_is_not_taken_away(directory: Path) -> None:
    open_run_directory(directory, in_memory=True)
    (directory / "sbx-lives-g0").mkdir()
    with pytest.raises(OSError):  # noqa: PT011
        close_run_directory(directory)
    assert (directory / "sbx-lives-g0").is_dir()
