"""The life of a capture: created, replaced, released, queue or table dropped."""

from __future__ import annotations

import json

import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_capture import changes, short
from tests.fixtures.fix_db import AsRole, Connection, MakeRole


@pytest.fixture(autouse=True)
def flight(conn: Connection, queue: str) -> None:
    conn.execute("create table flight (id int primary key, carrier text)")
    conn.execute("select pgq.capture_table('flight', %s)", [queue])


def leftovers(conn: Connection) -> tuple[int, int]:
    """(generated functions, triggers on tables of public)"""
    [counted] = conn.execute(
        "select (select count(*) from pg_proc where prorettype = 'trigger'::regtype"
        "   and pronamespace = 'public'::regnamespace),"
        " (select count(*) from pg_trigger t join pg_class c on c.oid = t.tgrelid"
        "   where c.relnamespace = 'public'::regnamespace and not t.tgisinternal)"
    ).fetchall()
    return counted


def test_capturing_again_is_refused_unless_it_replaces(conn: Connection, queue: str) -> None:
    with ops.refused("PQ024", match="captured into queue") as error:
        conn.execute("select pgq.capture_table('flight', %s)", [queue])
    assert "replace => true" in str(error.value.diag.message_hint)
    conn.execute(
        "select pgq.capture_table('flight', %s, columns => '{id}', replace => true)", [queue]
    )
    conn.execute("insert into flight values (1, 'UA')")
    assert [change.row for change in changes(conn)] == [{"id": 1}]
    assert leftovers(conn) == (1, 4)


def test_a_released_table_is_as_it_was(conn: Connection, queue: str) -> None:
    conn.execute("insert into flight values (1)")
    assert conn.execute("select pgq.release_table('flight', %s)", [queue]).fetchall() == [(1,)]
    conn.execute("insert into flight values (2)")
    assert short(conn) == [("I", 1)]
    assert leftovers(conn) == (0, 0)


def test_releasing_what_is_not_captured_is_an_error(conn: Connection, queue: str) -> None:
    conn.execute("select pgq.release_table('flight')")
    for arguments in ("'flight'", f"'flight', '{queue}'"):
        with ops.refused("PQ024", match="is not captured"):
            conn.execute(f"select pgq.release_table({arguments})")


def test_one_of_two_captures_can_be_released(conn: Connection, queue: str) -> None:
    conn.execute("select pgq.create_queue('other')")
    conn.execute("select pgq.capture_table('flight', 'other')")
    conn.execute("select pgq.release_table('flight', 'other')")
    conn.execute("insert into flight values (1)")
    assert short(conn) == [("I", 1)]
    conn.execute("select pgq.capture_table('flight', 'other')")
    assert conn.execute("select pgq.release_table('flight')").fetchall() == [(2,)]


def test_a_rolled_back_capture_leaves_nothing(conn: Connection, queue: str) -> None:
    conn.execute("create table other (id int primary key)")
    with conn.transaction(force_rollback=True):
        conn.execute("select pgq.capture_table('other', %s)", [queue])
        conn.execute("insert into other values (1)")
    conn.execute("insert into other values (1)")
    assert changes(conn) == []
    assert leftovers(conn) == (1, 4)


def test_maintenance_drops_what_a_dropped_table_left(conn: Connection, queue: str) -> None:
    conn.execute("drop table flight")
    assert leftovers(conn) == (1, 0)
    assert conn.execute("select count(*) from pgq.capture_info()").fetchall() == [(0,)]
    conn.execute("create table flight (id int primary key)")
    conn.execute("select pgq.capture_table('flight', %s)", [queue])
    conn.execute("insert into flight values (1)")
    assert short(conn) == [("I", 1)]
    assert leftovers(conn) == (2, 4)
    assert conn.execute("select pgq.maint_capture()").fetchall() == [(1,)]
    assert leftovers(conn) == (1, 4)


def test_a_queue_that_tables_are_captured_into_is_not_dropped(conn: Connection, queue: str) -> None:
    with ops.refused("PQ007", match=r"public\.flight") as error:
        conn.execute("select pgq.drop_queue(%s)", [queue])
    assert "pgq.release_table" in str(error.value.diag.message_hint)
    conn.execute("insert into flight values (1)")


def test_dropping_the_queue_with_force_releases_its_tables(conn: Connection, queue: str) -> None:
    conn.execute("select pgq.drop_queue(%s, true)", [queue])
    assert leftovers(conn) == (0, 0)
    conn.execute("insert into flight values (1)")


def test_what_only_looks_like_a_capture_keeps_no_queue(
    conn: Connection, queue: str, make_role: MakeRole, as_role: AsRole
) -> None:
    conn.execute("select pgq.release_table('flight')")
    role = make_role("forger", "pgq_writer")
    conn.execute(f"create schema forger authorization {role}")
    forger = as_role(role)
    header = {"queue": queue, "format": "row_json", "operations": [], "table_oid": 1}
    for schema in ("pg_temp", "forger"):
        forger.execute(
            f"create table {schema}.t (); create function {schema}.f() returns trigger"
            f" language plpgsql as $$-- pgq.capture {json.dumps(header)}\nbegin end$$;"
            f"create trigger f after insert on {schema}.t execute function {schema}.f()"
        )
    with ops.refused("PQ007", match=r"forger\.t"):
        conn.execute("select pgq.drop_queue(%s)", [queue])
    conn.execute("select pgq.restrict_queue(%s)", [queue])
    conn.execute("select pgq.drop_queue(%s)", [queue])


def test_only_owners_and_superusers_release_tables_by_force(
    conn: Connection, queue: str, make_role: MakeRole, as_role: AsRole
) -> None:
    role = make_role("admin", "pgq_admin")
    conn.execute(f"grant create on schema public to {role}")
    admin = as_role(role)
    admin.execute("create table own (id int primary key)")
    admin.execute("select pgq.capture_table('own', %s)", [queue])
    with ops.refused("PQ007", match=r"public\.flight of postgres") as error:
        admin.execute("select pgq.drop_queue(%s, true)", [queue])
    assert "own" not in str(error.value.diag.message_primary)
    conn.execute("select pgq.release_table('flight')")
    admin.execute("select pgq.drop_queue(%s, true)", [queue])
    admin.execute("insert into own values (1)")
    assert leftovers(conn) == (0, 0)


def test_a_change_for_a_queue_that_is_gone_fails_by_name(conn: Connection, queue: str) -> None:
    # Not by drop_queue(), which would not do it.
    conn.execute("update pgq.queue set queue_name = 'renamed'")
    with ops.refused("PQ001", match=queue) as error:
        conn.execute("insert into flight values (2)")
    assert "pgq.release_table" in str(error.value.diag.message_hint)
    conn.execute("select pgq.release_table('flight')")
    conn.execute("insert into flight values (2)")


@pytest.mark.parametrize(
    ("table", "name"),
    [
        ("x" * 63, "q" * 60),
        ("é" * 31, "quote\"'s and spaces %s %I"),
        ("T a'b\"c", "ü" * 30),
        ("select", "-- comment"),
    ],
)
def test_awkward_names_work(conn: Connection, table: str, name: str) -> None:
    quoted = '"' + table.replace('"', '""') + '"'
    conn.execute("select pgq.create_queue(%s)", [name])
    conn.execute(f'create table {quoted} ("k\'"" %" int primary key, "v;--" text)')
    for again in (False, True):
        conn.execute(
            "select pgq.capture_table(%s, %s, replace => %s, exclude => array[%s])",
            [quoted, name, again, "v;--"],
        )
    conn.execute(f"insert into {quoted} values (1, 'x'), (2, 'y')")
    conn.execute(f'update {quoted} set "k\'"" %" = 3 where "k\'"" %" = 1')
    assert [c.table for c in changes(conn)] == [("public", table)] * 4
    assert changes(conn)[0].key == ("k'\" %",)
    conn.execute("select pgq.release_table(%s, %s)", [quoted, name])


def test_a_queue_name_with_a_newline_stays_inside_its_quotes(conn: Connection) -> None:
    name = "a\nb -- c\n$code$ $$"
    conn.execute("select pgq.create_queue(%s)", [name])
    conn.execute("select pgq.capture_table('flight', %s)", [name])
    conn.execute("insert into flight values (1)")
    assert conn.execute(
        "select count(*) from pgq.capture_info() where queue_name = %s", [name]
    ).fetchall() == [(1,)]
    assert short(conn) == [("I", 1), ("I", 1)]
