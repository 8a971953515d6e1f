"""One transaction on a PostgreSQL server, and what is known of it when it ends.

A transaction whose COMMIT was never sent did not happen: the server undoes it when the connection goes. One whose
COMMIT was sent and not answered has an unknown outcome, and only that. An error that the server answers to COMMIT, on a
connection that goes on, means that it was undone. Everything else follows from the state in which it ended.

psycopg is imported here only, so that a worker without it has everything else. Sources: PostgreSQL 15 manual, sections
13.2, 20.11 and 55.2; libpq's *PQtransactionStatus*.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
from anyio.lowlevel import RunVar

from dsec.base.errors import (
    CapabilityMissingError,
    DsecError,
    InvalidRequestError,
    OutsideUnavailableError,
    UnknownOutcomeError,
)

try:
    import psycopg
    from psycopg.pq import TransactionStatus
except ImportError as error:
    raise CapabilityMissingError(
        "the adapter postgresql needs psycopg", detail=str(error), resolution="pip install 'dsec[postgresql]'"
    ) from error

Connection = psycopg.AsyncConnection[Any]
_Value = TypeVar("_Value")
CONNECTIONS = 16
"""At once from this process to one database."""
_LIMITERS: RunVar[dict[str, anyio.CapacityLimiter]] = RunVar("dsec.worker.outside.postgresql")
ISOLATIONS = ("read committed", "repeatable read", "serializable")
_COLLISIONS = frozenset({"40001", "40P01"})
_LATER = frozenset({"55P03", "57014", "57P01", "57P02", "57P03", "57P05", "25P03", "25P04"})
"""A lock or a statement that took too long, a server that goes down or comes up."""
_LATER_CLASSES = ("08", "53", "58")
"""Connections, resources, the server's own trouble."""
_SPARE_S = 5.0


class RefusedError(DsecError):
    """The server refused a statement, and everything was undone. Never leaves the adapter."""


class CollidedError(OutsideUnavailableError):
    """Two transactions could not be put in order, and this one was undone. It will do when it is run again."""


class NoLedgerError(DsecError):
    """The ledger's tables are not there. Never leaves the adapter."""


class HasNoRowsError(Exception):
    """A statement was run and returns no rows. Never leaves the adapter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSettings:
    """How transactions are run.

    Attributes:
        connection: for libpq: ``postgresql://...`` or ``host=... dbname=...``; it may hold a secret and is not shown.
        isolation: one of `ISOLATIONS`.
        timeout_s: for a statement, and for a lock.
    """

    connection: str
    isolation: str = "read committed"
    timeout_s: float = 30.0

    @property
    def longest_s(self) -> float:
        """Seconds after which a transaction of ours is certainly not under way any more."""
        return 2 * self.timeout_s + _SPARE_S


async def run_transaction(settings: TransactionSettings, work: Callable[[Connection], Awaitable[_Value]]) -> _Value:
    """Run `work` in a transaction of its own, on a connection of its own, and commit it.

    Raises:
        RefusedError: the server refused a statement; nothing happened.
        OutsideUnavailableError: it cannot be reached, or not now; nothing happened.
        UnknownOutcomeError: the connection was lost while it committed.
        DsecError: what `work` raised; nothing happened.
    """
    async with _limiter(settings.connection):
        return await _run(settings, work)


def _limiter(connection: str) -> anyio.CapacityLimiter:
    """Hundreds of episodes use a database at once, which takes a hundred connections of everybody."""
    try:
        limiters = _LIMITERS.get()
    except LookupError:
        limiters = {}
        _LIMITERS.set(limiters)
    return limiters.setdefault(connection, anyio.CapacityLimiter(CONNECTIONS))


async def _run(settings: TransactionSettings, work: Callable[[Connection], Awaitable[_Value]]) -> _Value:
    connection: Connection | None = None
    is_committing = False
    try:
        with anyio.fail_after(settings.longest_s):
            connection = await _connect(settings)
            await _begin(connection, settings)
            value = await work(connection)
            if connection.info.transaction_status is not TransactionStatus.INTRANS:
                raise InvalidRequestError("a statement ended the transaction", resolution="leave that to the adapter")
            is_committing = True
            done = await connection.execute("COMMIT")
            if done.statusmessage != "COMMIT":
                raise RefusedError(f"the server answered COMMIT with {done.statusmessage}")
            return value
    except (psycopg.Error, TimeoutError, OSError) as error:
        if is_committing and not _is_idle(connection):
            raise UnknownOutcomeError(
                "the connection was lost while a transaction was committed", detail=_shown(error)
            ) from error
        raise _judged(error) from error
    finally:
        if connection is not None:
            with anyio.CancelScope(shield=True):
                await connection.close()


async def _connect(settings: TransactionSettings) -> Connection:
    seconds = max(2, math.ceil(settings.timeout_s))
    # Prepared statements and settings of a session would not survive a pooler that shares connections.
    return await psycopg.AsyncConnection.connect(
        settings.connection,
        autocommit=True,
        connect_timeout=seconds,
        prepare_threshold=None,
        fallback_application_name="dsec",
        tcp_user_timeout=int(settings.longest_s * 1000),
    )


async def _begin(connection: Connection, settings: TransactionSettings) -> None:
    await connection.execute(f"BEGIN ISOLATION LEVEL {settings.isolation.upper()}".encode())
    milliseconds = str(max(1, int(settings.timeout_s * 1000)))
    limits = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
    chosen = ", ".join(f"set_config('{name}', %(limit)s, true)" for name in limits)
    # A worker that stops in the middle of a transaction must not hold its locks for ever.
    await connection.execute(f"SELECT {chosen}".encode(), {"limit": milliseconds})


async def raise_epoch(connection: Connection, statement: bytes, values: Mapping[str, Any]) -> int:
    """Run the statement that takes the row of an episode, and return the epoch that stands there then.

    Raises:
        NoLedgerError: there is no such table yet.
    """
    try:
        raised = await (await connection.execute(statement, values)).fetchone()
    except psycopg.errors.UndefinedTable as error:
        raise NoLedgerError(_shown(error)) from error
    assert raised is not None
    return int(raised[0])


async def stream_rows(
    cursor: psycopg.AsyncCursor[Any], statement: str, values: Mapping[str, Any]
) -> AsyncIterator[Sequence[Any]]:
    """Run a statement and yield its rows one by one.

    Raises:
        HasNoRowsError: it was run and returns none, or it was not run since it does not fit its values; undo it.
    """
    try:
        async for row in cursor.stream(statement.encode(), values):
            yield row
    except psycopg.ProgrammingError as error:
        if error.sqlstate:
            raise
        raise HasNoRowsError from error


def _is_idle(connection: Connection | None) -> bool:
    """Whether the server answered COMMIT, if with an error, and waits for what comes next."""
    return (
        connection is not None
        and not connection.closed
        and connection.info.transaction_status is TransactionStatus.IDLE
    )


def _judged(error: BaseException) -> DsecError:
    state = getattr(error, "sqlstate", None) or ""
    if state in _COLLISIONS:
        return CollidedError("two transactions got in each other's way", detail=_shown(error))
    is_lost = not state and not isinstance(error, psycopg.ProgrammingError | psycopg.DataError)
    if is_lost or state in _LATER or state.startswith(_LATER_CLASSES):
        return OutsideUnavailableError("the database did nothing", detail=_shown(error))
    return RefusedError(_shown(error))


def _shown(error: BaseException) -> str:
    if isinstance(error, TimeoutError) and not str(error):
        return "it did not answer in time"
    diagnosis = getattr(error, "diag", None)
    parts = [getattr(diagnosis, name, None) for name in ("message_primary", "message_detail", "message_hint")]
    told = " ".join(part for part in parts if part) or str(error)
    state = getattr(error, "sqlstate", None)
    return f"{told[:2000]} ({state})" if state else told[:2000]
