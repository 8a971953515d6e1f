"""The index of a chunk repository on one node: which pack holds which chunk. A cache and nothing more.

SQLite, so that a million packs' chunks need no memory. In WAL mode with ``synchronous=NORMAL`` a killed process and a
loss of power leave a consistent file; one that cannot be read is begun anew. Every call blocks and is made in a thread.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsec.stores.chunks_pack import PackEntry
from dsec.stores.chunks_values import ChunkId, RepositoryStatistics

_VERSION = 1
_AT_ONCE = 500
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS pack (number INTEGER PRIMARY KEY, name TEXT UNIQUE, bytes INTEGER, doomed INTEGER);
CREATE TABLE IF NOT EXISTS chunk (
    id BLOB, pack INTEGER, start INTEGER, stored INTEGER, content INTEGER, encoding INTEGER,
    PRIMARY KEY (id, pack)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS chunk_of_pack ON chunk (pack);
PRAGMA user_version = {_VERSION};
"""


@dataclass(frozen=True, slots=True)
class Location:
    """A chunk in a pack."""

    pack: str
    doomed: bool
    entry: PackEntry


@dataclass(frozen=True, slots=True)
class KnownPack:
    """A pack of which the index knows."""

    name: str
    size_bytes: int
    doomed: bool


class ChunkIndex:
    """The index of one store.

    Args:
        path: its file; None: in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self._lock = threading.Lock()
        self._connection = _open(path)

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def packs(self) -> dict[str, KnownPack]:
        with self._lock:
            rows = self._connection.execute("SELECT name, bytes, doomed FROM pack ORDER BY name").fetchall()
        return {name: KnownPack(name, size, bool(doomed)) for name, size, doomed in rows}

    def entries(self, pack: str) -> list[PackEntry]:
        with self._lock:
            rows = self._connection.execute(
                "SELECT id, start, stored, content, encoding FROM chunk"
                " WHERE pack = (SELECT number FROM pack WHERE name = ?) ORDER BY start",
                (pack,),
            ).fetchall()
        return [PackEntry(ChunkId(row[0]), *row[1:]) for row in rows]

    def locate(self, ids: Iterable[ChunkId]) -> dict[ChunkId, list[Location]]:
        """Return where chunks are, live packs first; a chunk of which nothing is known is left out."""
        found: dict[ChunkId, list[Location]] = {}
        with self._lock:
            for some in _batches(list(set(ids))):
                marks = ",".join("?" * len(some))
                rows = self._connection.execute(
                    "SELECT name, doomed, id, start, stored, content, encoding FROM chunk"
                    f" JOIN pack ON pack.number = chunk.pack WHERE id IN ({marks}) ORDER BY doomed, name",
                    some,
                )
                for name, doomed, *entry in rows:
                    location = Location(name, bool(doomed), PackEntry(*entry))
                    found.setdefault(location.entry.chunk, []).append(location)
        return found

    def add(self, name: str, size_bytes: int, entries: Sequence[PackEntry]) -> None:
        with self._lock, self._connection:
            self._connection.execute(
                "INSERT OR IGNORE INTO pack (name, bytes, doomed) VALUES (?, ?, 0)", (name, size_bytes)
            )
            (number,) = self._connection.execute("SELECT number FROM pack WHERE name = ?", (name,)).fetchone()
            self._connection.executemany(
                "INSERT OR IGNORE INTO chunk VALUES (?, ?, ?, ?, ?, ?)",
                [(e.chunk, number, e.start, e.stored_bytes, e.content_bytes, e.encoding) for e in entries],
            )

    def doom(self, names: Iterable[str]) -> None:
        with self._lock, self._connection:
            self._connection.executemany("UPDATE pack SET doomed = 1 WHERE name = ?", [(name,) for name in names])

    def forget(self, names: Iterable[str]) -> None:
        with self._lock, self._connection:
            for name in names:
                self._connection.execute(
                    "DELETE FROM chunk WHERE pack = (SELECT number FROM pack WHERE name = ?)", (name,)
                )
                self._connection.execute("DELETE FROM pack WHERE name = ?", (name,))

    def statistics(self) -> RepositoryStatistics:
        with self._lock:
            packs, doomed, size = self._connection.execute(
                "SELECT count(*), coalesce(sum(doomed), 0), coalesce(sum(bytes), 0) FROM pack"
            ).fetchone()
            chunks, content = self._connection.execute(
                "SELECT count(*), coalesce(sum(content), 0) FROM (SELECT content FROM chunk GROUP BY id)"
            ).fetchone()
        return RepositoryStatistics(packs=packs, doomed=doomed, pack_bytes=size, chunks=chunks, content_bytes=content)


def _batches(ids: Sequence[ChunkId]) -> Iterator[Sequence[ChunkId]]:
    for begin in range(0, len(ids), _AT_ONCE):
        yield ids[begin : begin + _AT_ONCE]


def _open(path: Path | None) -> sqlite3.Connection:
    if path is None:
        return _prepare(sqlite3.connect(":memory:", check_same_thread=False))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        return _prepare(sqlite3.connect(path, check_same_thread=False))
    except sqlite3.DatabaseError:
        for suffix in ("", "-wal", "-shm"):
            Path(f"{path}{suffix}").unlink(missing_ok=True)
        return _prepare(sqlite3.connect(path, check_same_thread=False))


def _prepare(connection: sqlite3.Connection) -> sqlite3.Connection:
    try:
        # First, so that the index of the log lies in our memory, as in the node's journal: on a full disk a page of a
        # mapped file that cannot be backed would kill the process (https://www.sqlite.org/wal.html#noshm).
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version not in (0, _VERSION):
            raise sqlite3.DatabaseError("another version")
        connection.executescript(_SCHEMA)
    except sqlite3.DatabaseError:
        connection.close()
        raise
    return connection
