"""Columns that make rows of an application's table tasks."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, LiteralString

import psycopg
import pytest

from pgqpy.errors import InvalidTask, InvalidTaskTable, TaskQueueNotEmpty, translate_errors
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import AsRole, Connect, Connection, MakeRole

NAMES = ["status", "next_attempt", "attempts", "last_attempt", "last_error"]


#: Does something while workers look; again, if it took longer than that.
QUIET = """
do $$
declare
    v_until bigint;
begin
    loop
        begin
            v_until := date_part('epoch', clock_timestamp()) * 1000 + 900;
            perform setval(pgq_task._quiet_sequence('mail', 'next_attempt'), v_until);
            {};
            exit when date_part('epoch', clock_timestamp()) * 1000 < v_until;
            raise 'too late';
        exception when raise_exception then
            null;
        end;
    end loop;
end $$
"""


@pytest.fixture
def mail(conn: Connection) -> str:
    conn.execute("create table mail (id int primary key)")
    return "mail"


def add(conn: Connection, table: str, **options: Any) -> int:
    given = "".join(f", {name} => %s" for name in options)
    values = [json.dumps(v) if k == "names" else v for k, v in options.items()]
    statement = f"select pgq_task.add_columns(%s::regclass{given})"
    with translate_errors():
        return int(ops.value(conn, statement, table, *values))


def columns(conn: Connection, table: str) -> list[str]:
    return [
        name
        for (name,) in conn.execute(
            "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0"
            " and not attisdropped order by attnum",
            [table],
        )
    ]


def test_new_rows_are_due_and_those_that_were_there_are_not(conn: Connection) -> None:
    conn.execute("create table mail (id int primary key, body text)")
    conn.execute("insert into mail select n from generate_series(1, 3) n")
    filenode = ops.value(conn, "select pg_relation_filenode('mail')")
    assert add(conn, "mail") == 5
    assert ops.value(conn, "select pg_relation_filenode('mail')") == filenode
    assert columns(conn, "mail") == ["id", "body", *NAMES]
    conn.execute("insert into mail (id) values (4), (5)")
    rows = conn.execute(
        "select id, status, next_attempt is null, next_attempt <= clock_timestamp(), attempts,"
        " last_attempt, last_error from mail order by id"
    ).fetchall()
    assert [row[1:] for row in rows[:3]] == [("new", True, None, 0, None, None)] * 3
    assert [row[1:] for row in rows[3:]] == [("new", False, True, 0, None, None)] * 2
    # Rows of one statement have an order, too.
    assert ops.value(conn, "select count(distinct next_attempt) from mail") == 2


def test_rows_are_queued_if_asked_without_a_rewrite(conn: Connection, mail: str) -> None:
    conn.execute("insert into mail select n from generate_series(1, 3) n")
    filenode = ops.value(conn, "select pg_relation_filenode('mail')")
    add(conn, mail, queue_existing=True, queue_new=False)
    assert ops.value(conn, "select pg_relation_filenode('mail')") == filenode
    conn.execute("insert into mail values (4)")
    due = conn.execute("select id from mail where next_attempt <= now() order by id").fetchall()
    assert due == [(1,), (2,), (3,)]


def test_twice_is_as_good_as_once(conn: Connection, mail: str) -> None:
    assert add(conn, mail) == 5
    conn.execute("update mail set status = 'of the application'")
    assert add(conn, mail) == 0
    assert ops.value(conn, "select count(*) from pg_indexes where tablename = 'mail'") == 2


def test_a_table_may_be_several_queues_and_have_any_name(conn: Connection) -> None:
    conn.execute('create schema "Odd ""S"')
    conn.execute(
        'create table "Odd ""S"."a\'b %s" ("K %" text, "k2" uuid, primary key ("K %", k2))'
    )
    table = '"Odd ""S"."a\'b %s"'
    other = {name: f'Mail\'s "{name}" %' for name in NAMES}
    assert add(conn, table) == 5
    assert add(conn, table, names=other) == 5
    assert columns(conn, table) == ["K %", "k2", *NAMES, *other.values()]
    (name, keys, types, index, signal) = conn.execute(
        "select * from pgq_task.describe_table(%s, %s)", [table, json.dumps(other)]
    ).fetchall()[0]
    assert (name, keys, types, index) == (table, ["K %", "k2"], ["text", "uuid"], True)
    assert signal is None
    assert ops.value(conn, "select pgq_task.notify_workers(%s, %s)", table, json.dumps(other))
    assert ops.value(conn, "select pgq_task.notify_workers(%s)", table)
    assert not ops.value(conn, "select pgq_task.notify_workers(%s)", table)
    for names in (other, {}):
        conn.execute("select pgq_task.remove_columns(%s, %s)", [table, json.dumps(names)])
    assert columns(conn, table) == ["K %", "k2"]
    assert ops.value(conn, "select count(*) from pg_class where relname ~ '_quiet_'") == 0
    assert ops.value(conn, "select count(*) from pg_trigger where tgname ~ 'pgq_task'") == 0


def test_partitioned_tables_have_the_columns_in_all_partitions(conn: Connection) -> None:
    conn.execute(
        "create table part (id int, day date, primary key (id, day)) partition by range (day)"
    )
    conn.execute(
        "create table part_1 partition of part for values from ('2020-01-01') to ('2021-01-01')"
    )
    assert add(conn, "part") == 5
    conn.execute(
        "create table part_2 partition of part for values from ('2021-01-01') to ('2022-01-01')"
    )
    assert set(NAMES) < set(columns(conn, "part_1"))
    assert ops.value(conn, "select count(*) from pg_indexes where tablename ~ 'part_'") == 4
    with pytest.raises(InvalidTaskTable, match=r"whole table: public\.part"):
        add(conn, "part_1")


def test_the_index_of_a_large_table_can_be_made_concurrently(conn: Connection, mail: str) -> None:
    add(conn, mail, create_index=False)
    described = "select has_index from pgq_task.describe_table('mail')"
    assert not ops.value(conn, described)
    statement = ops.value(conn, "select pgq_task.table_index_sql('mail')")
    assert "concurrently" in statement
    conn.execute(statement.encode())
    assert ops.value(conn, described)
    assert add(conn, mail) == 0


def test_a_table_that_cannot_be_a_queue_is_refused(conn: Connection) -> None:
    key = "id int primary key"
    for ddl, says in (
        ("create table mail (id int)", "no primary key"),
        ("create view mail as select 1 as id", "not a table"),
        # A row of a child may have the key of one of the table's own.
        (f"create table mail ({key}); create table letter () inherits (mail)", "inherit"),
        (f"create table mail ({key}, status int)", "is integer, not text"),
        (f"create table mail ({key}, status varchar(5))", "not text"),
        (f"create table mail ({key}, next_attempt timestamp)", "without time zone"),
        (f"create table mail ({key}, last_error varchar(9))", "last_error"),
        (f"create table mail ({key}, status text); insert into mail values (1, '')", "else"),
    ):
        with conn.transaction(force_rollback=True):
            conn.execute(ddl.encode())
            before = columns(conn, "mail")
            with pytest.raises(InvalidTaskTable, match=says) as caught, conn.transaction():
                add(conn, "mail")
            assert caught.value.hint
            assert columns(conn, "mail") == before


def test_names_that_make_no_sense_are_refused(conn: Connection, mail: str) -> None:
    wrong: list[Any] = [{"state": "x"}, {"status": ""}, {"status": None}]
    for names in (*wrong, {"status": "attempts"}, [], {"status": "x" * 64}):
        with pytest.raises(InvalidTask):
            add(conn, mail, names=names)


def test_columns_of_the_application_with_the_right_type_are_kept(conn: Connection) -> None:
    conn.execute("create table mail (id int primary key, tries int, sent_at timestamptz)")
    conn.execute("insert into mail values (1, 7, '2020-01-01')")
    assert add(conn, "mail", names={"attempts": "tries", "next_attempt": "sent_at"}) == 3
    assert conn.execute("select tries, sent_at is null from mail").fetchall() == [(7, False)]
    # Their defaults are the application's.
    conn.execute("insert into mail (id) values (2)")
    assert ops.value(conn, "select sent_at from mail where id = 2") is None


def test_columns_are_not_removed_while_rows_wait(conn: Connection, mail: str) -> None:
    add(conn, mail)
    conn.execute("insert into mail values (1)")
    with pytest.raises(TaskQueueNotEmpty), translate_errors():
        conn.execute("select pgq_task.remove_columns('mail')")
    assert ops.value(conn, "select pgq_task.remove_columns('mail', force => true)") == 5
    assert ops.value(conn, "select pgq_task.remove_columns('mail')") == 0
    assert columns(conn, "mail") == ["id"]


def test_sizes_tell_by_status_what_is_due(conn: Connection, mail: str) -> None:
    add(conn, mail)
    conn.execute(
        "insert into mail (id, status, next_attempt, attempts) values"
        " (1, 'new', now() - interval '1 h', 0), (2, 'new', now() + interval '1 h', 0),"
        " (3, 'failed', null, 10), (4, 'failed', now() - interval '1 s', 2),"
        " (5, 'succeeded', null, 1)"
    )
    rows = conn.execute("select * from pgq_task.table_sizes('mail')").fetchall()
    assert [row[:5] for row in rows] == [
        ("failed", 1, 1, 0, 10),
        ("new", 0, 1, 1, 0),
        ("succeeded", 1, 0, 0, 1),
    ]
    assert timedelta(hours=1) <= rows[1][5] < timedelta(hours=2)


def test_the_owner_of_a_table_needs_no_other_role(
    conn: Connection, make_role: MakeRole, as_role: AsRole
) -> None:
    role = make_role("owner", "pgq_writer")
    conn.execute(f"create schema shop authorization {role}".encode())
    owner = as_role(role)
    owner.execute("create table shop.mail (id int primary key)")
    assert add(owner, "shop.mail") == 5
    assert ops.value(owner, "select pgq_task.notify_workers('shop.mail')")
    owner.execute("insert into shop.mail values (1)")
    assert ops.value(owner, "select pgq_task.want_quiet('shop.mail', 'next_attempt')")
    owner.execute("insert into shop.mail values (2)")
    conn.execute("create table public.others (id int primary key)")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        owner.execute("select pgq_task.add_columns('public.others')")


def test_only_a_role_that_may_change_a_tables_rows_keeps_its_triggers_quiet(
    conn: Connection, mail: str, make_role: MakeRole, as_role: AsRole
) -> None:
    add(conn, mail)
    conn.execute("select pgq_task.notify_workers('mail')")
    role = make_role("reader", "pgq_reader")
    session = as_role(role)
    want: LiteralString = "select pgq_task.want_quiet('mail', 'next_attempt')"
    quiet: LiteralString = (
        "select pg_sequence_last_value(pgq_task._quiet_sequence('mail', 'next_attempt'))"
    )
    assert ops.value(session, want) is False
    assert ops.value(conn, quiet) is None
    conn.execute(f"grant update (status) on mail to {role}".encode())
    assert ops.value(session, want) is True
    assert ops.value(conn, quiet) is not None


def test_workers_hear_of_inserts_and_resends(conn: Connection, mail: str, connect: Connect) -> None:
    add(conn, mail)
    conn.execute("select pgq_task.notify_workers('mail')")
    listener = connect()
    listener.execute("listen pgq_task_table")
    signal = ops.value(conn, "select signal from pgq_task.describe_table('mail')")

    def told(statement: str) -> list[str]:
        conn.execute(statement.encode())
        conn.execute("select pg_notify('pgq_task_table', 'end')")
        heard = []
        for notice in listener.notifies():
            if notice.payload == "end":
                break
            heard.append(notice.payload)
        return heard

    assert told("insert into mail select n from generate_series(1, 10) n") == [signal]
    assert told("update mail set next_attempt = null, status = 'succeeded'") == []
    assert told("update mail set next_attempt = now() where id < 4") == [signal]
    # While workers poll anyway, no notification is sent.
    assert told(QUIET.format("insert into mail values (11)")) == []
    later = "update mail set next_attempt = now() + interval '1 s' where id <= {}"
    assert told(QUIET.format(later.format(1))) == []
    # It may take longer than they look.
    assert told(QUIET.format(later.format(3))) == [signal]
    # A time far ahead is of a clock that has gone back.
    conn.execute("select setval(pgq_task._quiet_sequence('mail', 'next_attempt'), 1::bigint << 60)")
    assert told("insert into mail values (12)") == [signal]
