"""The log on the disk: shared syncs, cancelled writers, a full disk."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from dsec.base.errors import HostDiskFullError, PlatformError, StateCorruptedError
from dsec.episode.frames import encode_frame
from dsec.linux import mounts
from dsec.worker.framed_log import FramedLog

pytestmark = pytest.mark.anyio


def documents(path: Path) -> tuple[bytes, ...]:
    with FramedLog(path) as log:
        return log.documents


async def test_lines_come_back_in_order(tmp_path: Path) -> None:
    with FramedLog(tmp_path / "new" / "log") as log:
        await log.append(b'{"a":1}')
        await log.append(b'{"a":2}', durable=False)
        await log.append(b'{"a":3}')
    assert documents(tmp_path / "new" / "log") == (b'{"a":1}', b'{"a":2}', b'{"a":3}')


async def test_writers_share_a_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs = 0
    really = os.fsync

    def counted(descriptor: int) -> None:
        nonlocal syncs
        syncs += 1
        really(descriptor)

    monkeypatch.setattr(os, "fsync", counted)
    with FramedLog(tmp_path / "log") as log:
        async with anyio.create_task_group() as group:
            for number in range(20):
                group.start_soon(log.append, b'{"n":%d}' % number)
    assert len(documents(tmp_path / "log")) == 20
    assert syncs <= 3


async def test_a_cancelled_writer_tears_nothing(tmp_path: Path) -> None:
    with FramedLog(tmp_path / "log") as log:
        with anyio.CancelScope() as scope:
            scope.cancel()
            await log.append(b'{"a":1}')
        await log.append(b'{"a":2}')
    assert documents(tmp_path / "log") == (b'{"a":1}', b'{"a":2}')


async def test_a_log_that_could_not_be_synced_takes_nothing_more_until_it_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(descriptor: int) -> None:
        raise OSError(errno.EIO, "input/output error")

    with FramedLog(tmp_path / "log") as log:
        await log.append(b'{"a":1}')
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fails)
            with pytest.raises(PlatformError):
                await log.append(b'{"a":2}')
        with pytest.raises(PlatformError):
            await log.append(b'{"a":3}')
    with FramedLog(tmp_path / "log") as log:
        await log.append(b'{"a":4}')
    assert documents(tmp_path / "log") in ((b'{"a":1}', b'{"a":2}', b'{"a":4}'), (b'{"a":1}', b'{"a":4}'))


async def test_opening_cuts_a_torn_tail_and_says_how_much(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(encode_frame(b'{"a":1}') + b'{"a":2}')
    with FramedLog(path) as log:
        assert log.repaired_bytes == 7
    assert path.read_bytes() == encode_frame(b'{"a":1}')


async def test_opening_a_damaged_log_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "log"
    damaged = b"bad\n" + encode_frame(b'{"a":1}')
    path.write_bytes(damaged)
    with pytest.raises(StateCorruptedError):
        FramedLog(path)
    assert path.read_bytes() == damaged


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    mounts.mount("tmpfs", tmp_path, "tmpfs", 0, "size=64k")
    yield tmp_path
    mounts.unmount(tmp_path, detach=True)


@pytest.mark.root
async def test_a_full_disk_is_said_and_keeps_what_was_written(small_disk: Path) -> None:
    path = small_disk / "log"
    with FramedLog(path) as log:
        await log.append(b'{"a":1}')
        with pytest.raises(HostDiskFullError, match="cannot be written"):
            await log.append(b'{"a":"%s"}' % (b"x" * 100_000))
        await log.append(b'{"a":2}')
    assert documents(path) == (b'{"a":1}', b'{"a":2}')
