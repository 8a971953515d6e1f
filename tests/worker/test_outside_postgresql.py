"""PostgreSQL as a system outside: a real server, real connections that are cut around COMMIT, real kills."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import anyio
import msgspec
import pytest

from dsec.base.errors import (
    CapabilityMissingError,
    InvalidRequestError,
    InvalidStateError,
    OutsideUnavailableError,
    UnknownOutcomeError,
    WriterFencedError,
)
from dsec.episode.operations import Effect
from dsec.episode.tools import OutsideAnswer, ToolFailed
from dsec.testing.outside_suite import OutsideSystemSuite, UnreachableSuite
from dsec.testing.outside_suite import request as asked
from dsec.testing.postgresql_relay import CommitRelay
from dsec.testing.postgresql_server import PostgresqlServer, find_programs, run_postgresql
from dsec.worker.outside.port import OutsideRequest, OutsideSystem

psycopg = pytest.importorskip("psycopg")
from dsec.worker.outside.postgresql import PostgresqlOptions, PostgresqlOutside  # noqa: E402 - needs psycopg.

PROGRAMS = find_programs()
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAMS is None, reason="PostgreSQL is not installed (scripts/install-test-packages)"),
]
PARAMETERS = {"account": {}, "amount": {"type": "integer"}, "long": {"type": "integer", "optional": True}}
TABLE = """
CREATE TABLE transfers (
    operation text, account text, amount integer CHECK (amount <= 1000), at timestamptz DEFAULT now())
"""
TRANSFER = (
    "INSERT INTO transfers (operation, account, amount) VALUES (%(dsec_operation)s, %(account)s, %(amount)s) "
    "RETURNING account, amount, repeat('x', %(long)s::integer) AS text"
)
UNDO = "DELETE FROM transfers WHERE operation = %(dsec_operation)s"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresqlServer]:
    assert PROGRAMS is not None
    with run_postgresql(PROGRAMS) as running:
        yield running


@dataclass
class Bank:
    """A schema of its own in the server, reached over a relay."""

    relay: CommitRelay
    server: PostgresqlServer
    schema: str
    offered: dict[str, Any]
    fences: bool = True

    def __post_init__(self) -> None:
        self.fences = self.offered.get("ledger", True)
        self.system = self.again()

    def again(self, **more: Any) -> PostgresqlOutside:
        document = {
            "statements": [TRANSFER],
            "parameters": PARAMETERS,
            "connection": f"{self.relay.connection} options='-c search_path={self.schema}'",
            "timeout_s": 5.0,
            "backoff_s": [0.02, 0.05],
            **self.offered,
            **more,
        }
        return PostgresqlOutside("transfer", msgspec.convert(document, PostgresqlOptions))

    async def rows(self, statement: str) -> list[Any]:
        async with await psycopg.AsyncConnection.connect(self.server.connection, autocommit=True) as connection:
            await connection.execute(f"SET search_path = {self.schema}")
            done = await connection.execute(statement)
            return list(await done.fetchall()) if done.description else []

    async def until(self, statement: str) -> None:
        """Wait until a statement counts something."""
        while not (await self.rows(statement))[0][0]:  # noqa: ASYNC110 - the server tells nobody of its waits.
            await anyio.sleep(0.01)

    async def times(self, operation_id: str) -> int:
        found = await self.rows(f"SELECT count(*) FROM transfers WHERE operation = '{operation_id}'")
        return int(found[0][0])

    def lose_next_answer(self) -> None:
        self.relay.fault = "lose"

    def drop_next_request(self) -> None:
        self.relay.fault = "drop"


OFFERED: dict[str, dict[str, Any]] = {
    "ledger": {},
    "serializable": {"isolation": "serializable"},
    "undone": {"ledger": False, "undo": [UNDO]},
    "once": {"ledger": False},
}


@pytest.fixture
async def bank(server: PostgresqlServer, request: pytest.FixtureRequest) -> AsyncIterator[Bank]:
    schema = f"bank{next(_numbers)}"
    async with CommitRelay(server.port).running() as relay:
        made = Bank(relay, server, schema, getattr(request, "param", {}))
        await made.rows(f"CREATE SCHEMA {schema}")
        await made.rows(TABLE)
        await made.system.ask(asked(99))  # It makes the ledger, so that later faults hit what is sent.
        yield made


class TestPostgresql(OutsideSystemSuite, UnreachableSuite):
    @pytest.fixture(params=OFFERED)
    async def world(self, request: pytest.FixtureRequest, bank: Bank) -> Bank:
        bank.offered = OFFERED[request.param]
        bank.__post_init__()
        return bank

    @pytest.fixture(params=OFFERED)
    def nowhere(self, request: pytest.FixtureRequest) -> OutsideSystem:
        document = {"statements": [TRANSFER], "parameters": PARAMETERS, **OFFERED[request.param]}
        document |= {"connection": "host=127.0.0.1 port=1 user=x", "backoff_s": [0.01], "timeout_s": 2.0}
        return PostgresqlOutside("transfer", msgspec.convert(document, PostgresqlOptions))


async def test_what_the_options_offer_decides_the_kind_of_effect(bank: Bank) -> None:
    assert [bank.again(**offered).effect for offered in OFFERED.values()] == [
        Effect.ASKED,
        Effect.ASKED,
        Effect.COMPENSATED,
        Effect.ONCE,
    ]


@pytest.mark.parametrize("fault", ["lose", "drop"])
async def test_a_commit_without_an_answer_is_asked_about_at_once(bank: Bank, fault: str) -> None:
    bank.relay.fault = fault
    assert isinstance(await bank.system.send(asked()), OutsideAnswer)
    assert bank.relay.cuts == 1
    assert await bank.times(asked().operation_id) == 1


async def test_who_asks_waits_for_a_commit_that_is_under_way(bank: Bank) -> None:
    await bank.system.send(asked(9))
    bank.relay.fault = "late"
    found: list[Any] = []

    async def send() -> None:
        found.append(await bank.system.send(asked()))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send)
        waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
        await bank.until(waiting)
        assert not found
        bank.relay.deliver.set()
    assert isinstance(found[0], OutsideAnswer)
    assert await bank.times(asked().operation_id) == 1


async def test_a_lost_commit_without_a_ledger_is_unknown(bank: Bank) -> None:
    bank.relay.fault = "lose"
    with pytest.raises(UnknownOutcomeError):
        await bank.again(ledger=False).send(asked())
    # Whoever is cut off from the server hears nothing of when it commits.
    await bank.until("SELECT count(*) FROM transfers")
    assert await bank.times(asked().operation_id) == 1


async def test_a_worker_that_was_given_up_in_the_middle_of_its_transaction_does_nothing(bank: Bank) -> None:
    slow = bank.again(statements=[TRANSFER, "SELECT pg_advisory_xact_lock(7)"], timeout_s=60.0)
    waiting = "SELECT count(*) >= {} FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    found: list[Any] = []

    async def ask() -> None:
        found.append(await slow.ask(asked(1, epoch=2)))

    async with (
        anyio.create_task_group() as tasks,
        await psycopg.AsyncConnection.connect(bank.server.connection, autocommit=True) as holder,
    ):
        await holder.execute("SELECT pg_advisory_lock(7)")
        tasks.start_soon(slow.send, asked(1, epoch=1))
        await bank.until(waiting.format(1))
        # The new writer asks while the old one's transaction runs: it waits, and finds what that did.
        tasks.start_soon(ask)
        await bank.until(waiting.format(2))
        await holder.execute("SELECT pg_advisory_unlock(7)")
    assert isinstance(found[0], OutsideAnswer)
    with pytest.raises(WriterFencedError):
        await bank.system.send(asked(2, epoch=1))
    assert await bank.times(asked(2).operation_id) == 0


async def test_a_server_that_is_killed_is_asked_when_it_is_back(bank: Bank) -> None:
    await bank.system.send(asked(1))
    server = bank.server
    patient = bank.again(backoff_s=[0.1] * 600)
    async with anyio.create_task_group() as tasks:
        server.kill()
        found: list[Any] = []

        async def send() -> None:
            found.append(await patient.send(asked(2)))

        tasks.start_soon(send)
        await anyio.sleep(0.15)
        await anyio.to_thread.run_sync(server.start)
    assert isinstance(found[0], OutsideAnswer)
    assert [await bank.times(asked(number).operation_id) for number in (1, 2)] == [1, 1]


@pytest.mark.parametrize(
    "statement",
    ["SELECT 1 / 0", "SELECT * FROM nowhere", "SELEC", "SELECT 1; SELECT 2", "DO $$ BEGIN RAISE 'no'; END $$"],
)
async def test_what_a_statement_cannot_do_is_refused_and_undone(bank: Bank, statement: str) -> None:
    refused = await bank.again(statements=[TRANSFER, statement]).send(asked())
    assert isinstance(refused, ToolFailed)
    assert refused.detail
    assert await bank.times(asked().operation_id) == 0


async def test_a_constraint_that_fails_at_commit_is_a_refusal(bank: Bank) -> None:
    await bank.rows("CREATE TABLE once (a integer, UNIQUE (a) DEFERRABLE INITIALLY DEFERRED)")
    twice = "INSERT INTO once VALUES (1), (1)"
    refused = await bank.again(statements=[TRANSFER, twice]).send(asked())
    assert isinstance(refused, ToolFailed)
    assert "23505" in refused.detail
    assert await bank.times(asked().operation_id) == 0
    assert await bank.system.ask(asked()) is None


async def test_a_statement_that_takes_too_long_is_ended_and_undone(bank: Bank) -> None:
    slow = bank.again(statements=[TRANSFER, "SELECT pg_sleep(10)"], timeout_s=0.1, backoff_s=[])
    with pytest.raises(OutsideUnavailableError, match="did nothing"):
        await slow.send(asked())
    assert await bank.times(asked().operation_id) == 0


async def test_arguments_are_values_and_never_statements(bank: Bank) -> None:
    name = "'); DROP TABLE transfers; -- %(amount)s"
    answer = await bank.system.send(asked(account=name))
    assert isinstance(answer, OutsideAnswer)
    assert msgspec.json.decode(answer.content.data)[0]["account"] == name
    assert (await bank.rows("SELECT account FROM transfers"))[0][0] == name


async def test_a_statement_without_rows_is_run_once(bank: Bank) -> None:
    quiet = bank.again(statements=["WITH x AS (SELECT 1) " + TRANSFER.partition(" RETURNING")[0]])
    answer = await quiet.send(asked())
    assert isinstance(answer, OutsideAnswer)
    assert answer.status == "INSERT 0 1"
    assert await bank.times(asked().operation_id) == 1


async def test_of_many_rows_a_few_are_kept(bank: Bank) -> None:
    many = bank.again(statements=["SELECT i, now() AS at, 1.5::numeric AS n FROM generate_series(1, 20000) AS s (i)"])
    answer = await many.send(asked())
    assert isinstance(answer, OutsideAnswer)
    assert answer.truncated
    assert len(msgspec.json.decode(answer.content.data)) == 100


async def test_hundreds_at_once_share_a_few_connections(bank: Bank) -> None:
    """The server of the tests takes 60 of everybody."""
    answers: list[Any] = []

    async def send(number: int) -> None:
        wanted = asked(number)
        other = OutsideRequest(operation_id=f"ep-{number}.r1.d1.c0", epoch=1, arguments=wanted.arguments)
        answers.append(await bank.again().send(other))

    async with anyio.create_task_group() as tasks:
        for number in range(1, 71):
            tasks.start_soon(send, number)
    assert all(isinstance(answer, OutsideAnswer) for answer in answers)
    assert (await bank.rows("SELECT count(*) FROM transfers"))[0][0] == 70


async def test_an_id_that_comes_with_another_request_is_refused(bank: Bank) -> None:
    await bank.system.send(asked())
    with pytest.raises(InvalidStateError, match="another request"):
        await bank.system.send(asked(amount=8))


async def test_what_was_done_with_a_ledger_can_be_undone_with_it(bank: Bank) -> None:
    system = bank.again(undo=[UNDO])
    await system.send(asked())
    for _ in range(2):
        await system.compensate(asked())
    assert await system.ask(asked()) is None
    await system.send(asked())
    assert await bank.times(asked().operation_id) == 1


async def test_who_may_make_no_tables_is_told_to_make_them(bank: Bank) -> None:
    await bank.rows("DROP TABLE dsec_episodes")
    await bank.rows(f"CREATE ROLE poor{bank.schema} LOGIN")
    await bank.rows(f"GRANT USAGE ON SCHEMA {bank.schema} TO poor{bank.schema}")
    told = f"{bank.server.connection} user=poor{bank.schema} options='-c search_path={bank.schema}'"
    with pytest.raises(CapabilityMissingError, match="ledger"):
        await bank.again(connection=told).send(asked())


@pytest.mark.parametrize(
    "wrong",
    [
        {"statements": []},
        {"statements": ["SELECT %(nobody)s"]},
        {"statements": ["  commit"]},
        {"statements": ["ROLLBACK TO x"]},
        {"undo": ["PREPARE TRANSACTION 'x'"]},
        {"isolation": "none"},
        {"timeout_s": 0.0},
        {"connection_variable": "NOBODY_SET_THIS"},
    ],
)
def test_options_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    document = {"statements": ["SELECT 1"], **wrong}
    with pytest.raises(InvalidRequestError):
        PostgresqlOutside("transfer", msgspec.convert(document, PostgresqlOptions))
