"""Both journals keep what was written; the one on disk keeps it over a kill, and refuses what it does not know."""

from __future__ import annotations

import errno
import json
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import anyio
import msgspec
import pytest

from dsec.base.errors import HostDiskFullError, NodeUnavailableError, StateCorruptedError
from dsec.base.units import MIB
from dsec.lifecycle.migration import SourcePhase, TargetPhase
from dsec.linux import mounts
from dsec.model.pool import PoolPolicy
from dsec.model.process import ExitStatus
from dsec.model.sandbox import Resources, SandboxSpec, SandboxState
from dsec.stores.journal import RESERVE_BYTES, SCHEMA_VERSION, SqliteJournal
from dsec.stores.memory import MemoryJournal
from dsec.stores.port import CheckpointRecord, Journal, MigrationRecord, PoolRecord, ProcessRecord, SandboxRecord

pytestmark = pytest.mark.anyio


def sandbox(sandbox_id: str, state: SandboxState = SandboxState.READY) -> SandboxRecord:
    spec = SandboxSpec(env={"A": "é"}, resources=Resources(pids=7), metadata={"task": "x"})
    return SandboxRecord(
        sandbox_id=sandbox_id, state=state, requested=spec, spec=spec, layer_paths=("/a", "/b"), deadline_boot_s=12.5
    )


def process(sandbox_id: str, process_id: str, status: ExitStatus | None = None) -> ProcessRecord:
    return ProcessRecord(
        sandbox_id=sandbox_id,
        process_id=process_id,
        generation=0,
        argv=("sleep", "1"),
        started_wall_s=1.0,
        deadline_boot_s=None,
        output_limit_bytes=100,
        status=status,
    )


@pytest.fixture(params=["sqlite", "memory"])
async def journal(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Journal]:
    opened: Journal = SqliteJournal(tmp_path / "journal.sqlite") if request.param == "sqlite" else MemoryJournal()
    yield opened
    await opened.close()


async def test_records_come_back_as_they_were_written(journal: Journal) -> None:
    await journal.put_sandbox(sandbox("sbx-a", SandboxState.CREATING))
    await journal.put_sandbox(sandbox("sbx-a"))
    await journal.put_process(process("sbx-a", "prc-1"))
    await journal.put_process(process("sbx-a", "prc-1", ExitStatus(exit_code=3)))
    content = journal.load()
    assert content.sandboxes == (sandbox("sbx-a"),)
    assert content.processes == (process("sbx-a", "prc-1", ExitStatus(exit_code=3)),)
    assert content.removed == ()


async def test_deleting_a_sandbox_takes_its_processes_and_remembers_its_id(journal: Journal) -> None:
    for name in ("sbx-a", "sbx-b"):
        await journal.put_sandbox(sandbox(name))
        await journal.put_process(process(name, "prc-1"))
    await journal.delete_sandbox("sbx-a")
    await journal.delete_sandbox("sbx-never")
    content = journal.load()
    assert content.sandboxes == (sandbox("sbx-b"),)
    assert content.processes == (process("sbx-b", "prc-1"),)
    assert content.removed == ("sbx-a", "sbx-never")
    await journal.delete_processes("sbx-b")
    assert journal.load().processes == ()


async def test_an_exchange_writes_and_forgets_together_and_remembers_no_name(journal: Journal) -> None:
    await journal.put_sandbox(sandbox("pool-x"))
    await journal.exchange(sandbox("sbx-a"), sandbox("sbx-b"), erased="pool-x")
    content = journal.load()
    assert {record.sandbox_id for record in content.sandboxes} == {"sbx-a", "sbx-b"}
    assert content.removed == ()
    await journal.exchange(erased="sbx-b")
    assert journal.load().sandboxes == (sandbox("sbx-a"),)


async def test_pools_come_back_as_they_were_set(journal: Journal) -> None:
    for floor in (1, 2):
        await journal.put_pool(PoolRecord(pool_id="p", spec=SandboxSpec(), policy=PoolPolicy(floor=floor)))
    await journal.put_pool(PoolRecord(pool_id="q", spec=SandboxSpec(), policy=PoolPolicy()))
    await journal.delete_pool("q")
    await journal.delete_pool("never")
    assert journal.load().pools == (PoolRecord(pool_id="p", spec=SandboxSpec(), policy=PoolPolicy(floor=2)),)


def checkpoint(checkpoint_id: str, sandbox_id: str, *, saved: bool = True) -> CheckpointRecord:
    return CheckpointRecord(
        checkpoint_id=checkpoint_id, sandbox_id=sandbox_id, layer=f"{sandbox_id}-C{checkpoint_id}", saved=saved
    )


async def test_checkpoints_are_written_and_dropped_together_with_their_sandbox(journal: Journal) -> None:
    await journal.put_sandbox(sandbox("sbx-a"))
    await journal.exchange(checkpoints=[checkpoint("ckp-1", "sbx-a", saved=False)])
    await journal.exchange(sandbox("sbx-a"), checkpoints=[checkpoint("ckp-1", "sbx-a"), checkpoint("ckp-2", "sbx-a")])
    assert journal.load().checkpoints == (checkpoint("ckp-1", "sbx-a"), checkpoint("ckp-2", "sbx-a"))
    await journal.exchange(dropped=[checkpoint("ckp-1", "sbx-a")])
    content = journal.load()
    assert content.checkpoints == (checkpoint("ckp-2", "sbx-a"),)
    assert content.removed_checkpoints == (("ckp-1", "sbx-a"),)


async def test_deleting_a_sandbox_takes_its_checkpoints_and_remembers_whose_they_were(journal: Journal) -> None:
    for name in ("sbx-a", "sbx-b"):
        await journal.put_sandbox(sandbox(name))
        await journal.exchange(checkpoints=[checkpoint(f"ckp-{name}", name)])
    await journal.delete_sandbox("sbx-a")
    content = journal.load()
    assert content.checkpoints == (checkpoint("ckp-sbx-b", "sbx-b"),)
    assert content.removed_checkpoints == (("ckp-sbx-a", "sbx-a"),)


async def test_migrations_are_written_with_what_they_move_and_forgotten_when_given_up(journal: Journal) -> None:
    copying = MigrationRecord(migration_id="mig-2", sandbox_id="sbx-a", source=SourcePhase.COPYING, peer="other")
    receiving = MigrationRecord(migration_id="mig-1", sandbox_id="sbx-b", target=TargetPhase.RECEIVING, peer="other")
    await journal.exchange(migrations=[copying])
    await journal.exchange(sandbox("sbx-b"), migrations=[receiving])
    moved = msgspec.structs.replace(copying, source=SourcePhase.MOVED, url="http://other")
    await journal.exchange(migrations=[moved])
    assert journal.load().migrations == (moved, receiving), "in the order in which they began"
    await journal.exchange(given_up=[receiving])
    assert journal.load().migrations == (moved,)


_NEW_TABLES = {
    1: ("pool", "checkpoint", "removed_checkpoint", "migration"),
    2: ("checkpoint", "removed_checkpoint", "migration"),
    3: ("migration",),
}
_NEW_FIELDS = {
    1: ("carrier", "first_generation", "pool", "tenancy", "current", "origin", "parent", "forked_from", "snapshot"),
    2: ("current", "origin", "parent", "forked_from", "snapshot"),
    3: (),
}


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_a_journal_of_an_older_version_is_read_and_brought_to_the_newest(tmp_path: Path, version: int) -> None:
    path = tmp_path / "journal.sqlite"
    old = SqliteJournal(path)
    await old.put_sandbox(sandbox("sbx-a"))
    await old.close()
    connection = sqlite3.connect(path)
    for table in _NEW_TABLES[version]:
        connection.execute(f"DROP TABLE {table}")
    connection.execute(f"PRAGMA user_version = {version}")
    record = json.loads(connection.execute("SELECT record FROM sandbox").fetchone()[0])
    for name in _NEW_FIELDS[version]:
        record.pop(name)
    connection.execute("UPDATE sandbox SET record = ?", (json.dumps(record).encode(),))
    connection.commit()
    connection.close()
    journal = SqliteJournal(path)
    assert journal.load().sandboxes == (sandbox("sbx-a"),)
    await journal.put_pool(PoolRecord(pool_id="p", spec=SandboxSpec(), policy=PoolPolicy()))
    await journal.exchange(checkpoints=[checkpoint("ckp-1", "sbx-a")])
    await journal.close()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA_VERSION,)


async def test_many_writers_share_commits_and_none_is_lost(journal: Journal) -> None:
    async with anyio.create_task_group() as group:
        for number in range(300):
            group.start_soon(journal.put_sandbox, sandbox(f"sbx-{number}"))
    assert len(journal.load().sandboxes) == 300


async def test_what_was_written_is_there_after_closing_and_opening(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    first = SqliteJournal(path)
    await first.put_sandbox(sandbox("sbx-a"))
    await first.close()
    await first.close()
    with pytest.raises(NodeUnavailableError):
        await first.put_sandbox(sandbox("sbx-b"))
    second = SqliteJournal(path)
    assert second.load().sandboxes == (sandbox("sbx-a"),)
    await second.close()


_WRITER = """
import asyncio, sys
from pathlib import Path
from dsec.model.sandbox import SandboxSpec, SandboxState
from dsec.stores.journal import SqliteJournal
from dsec.stores.port import SandboxRecord

async def main() -> None:
    journal = SqliteJournal(Path(sys.argv[1]))
    for number in range(1_000_000):
        spec = SandboxSpec()
        record = SandboxRecord(sandbox_id=f"sbx-{number}", state=SandboxState.READY, requested=spec, spec=spec)
        await journal.put_sandbox(record)
        print(number, flush=True)

asyncio.run(main())
"""


def _write_until_killed(path: Path) -> int:
    """Let a process write records, kill it in the middle, and return the number of the last acknowledged one."""
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE)
    assert writer.stdout is not None
    acknowledged = -1
    for line in writer.stdout:
        acknowledged = int(line)
        if acknowledged >= 200:
            writer.send_signal(signal.SIGKILL)
            break
    acknowledged = max([acknowledged, *map(int, writer.stdout.read().split())])
    writer.stdout.close()
    assert writer.wait() == -signal.SIGKILL
    return acknowledged


@pytest.mark.slow
async def test_no_acknowledged_write_is_lost_when_the_writer_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    acknowledged = _write_until_killed(path)
    journal = SqliteJournal(path)
    found = {record.sandbox_id for record in journal.load().sandboxes}
    await journal.close()
    assert found >= {f"sbx-{number}" for number in range(acknowledged + 1)}


async def test_a_newer_version_is_refused_and_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    await SqliteJournal(path).close()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()
    with pytest.raises(StateCorruptedError, match=f"version {SCHEMA_VERSION + 1}"):
        SqliteJournal(path)


async def test_a_file_that_is_no_journal_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal.sqlite"
    path.write_bytes(b"this is not a database" * 100)
    with pytest.raises(StateCorruptedError):
        SqliteJournal(path)


@pytest.mark.parametrize("record", [b"{", b'{"sandbox_id": "sbx-a", "wings": 2}', b"\xff\xfe"])
async def test_a_record_that_is_not_understood_is_an_error(tmp_path: Path, record: bytes) -> None:
    path = tmp_path / "journal.sqlite"
    await SqliteJournal(path).close()
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("INSERT INTO sandbox VALUES ('sbx-a', ?)", (record,))
    connection.close()
    journal = SqliteJournal(path)
    with pytest.raises(StateCorruptedError):
        journal.load()
    await journal.close()


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


@pytest.mark.root
async def test_on_a_full_disk_what_ends_something_can_still_be_written(tmp_path: Path) -> None:
    mounts.mount("tmpfs", tmp_path, "tmpfs", options=f"size={8 * MIB}")
    journal = SqliteJournal(tmp_path / "journal.sqlite")
    try:
        for number in range(100):
            await journal.put_sandbox(sandbox(f"sbx-{number}"))
        fill(tmp_path / "filler")
        big = msgspec.structs.replace(sandbox("sbx-big"), cause="x" * 4 * MIB)
        with pytest.raises(HostDiskFullError):
            await journal.put_sandbox(big)
        for number in range(100):
            await journal.put_sandbox(sandbox(f"sbx-{number}", SandboxState.STOPPING))
            await journal.delete_sandbox(f"sbx-{number}")
        (tmp_path / "filler").unlink()
        await journal.put_sandbox(sandbox("sbx-new"))
        assert (tmp_path / "journal.sqlite-reserve").stat().st_size == RESERVE_BYTES
    finally:
        await journal.close()
        mounts.unmount(tmp_path)
