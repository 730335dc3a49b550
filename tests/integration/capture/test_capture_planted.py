"""Objects that others put next to a captured table, or disguise as a capture, change nothing."""

from __future__ import annotations

import json

import psycopg
import pytest

from tests.fixtures.fix_capture import changes, short
from tests.fixtures.fix_db import AsRole, Calls, Connect, Connection, MakeRole
from tests.integration.capture.test_capture_rights import shop

__all__ = ["shop"]


@pytest.fixture
def mallory(conn: Connection, shop: str, make_role: MakeRole, as_role: AsRole) -> Connection:
    """A pgq_writer with a schema of its own that may also create in the shop's schema."""
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
    """The name that the function of shop.item will get unless it is taken."""
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
    assert conn.execute("select rolsuper from pg_roles where rolname = %s", [me]).fetchall() == [
        (False,)
    ]


def test_the_role_that_planted_the_functions_name_has_no_right_on_the_function(
    conn: Connection, queue: str, shop: str, mallory: Connection
) -> None:
    name = name_of_the_next(conn, queue)
    body = "returns trigger language plpgsql as 'begin return null; end'"
    [(me,)] = mallory.execute("select current_user").fetchall()
    mallory.execute(
        f"create function {name}() {body}; create function {name}(int) returns int return 1"
    )
    mallory.execute(f"grant execute on function {name}() to pgq_writer")
    conn.execute("select pgq.capture_table('shop.item', %s)", [queue])
    assert conn.execute(
        "select p.proowner::regrole::text, p.prosecdef, p.pronamespace = c.relnamespace,"
        " has_function_privilege(%s, p.oid, 'execute'),"
        " has_function_privilege('pgq_writer', p.oid, 'execute')"
        " from pg_trigger t join pg_proc p on p.oid = t.tgfoid join pg_class c on c.oid = t.tgrelid"
        " where t.tgrelid = 'shop.item'::regclass and not t.tgisinternal group by p.oid, c.oid",
        [me],
    ).fetchall() == [(shop, True, True, False, False)]
    conn.execute("insert into shop.item values (1)")
    assert short(conn) == [("I", 1)]


@pytest.mark.parametrize("arguments", ["int", "variadic int[]", "int default 1"])
def test_a_planted_overload_does_not_switch_a_capture_off(
    conn: Connection, queue: str, shop: str, mallory: Connection, as_role: AsRole, arguments: str
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


def test_a_forged_capture_hides_and_blocks_nothing(
    conn: Connection, queue: str, shop: str, mallory: Connection, as_role: AsRole
) -> None:
    as_role(shop).execute("select pgq.capture_table('shop.item', %s)", [queue])
    mallory.execute("create table mallory.t (id int)")
    missing = [{"name": "missing", "number": 1}]
    forged: tuple[dict[str, object], ...] = (
        {"table_oid": 1e30},
        {"table_oid": 0.5},
        {"columns": [1]},
        {"key": [{"name": "id", "number": 70000}]},
        {"key": missing},
        {"columns": missing, "exclude": missing},
        {"format": "x' || y", "operations": [None, 1, {}]},
    )
    for n, options in enumerate(forged):
        forge(mallory, f"mallory.forged_{n}", queue, **options)
        mallory.execute(
            f"create trigger t{n} after insert on mallory.t execute function mallory.forged_{n}()"
        )
    listed = conn.execute(
        "select table_name, enabled, array_position(operations, null) is null and key is not null"
        " from pgq.capture_info()"
    ).fetchall()
    assert ("shop.item", True, True) in listed
    assert all(complete for _, _, complete in listed)
    conn.execute("select pgq.capture_new_partitions(), pgq.maint_capture()")
    conn.execute("revoke pgq_writer from test_mallory")
    conn.execute("select pgq.release_table('shop.item')")
    conn.execute("select pgq.drop_queue(%s)", [queue])
    mallory.execute("insert into mallory.t values (1)")


def test_partitions_of_one_owner_do_not_hold_up_those_of_others(
    conn: Connection, queue: str, shop: str, mallory: Connection, as_role: AsRole
) -> None:
    for session, schema in ((mallory, "mallory"), (as_role(shop), "shop")):
        session.execute(
            f"create table {schema}.p (id int primary key) partition by list (id);"
            f"select pgq.capture_table('{schema}.p', '{queue}');"
            f"create table {schema}.p_1 partition of {schema}.p for values in (1)"
        )
    # Its trigger has the name that maintenance is about to give.
    mallory.execute(
        "create function mallory.f() returns trigger language plpgsql as 'begin return null; end';"
        f"create trigger p_{queue}_insert after insert on mallory.p_1 execute function mallory.f()"
    )
    assert conn.execute("select pgq.capture_new_partitions()").fetchall() == [(1,)]
    assert conn.execute(
        "select table_name, partitions_missing from pgq.capture_info()"
    ).fetchall() == [("mallory.p", 1), ("shop.p", 0)]


def test_a_lock_of_one_owner_does_not_hold_up_maintenance(
    connect: Connect, conn: Connection, queue: str, shop: str, mallory: Connection
) -> None:
    mallory.execute("create table mallory.t (id int primary key) partition by list (id)")
    mallory.execute("select pgq.capture_table('mallory.t', %s)", [queue])
    mallory.execute("create table mallory.t_1 partition of mallory.t for values in (1)")
    mallory.execute("begin; insert into mallory.t_1 values (1)")
    conn.execute("set statement_timeout = '20s'")
    assert conn.execute("select pgq.capture_new_partitions()").fetchall() == [(0,)]
    mallory.execute("commit")
    assert conn.execute("select pgq.capture_new_partitions()").fetchall() == [(1,)]
    assert conn.execute("show lock_timeout").fetchall() == [("0",)]


def test_maintenance_extends_no_capture_to_tables_that_its_owner_could_not(
    conn: Connection, queue: str, shop: str, mallory: Connection
) -> None:
    """Neither a function nor a partition may belong to another role than the table's."""
    mallory.execute("create table mallory.t (id int primary key) partition by list (id)")
    mallory.execute("select pgq.capture_table('mallory.t', %s)", [queue])
    mallory.execute("create table mallory.t_1 partition of mallory.t for values in (1)")
    conn.execute(f"alter table mallory.t_1 owner to {shop}")
    assert conn.execute("select pgq.capture_new_partitions()").fetchall() == [(0,)]
    conn.execute(
        f"alter table mallory.t owner to {shop};"
        "create table mallory.t_2 partition of mallory.t for values in (2);"
        "alter table mallory.t_2 owner to test_mallory"
    )
    assert conn.execute("select pgq.capture_new_partitions()").fetchall() == [(0,)]
    conn.execute(f"grant usage, create on schema mallory to {shop}")
    conn.execute("select pgq.capture_table('mallory.t', %s, replace => true)", [queue])
    conn.execute("insert into mallory.t_1 values (1); insert into mallory.t_2 values (2)")
    assert short(conn) == [("I", 1), ("I", 2)]


def test_a_table_given_away_is_captured_on_while_nothing_of_its_new_owner_runs(
    conn: Connection, queue: str, shop: str, mallory: Connection, as_role: AsRole
) -> None:
    """The generated function belongs to the old owner: a superuser, if it made the table."""
    [(role,)] = mallory.execute("select current_user").fetchall()
    conn.execute("create table shop.given (id int primary key, v text)")
    conn.execute("select pgq.capture_table('shop.given', %s)", [queue])
    conn.execute(f"alter table shop.given owner to {role}")
    mallory.execute("insert into shop.given values (1)")
    mallory.execute(
        "create table mallory.ran_as (actor text); grant insert on mallory.ran_as to public;"
        "grant usage on schema mallory to public;"
        "create type mallory.mood as enum ('good');"
        "create function mallory.mood_json(mallory.mood) returns json language plpgsql as"
        " $$begin insert into mallory.ran_as values (current_user); return '1'; end$$;"
        "create cast (mallory.mood as json) with function mallory.mood_json(mallory.mood);"
        "alter table shop.given add m mallory.mood"
    )
    for isolation in ("read committed", "repeatable read"):
        mallory.execute(f"set default_transaction_isolation = '{isolation}'")
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="belongs to") as error:
            mallory.execute("insert into shop.given values (2, 'a', 'good')")
        assert "replace => true" in str(error.value.diag.message_hint)
    assert mallory.execute("select count(*) from mallory.ran_as").fetchall() == [(0,)]
    assert short(conn) == [("I", 1)]
    mallory.execute("set default_transaction_isolation = 'read committed'")
    mallory.execute("select pgq.capture_table('shop.given', %s, replace => true)", [queue])
    mallory.execute("insert into shop.given values (3, 'a', 'good')")
    assert mallory.execute("select actor from mallory.ran_as").fetchall() == [(role,)]
    assert short(conn) == [("I", 1), ("I", 3)]


def test_default_privileges_give_no_right_on_the_function(
    conn: Connection, queue: str, shop: str, mallory: Connection
) -> None:
    [(role,)] = mallory.execute("select current_user").fetchall()
    conn.execute(f"alter default privileges grant execute on functions to {role}")
    conn.execute("select pgq.capture_table('shop.item', %s)", [queue])
    mallory.execute("create table mallory.t (id int)")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        mallory.execute(
            "create trigger t after insert on mallory.t"
            f" for each statement execute function {function_of(conn)}()"
        )


def test_options_that_cannot_be_read_are_no_capture_and_stop_nothing(
    conn: Connection, queue: str, make_role: MakeRole, as_role: AsRole
) -> None:
    """Any role that may connect can make them, if only in its temporary schema."""
    conn.execute("create table t (id int primary key) partition by list (id)")
    conn.execute("select pgq.capture_table('t', %s)", [queue])
    conn.execute("create table t_1 partition of t for values in (1)")
    stranger = as_role(make_role("stranger"))
    stranger.execute("create temp table x (id int)")
    for n, text in enumerate(('{"a":' + "[" * 100_000, '{"a":"\\u0000"}', '{"table_oid":1e99999}')):
        stranger.execute(
            f"create function pg_temp.f{n}() returns trigger language plpgsql as"
            f" $$-- pgq.capture {text}\nbegin return null; end$$"
        )
        stranger.execute(f"create trigger t{n} after insert on x execute function pg_temp.f{n}()")
    assert conn.execute("select table_name from pgq.capture_info()").fetchall() == [("public.t",)]
    assert conn.execute("select pgq.capture_new_partitions()").fetchall() == [(1,)]
    conn.execute(
        "select pgq.maint_capture(), pgq.release_table('t'), pgq.drop_queue('{}')".replace(
            "{}", queue
        )
    )
    stranger.execute("drop table x cascade; discard temp")


def test_a_table_that_its_owner_keeps_locked_holds_up_no_other(
    conn: Connection, queue: str, shop: str, mallory: Connection, as_role: AsRole
) -> None:
    owner = as_role(shop)
    owner.execute("create table shop.p (id int primary key) partition by list (id)")
    owner.execute("select pgq.capture_table('shop.p', %s)", [queue])
    owner.execute("create table shop.p_1 partition of shop.p for values in (1)")
    mallory.execute(
        "create table mallory.p (id int) partition by list (id);"
        "create table mallory.p_1 partition of mallory.p for values in (1);"
    )
    forge(mallory, "mallory.forged", queue)
    mallory.execute("create trigger x after insert on mallory.p execute function mallory.forged()")
    mallory.execute("begin; lock table mallory.p, mallory.p_1")
    conn.execute("set lock_timeout = '3 s'")
    listed = conn.execute("select table_name from pgq.capture_info()").fetchall()
    assert ("shop.p",) in listed
    maintained = conn.execute("select pgq.capture_new_partitions()").fetchall()
    mallory.execute("rollback")
    assert maintained == [(1,)]
    owner.execute("insert into shop.p_1 values (1)")
    assert short(conn) == [("I", 1)]


def test_a_name_that_its_owner_changes_meanwhile_gives_no_other_table_a_trigger(
    conn: Connection, connect: Connect, queue: str, shop: str, mallory: Connection, calls: Calls
) -> None:
    """A statement that waits for a table's lock looks for its name again: then it may be another
    role's table, and its owner, or a superuser, would run the trigger."""
    [(me,)] = mallory.execute("select current_user").fetchall()
    conn.execute(f"create schema app authorization {me}; create table app.p_1 (id int)")
    conn.execute(f"grant create on database {conn.info.dbname} to {me}")
    mallory.execute(
        "create table mallory.p (id int) partition by list (id);"
        "create table mallory.p_1 partition of mallory.p for values in (1);"
        "create function app.forged() returns trigger language plpgsql as 'begin return null; end'"
    )
    forge(mallory, "mallory.forged", queue)
    mallory.execute("create trigger x after insert on mallory.p execute function mallory.forged()")
    mallory.execute("begin; lock table mallory.p_1 in row exclusive mode")
    maintain = "select pgq.capture_new_partitions()"
    done = calls.blocked(psycopg.Connection.execute, connect(), maintain)
    mallory.execute(
        "create trigger forged_insert after insert on mallory.p_1"
        " execute function mallory.forged();"
        "alter schema mallory rename to before; alter schema app rename to mallory; commit"
    )
    assert done.result().fetchall() == [(0,)]
    assert conn.execute(
        "select tgrelid::regclass::text from pg_trigger where tgname = 'forged_insert'"
    ).fetchall() == [("before.p_1",)]
