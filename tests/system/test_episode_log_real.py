"""Logs of episodes on real disks that fail, with real processes that sleep, and on a real object service."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from dsec.base.errors import HostDiskFullError, LogSuspectError, StateLockedError
from dsec.episode.log_content import Completeness, LogContent
from dsec.episode.log_events import RoundCommitted
from dsec.stores.episode_log import EpisodeLog, create_log, open_log
from dsec.stores.episode_log_place import LogPlace
from dsec.stores.episode_log_reading import read_episode_log
from dsec.stores.episode_log_remote import read_stored_log, restore_log
from dsec.stores.episode_log_upload import LogUploader
from dsec.stores.opening import open_store
from dsec.testing.episodes import EPISODE, history, identity, round_record
from dsec.testing.releasing import unmount_when_free
from dsec.testing.s3_server import S3Server

LEASE_S = 3.0
"""Far longer than a busy host keeps a process waiting, since a writer that is kept waiting so long is succeeded."""


@contextmanager
def mounted(*arguments: str, on: Path) -> Iterator[None]:
    on.mkdir(exist_ok=True)
    subprocess.run(["mount", *arguments, str(on)], check=True, capture_output=True)
    try:
        yield
    finally:
        unmount_when_free(on)


def write_until_it_fails(log: EpisodeLog) -> int:
    """Return the last round that was acknowledged."""
    acknowledged = 0
    for number in range(1, 5000):
        try:
            log.append(RoundCommitted(round_record(number, size=4000)))
            log.save()
        except (HostDiskFullError, LogSuspectError):
            break
        acknowledged = number
    return acknowledged


@pytest.mark.root
@pytest.mark.slow
def test_a_disk_that_cannot_write_back_makes_the_log_suspect_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    """A file system on a sparse file whose own file system fills up: write(2) succeeds, fsync(2) fails."""
    backing, top = tmp_path / "backing", tmp_path / "top"
    with mounted("-t", "tmpfs", "-o", "size=3m", "tmpfs", on=backing):
        file = backing / "disk"
        file.touch()
        os.truncate(file, 64 << 20)
        subprocess.run(["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-F", str(file)], check=True)
        place = LogPlace(directory=top / EPISODE)
        with mounted("-o", "loop", str(file), on=top):
            log = create_log(place, identity())
            acknowledged = write_until_it_fails(log)
            with pytest.raises(LogSuspectError):
                log.save()
            log.close()
            assert 100 < acknowledged < 4999
            subprocess.run(["mount", "-o", "remount,size=40m", str(backing)], check=True)
            log, content = open_log(place)
            reopened = content.progress.last_round
            assert reopened in (acknowledged, acknowledged + 1)
            log.append(RoundCommitted(round_record(reopened + 1, size=4000)))
            log.save()
            log.close()
        with mounted("-o", "loop", str(file), on=top):
            content = read_episode_log(place.directory)
    assert content.completeness is Completeness.OPEN, content.problem
    assert content.progress.last_round == reopened + 1


@pytest.mark.root
@pytest.mark.slow
def test_a_disk_that_is_really_full_costs_the_round_alone(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with mounted("-t", "tmpfs", "-o", "size=1m", "tmpfs", on=disk):
        place = LogPlace(directory=disk / EPISODE, segment_bytes=100_000)
        log = create_log(place, identity())
        ballast = disk / "ballast"
        ballast.write_bytes(bytes(300_000))
        acknowledged = write_until_it_fails(log)
        with pytest.raises(HostDiskFullError):
            log.save()
        log.close()
        assert 50 < acknowledged < 4999
        ballast.unlink()
        log, content = open_log(place)
        assert (content.progress.last_round, content.torn_bytes) == (acknowledged, 0)
        log.append(RoundCommitted(round_record(acknowledged + 1)))
        log.save()
        log.close()


_WRITER = """
import sys
from pathlib import Path
from dsec.base.errors import DsecError
from dsec.episode.log_events import RoundCommitted
from dsec.stores.episode_log import LogPlace, create_log
from dsec.testing.episodes import identity, round_record

log = create_log(LogPlace(directory=Path(sys.argv[1]), lease_s=float(sys.argv[2])), identity())
try:
    while True:
        number = log.progress.last_round + 1
        log.append(RoundCommitted(round_record(number)))
        log.save()
        print(number, flush=True)
except DsecError as error:
    print(error.code, flush=True)
"""


@pytest.mark.slow
def test_a_process_that_was_stopped_beyond_its_lease_is_refused_when_it_goes_on(tmp_path: Path) -> None:
    directory = tmp_path / EPISODE
    command = [sys.executable, "-c", _WRITER, str(directory), str(LEASE_S)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(20):
            writer.stdout.readline()
        place = LogPlace(directory=directory)
        with pytest.raises(StateLockedError):
            open_log(place)
        os.kill(writer.pid, signal.SIGSTOP)
        log, content = _opened_when_the_lease_is_over(place)
        last = content.progress.last_round
        log.append(RoundCommitted(round_record(last + 1)))
        log.save()
        os.kill(writer.pid, signal.SIGCONT)
        told = writer.stdout.read().split()
    log.append(RoundCommitted(round_record(last + 2)))
    log.save()
    log.close()
    assert told[-1] == "writer_fenced"
    assert [int(number) for number in told[:-1] if int(number) > last] == []
    assert read_episode_log(directory).events == history(last + 2)


def _opened_when_the_lease_is_over(place: LogPlace) -> tuple[EpisodeLog, LogContent]:
    deadline = time.monotonic() + 60
    while True:
        try:
            return open_log(place)
        except StateLockedError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_log_is_copied_to_a_real_service_and_restored_from_it(
    tmp_path: Path, s3_server: S3Server, s3_url: str
) -> None:
    place = LogPlace(directory=tmp_path / EPISODE)
    log = create_log(place, identity())
    for number in range(1, 41):
        log.append(RoundCommitted(round_record(number, size=50_000)))
    log.save()
    store = open_store(s3_url, environment=s3_server.environment)
    upload = LogUploader(log, place, store)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(upload.run)
        with anyio.fail_after(60):
            assert (await upload.wait_whole()).round == 40
        tasks.cancel_scope.cancel()
    log.close()
    content = await read_stored_log(store, EPISODE)
    assert content.completeness is Completeness.OPEN
    elsewhere = LogPlace(directory=tmp_path / "elsewhere" / EPISODE)
    await restore_log(elsewhere, store)
    await store.aclose()
    log, restored = open_log(elsewhere)
    log.close()
    assert restored.events == content.events
    assert restored.progress.last_round == 40
