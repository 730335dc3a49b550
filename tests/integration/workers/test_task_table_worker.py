"""Rows of an application's table, worked on by `TableWorker` and `AsyncTableWorker`."""

from __future__ import annotations

import asyncio
import itertools
import logging
import statistics
import threading
from contextlib import suppress
from datetime import timedelta
from typing import Any, LiteralString

import psycopg
import pytest

import pgqpy
from pgqpy.errors import InvalidConsumer, InvalidTaskTable
from pgqpy.retry import DeadLetter, FixedDelay, Retry
from pgqpy.tasks import AsyncTableWorker, TableWorker, TaskColumnNames
from pgqpy.tasks._rows.transactions import RowTransactions
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_db import Connect, Connection
from tests.fixtures.fix_mail_table import Row, insert, last_error, send, sent, states, work
from tests.fixtures.fix_task_worker import aside, run_until_empty, running


@pytest.mark.smoke
def test_rows_are_worked_on_in_the_order_of_their_times(dsn: str, mail: Connection) -> None:
    insert(mail, 3, 1, 2)
    mail.execute("update mail set next_attempt = now() - interval '1 h' where id = 2")
    work(dsn, send)
    assert sent(mail) == [2, 3, 1]
    assert states(mail) == dict.fromkeys((1, 2, 3), ("succeeded", False, 1))
    assert ops.value(mail, "select bool_and(last_attempt <= clock_timestamp()) from mail")


def test_asyncio_works_on_many_at_once(dsn: str, mail: Connection) -> None:
    insert(mail, *range(40))

    async def run() -> None:
        # None goes on before four are there.
        four = asyncio.Barrier(4)

        async def together(conn: pgqpy.AsyncConnection, row: Row) -> None:
            await conn.execute("insert into sent (id) values (%s)", [row["id"]])
            async with asyncio.timeout(60):
                await four.wait()

        await AsyncTableWorker(dsn, "mail", together, concurrency=4).run(until_empty=True)

    asyncio.run(run())
    assert sorted(sent(mail)) == [*range(40)]
    assert set(states(mail).values()) == {("succeeded", False, 1)}


def test_many_workers_at_once_do_each_row_once(dsn: str, mail: Connection) -> None:
    insert(mail, *range(400))
    workers = [
        TableWorker(dsn, "mail", send, batch_size=size, concurrency=2) for size in (1, 1, 7, 50)
    ]
    with running(*workers):
        wait_until(lambda: ops.value(mail, "select bool_and(next_attempt is null) from mail"))
    assert sorted(sent(mail)) == [*range(400)]
    assert set(states(mail).values()) == {("succeeded", False, 1)}


def test_a_locked_row_holds_up_no_other(dsn: str, mail: Connection, connect: Connect) -> None:
    insert(mail, 1, 2, 3)
    holder = connect(autocommit=False)
    holder.execute("select 1 from mail where id = 1 for update")
    impatient = psycopg.conninfo.make_conninfo(dsn, options="-c lock_timeout=1s")
    worker = TableWorker(impatient, "mail", send)
    worker.run(until_empty=True)
    assert sent(mail) == [2, 3]
    holder.rollback()
    worker.run(until_empty=True)
    assert sent(mail) == [2, 3, 1]


def test_rows_that_are_done_are_deleted_if_asked(dsn: str, mail: Connection) -> None:
    insert(mail, 1, 2, 3)

    def fails(conn: pgqpy.Connection, row: Row) -> None:
        if row["id"] == 2:
            raise RuntimeError

    # A policy that makes no sense stops no worker.
    options: dict[str, Any] = {"retry_policy": lambda _attempt, _error: -1.0}
    work(dsn, fails, delete_done=True, batch_size=10, **options)
    assert states(mail) == {2: ("failed", True, 1)}
    assert "negative" in last_error(mail, 2)


@pytest.mark.parametrize("batch_size", [1, 100])
def test_what_becomes_of_a_row_costs_no_other(dsn: str, mail: Connection, batch_size: int) -> None:
    calls = []

    def decides(conn: pgqpy.Connection, row: Row) -> Any:
        calls.append(row["id"])
        send(conn, row)
        match row["id"]:
            case 2:
                raise RuntimeError("no answer: ä\0")
            case 3:
                # A failed statement that the handler ignores.
                with suppress(psycopg.Error):
                    conn.execute("select 1 / 0")
            case 5:
                return Retry(3600)
            case 6:
                raise Retry(3600)
            case 7:
                raise DeadLetter("no such address")
            case 8:
                return Retry(-1)
            case 9:
                raise Retry("soon")  # type: ignore[arg-type]
        return None

    insert(mail, *range(1, 10))
    work(dsn, decides, batch_size=batch_size, retry_policy=FixedDelay(3600))
    # A row that is put back has no error; returned, it keeps what was written.
    assert sorted(sent(mail)) == [1, 4, 5]
    assert sorted(calls) == [*range(1, 10)]
    failed, back = ("failed", True, 1), ("new", True, 0)
    assert states(mail) == {
        **dict.fromkeys((1, 4), ("succeeded", False, 1)),
        **dict.fromkeys((2, 3, 8, 9), failed),
        **dict.fromkeys((5, 6), back),
        7: ("failed", False, 1),
    }
    assert last_error(mail, 2).startswith("RuntimeError: no answer: ä\\x00\n")
    assert "in decides" in last_error(mail, 2)
    assert last_error(mail, 7) == "no such address"
    assert ops.value(mail, "select next_attempt - now() from mail where id = 2").seconds > 3000


def test_a_batch_that_fails_is_worked_on_row_by_row(dsn: str, mail: Connection) -> None:
    insert(mail, *range(10))
    sizes = []

    class Sender(TableWorker):
        table = "mail"
        batch_size = 6
        retry_policy = FixedDelay(3600)

        def process_batch(self, conn: pgqpy.Connection, rows: list[Row]) -> list[Any] | None:
            sizes.append(len(rows))
            for row in rows:
                send(conn, row)
            if any(row["id"] == 3 for row in rows):
                raise RuntimeError("not 3")
            return [Retry(3600) if row["id"] == 8 else None for row in rows]

    Sender(dsn).run(until_empty=True)
    assert sizes == [6, 1, 1, 1, 1, 1, 1, 4]
    assert sent(mail) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    found = states(mail)
    assert found.pop(3) == ("failed", True, 1)
    assert found.pop(8) == ("new", True, 0)
    assert set(found.values()) == {("succeeded", False, 1)}


def test_attempts_are_limited_and_the_last_reason_is_kept(dsn: str, mail: Connection) -> None:
    insert(mail, 1)
    attempts = []

    class Sender(TableWorker):
        table = "mail"

        @staticmethod
        def retry_policy(attempt: int, error: Exception) -> float | None:
            return None if attempt == 3 else 0.0

        def process_row(self, conn: pgqpy.Connection, row: Row) -> None:
            attempts.append(row["attempts"])
            raise RuntimeError(f"attempt {row['attempts'] + 1}")

    Sender(dsn).run(until_empty=True)
    assert attempts == [0, 1, 2]
    assert states(mail) == {1: ("failed", False, 3)}
    assert last_error(mail, 1).startswith("RuntimeError: attempt 3\n")


def test_the_column_delays_reorders_stops_and_sends_again(dsn: str, mail: Connection) -> None:
    insert(mail, 1, 2, 3, 4)
    mail.execute("update mail set next_attempt = now() + interval '1 h' where id = 1")
    mail.execute("update mail set next_attempt = null where id = 2")
    mail.execute("update mail set next_attempt = '-infinity' where id = 4")
    worker = TableWorker(dsn, "mail", send)
    worker.run(until_empty=True)
    assert sent(mail) == [4, 3]
    mail.execute("update mail set next_attempt = now() where next_attempt > now() or id = 4")
    worker.run(until_empty=True)
    assert sorted(sent(mail)) == [1, 3, 4, 4]
    assert states(mail) == {
        1: ("succeeded", False, 1),
        2: ("new", False, 0),
        3: ("succeeded", False, 1),
        4: ("succeeded", False, 2),
    }


def test_an_outage_is_no_rows_fault(dsn: str, mail: Connection) -> None:
    insert(mail, 1)
    failures = iter([psycopg.OperationalError("away"), OSError("away")])

    class Sender(TableWorker):
        table = "mail"
        outages = (OSError,)
        backoff_first = 0.01

        def process_row(self, conn: pgqpy.Connection, row: Row) -> None:
            send(conn, row)
            if error := next(failures, None):
                raise error

    with running(Sender(dsn)):
        wait_until(lambda: states(mail)[1][0] == "succeeded")
    assert states(mail) == {1: ("succeeded", False, 1)}
    assert sent(mail) == [1]


def test_a_row_that_cannot_be_committed_fails_alone(dsn: str, mail: Connection) -> None:
    mail.execute("alter table sent add unique (id) deferrable initially deferred")
    mail.execute("insert into sent values (3)")
    insert(mail, *range(6))
    work(dsn, send, batch_size=4, retry_policy=FixedDelay(3600))
    assert sorted(sent(mail)) == [*range(6)]
    found = states(mail)
    assert found.pop(3) == ("failed", True, 1)
    assert set(found.values()) == {("succeeded", False, 1)}
    assert "duplicate key" in last_error(mail, 3)


class Patient(TableWorker):
    """A worker that has found nothing yet looks again in an hour, unless it is notified."""

    table = "mail"
    poll_interval = 3600.0

    def process_row(self, conn: pgqpy.Connection, row: Row) -> None:
        send(conn, row)


def test_a_waiting_worker_hears_of_rows(dsn: str, mail: Connection) -> None:
    mail.execute("select pgq_task.notify_workers('mail')")
    with running(Patient(dsn)):
        wait_until(lambda: listens(mail))
        insert(mail, 1)
        wait_until(lambda: sent(mail) == [1])
        wait_until(lambda: listens(mail))
        mail.execute("update mail set next_attempt = now() where id = 1")
        wait_until(lambda: sent(mail) == [1, 1])


def test_a_worker_knows_when_a_row_is_due(dsn: str, mail: Connection) -> None:
    mail.execute("insert into mail (id, next_attempt) values (1, now() + interval '0.4 s')")
    with running(Patient(dsn)):
        wait_until(lambda: sent(mail) == [1])


def test_a_row_that_becomes_due_after_the_look_does_not_wait_for_the_next(
    dsn: str, mail: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = RowTransactions.look

    async def look_early(transactions: RowTransactions, **options: Any) -> Any:
        rows = await look(transactions, **options)
        if not rows:
            mail.execute(
                "update mail set next_attempt = clock_timestamp() where last_attempt is null"
            )
            await transactions._io.call(transactions.current[0].execute, "select pg_sleep(0.2)")
        return rows

    monkeypatch.setattr(RowTransactions, "look", look_early)
    mail.execute("insert into mail (id, next_attempt) values (1, now() + interval '1 hour')")
    with running(Patient(dsn)):
        wait_until(lambda: sent(mail) == [1])


def listens(conn: Connection) -> bool:
    """Whether a listening worker has looked once more, and waits."""
    return bool(
        ops.value(
            conn,
            "select count(*) from pg_stat_activity l join pg_stat_activity w using (datid)"
            " where l.application_name = 'pgqpy listen' and l.state = 'idle'"
            " and l.query ~ 'notify' and w.application_name = 'pgqpy mail' and w.state = 'idle'"
            " and w.query ~ 'date_part' and w.state_change > l.state_change",
        )
    )


def test_without_triggers_a_worker_looks_from_time_to_time(dsn: str, mail: Connection) -> None:
    with running(TableWorker(dsn, "mail", send)):
        insert(mail, 1)
        wait_until(lambda: sent(mail) == [1])
        mail.execute("update mail set next_attempt = now() where id = 1")
        wait_until(lambda: sent(mail) == [1, 1])
        # Earlier than what was found last: the order of the application.
        mail.execute("insert into mail (id, next_attempt) values (2, '2020-01-01')")
        wait_until(lambda: sent(mail) == [1, 1, 2])


@pytest.mark.parametrize("kind", [TableWorker, AsyncTableWorker])
def test_a_handler_that_raises_its_own_cancellation_fails_its_row_only(
    dsn: str, mail: Connection, kind: Any
) -> None:
    def cancelled(_: object, row: Row) -> None:
        if row["id"] == 1:
            raise asyncio.CancelledError

    insert(mail, 1, 2)
    handler = cancelled if kind is TableWorker else aside(cancelled)
    run_until_empty(kind(dsn, "mail", handler, retry_policy=FixedDelay(3600, attempts=1)))
    assert states(mail) == {1: ("failed", False, 1), 2: ("succeeded", False, 1)}


def test_a_row_that_hangs_fails_after_its_time(dsn: str, mail: Connection) -> None:
    insert(mail, 1)

    async def hangs(conn: pgqpy.AsyncConnection, row: Row) -> None:
        await conn.execute("select pg_sleep(3600)")

    class Hanging(AsyncTableWorker):
        async def on_row_failed(self, row: Row, error: Exception, delay: timedelta | None) -> None:
            self.stop()

    # Not until empty: if this process is not heard for a second, the server ends its session.
    worker = Hanging(dsn, "mail", hangs, time_limit=0.1, retry_policy=FixedDelay(3600, attempts=1))
    asyncio.run(worker.run())
    assert states(mail) == {1: ("failed", False, 1)}
    assert last_error(mail, 1).startswith("TimeoutError")


def test_the_server_frees_what_a_worker_hangs_on(dsn: str, mail: Connection) -> None:
    insert(mail, 1)
    hanging, released = threading.Event(), threading.Event()

    def hangs(conn: pgqpy.Connection, row: Row) -> None:
        send(conn, row)
        hanging.set()
        assert released.wait(60)

    with running(TableWorker(dsn, "mail", hangs, time_limit=0.05)):
        assert hanging.wait(60)
        hanging.clear()
        free = "select count(*) from (select from mail for update skip locked) m"
        wait_until(lambda: ops.value(mail, free))
        work(dsn, send)
        released.set()
    assert sent(mail) == [1]


def test_a_table_may_have_composite_keys_and_odd_names(dsn: str, conn: Connection) -> None:
    conn.execute('create schema "S %s"')
    conn.execute(
        'create table "S %s"."it\'s {0}" ("K %" text, "day" date, "at" timestamptz, kind float8,'
        ' primary key ("K %", "day", "at", kind)) partition by list ("K %")'
    )
    conn.execute('create table part partition of "S %s"."it\'s {0}" default')
    table = '"S %s"."it\'s {0}"'
    names = TaskColumnNames.prefixed("% {1} ")
    conn.execute("select pgq_task.add_columns(%s, %s)", [table, names.json()])
    for number in range(20):
        conn.execute(
            f"insert into {table.replace('%', '%%')} values (%s, %s, 'infinity', %s)".encode(),
            [f"a'{number}", "2020-01-01", 0.1 * number],
        )
    seen = []

    def look(conn: pgqpy.Connection, row: Row) -> None:
        seen.append(row["K %"])
        assert row["% {1} status"] == "new"
        assert row["at"].year == 9999

    TableWorker(dsn, table, look, columns=names, batch_size=7).run(until_empty=True)
    assert seen == [f"a'{number}" for number in range(20)]
    assert conn.execute('select distinct "% {1} status" from part').fetchall() == [("succeeded",)]


def test_a_worker_that_cannot_work_says_why(dsn: str, conn: Connection) -> None:
    conn.execute("create table mail (id int primary key)")
    with pytest.raises(InvalidTaskTable, match=r"(?s)no column .*add_columns"):
        work(dsn, send)
    with pytest.raises(InvalidTaskTable, match=r"(?s)nothing does not exist.*search_path"):
        TableWorker(dsn, "nothing", send).run()
    conn.execute("create view looks as select 1 as id")
    with pytest.raises(InvalidTaskTable, match="not a table"):
        TableWorker(dsn, "looks", send).run_once()

    async def sends(conn: pgqpy.AsyncConnection, row: Row) -> None: ...

    wrong: list[dict[str, Any]] = [
        {"table": "mail"},
        {"handler": send},
        {"table": "mail", "handler": sends},
        {"table": "mail", "handler": lambda row: None},
        {"table": "mail", "handler": send, "batch_size": 0},
        {"table": "mail", "handler": send, "concurrency": 0},
        {"table": "mail", "handler": send, "time_limit": -1},
        {"table": "mail", "handler": send, "retry_policy": lambda: None},
        {"table": "mail", "handler": send, "columns": "status"},
    ]
    for given in wrong:
        with pytest.raises(InvalidConsumer):
            TableWorker(dsn, **given).run_once()


def test_a_table_without_the_index_is_noticed(
    dsn: str, conn: Connection, caplog: pytest.LogCaptureFixture
) -> None:
    conn.execute("create table mail (id int primary key)")
    conn.execute("select pgq_task.add_columns('mail', create_index => false)")
    with caplog.at_level(logging.WARNING):
        work(dsn, send)
    assert "has no index on next_attempt" in caplog.text


def test_a_worker_stops_after_the_row_it_is_at(dsn: str, mail: Connection) -> None:
    insert(mail, 1, 2, 3)
    worker: TableWorker

    def stops(conn: pgqpy.Connection, row: Row) -> None:
        send(conn, row)
        worker.stop()

    worker = TableWorker(dsn, "mail", stops)
    worker.run()
    assert sent(mail) == [1]
    assert states(mail)[1] == ("succeeded", False, 1)


def test_an_open_transaction_slows_nothing(dsn: str, mail: Connection, connect: Connect) -> None:
    """Dead rows cannot be cleaned up; claims do not step over them, nor read the backlog."""
    mail.execute("alter table mail set (autovacuum_enabled = false)")
    holder = connect(autocommit=False)
    holder.execute("set transaction isolation level repeatable read")
    holder.execute("select 1 from mail")
    insert(mail, *range(2000))
    read: list[int] = []

    class Counter(TableWorker):
        table = "mail"
        batch_size = 50

        def process_batch(self, conn: pgqpy.Connection, rows: list[Row]) -> None:
            # The number of index entries that the connection has read.
            statement: LiteralString = (
                "select sum(pg_stat_get_xact_tuples_returned(indexrelid))::int from pg_index"
                " where indrelid = 'mail'::regclass and not indisprimary"
            )
            read.append(ops.value(conn, statement))

    Counter(dsn).run(until_empty=True)
    assert len(read) == 40
    assert set(states(mail).values()) == {("succeeded", False, 1)}
    claims = [after - before for before, after in itertools.pairwise([0, *read]) if after > before]
    # A look from the beginning, now and then, reads all that is dead, but no backlog.
    assert all(claim <= 50 * number + 150 for number, claim in enumerate(claims))
    assert statistics.median(claims) <= 100
    holder.rollback()
