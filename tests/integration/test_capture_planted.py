"""What others have put next to a captured table, or made to look like a capture, changes nothing."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable

import psycopg
import pytest

from tests.fixtures.fix_capture import changes, short
from tests.fixtures.fix_db import Connect, Connection
from tests.integration.test_capture_rights import MakeRole, as_role, make_role, shop

__all__ = ["as_role", "make_role", "shop"]

As = Callable[[str], Connection]


@pytest.fixture
def mallory(conn: Connection, shop: str, make_role: MakeRole, as_role: As) -> Connection:
    """A pgq_writer with a schema of its own, who may also create in that of the shop."""
    role = make_role("mallory", "pgq_writer")
    conn.execute(f"create schema mallory authorization {role}")
    conn.execute(f"grant usage, create on schema shop to {role}")
    return as_role(role)


def function_of(conn: Connection, table: str = "shop.item") -> str:
    [(name,)] = conn.execute(
        "select trigger_function from pgq.capture_info(%s)", [table]
    ).fetchall()
    return str(name)


def name_of_the_next(conn: Connection, queue: str) -> str:
    """What the function of shop.item will be called if nothing is in its way."""
    conn.execute("select pgq.capture_table('shop.item', %s)", [queue])
    name = function_of(conn)
    conn.execute("select pgq.release_table('shop.item')")
    return name


def forge(session: Connection, name: str, queue: str, **options: object) -> None:
    """A function with a first line as generated ones have it."""
    header = {"queue": queue, "format": "row_json", "operations": ["insert"], "table_oid": 1}
    session.execute(
        f"create function {name}() returns trigger language plpgsql security definer as"
        f" $$-- pgq.capture {json.dumps(header | options)}\nbegin return null; end$$"
    )


def test_maintenance_runs_nothing_that_a_forged_capture_says(
    conn: Connection, queue: str, shop: str, mallory: Connection
) -> None:
    schema = name_of_the_next(conn, queue).split(".")[0]
    mallory.execute(
        "create table mallory.t (id int) partition by list (id);"
        "create table mallory.t_1 partition of mallory.t for values in (1)"
    )
    [(me,)] = mallory.execute("select current_user").fetchall()
    say = f"insert on mallory.t_1 execute function {schema}.forged(); alter role {me} superuser; --"
    forge(mallory, f"{schema}.forged", queue, operations=["insert", say])
    mallory.execute(
        f"create trigger x after insert on mallory.t execute function {schema}.forged()"
    )
    conn.execute("select pgq.maint_capture()")
    conn.execute("select pgq.capture_new_partitions()")
    assert conn.execute(
        "select rolsuper from pg_roles where rolname = %s", [me]
    ).fetchall() == [(False,)]


def test_who_planted_the_functions_name_has_no_right_on_the_function(
    conn: Connection, queue: str, shop: str, mallory: Connection
) -> None:
    name = name_of_the_next(conn, queue)
    body = "returns trigger language plpgsql as 'begin return null; end'"
    [(me,)] = mallory.execute("select current_user").fetchall()
    mallory.execute(f"create function {name}() {body}; create function {name}(int) returns int return 1")
    mallory.execute(f"grant execute on function {name}() to pgq_writer")
    conn.execute("select pgq.capture_table('shop.item', %s)", [queue])
    assert conn.execute(
        "select p.proowner::regrole::text, p.prosecdef, p.pronamespace = c.relnamespace,"
        " has_function_privilege(%s, p.oid, 'execute'), has_function_privilege('pgq_writer', p.oid, 'execute')"
        " from pg_trigger t join pg_proc p on p.oid = t.tgfoid join pg_class c on c.oid = t.tgrelid"
        " where t.tgrelid = 'shop.item'::regclass and not t.tgisinternal group by p.oid, c.oid",
        [me],
    ).fetchall() == [(shop, True, True, False, False)]
    conn.execute("insert into shop.item values (1)")
    assert short(conn) == [("I", 1)]


@pytest.mark.parametrize("arguments", ["int", "variadic int[]", "int default 1"])
def test_a_planted_overload_does_not_switch_a_capture_off(
    conn: Connection, queue: str, shop: str, mallory: Connection, as_role: As, arguments: str
) -> None:
    owner = as_role(shop)
    owner.execute("select pgq.capture_table('shop.item', %s)", [queue])
    mallory.execute(f"create function {function_of(conn)}({arguments}) returns int return 1")
    owner.execute("insert into shop.item values (1)")
    owner.execute("begin isolation level repeatable read; insert into shop.item values (2); commit")
    owner.execute("alter table shop.item add extra int")
    owner.execute("insert into shop.item values (3); truncate shop.item")
    assert [c.op[0] for c in changes(conn)] == list("IIIT")
    owner.execute("select pgq.release_table('shop.item')")
    owner.execute("insert into shop.item values (4)")
    assert len(changes(conn)) == 4


def test_a_snapshot_from_before_the_capture_loses_no_event(
    connect: Connect, conn: Connection, queue: str
) -> None:
    conn.execute("create table t (id int primary key)")
    writer = connect()
    writer.execute("begin isolation level repeatable read; select 1 from pg_class limit 1")
    conn.execute("select pgq.capture_table('t', %s)", [queue])
    writer.execute("insert into t values (1); truncate t; commit")
    assert [c.op for c in changes(conn)] == ["INSERT", "TRUNCATE"]


def test_a_snapshot_from_before_the_capture_of_a_partition_fails_rather_than_lose_it(
    connect: Connect, conn: Connection, queue: str
) -> None:
    conn.execute(
        "create table t (id int primary key) partition by list (id);"
        "create table t_1 partition of t for values in (1)"
    )
    writer = connect()
    writer.execute("begin isolation level repeatable read; select 1 from pg_class limit 1")
    conn.execute("select pgq.capture_table('t', %s)", [queue])
    with pytest.raises(psycopg.errors.SerializationFailure):
        writer.execute("insert into t_1 values (1)")
    writer.execute("rollback")
    writer.execute("begin isolation level repeatable read; insert into t_1 values (1); commit")
    assert short(conn) == [("I", 1)]
