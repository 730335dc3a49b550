"""Odd tables of applications, and changes to them while their rows are processed."""

from __future__ import annotations

import threading
from datetime import date, datetime
from typing import Any

import psycopg
import pytest

import pgqpy
from pgqpy.errors import InvalidTaskTable
from pgqpy.retry import FixedDelay, Retry
from pgqpy.tasks import TableWorker, TaskColumnNames
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_client import wait_until
from tests.fixtures.fix_db import Connect, Connection, MakeRole
from tests.fixtures.fix_mail_table import Row, insert, last_error, send, sent, states, work
from tests.fixtures.task_ops import hang_up

HOUR = FixedDelay(3600)


@pytest.fixture
def mail(mail: Connection) -> Connection:
    insert(mail, 1, 2, 3)
    return mail


@pytest.mark.one_database
@pytest.mark.parametrize(
    ("kind", "one", "two"),
    [
        ("uuid", "gen_random_uuid()", "gen_random_uuid()"),
        ("bytea", r"'\x00ff'", r"'\x5c27'"),
        ("numeric", "0.10", "1e30"),
        ("float8", "0.1", "'nan'"),
        ("float4", "0.1", "'infinity'"),
        ("char(9)", "'a'", "' b'"),
        ('"char"', "'a'", r"'\'"),
        ("varchar(3)", "'a''b'", "''"),
        ("name", "'{}'", "'%s'"),
        ("timestamptz", "'1890-01-01 00:00:01'", "'infinity'"),
        ("timestamp", "'202026-01-01'", "'4000-01-01 BC'"),
        ("date", "'infinity'", "'5000-01-01'"),
        ("interval", "'1 mon 3 days -1:00'", "'178000000 years'"),
        ("time", "'24:00'", "'00:00'"),
        ("jsonb", """'{"a": [1, "%s"]}'""", "'null'"),
        ("int4range", "'[1,)'", "'empty'"),
        ("daterange", "'[2020-01-01,infinity]'", "'empty'"),
        ("text[]", """'{"a,b",null}'""", "'{}'"),
        ("pair", "(1, 'a,\"')", "(2, '')"),
        ("mood", "'so so'", "'good'"),
        ("positive", "1", "2"),
        ("inet", "'::1/64'", "'10.0.0.1'"),
        ("bit(3)", "b'101'", "b'000'"),
        ("money", "1234.5", "0"),
    ],
)
def test_a_key_may_have_any_type(dsn: str, conn: Connection, kind: str, one: str, two: str) -> None:
    conn.execute("drop table if exists mail")
    conn.execute("drop schema if exists types cascade")
    conn.execute("create schema types")
    conn.execute("create type types.pair as (a int, b text)")
    conn.execute("create type types.mood as enum ('so so', 'good')")
    conn.execute("create domain types.positive as int check (value > 0)")
    kind = f"types.{kind}" if kind in ("pair", "mood", "positive") else kind
    conn.execute(f"create table mail (id {kind} primary key, n int)".encode())
    conn.execute("select pgq_task.add_columns('mail')")
    conn.execute(f"insert into mail values ({one}, 1), ({two}, 2)".encode())
    seen = []
    for batch_size in (1, 2):
        worker = TableWorker(dsn, "mail", lambda _, row: seen.append(row["n"]))
        worker.batch_size, worker.retry_policy = batch_size, HOUR
        worker.run(until_empty=True)
        conn.execute("update mail set next_attempt = now()")
    unreadable = ops.value(conn, "select count(*) from mail where status = 'failed'")
    assert unreadable == {"timestamp": 2, "time": 1}.get(kind, 0)
    if not unreadable:
        assert sorted(seen) == [1, 1, 2, 2]
    assert ops.value(conn, "select min(attempts) = 2 and max(attempts) = 2 from mail")


def test_a_row_that_python_cannot_read_fails_alone(dsn: str, mail: Connection) -> None:
    mail.execute("alter table mail add day date, add at timestamp")
    mail.execute("update mail set day = 'infinity', at = '-infinity' where id = 1")
    mail.execute("update mail set day = '202026-01-01' where id = 2")
    seen = []

    def look(conn: pgqpy.Connection, row: Row) -> None:
        send(conn, row)
        seen.append((row["day"], row["at"]))

    work(dsn, look, batch_size=10, retry_policy=HOUR)
    assert sorted(sent(mail)) == [1, 3]
    assert (date.max, datetime(1, 1, 1)) in seen  # noqa: DTZ001
    assert states(mail)[2] == ("failed", True, 1)
    assert "date too large" in last_error(mail, 2)


KEEP = "create function keep() returns trigger language plpgsql as 'begin return null; end'"


def test_rows_that_a_trigger_keeps_are_not_done_again(dsn: str, mail: Connection) -> None:
    mail.execute(KEEP)
    mail.execute(
        "create trigger keep before delete on mail for each row when (old.id < 3)"
        " execute function keep()"
    )
    work(dsn, send, delete_done=True, batch_size=2)
    assert sent(mail) == [1, 2, 3]
    assert states(mail) == dict.fromkeys((1, 2), ("succeeded", False, 1))


def test_a_table_whose_rows_cannot_be_marked_ends_the_worker(dsn: str, mail: Connection) -> None:
    mail.execute(KEEP)
    mail.execute("create trigger keep before update on mail for each row execute function keep()")
    with pytest.raises(InvalidTaskTable, match="stay as they are"):
        work(dsn, send)
    assert sent(mail) == [1]


@pytest.mark.parametrize("when", ["", "deferrable initially deferred"])
def test_a_row_that_cannot_be_deleted_has_failed(dsn: str, mail: Connection, when: str) -> None:
    mail.execute(f"create table line (mail_id int references mail {when})".encode())
    mail.execute("insert into line values (2)")
    work(dsn, send, delete_done=True, batch_size=3, retry_policy=HOUR)
    assert sorted(sent(mail)) == [1, 3]
    assert states(mail) == {2: ("failed", True, 1)}
    assert "foreign key" in last_error(mail, 2)


@pytest.mark.parametrize("end", ["commit", "rollback", "the method"])
def test_ending_the_transaction_is_a_failure(dsn: str, mail: Connection, end: str) -> None:
    def ends(conn: pgqpy.Connection, row: Row) -> None:
        if row["id"] != 2:
            send(conn, row)
        elif end == "the method":
            conn.commit()
        else:
            conn.execute(end.encode())

    work(dsn, ends, batch_size=3, retry_policy=HOUR)
    assert states(mail)[2] == ("failed", True, 1)
    said = "is not for this connection" if end == "the method" else "has ended the transaction"
    assert said in last_error(mail, 2)
    assert ops.value(mail, "select count(distinct id) from sent where id <> 2") == 2
    assert {status for status, _, _ in states(mail).values()} == {"succeeded", "failed"}


def test_rows_change_while_they_are_processed(dsn: str, mail: Connection, connect: Connect) -> None:
    """A changed row waits, and is processed after the current work on it."""
    changes = [
        "update mail set next_attempt = now(), status = 'new' where id = 1",
        "delete from mail where id = 2",
    ]
    threads = []
    calls = []

    def change(statement: str) -> None:
        connect().execute(statement.encode())

    def slow(conn: pgqpy.Connection, row: Row) -> None:
        calls.append(row["id"])
        if changes:
            thread = threading.Thread(target=change, args=[changes.pop(0)])
            thread.start()
            threads.append(thread)
            wait_until(lambda: ops.value(mail, "select count(*) from pg_locks where not granted"))
        send(conn, row)

    work(dsn, slow)
    for thread in threads:
        thread.join(60)
    work(dsn, slow)
    assert sorted(calls) == [1, 1, 2, 3]
    assert states(mail) == {1: ("succeeded", False, 2), 3: ("succeeded", False, 1)}


def test_handlers_may_delete_the_row_or_change_its_key(dsn: str, mail: Connection) -> None:
    def changes(conn: pgqpy.Connection, row: Row) -> None:
        send(conn, row)
        if row["id"] == 1:
            conn.execute("delete from mail where id = 1")
        if row["id"] == 2:
            conn.execute("update mail set id = 20, next_attempt = null where id = 2")

    work(dsn, changes, batch_size=3)
    assert sent(mail) == [1, 2, 3]
    assert states(mail) == {3: ("succeeded", False, 1), 20: ("new", False, 0)}


def test_whatever_the_role_says_of_transactions_and_texts(dsn: str, mail: Connection) -> None:
    odd = psycopg.conninfo.make_conninfo(
        dsn,
        options="-c default_transaction_isolation=serializable -c DateStyle=sql,dmy"
        " -c IntervalStyle=iso_8601 -c bytea_output=escape -c extra_float_digits=-5"
        " -c default_transaction_deferrable=on -c plan_cache_mode=force_custom_plan",
    )
    mail.execute("create table pi (f float8, b bytea, d date, primary key (f, b, d))")
    mail.execute("select pgq_task.add_columns('pi')")
    mail.execute(
        "insert into pi select pi() / n, '\\x00'::bytea, '2020-02-03' from generate_series(1, 5) n"
    )
    settings = []

    def look(conn: pgqpy.Connection, row: Row) -> None:
        settings.append(
            conn.execute(
                "select current_setting('plan_cache_mode'), current_setting('enable_seqscan'),"
                " current_setting('transaction_isolation')"
            ).fetchall()
        )

    for batch_size in (1, 5):
        TableWorker(odd, "pi", look, batch_size=batch_size).run(until_empty=True)
        mail.execute("update pi set next_attempt = now()")
    assert settings == [[("force_custom_plan", "on", "read committed")]] * 10
    assert ops.value(mail, "select min(attempts) = 2 and max(attempts) = 2 from pi")


def test_policies_say_which_rows_there_are(dsn: str, mail: Connection, make_role: MakeRole) -> None:
    make_role("tenant", "pgq_reader")
    mail.execute("grant select, update, delete on mail to test_tenant")
    mail.execute("grant insert on sent to test_tenant")
    mail.execute("alter table mail enable row level security")
    mail.execute("create policy mine on mail for select using (id < 3)")
    mail.execute("create policy change on mail for update using (id < 3)")
    mail.execute("create policy remove on mail for delete using (id = 1)")
    tenant = psycopg.conninfo.make_conninfo(dsn, options="-c role=test_tenant")
    TableWorker(tenant, "mail", send, delete_done=True).run(until_empty=True)
    assert sent(mail) == [1, 2]
    assert states(mail) == {2: ("succeeded", False, 1), 3: ("new", True, 0)}


def test_columns_of_the_applications_own_may_be_null(dsn: str, conn: Connection) -> None:
    names = TaskColumnNames(status="mail_status", attempts="tries")
    conn.execute("create table sent (id int)")
    conn.execute(
        "create table mail (id int primary key, mail_status varchar(20), tries bigint,"
        " length int generated always as (length(mail_status)) stored)"
    )
    conn.execute("select pgq_task.add_columns('mail', %s)", [names.json()])
    conn.execute("insert into mail (id) values (1), (2)")
    lost = psycopg.connect(dsn)
    lost.execute("select from mail where id = 2 for update")
    hang_up(lost, conn)

    def puts_back(conn: pgqpy.Connection, row: Row) -> Any:
        send(conn, row)
        return Retry(3600)

    work(dsn, puts_back, columns=names)
    assert sent(conn) == [1, 2]
    assert conn.execute("select mail_status, tries from mail").fetchall() == [(None, 0)] * 2
    sizes = conn.execute("select * from pgq_task.table_sizes('mail', %s)", [names.json()])
    assert [row[:5] for row in sizes] == [(None, 0, 0, 2, 0)]
