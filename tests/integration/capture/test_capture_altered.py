"""Captured tables go on being altered; the next statement is captured as the table is then."""

from __future__ import annotations

import psycopg
import pytest

from pgqpy.embedded import Server
from tests.fixtures.dumps import dump, restore
from tests.fixtures.fix_capture import changes, last_event
from tests.fixtures.fix_db import Calls, Connect, Connection


def create_flight(conn: Connection, queue: str) -> None:
    conn.execute("create table flight (id int primary key, carrier text, delay real)")
    conn.execute("select pgq.capture_table('flight', %s)", [queue])


@pytest.fixture
def flight(conn: Connection, queue: str) -> str:
    create_flight(conn, queue)
    return "flight"


ALTERATIONS = [
    ("alter table flight add column gate text default 'B2'", "flight", ["id"], "gate"),
    ("alter table flight rename carrier to airline", "flight", ["id"], "airline"),
    ("alter table flight rename id to number", "flight", ["number"], "number"),
    ("alter table flight drop column carrier", "flight", ["id"], None),
    ("alter table flight alter column delay type text", "flight", ["id"], None),
    ("alter table flight rename to leg", "leg", ["id"], None),
    ("alter table flight drop constraint flight_pkey", "flight", [], None),
    (
        "alter table flight drop constraint flight_pkey, add primary key (carrier, id)",
        "flight",
        ["carrier", "id"],
        None,
    ),
    ("alter table flight drop column id, add column n serial primary key", "flight", ["n"], "n"),
]


@pytest.mark.parametrize("warm", [True, False], ids=["session that wrote before", "new session"])
def test_an_altered_table_is_captured_as_it_is_now(
    connect: Connect, conn: Connection, queue: str, subtests: pytest.Subtests, warm: bool
) -> None:
    for alteration, table, key, column in ALTERATIONS:
        with subtests.test(alteration):
            create_flight(conn, queue)
            writer = connect()
            if warm:
                for n in range(7):
                    writer.execute("insert into flight values (%s, 'UA')", [n])
                    writer.execute("update flight set delay = 1 where id = %s", [n])
                writer.execute("delete from flight")
            conn.execute(alteration)
            before = last_event(conn)
            columns = {
                row[0]
                for row in conn.execute(
                    "select attname from pg_attribute where attrelid = %s::regclass and attnum > 0"
                    " and not attisdropped",
                    [table],
                ).fetchall()
            }
            assert column is None or column in columns
            filled = {"id", "number"} & columns
            name = filled.pop() if filled else "delay"
            for n in (100, 101):
                extra, value = (", carrier", ", 'x'") if "carrier" in columns else ("", "")
                writer.execute(f"insert into {table} ({name}{extra}) values ({n}{value})")
            writer.execute(f"update {table} set delay = '5'")
            writer.execute(f"delete from {table} where {name}::text in ('100', '5')")
            seen = changes(conn, before)
            assert [c.op for c in seen][:4] == ["INSERT", "INSERT", "UPDATE", "UPDATE"]
            assert {c.op for c in seen[4:]} == {"DELETE"}
            for change in seen:
                assert change.table == ("public", table)
                assert list(change.key) == key
                assert set(change.row) == columns
                assert (change.old is not None) == (not key and change.op == "UPDATE")
            writer.close()
            conn.execute(f"drop table {table}; select pgq.maint_capture()")


def test_a_renamed_schema_is_noticed(connect: Connect, conn: Connection, queue: str) -> None:
    conn.execute("create schema one; create table one.t (id int primary key)")
    conn.execute("select pgq.capture_table('one.t', %s)", [queue])
    writer = connect()
    writer.execute("insert into one.t values (1)")
    conn.execute("alter schema one rename to two")
    writer.execute("insert into two.t values (2)")
    conn.execute("create schema three; alter table two.t set schema three")
    writer.execute("insert into three.t values (3)")
    assert [c.table for c in changes(conn)] == [("one", "t"), ("two", "t"), ("three", "t")]


def test_the_function_stays_until_the_next_capture(conn: Connection, queue: str) -> None:
    conn.execute("create schema one; create schema two; create table one.t (id int primary key)")
    conn.execute("select pgq.capture_table('one.t', %s)", [queue])
    conn.execute("alter table one.t set schema two")
    with pytest.raises(psycopg.errors.DependentObjectsStillExist):
        conn.execute("drop schema one")
    conn.execute("select pgq.capture_table('two.t', %s, replace => true)", [queue])
    conn.execute("drop schema one; insert into two.t values (1)")
    assert [c.table for c in changes(conn)] == [("two", "t")]


def test_altering_in_the_same_transaction_is_noticed(conn: Connection, flight: str) -> None:
    with conn.transaction():
        conn.execute("insert into flight values (1)")
        conn.execute("alter table flight rename id to number")
        conn.execute("update flight set delay = 3")
        conn.execute("alter table flight rename number to id")
        conn.execute("update flight set id = 2")
    assert [(c.op, *c.key) for c in changes(conn)] == [
        ("INSERT", "id"),
        ("UPDATE", "number"),
        ("DELETE", "id"),
        ("INSERT", "id"),
    ]


@pytest.mark.usefixtures("flight")
def test_a_writer_that_waited_for_the_alteration_sees_it(
    connect: Connect, conn: Connection, calls: Calls
) -> None:
    writer, altering = connect(), connect(autocommit=False)
    writer.execute("insert into flight values (1)")
    altering.execute("alter table flight rename id to number")
    altering.execute("alter table flight rename to leg")
    update = "update flight set delay = delay"
    waiting = calls.blocked(psycopg.Connection.execute, writer, update)
    altering.execute("alter table leg rename to flight")
    altering.commit()
    waiting.result()
    assert [(c.op, *c.key) for c in changes(conn)] == [("INSERT", "id"), ("UPDATE", "number")]


@pytest.mark.parametrize("isolation", ["repeatable read", "serializable"])
def test_a_snapshot_older_than_the_alteration_does_not_matter(
    connect: Connect, conn: Connection, flight: str, isolation: str
) -> None:
    writer = connect()
    writer.execute("insert into flight values (1)")
    writer.execute(f"begin isolation level {isolation}")
    writer.execute("select 1 from pg_class limit 1")
    conn.execute("alter table flight add column gate text")
    conn.execute("alter table flight rename carrier to airline")
    conn.execute("alter table flight rename id to number")
    conn.execute("alter table flight rename to leg")
    writer.execute("insert into leg (number) values (2)")
    writer.execute("update leg set delay = 0 where number = 1")
    writer.execute("commit")
    writer.execute("update leg set delay = 0 where number = 2")
    assert [(c.op, c.table[1], "airline" in c.row, c.key) for c in changes(conn)] == [
        ("INSERT", "flight", False, ("id",)),
        ("INSERT", "leg", True, ("number",)),
        ("UPDATE", "leg", True, ("number",)),
        ("UPDATE", "leg", True, ("number",)),
    ]


def test_a_key_replaced_behind_an_old_snapshot_means_try_again(
    connect: Connect, conn: Connection, flight: str
) -> None:
    writer = connect()
    writer.execute("insert into flight values (1, 'UA')")
    writer.execute("begin isolation level repeatable read")
    writer.execute("select 1 from pg_class limit 1")
    conn.execute("alter table flight drop constraint flight_pkey, add primary key (carrier)")
    with pytest.raises(psycopg.errors.SerializationFailure):
        writer.execute("insert into flight values (2, 'AA')")
    writer.execute("rollback")
    writer.execute("begin isolation level repeatable read")
    writer.execute("insert into flight values (2, 'AA'); commit")
    assert [c.key for c in changes(conn)] == [("id",), ("carrier",)]


def test_what_an_old_snapshot_shows_is_not_remembered_for_later_transactions(
    connect: Connect, conn: Connection, queue: str
) -> None:
    conn.execute("create table t (id int not null)")
    conn.execute("select pgq.capture_table('t', %s, old_values => 'row')", [queue])
    writer = connect()
    writer.execute("begin isolation level repeatable read")
    writer.execute("select 1 from pg_class limit 1")
    conn.execute("alter table t add primary key (id)")
    writer.execute("insert into t values (1); commit")
    writer.execute("insert into t values (2)")
    assert [c.key for c in changes(conn)][-1] == ("id",)


def test_the_function_is_made_anew_once(conn: Connection, flight: str) -> None:
    def source() -> str:
        [(text,)] = conn.execute(
            "select prosrc from pg_proc where proname = 'flight_test_queue'"
        ).fetchall()
        return str(text)

    first = source()
    conn.execute("alter table flight rename to leg")
    conn.execute("insert into leg values (1)")
    second = source()
    assert "public.flight" in first
    assert "public.leg" in second
    conn.execute("insert into leg values (2)")
    assert source() == second


@pytest.mark.parametrize("option", ["columns", "exclude"])
def test_listed_columns_are_followed_through_renaming_and_dropping(
    conn: Connection, queue: str, option: str
) -> None:
    conn.execute("create table t (id int primary key, a int, b int, c int, d int)")
    conn.execute(f"select pgq.capture_table('t', %s, {option} => '{{a,b}}')", [queue])
    conn.execute(
        "alter table t rename a to a2; alter table t drop column b; alter table t add a int"
    )
    conn.execute("insert into t values (1, 2, 3, 4, 5)")
    conn.execute("update t set a2 = 9, c = 9")
    kept = {"id", "a2"} if option == "columns" else {"id", "c", "d", "a"}
    assert [set(change.row) for change in changes(conn)] == [kept, kept]
    [(listed,)] = conn.execute(f'select "{option}" from pgq.capture_info()').fetchall()
    assert listed == ["a2"]


def test_a_key_of_ones_own_is_followed_too(conn: Connection, queue: str) -> None:
    conn.execute("create table t (a int, b int)")
    conn.execute("select pgq.capture_table('t', %s, key => '{b,a}')", [queue])
    conn.execute("alter table t rename a to c")
    conn.execute("insert into t values (1, 2); update t set c = 3")
    assert [(c.op, c.key, c.row["c"]) for c in changes(conn)] == [
        ("INSERT", ("b", "c"), 1),
        ("DELETE", ("b", "c"), 1),
        ("INSERT", ("b", "c"), 3),
    ]


def test_a_table_whose_key_was_dropped_sends_whole_old_rows(conn: Connection, flight: str) -> None:
    conn.execute("insert into flight values (1, 'UA'), (2, 'AA')")
    conn.execute("alter table flight drop constraint flight_pkey")
    before = last_event(conn)
    conn.execute("update flight set carrier = 'DL', id = id + 1")
    seen = changes(conn, before)
    assert [(c.op, c.row["id"], c.old and c.old["id"]) for c in seen] == [
        ("UPDATE", 2, 1),
        ("UPDATE", 3, 2),
    ]


# generated columns


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_a_key_behind_a_dropped_column(conn: Connection, flight: str, isolation: str) -> None:
    conn.execute("alter table flight drop id, add n serial primary key")
    conn.execute(f"set default_transaction_isolation = '{isolation}'")
    conn.execute("insert into flight (carrier) values ('UA'), ('AA')")
    conn.execute("update flight set n = n + 10")
    conn.execute("update flight set delay = 1.5 where n = 11")
    assert [(c.op[0], c.row["n"], c.row["carrier"]) for c in changes(conn)] == [
        ("I", 1, "UA"),
        ("I", 2, "AA"),
        ("D", 1, "UA"),
        ("D", 2, "AA"),
        ("I", 11, "UA"),
        ("I", 12, "AA"),
        ("U", 11, "UA"),
    ]


def test_stored_generated_columns_have_their_values(conn: Connection, queue: str) -> None:
    conn.execute(
        "create table t (id int primary key, twice int generated always as (id * 2) stored)"
    )
    conn.execute("select pgq.capture_table('t', %s)", [queue])
    conn.execute("insert into t values (1), (2); update t set id = 7 where id = 1")
    assert [c.row for c in changes(conn)] == [
        {"id": 1, "twice": 2},
        {"id": 2, "twice": 4},
        {"id": 1, "twice": 2},
        {"id": 7, "twice": 14},
    ]


@pytest.mark.parametrize("form", ["row_json", "jsontriga"])
def test_virtual_columns_have_their_values(conn: Connection, queue: str, form: str) -> None:
    if conn.info.server_version < 180000:
        pytest.skip("virtual generated columns came with PostgreSQL 18")
    conn.execute('create table t (id int primary key, "new" int, x int)')
    conn.execute("select pgq.capture_table('t', %s, format => %s)", [queue, form])
    conn.execute("insert into t values (1, 5, 0)")
    conn.execute("alter table t add twice int generated always as (id * 2 + x) virtual")
    conn.execute("insert into t values (2, 5, 1), (3, 5, 2)")
    conn.execute(
        "update t set x = 10; update t set id = 4 where id = 3; delete from t where id = 4"
    )
    assert [c.row.get("twice") for c in changes(conn)] == [
        *(None, 5, 8),
        *(12, 14, 16),
        *(16, 18),
        18,
    ]


# dump and restore


def test_a_dump_of_the_database_brings_the_capture_back(
    server: Server, conn: Connection, dsn: str, empty_dsn: str, connect: Connect, queue: str
) -> None:
    conn.execute(
        "create schema app; create table app.t (gone int, a int, b int, id int primary key)"
    )
    conn.execute("alter table app.t drop column gone")
    conn.execute(
        "select pgq.capture_table('app.t', %s, exclude => '{a}', old_values => 'row')", [queue]
    )
    conn.execute("insert into app.t values (1, 2, 3)")
    restore(server, empty_dsn, dump(server, dsn))
    restored = connect(empty_dsn)
    restored.execute("insert into app.t values (4, 5, 6)")
    restored.execute("update app.t set b = 7 where id = 6")
    assert [(c.op, c.row, c.old) for c in changes(restored)] == [
        ("INSERT", {"b": 2, "id": 3}, None),
        ("INSERT", {"b": 5, "id": 6}, None),
        ("UPDATE", {"b": 7, "id": 6}, {"b": 5, "id": 6}),
    ]
    # It has found itself under another oid, and made itself anew for it.
    assert restored.execute(
        "select (capture_options ->> 'table_oid')::oid = capture_table from pgq.capture"
    ).fetchall() == [(True,)]
    restored.execute("select pgq.release_table('app.t')")
