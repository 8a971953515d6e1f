"""The journal in SQLite.

One thread owns the connection. Writes are queued to it; it takes all that wait, applies them in order in one
transaction, and tells the event loop once. A burst of creations thus shares its commits, and the event loop never
waits for a disk.

The database is in WAL mode with ``synchronous=NORMAL``: a commit is in the kernel's page cache when it returns, which
survives the death of any process. After a loss of power the last commits may be missing while the database stays
whole; that is enough, since no instance outlives the kernel that runs it.
Source: https://www.sqlite.org/wal.html, https://www.sqlite.org/pragma.html#pragma_synchronous.

What ends something is written also when the disk is full: a little room is kept for it (`dsec.stores.reserve`).
"""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from dsec.base.errors import DsecError, HostDiskFullError, NodeUnavailableError, StateCorruptedError
from dsec.model.sandbox import SandboxState
from dsec.stores.port import (
    REMEMBERED_IDS,
    CheckpointRecord,
    JournalContent,
    MigrationRecord,
    PoolRecord,
    ProcessRecord,
    SandboxRecord,
)
from dsec.stores.reserve import DiskReserve

RESERVE_BYTES = 1 << 20
"""Enough for the ends of some hundred sandboxes, until what they held is free."""
_ENDING = frozenset({SandboxState.STOPPING, SandboxState.STOPPED, SandboxState.FAILED})
SCHEMA_VERSION = 4
_SCHEMA = """
CREATE TABLE sandbox (sandbox_id TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE process (
    sandbox_id TEXT NOT NULL, process_id TEXT NOT NULL, record BLOB NOT NULL, PRIMARY KEY (sandbox_id, process_id)
) WITHOUT ROWID;
CREATE TABLE removed (number INTEGER PRIMARY KEY, sandbox_id TEXT NOT NULL);
"""
_POOLS = "CREATE TABLE pool (pool_id TEXT PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID;"
"""Since version 2, whose sandbox records also tell of pools; records of version 1 are records of version 2."""
_CHECKPOINTS = """
CREATE TABLE checkpoint (checkpoint_id TEXT PRIMARY KEY, sandbox_id TEXT NOT NULL, record BLOB NOT NULL) WITHOUT ROWID;
CREATE INDEX checkpoint_of_sandbox ON checkpoint (sandbox_id);
CREATE TABLE removed_checkpoint (number INTEGER PRIMARY KEY, checkpoint_id TEXT NOT NULL, sandbox_id TEXT NOT NULL);
"""
"""Since version 3, whose sandbox records also tell of checkpoints and forks; older records are records of it."""
_MIGRATIONS = """
CREATE TABLE migration (
    number INTEGER PRIMARY KEY, migration_id TEXT NOT NULL UNIQUE, is_over INTEGER NOT NULL, record BLOB NOT NULL
);
"""
"""Since version 4."""
_MISSING = {
    0: _SCHEMA + _POOLS + _CHECKPOINTS + _MIGRATIONS,
    1: _POOLS + _CHECKPOINTS + _MIGRATIONS,
    2: _CHECKPOINTS + _MIGRATIONS,
    3: _MIGRATIONS,
}
"""What brings a journal of each older version to the newest."""
_PUT_SANDBOX = "INSERT OR REPLACE INTO sandbox VALUES (?, ?)"
_PUT_PROCESS = "INSERT OR REPLACE INTO process VALUES (?, ?, ?)"
_DELETE_SANDBOX = "DELETE FROM sandbox WHERE sandbox_id = ?"
_REMEMBER = "INSERT INTO removed (sandbox_id) VALUES (?)"
_PRUNE = f"DELETE FROM removed WHERE number <= (SELECT max(number) FROM removed) - {REMEMBERED_IDS}"
_DELETE_PROCESSES = "DELETE FROM process WHERE sandbox_id = ?"
_PUT_POOL = "INSERT OR REPLACE INTO pool VALUES (?, ?)"
_DELETE_POOL = "DELETE FROM pool WHERE pool_id = ?"
_PUT_CHECKPOINT = "INSERT OR REPLACE INTO checkpoint VALUES (?, ?, ?)"
_DELETE_CHECKPOINT = "DELETE FROM checkpoint WHERE checkpoint_id = ?"
_REMEMBER_CHECKPOINT = "INSERT INTO removed_checkpoint (checkpoint_id, sandbox_id) VALUES (?, ?)"
_REMEMBER_CHECKPOINTS = (
    "INSERT INTO removed_checkpoint (checkpoint_id, sandbox_id) "
    "SELECT checkpoint_id, sandbox_id FROM checkpoint WHERE sandbox_id = ?"
)
_DELETE_CHECKPOINTS = "DELETE FROM checkpoint WHERE sandbox_id = ?"
_PRUNE_CHECKPOINTS = (
    f"DELETE FROM removed_checkpoint WHERE number <= (SELECT max(number) FROM removed_checkpoint) - {REMEMBERED_IDS}"
)
_PUT_MIGRATION = (
    "INSERT INTO migration (migration_id, is_over, record) VALUES (?, ?, ?) "
    "ON CONFLICT (migration_id) DO UPDATE SET is_over = excluded.is_over, record = excluded.record"
)
_DELETE_MIGRATION = "DELETE FROM migration WHERE migration_id = ?"
_PRUNE_MIGRATIONS = (
    f"DELETE FROM migration WHERE is_over AND number <= (SELECT max(number) FROM migration) - {REMEMBERED_IDS}"
)
_DELETION = (_DELETE_SANDBOX, _DELETE_PROCESSES, _REMEMBER, _REMEMBER_CHECKPOINTS, _DELETE_CHECKPOINTS)

_Statement = tuple[str, tuple[str | bytes | int, ...]]
_Record = TypeVar("_Record", SandboxRecord, ProcessRecord, PoolRecord, CheckpointRecord, MigrationRecord)
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class _Write:
    """Statements of one caller, and where to tell that they are committed."""

    statements: tuple[_Statement, ...]
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[None]
    makes_room: bool


class SqliteJournal:
    """A `Journal` in one SQLite file."""

    def __init__(self, path: Path) -> None:
        """Open or create the journal.

        Raises:
            StateCorruptedError: the file is no journal, or is one of a newer version.
        """
        self._path = path
        self._connection = self._connect()
        self._reserve = DiskReserve(path.with_name(f"{path.name}-reserve"), RESERVE_BYTES)
        self._reserve.keep()
        self._writes: queue.SimpleQueue[_Write | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="journal", daemon=True)
        self._thread.start()

    def load(self) -> JournalContent:
        try:
            sandboxes = self._connection.execute("SELECT record FROM sandbox ORDER BY sandbox_id").fetchall()
            processes = self._connection.execute("SELECT record FROM process ORDER BY process_id").fetchall()
            removed = self._connection.execute("SELECT sandbox_id FROM removed ORDER BY number").fetchall()
            pools = self._connection.execute("SELECT record FROM pool ORDER BY pool_id").fetchall()
            checkpoints = self._connection.execute("SELECT record FROM checkpoint ORDER BY checkpoint_id").fetchall()
            gone = self._connection.execute(
                "SELECT checkpoint_id, sandbox_id FROM removed_checkpoint ORDER BY number"
            ).fetchall()
            migrations = self._connection.execute("SELECT record FROM migration ORDER BY number").fetchall()
        except sqlite3.Error as error:
            raise self._translated(error) from error
        return JournalContent(
            sandboxes=tuple(self._decode(row[0], SandboxRecord) for row in sandboxes),
            processes=tuple(self._decode(row[0], ProcessRecord) for row in processes),
            removed=tuple(row[0] for row in removed),
            pools=tuple(self._decode(row[0], PoolRecord) for row in pools),
            checkpoints=tuple(self._decode(row[0], CheckpointRecord) for row in checkpoints),
            removed_checkpoints=tuple((row[0], row[1]) for row in gone),
            migrations=tuple(self._decode(row[0], MigrationRecord) for row in migrations),
        )

    async def put_sandbox(self, record: SandboxRecord) -> None:
        await self._write((_PUT_SANDBOX, (record.sandbox_id, _encode(record))), makes_room=record.state in _ENDING)

    async def exchange(
        self,
        *records: SandboxRecord,
        erased: str | None = None,
        checkpoints: Sequence[CheckpointRecord] = (),
        dropped: Sequence[CheckpointRecord] = (),
        migrations: Sequence[MigrationRecord] = (),
        given_up: Sequence[MigrationRecord] = (),
    ) -> None:
        erasing: tuple[_Statement, ...] = () if erased is None else ((_DELETE_SANDBOX, (erased,)),)
        ends = bool(dropped or given_up or erased is not None) or any(record.state in _ENDING for record in records)
        await self._write(
            *erasing,
            *((_PUT_SANDBOX, (record.sandbox_id, _encode(record))) for record in records),
            *((_PUT_CHECKPOINT, (each.checkpoint_id, each.sandbox_id, _encode(each))) for each in checkpoints),
            *(statement for each in dropped for statement in _dropping(each)),
            *(statement for each in migrations for statement in _putting(each)),
            *((_DELETE_MIGRATION, (each.migration_id,)) for each in given_up),
            makes_room=ends,
        )

    async def delete_sandbox(self, sandbox_id: str) -> None:
        deletion = ((text, (sandbox_id,)) for text in _DELETION)
        await self._write(*deletion, (_PRUNE, ()), (_PRUNE_CHECKPOINTS, ()), makes_room=True)

    async def put_process(self, record: ProcessRecord) -> None:
        await self._write((_PUT_PROCESS, (record.sandbox_id, record.process_id, _encode(record))))

    async def delete_processes(self, sandbox_id: str) -> None:
        await self._write((_DELETE_PROCESSES, (sandbox_id,)), makes_room=True)

    async def put_pool(self, record: PoolRecord) -> None:
        await self._write((_PUT_POOL, (record.pool_id, _encode(record))))

    async def delete_pool(self, pool_id: str) -> None:
        await self._write((_DELETE_POOL, (pool_id,)), makes_room=True)

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._writes.put(None)
        # The thread has at most one batch before it, milliseconds of work; it holds the loop so that closing is
        # certain.
        self._thread.join()

    async def _write(self, *statements: _Statement, makes_room: bool = False) -> None:
        if self._closed:
            raise NodeUnavailableError("the journal is closed")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._writes.put(_Write(statements, loop, done, makes_room))
        await done

    # -- the thread -------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        open_ = True
        while open_:
            batch = [self._writes.get()]
            while not self._writes.empty():
                batch.append(self._writes.get())
            open_ = None not in batch
            writes = [write for write in batch if write is not None]
            if writes:
                self._commit_or_make_room(writes)
        self._connection.close()

    def _commit_or_make_room(self, writes: list[_Write]) -> None:
        error = self._commit(writes)
        if error is None:
            self._reserve.keep()
        if isinstance(error, HostDiskFullError) and (ending := [write for write in writes if write.makes_room]):
            _tell([write for write in writes if not write.makes_room], error)
            self._make_room()
            writes, error = ending, self._commit(ending)
        _tell(writes, error)

    def _make_room(self) -> None:
        """Give up what was kept, and let the log begin anew in the place that it has."""
        self._reserve.spend()
        try:
            self._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        except sqlite3.Error:
            pass  # The commit that follows tells whether there is room.

    def _commit(self, writes: list[_Write]) -> DsecError | None:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            for write in writes:
                for text, values in write.statements:
                    self._connection.execute(text, values)
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            return self._translated(error)
        return None

    # -- opening ----------------------------------------------------------------------------------------------------

    def _connect(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        except sqlite3.Error as error:
            raise self._translated(error) from error
        try:
            # First: then the index of the log lies in our memory. In a mapped file, a page that a full disk cannot back
            # would kill the node with SIGBUS (https://www.sqlite.org/wal.html#noshm).
            connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
            self._prepare(connection)
        except sqlite3.Error as error:
            connection.close()
            raise self._translated(error) from error
        except StateCorruptedError:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        if version > SCHEMA_VERSION:
            raise StateCorruptedError(
                f"{self._path} has version {version}; this program knows versions up to {SCHEMA_VERSION}",
                resolution="use the newer program that wrote it, or another state directory",
            )
        missing = _MISSING.get(version)
        if missing is not None:
            connection.executescript(f"BEGIN IMMEDIATE;{missing}PRAGMA user_version = {SCHEMA_VERSION};COMMIT;")

    def _decode(self, data: bytes, kind: type[_Record]) -> _Record:
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise StateCorruptedError(
                f"{self._path} holds a record that cannot be read", detail=f"{error}: {data[:200]!r}"
            ) from error

    def _translated(self, error: sqlite3.Error) -> DsecError:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            return HostDiskFullError(f"{self._path} cannot grow: the disk is full", detail=str(error))
        return StateCorruptedError(
            f"{self._path} is not a usable journal", detail=str(error), resolution="restore it or move it away"
        )


def _dropping(record: CheckpointRecord) -> tuple[_Statement, ...]:
    return (
        (_DELETE_CHECKPOINT, (record.checkpoint_id,)),
        (_REMEMBER_CHECKPOINT, (record.checkpoint_id, record.sandbox_id)),
        (_PRUNE_CHECKPOINTS, ()),
    )


def _putting(record: MigrationRecord) -> tuple[_Statement, ...]:
    put = (_PUT_MIGRATION, (record.migration_id, int(record.is_over), _encode(record)))
    return (put, (_PRUNE_MIGRATIONS, ())) if record.is_over else (put,)


def _tell(writes: list[_Write], error: DsecError | None) -> None:
    """Resolve the futures of one batch, with one wake-up for each event loop."""
    loops = {write.loop for write in writes}
    for loop in loops:
        mine = [write.done for write in writes if write.loop is loop]
        try:
            loop.call_soon_threadsafe(_resolve, mine, error)
        except RuntimeError:
            # The loop was closed meanwhile: nobody waits there any more.
            continue


def _resolve(futures: list[asyncio.Future[None]], error: DsecError | None) -> None:
    for future in futures:
        if future.done():
            continue
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
