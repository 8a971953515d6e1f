"""A PostgreSQL database as a system outside: statements in one transaction with a record that they were run.

The record is a row with the operation's id (docs/formats/outside-ledger.md), so that both are there or neither; an
operation that comes again finds its row and gets its first answer. Each transaction begins by taking the row of its
episode and raising the epoch there. That lock makes the answer of `ask` final: who asks waits until an attempt that is
still under way has ended, and an attempt that begins afterwards with a lower epoch is refused. An attempt of the same
epoch whose connection was lost cannot commit later either: it holds the lock from its first statement, and COMMIT is
sent only when all before it was answered.

Where no ledger may be kept (`ledger` is false), an operation can be undone by statements of yours, which have to do
nothing where there is nothing to undo; without these it is ``ONCE``. An advisory lock on its id then keeps an undo from
overtaking what it undoes.

What is promised holds on one server, and after a failover to a standby that has all that was committed (synchronous
replication). A standby that lost commits has lost operations and their rows alike.
Sources: Helland, "Idempotence Is Not a Medical Condition", 2012; the unit of work with its inbox table, as DBOS and
others do it; Kleppmann, "How to do distributed locking", 2016 (fencing).
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Mapping
from hashlib import blake2b
from typing import Any, TypeVar

import anyio
import msgspec

from dsec.base.errors import (
    CapabilityMissingError,
    InvalidRequestError,
    InvalidStateError,
    OutsideUnavailableError,
    UnknownOutcomeError,
)
from dsec.episode.operations import Effect
from dsec.episode.tools import OutsideAnswer, ToolFailed
from dsec.model.value import Value
from dsec.worker.outside.parameters import Parameter, arguments_type
from dsec.worker.outside.port import ANSWER_BYTES, REFUSED, OutsideRequest, bounded_answer, fenced
from dsec.worker.outside.postgresql_transaction import (
    ISOLATIONS,
    CollidedError,
    Connection,
    HasNoRowsError,
    NoLedgerError,
    RefusedError,
    TransactionSettings,
    raise_epoch,
    run_transaction,
    stream_rows,
)

_PLACE = re.compile(r"%\(([^)]*)\)")
_ENDS_TRANSACTION = re.compile(
    r"\s*(begin|start|commit|end|rollback|abort|savepoint|release|prepare\s+transaction|set\s+(session|transaction))\b",
    re.IGNORECASE,
)
_CHANGES_ONLY = re.compile(r"\s*(insert|update|delete|merge)\b(?!.*\breturning\b)", re.IGNORECASE | re.DOTALL)
_MAKE_TABLES = (
    b"CREATE TABLE IF NOT EXISTS dsec_episodes (episode text PRIMARY KEY, epoch bigint NOT NULL)",
    (
        b"CREATE TABLE IF NOT EXISTS dsec_operations (operation text PRIMARY KEY, episode text NOT NULL, "
        b"epoch bigint NOT NULL, request text NOT NULL, answer text, at timestamptz NOT NULL DEFAULT now())"
    ),
)
_HAS_TABLES = b"SELECT to_regclass('dsec_episodes') IS NOT NULL AND to_regclass('dsec_operations') IS NOT NULL"
_RAISE_EPOCH = (
    b"INSERT INTO dsec_episodes AS known (episode, epoch) VALUES (%(episode)s, %(epoch)s) ON CONFLICT (episode) "
    b"DO UPDATE SET epoch = greatest(known.epoch, excluded.epoch) RETURNING epoch"
)
_LOCK_OPERATION = b"SELECT pg_advisory_xact_lock(hashtextextended(%(operation)s, 0))"
_FIND = b"SELECT request, answer FROM dsec_operations WHERE operation = %(operation)s"
_RECORD = (
    b"INSERT INTO dsec_operations (operation, episode, epoch, request, answer) "
    b"VALUES (%(operation)s, %(episode)s, %(epoch)s, %(request)s, %(answer)s) "
    b"ON CONFLICT (operation) DO UPDATE SET epoch = excluded.epoch, answer = excluded.answer, at = now()"
)
_FORGET_ANSWER = b"UPDATE dsec_operations SET answer = NULL, at = now() WHERE operation = %(operation)s"
_COLLISIONS = 20
_LOST_COMMITS = 3
_COLLIDED_S = 0.005
_Value = TypeVar("_Value")
_ANSWER_DECODER = msgspec.json.Decoder(OutsideAnswer)


class PostgresqlOptions(Value, frozen=True, omit_defaults=True):
    """How a tool uses a database.

    Attributes:
        statements: run in order, in one transaction; ``%(name)s`` stands for an argument, ``%(dsec_operation)s`` for
            the id of the operation. What the last one returns is the answer.
        description: of the tool, for the model.
        parameters: of the tool.
        connection: for libpq, such as ``host=db dbname=bank user=dsec``; without a password.
        connection_variable: the variable of the worker's environment that holds it, with what is secret in it.
        undo: statements that undo it.
        ledger: keep a row for each operation; see the module.
        isolation: of the transaction: ``read committed``, ``repeatable read`` or ``serializable``.
        rows: kept of the answer.
        timeout_s: for a statement and for a lock.
        backoff_s: waits before a transaction that did nothing is tried again.
    """

    statements: tuple[str, ...]
    description: str = ""
    parameters: dict[str, Parameter] = {}
    connection: str = ""
    connection_variable: str = ""
    undo: tuple[str, ...] = ()
    ledger: bool = True
    isolation: str = "read committed"
    rows: int = 100
    timeout_s: float = 30.0
    backoff_s: tuple[float, ...] = (0.2, 1.0, 5.0)


class PostgresqlOutside:
    """Implements `dsec.worker.outside.port.OutsideSystem` in a PostgreSQL database.

    Args:
        name: of the tool.
        options: how it uses the database.
        environment: where the connection is looked up.

    Raises:
        InvalidRequestError: the options are not what they can be.
    """

    def __init__(self, name: str, options: PostgresqlOptions, *, environment: Mapping[str, str] = os.environ) -> None:
        self._name = name
        self._options = options
        arguments_type(name, options.parameters)
        self._check_statements()
        if options.isolation not in ISOLATIONS or options.timeout_s <= 0 or options.rows < 0:
            raise InvalidRequestError(
                f"{name} has an isolation, a time or a number of rows that cannot be",
                resolution=f"the isolation is one of: {', '.join(ISOLATIONS)}",
            )
        self._settings = TransactionSettings(
            connection=self._connection(environment), isolation=options.isolation, timeout_s=options.timeout_s
        )
        self._without_rows = {each for each in options.statements if _CHANGES_ONLY.match(each)}

    def _check_statements(self) -> None:
        known = {*self._options.parameters, "dsec_operation", "dsec_episode"}
        if not self._options.statements:
            raise InvalidRequestError(f"{self._name} has no statements")
        for statement in (*self._options.statements, *self._options.undo):
            unknown = set(_PLACE.findall(statement)) - known
            if unknown:
                raise InvalidRequestError(f"a statement of {self._name} names {sorted(unknown)}, no parameters of it")
            if _ENDS_TRANSACTION.match(statement):
                raise InvalidRequestError(
                    f"a statement of {self._name} would begin or end a transaction",
                    detail=statement[:200],
                    resolution="leave that to the adapter: all statements are one transaction",
                )

    def _connection(self, environment: Mapping[str, str]) -> str:
        variable = self._options.connection_variable
        if variable and variable not in environment:
            raise InvalidRequestError(
                f"{self._name} needs the variable {variable}, which the worker has not",
                resolution="set it in the environment of the worker, and start that again",
            )
        return environment[variable] if variable else self._options.connection

    @property
    def effect(self) -> Effect:
        """See the module."""
        if self._options.ledger:
            return Effect.ASKED
        return Effect.COMPENSATED if self._options.undo else Effect.ONCE

    # -- the port ------------------------------------------------------------------------------------------------------

    async def send(self, request: OutsideRequest) -> OutsideAnswer | ToolFailed:
        """See the port. A COMMIT without an answer is asked about at once; a *no* is final, and it is sent again."""
        for _ in range(_LOST_COMMITS):
            try:
                return await self._patiently(lambda connection: self._send(connection, request))
            except RefusedError as error:
                return ToolFailed(code=REFUSED, brief="the database refused it, and did nothing", detail=error.brief)
            except UnknownOutcomeError as lost:
                if not self._options.ledger:
                    raise
                try:
                    found = await self.ask(request)
                except OutsideUnavailableError as error:
                    raise UnknownOutcomeError(f"{self._name}: {lost.brief}", detail=str(error)) from error
            if found is not None:
                return found
        raise OutsideUnavailableError(f"{self._name}: the connection is lost at each COMMIT; nothing was done")

    async def ask(self, request: OutsideRequest) -> OutsideAnswer | ToolFailed | None:
        """See the port."""
        if not self._options.ledger:
            raise CapabilityMissingError(f"{self._name} keeps no ledger to ask", resolution="let it keep one")
        return await self._patiently_told(lambda connection: self._find(connection, request))

    async def compensate(self, request: OutsideRequest) -> None:
        """See the port."""
        if not self._options.undo:
            raise CapabilityMissingError(f"{self._name} cannot undo", resolution="give it statements for `undo`")
        await self._patiently_told(lambda connection: self._undo(connection, request))

    # -- transactions --------------------------------------------------------------------------------------------------

    async def _send(self, connection: Connection, request: OutsideRequest) -> OutsideAnswer:
        found = await self._find(connection, request)
        if found is not None:
            return found
        answer = await self._run(connection, self._options.statements, request)
        if self._options.ledger:
            row = {**_names(request), "request": self._digest(request), "answer": msgspec.json.encode(answer).decode()}
            await connection.execute(_RECORD, row)
        return answer

    async def _find(self, connection: Connection, request: OutsideRequest) -> OutsideAnswer | None:
        """Keep others of the episode out, and return the answer that is recorded."""
        if not self._options.ledger:
            await connection.execute(_LOCK_OPERATION, _names(request))
            return None
        newest = await raise_epoch(connection, _RAISE_EPOCH, _names(request))
        if newest > request.epoch:
            raise fenced(request, newest)
        found = await (await connection.execute(_FIND, _names(request))).fetchone()
        if found is None or found[1] is None:
            return None
        if found[0] != self._digest(request):
            raise InvalidStateError(
                f"{request.operation_id} stands in the ledger of {self._name} for another request",
                resolution="an episode's id is used once; look into dsec_operations",
            )
        return _ANSWER_DECODER.decode(found[1])

    async def _undo(self, connection: Connection, request: OutsideRequest) -> None:
        found = await self._find(connection, request)
        if self._options.ledger and found is None:
            return
        await self._run(connection, self._options.undo, request)
        if self._options.ledger:
            await connection.execute(_FORGET_ANSWER, _names(request))

    async def _run(self, connection: Connection, statements: tuple[str, ...], request: OutsideRequest) -> OutsideAnswer:
        values = {name: request.arguments.get(name) for name in self._options.parameters}
        values |= {"dsec_operation": request.operation_id, "dsec_episode": request.episode_id}
        answer = OutsideAnswer()
        for statement in statements:
            answer = await self._run_statement(connection, statement, values) or answer
        return answer

    async def _run_statement(
        self, connection: Connection, statement: str, values: Mapping[str, Any]
    ) -> OutsideAnswer | None:
        """Run a statement and return the beginning of its rows; None: it has none to return.

        Rows are read one by one, so that a million of them do not lie in memory. psycopg refuses that for a statement
        without rows after it was run; then it is undone, and run the other way.
        """
        if statement not in self._without_rows:
            await connection.execute(b"SAVEPOINT dsec")
            try:
                return await self._stream(connection, statement, values)
            except HasNoRowsError:
                await connection.execute(b"ROLLBACK TO SAVEPOINT dsec")
        done = await connection.execute(statement.encode(), values)
        self._without_rows.add(statement)
        return OutsideAnswer(status=done.statusmessage or "")

    async def _stream(self, connection: Connection, statement: str, values: Mapping[str, Any]) -> OutsideAnswer:
        kept: list[bytes] = []
        length, is_cut = 2, False
        cursor = connection.cursor()
        async for row in stream_rows(cursor, statement, values):
            if is_cut or len(kept) >= self._options.rows or length > ANSWER_BYTES:
                is_cut = True
                continue
            names = [column.name for column in cursor.description or ()]
            kept.append(msgspec.json.encode(dict(zip(names, row, strict=True)), enc_hook=str))
            length += len(kept[-1]) + 1
        return bounded_answer(b"[" + b",".join(kept) + b"]", status=f"{len(kept)} rows", truncated=is_cut)

    # -- patience ------------------------------------------------------------------------------------------------------

    async def _patiently(self, work: Callable[[Connection], Awaitable[_Value]]) -> _Value:
        """Run a transaction; one that did nothing is tried again a few times."""
        waits = list(self._options.backoff_s)
        collisions = 0
        while True:
            try:
                return await run_transaction(self._settings, work)
            except NoLedgerError:
                await self._make_ledger()
            except OutsideUnavailableError as error:
                if isinstance(error, CollidedError) and collisions < _COLLISIONS:
                    collisions += 1
                    await anyio.sleep(_COLLIDED_S * collisions)
                    continue
                if not waits:
                    raise OutsideUnavailableError(
                        f"{self._name}: {error.brief}", detail=error.detail, resolution="nothing was done"
                    ) from error
                await anyio.sleep(waits.pop(0))

    async def _patiently_told(self, work: Callable[[Connection], Awaitable[_Value]]) -> _Value:
        """Run a transaction that may be run again, whatever became of it."""
        try:
            return await self._patiently(work)
        except UnknownOutcomeError:
            return await self._patiently(work)
        except RefusedError as error:
            raise OutsideUnavailableError(
                f"{self._name}: the database does not say what became of an operation", detail=error.brief
            ) from error

    async def _make_ledger(self) -> None:
        """Make the tables. Two that do so at the same moment get in each other's way, and both find them afterwards."""
        for _ in range(_COLLISIONS):
            try:
                await run_transaction(self._settings, _make_tables)
                return
            except (UnknownOutcomeError, OutsideUnavailableError):
                pass  # Nothing of an operation was sent yet.
            except RefusedError as error:
                if not await run_transaction(self._settings, _has_tables):
                    raise CapabilityMissingError(
                        f"{self._name} cannot make its ledger",
                        detail=error.brief,
                        resolution="make the tables of docs/formats/outside-ledger.md, or give `ledger = false`",
                    ) from error
            await anyio.sleep(_COLLIDED_S)
        raise OutsideUnavailableError(f"{self._name}: its ledger could not be made, and nothing was done")

    def _digest(self, request: OutsideRequest) -> str:
        told = msgspec.json.encode([self._name, dict(request.arguments)], order="sorted")
        return blake2b(told, digest_size=16).hexdigest()


def _names(request: OutsideRequest) -> dict[str, Any]:
    return {"operation": request.operation_id, "episode": request.episode_id, "epoch": request.epoch}


async def _has_tables(connection: Connection) -> bool:
    found = await (await connection.execute(_HAS_TABLES)).fetchone()
    return found is not None and bool(found[0])


async def _make_tables(connection: Connection) -> None:
    for statement in _MAKE_TABLES:
        await connection.execute(statement)
