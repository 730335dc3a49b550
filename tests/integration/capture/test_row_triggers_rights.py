"""Row triggers run with the rights of the role that changes the table, never the owner's."""

from __future__ import annotations

from typing import LiteralString

import psycopg
import pytest

from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import AsRole, Connection, MakeRole


@pytest.fixture
def writer(conn: Connection, queue: str, make_role: MakeRole, as_role: AsRole) -> Connection:
    """A session of a role that may produce events and owns a schema of its own."""
    role = make_role("row_writer", "pgq_writer")
    conn.execute(f"create schema app authorization {role}".encode())
    session = as_role(role)
    session.execute("set search_path = app")
    return session


def event_data(conn: Connection) -> list[str]:
    return [row[0] for row in conn.execute("select ev_data from pgq.event_template order by ev_id")]


@pytest.mark.parametrize("kind", ["jsontriga", "logutriga", "sqltriga"])
def test_pgq_writer_creates_and_fires_them(conn: Connection, writer: Connection, kind: str) -> None:
    writer.execute("create table item (id int primary key, label text, price numeric)")
    writer.execute(
        "create trigger t after insert or update or delete on item for each row"
        f" execute function pgq.{kind}"
        "('test_queue', 'ignore=zz', 'backup', 'when=id > 0', 'ev_extra3=id')".encode()
    )
    writer.execute(
        "create trigger r after truncate on item"
        f" execute function pgq.{kind}('test_queue')".encode()
    )
    writer.execute("insert into item values (1, 'a b', 1.5)")
    writer.execute("update item set price = 1.50, label = 'b'")
    writer.execute("delete from item")
    writer.execute("truncate item")
    columns = ", ".join(f"c{n} int" for n in range(80))
    writer.execute(f"create table wide (id int primary key, {columns})".encode())
    writer.execute(
        "create trigger t after insert on wide for each row"
        f" execute function pgq.{kind}('test_queue')".encode()
    )
    writer.execute("insert into wide values (1)")
    assert len(event_data(conn)) == 5


def test_others_may_not(
    conn: Connection, writer: Connection, make_role: MakeRole, as_role: AsRole
) -> None:
    writer.execute("create table item (id int primary key)")
    writer.execute(
        "create trigger t after insert on item for each row"
        " execute function pgq.jsontriga('test_queue')"
    )
    writer.execute("grant usage on schema app to public")
    writer.execute("grant insert on item to public")
    stranger = as_role(make_role("stranger"))
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        stranger.execute("insert into app.item values (1)")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        stranger.execute(
            "create temp table mine (id int);"
            "create trigger t after insert on mine for each row"
            " execute function pgq.jsontriga('test_queue')"
        )
    assert event_data(conn) == []


def test_nothing_that_users_make_runs_as_the_owner(conn: Connection, writer: Connection) -> None:
    """Expressions, checks of domains, casts, equality: all see the writer as current user."""
    writer.execute("create table seen (actor text)")
    writer.execute(
        "create function note() returns boolean language plpgsql as"
        " $$ begin insert into app.seen values (current_user); return true; end $$"
    )
    writer.execute("create domain checked as text check (app.note())")
    writer.execute("create type pair as (a int, b app.checked)")
    writer.execute(
        "create function pair_json(pair) returns json language sql as"
        " $$ select case when app.note() then '{}'::json end $$"
    )
    writer.execute("create cast (pair as json) with function pair_json(pair)")
    writer.execute("create table item (id int primary key, c checked, p pair, b boolean)")
    writer.execute(
        "create trigger t after insert or update on item for each row"
        " execute function pgq.jsontriga('test_queue', 'backup', 'ignore=b',"
        " 'when=app.note()', 'ev_extra3=app.note()')"
    )
    writer.execute("insert into item values (1, 'x', (1, 'y'), true)")
    writer.execute("update item set p = (1, 'z'), b = false")
    assert conn.execute("select distinct actor from app.seen").fetchall() == [("test_row_writer",)]
    assert len(event_data(conn)) == 2


@pytest.mark.parametrize("kind", ["jsontriga", "logutriga", "sqltriga"])
def test_what_is_in_the_writers_schema_does_not_take_over(
    conn: Connection, writer: Connection, kind: str
) -> None:
    """Neither the event's contents nor the refusal of a change depend on it."""
    for signature, result in (
        ("row_to_json(record)", "json"),
        ("to_json(text)", "json"),
        ("format(text, variadic text[])", "text"),
        ("current_setting(text)", "text"),
        ("equal(text, text)", "boolean"),
        ("equal_arrays(text[], text[])", "boolean"),
        ("joined(text, text)", "text"),
    ):
        writer.execute(
            f"create function {signature} returns {result} language plpgsql"
            " as $$ begin raise 'taken over'; end $$".encode()
        )
    writer.execute("create operator = (leftarg = text, rightarg = text, function = equal)")
    writer.execute(
        "create operator = (leftarg = text[], rightarg = text[], function = equal_arrays)"
    )
    writer.execute("create operator || (leftarg = text, rightarg = text, function = joined)")
    writer.execute("create table item (id int primary key, price numeric, label text)")
    writer.execute("create table closed (id int primary key)")
    for table, arguments in ("item", "'test_queue', 'backup'"), ("closed", "'test_queue', 'deny'"):
        writer.execute(
            f"create trigger t after insert or update or delete on {table} for each row"
            f" execute function pgq.{kind}({arguments})".encode()
        )
    writer.execute("set search_path = app, pg_catalog")
    writer.execute("insert into item values (1, 1.50, 'a')")
    writer.execute("update item set label = 'b'")
    writer.execute("delete from item")
    with ops.refused("PQ023"):
        writer.execute("insert into closed values (1)")
    assert len(event_data(conn)) == 3


def test_pgq_writer_cannot_change_what_triggers_remember(writer: Connection) -> None:
    for statement in (
        b"update pgq.row_layout set deny = false",
        b"insert into pgq.row_layout select * from pgq.row_layout",
        b"delete from pgq.row_layout",
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            writer.execute(statement)


def test_only_the_function_that_remembers_runs_as_the_owner(conn: Connection) -> None:
    found = conn.execute(
        "select p.proname, p.proconfig from pg_proc p"
        " where p.pronamespace = 'pgq'::regnamespace and p.prosecdef"
        "   and (p.proname like '\\_row%' or p.proname in ('_urlencode', '_bind_columns',"
        "        '_changed_columns', '_statement_event', 'jsontriga', 'logutriga', 'sqltriga'))"
    ).fetchall()
    [(name, settings)] = found
    assert name == "_row_layout_build"
    assert "search_path=pg_catalog, pg_temp" in settings


def test_the_call_of_a_writer_leaves_the_triggers_of_others_as_they_are(
    conn: Connection, writer: Connection
) -> None:
    conn.execute('create table item ("with a space" int primary key)')
    conn.execute(
        "create trigger t after insert on item for each row"
        " execute function pgq.logutriga('test_queue', 'ev_extra3=''a'' || \"with a space\"')"
    )
    writer.execute("set standard_conforming_strings = off")
    # Functions that the other calls keep the plans that they have made.
    writer.execute("select pgq._urlencode('a b'), pgq._bind_columns('id', '{id}')")
    build: LiteralString = "select pgq._row_layout_build('public.item'::regclass, %s)"
    ours = '[0:1]={test_queue,"ev_extra3=\'a\' || \\"with a space\\""}'
    for level in ("read committed", "repeatable read"):
        writer.execute(f"set default_transaction_isolation = '{level}'".encode())
        other_bounds = ours.replace("[0:1]", "[7:8]"), ours.replace("[0:1]=", "")
        for arguments in (ours, ours, *other_bounds, "{test_queue}", "{test_queue,SKIP}"):
            writer.execute("set quote_all_identifiers = on")
            writer.execute(build, [arguments])
            writer.execute("reset quote_all_identifiers")
    assert ops.value(conn, "select count(*) from pgq.row_layout") == 1
    conn.execute("insert into item values (1)")
    stored = conn.execute("select ev_type, ev_data, ev_extra3 from pgq.event_template")
    assert stored.fetchall() == [("I:with a space", "with+a+space=1", "a1")]
    assert ops.value(conn, "select count(*) from pgq.row_layout") == 1
