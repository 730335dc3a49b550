"""Rights needed to capture a table, and the rights that the capture runs with."""

from __future__ import annotations

import psycopg
import pytest

from tests.fixtures.fix_capture import changes, short
from tests.fixtures.fix_db import AsRole, Connection, MakeRole


@pytest.fixture
def shop(conn: Connection, queue: str, make_role: MakeRole) -> str:
    """A role that is a pgq_writer, and owns schema shop with table shop.item."""
    role = make_role("shop", "pgq_writer")
    conn.execute(f"create schema shop authorization {role}")
    conn.execute("create table shop.item (id int primary key, v text)")
    conn.execute(f"alter table shop.item owner to {role}")
    return role


def test_the_owner_captures_and_a_role_that_may_only_write_makes_events(
    conn: Connection, queue: str, shop: str, make_role: MakeRole, as_role: AsRole
) -> None:
    owner = as_role(shop)
    owner.execute("select pgq.capture_table('shop.item', %s)", [queue])
    clerk_role = make_role("clerk")
    owner.execute(f"grant usage on schema shop to {clerk_role}")
    owner.execute(f"grant select, insert, update, delete, truncate on shop.item to {clerk_role}")
    clerk = as_role(clerk_role)
    for _ in range(2):
        clerk.execute("insert into shop.item values (1, 'a'), (2, 'b')")
        clerk.execute("update shop.item set v = 'c'")
        clerk.execute("update shop.item set id = 3 where id = 1")
        clerk.execute("delete from shop.item where id = 2")
        clerk.execute("truncate shop.item")
        owner.execute("alter table shop.item add column if not exists extra int")
    assert "".join(c.op[0] for c in changes(conn)) == "IIUUDIDT" * 2
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        clerk.execute("select pgq.insert_event(%s, 'a', 'b')", [queue])
    owner.execute("select pgq.release_table('shop.item')")
    clerk.execute("insert into shop.item values (9)")
    assert len(changes(conn)) == 16


def test_the_events_of_writers_have_the_transaction_id_of_the_writer(
    conn: Connection, queue: str, shop: str, as_role: AsRole
) -> None:
    owner = as_role(shop)
    owner.execute("select pgq.capture_table('shop.item', %s)", [queue])
    with owner.transaction():
        owner.execute("insert into shop.item values (1)")
        [(txid,)] = owner.execute("select txid_current()").fetchall()
    assert conn.execute("select ev_txid from pgq.event_template").fetchall() == [(txid,)]
    for column in ("ev_txid", "ev_owner", "ev_retry"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            owner.execute(f"insert into pgq.event (ev_id, {column}, ev_slot) values (1, 1, 0)")


def test_only_the_owner_can_capture_a_table(
    conn: Connection, queue: str, shop: str, make_role: MakeRole, as_role: AsRole
) -> None:
    other = as_role(make_role("other", "pgq_writer", "pgq_admin"))
    conn.execute("grant usage on schema shop to public; grant all on shop.item to public")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="must be owner") as error:
        other.execute("select pgq.capture_table('shop.item', %s)", [queue])
    assert shop in str(error.value.diag.message_hint)
    as_role(shop).execute("select pgq.capture_table('shop.item', %s)", [queue])
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        other.execute("select pgq.release_table('shop.item')")


def test_an_owner_without_pgq_writer_is_told_what_to_grant(
    conn: Connection, queue: str, make_role: MakeRole
) -> None:
    role = make_role("plain")
    conn.execute(f"create table t (id int primary key); alter table t owner to {role}")
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="may not write") as error:
        conn.execute("select pgq.capture_table('t', %s)", [queue])
    assert error.value.diag.message_hint == f"grant pgq_writer to {role}"


def test_an_owner_without_create_on_the_schema_is_told_what_to_grant(
    conn: Connection, queue: str, make_role: MakeRole, as_role: AsRole
) -> None:
    role = make_role("plain", "pgq_writer")
    conn.execute(
        "revoke create on schema public from public; create table t (id int primary key);"
        f"alter table t owner to {role}"
    )
    with pytest.raises(psycopg.errors.InsufficientPrivilege, match="may not create") as error:
        as_role(role).execute("select pgq.capture_table('t', %s)", [queue])
    assert error.value.diag.message_hint == f"grant create on schema public to {role}"
    # A superuser needs no such right, and what it makes lasts; only altered tables are slower then.
    conn.execute("select pgq.capture_table('t', %s)", [queue])
    conn.execute("alter table t add v text; insert into t values (1); insert into t values (2)")
    assert [(c.op, set(c.row)) for c in changes(conn)] == [("INSERT", {"id", "v"})] * 2


def test_tables_of_the_queues_are_not_captured(conn: Connection, queue: str) -> None:
    """The function would belong to pgq_owner, and users' code must never run as that role."""
    for table in ("pgq.queue", "pgq_ext.completed_tick", "pgq_task.queue"):
        with pytest.raises(psycopg.Error, match="cannot be captured"):
            conn.execute("select pgq.capture_table(%s, %s, key => null)", [table, queue])


def test_a_role_without_any_right_is_refused(
    queue: str, make_role: MakeRole, as_role: AsRole
) -> None:
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        as_role(make_role("unknown")).execute("select pgq.capture_table('pg_class', %s)", [queue])


def test_a_superuser_captures_for_the_owner_and_the_function_is_the_owners(
    conn: Connection, queue: str, shop: str, as_role: AsRole
) -> None:
    conn.execute("select pgq.capture_table('shop.item', %s)", [queue])
    assert conn.execute("select runs_as from pgq.capture_info()").fetchall() == [(shop,)]
    as_role(shop).execute("insert into shop.item values (1)")
    assert short(conn) == [("I", 1)]


def test_a_member_of_the_owner_may_capture(
    conn: Connection, queue: str, shop: str, make_role: MakeRole, as_role: AsRole
) -> None:
    member = as_role(make_role("member", shop))
    member.execute("select pgq.capture_table('shop.item', %s)", [queue])
    assert conn.execute("select runs_as from pgq.capture_info()").fetchall() == [(shop,)]
    member.execute("insert into shop.item values (1); select pgq.release_table('shop.item')")


def test_what_users_put_into_a_capture_runs_as_the_owner_of_the_table(
    conn: Connection, queue: str, shop: str, make_role: MakeRole, as_role: AsRole
) -> None:
    owner = as_role(shop)
    owner.execute(
        "create table shop.ran_as (actor text, what text);"
        "create function shop.spy(what text) returns boolean language plpgsql as"
        " $$begin insert into shop.ran_as values (current_user, what); return true; end$$;"
        "create type shop.mood as enum ('good', 'bad');"
        "create function shop.mood_json(shop.mood) returns json language plpgsql as"
        " $$begin perform shop.spy('cast'); return '1'; end$$;"
        "create cast (shop.mood as json) with function shop.mood_json(shop.mood);"
        "create table shop.day (id int primary key, m shop.mood)"
    )
    owner.execute(
        "select pgq.capture_table('shop.day', %s, condition => 'shop.spy(''condition'')')", [queue]
    )
    conn.execute("grant usage on schema shop to public; grant all on shop.day to public")
    clerk = as_role(make_role("clerk"))
    clerk.execute("insert into shop.day values (1, 'good')")
    clerk.execute("begin isolation level repeatable read; delete from shop.day; commit")
    seen = set(conn.execute("select actor, what from shop.ran_as").fetchall())
    assert seen == {(shop, "condition"), (shop, "cast")}


def test_no_other_role_can_put_the_function_on_its_own_table(
    conn: Connection, queue: str, shop: str, make_role: MakeRole, as_role: AsRole
) -> None:
    as_role(shop).execute("select pgq.capture_table('shop.item', %s)", [queue])
    role = make_role("other", "pgq_writer")
    conn.execute(f"create schema other authorization {role}")
    other = as_role(role)
    conn.execute(f"grant usage, create on schema shop to {role}")
    other.execute("create table other.item (id int, v text)")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        other.execute(
            "create trigger t after insert on other.item referencing new table as new_rows"
            " for each statement execute function shop.item_test_queue()"
        )
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        other.execute(
            "create or replace function shop.item_test_queue() returns trigger"
            " language plpgsql as 'begin return null; end'"
        )


# In schema evil: namesakes of every function, operator and type that a trigger function names.
EVIL = """
do $$
declare
    source text := (select string_agg(prosrc, ' ')
                      from pg_proc where prosrc like '-- pgq.capture %');
    f record;
begin
    for f in
        select proname, oidvectortypes(proargtypes) as arguments, prorettype::regtype as result
          from pg_proc p
         where pronamespace = 'pg_catalog'::regnamespace and prokind = 'f' and not proretset
           and source ~ ('\\m' || proname || '\\s*\\(')
           and prorettype::regtype::text !~ 'any' and not '"any"'::regtype = any (proargtypes)
    loop
        execute format('create function evil.%I(%s) returns %s language plpgsql as %L',
                       f.proname, f.arguments, f.result, 'begin raise exception $x$called$x$; end');
    end loop;
    for f in
        select o.oprname, l.type, row_number() over () as n
          from unnest('{text,int4,int8,record,json,bool}'::regtype[]) l (type)
         cross join unnest('{=,<>,*=,*<>,||,+,-,%,>=,<=,<,>}'::text[]) o (oprname)
    loop
        execute format('create function evil.f%s(%s, %2$s) returns boolean language plpgsql as %L',
                       f.n, f.type, 'begin raise exception $x$called$x$; end');
        execute format('create operator evil.%s'
                       ' (leftarg = %s, rightarg = %2$s, function = evil.f%s)',
                       f.oprname, f.type, f.n);
    end loop;
    for f in select unnest('{text,int4,int8,record,json,regclass,bool}'::name[]) as type
    loop
        execute format('create domain evil.%I as date', f.type);
    end loop;
end $$
"""


@pytest.mark.parametrize(
    "options",
    [
        "",
        "format => 'jsontriga', exclude => '{day}'",
        "format => 'logutriga', old_values => 'row'",
        "old_values => 'changed'",
        "key => '{id,v}', key_changes => 'error'",
    ],
)
def test_a_search_path_of_the_writer_leads_nowhere(
    conn: Connection,
    queue: str,
    shop: str,
    make_role: MakeRole,
    as_role: AsRole,
    options: str,
) -> None:
    conn.execute("alter table shop.item add day date, add ok boolean, add n numeric")
    as_role(shop).execute(
        f"select pgq.capture_table('shop.item', %s, {options or 'key => null'})", [queue]
    )
    conn.execute(f"create schema evil; {EVIL}")
    role = make_role("clerk")
    conn.execute(f"grant usage on schema evil, shop to public; grant all on shop.item to {role}")
    clerk = as_role(role)
    clerk.execute(
        "create temp table new_rows (x int); create temp table old_rows (x int);"
        "set search_path = evil, pg_temp, pg_catalog"
    )
    for isolation in ("read committed", "repeatable read"):
        clerk.execute(f"set default_transaction_isolation = '{isolation}'")
        clerk.execute(
            "insert into shop.item select n, 'a', '2020-01-01', true, 1.5"
            " from generate_series(1, 2) n"
        )
        clerk.execute("update shop.item set ok = false")
        if "error" not in options:
            clerk.execute("update shop.item set id = 3 where id operator(pg_catalog.=) 1")
        clerk.execute("delete from shop.item; truncate shop.item")
    altering = as_role(shop)
    altering.execute("alter table shop.item add more text")
    with clerk.transaction():
        clerk.execute("insert into shop.item (id) values (1)")
        assert clerk.execute("show search_path").fetchall() == [("evil, pg_temp, pg_catalog",)]
    moved = "" if "error" in options else "DI"
    kinds = conn.execute("select ev_type from pgq.event_template order by ev_id").fetchall()
    letters = "".join(kind[7] if kind[0] == "{" else kind[0] for (kind,) in kinds)
    assert letters.replace("R", "T") == f"IIUU{moved}DDT" * 2 + "I"


@pytest.mark.parametrize("when", ["from the start", "added later"])
def test_casts_of_users_run_on_no_search_path_but_the_servers(
    conn: Connection,
    queue: str,
    shop: str,
    make_role: MakeRole,
    as_role: AsRole,
    when: str,
) -> None:
    owner = as_role(shop)
    owner.execute(
        "create type shop.mood as enum ('good', 'bad');"
        "create function shop.mood_json(shop.mood) returns json language plpgsql as"
        " $$begin return to_json(upper('good')); end$$;"
        "create cast (shop.mood as json) with function shop.mood_json(shop.mood)"
    )
    add = "alter table shop.item add m shop.mood"
    if when == "from the start":
        owner.execute(add)
    owner.execute("select pgq.capture_table('shop.item', %s)", [queue])
    role = make_role("clerk")
    conn.execute(f"create schema evil; {EVIL}")
    conn.execute(
        "create function evil.upper(text) returns text language plpgsql as"
        " $$begin raise exception 'called'; end$$"
    )
    conn.execute(f"grant usage on schema evil, shop to public; grant all on shop.item to {role}")
    clerk = as_role(role)
    clerk.execute("set search_path = evil, pg_catalog")
    if when == "added later":
        clerk.execute("insert into shop.item values (1)")
        owner.execute(add)
    for n in (2, 3):
        clerk.execute(f"insert into shop.item values ({n}, 'a', 'bad')")
    assert [change.row["m"] for change in changes(conn)[-2:]] == ["GOOD", "GOOD"]


def test_a_condition_means_what_it_meant_to_the_owner(
    conn: Connection, queue: str, shop: str, make_role: MakeRole, as_role: AsRole
) -> None:
    owner, clerk = as_role(shop), make_role("clerk")
    owner.execute("set standard_conforming_strings = off")
    condition = r"v like '%\_%' and v <> 'c:\'"
    owner.execute("select pgq.capture_table('shop.item', %s, condition => %s)", [queue, condition])
    owner.execute(f"grant usage on schema shop to {clerk}; grant insert on shop.item to {clerk}")
    writer = as_role(clerk)
    writer.execute("set standard_conforming_strings = off")
    writer.execute("insert into shop.item values (1, 'a_b'), (2, 'axb')")
    assert short(conn) == [("I", 1)]


def test_names_of_relations_have_their_schema(conn: Connection, queue: str) -> None:
    conn.execute("create table t (id int primary key, of regclass, many regclass[])")
    conn.execute("select pgq.capture_table('t', %s)", [queue])
    conn.execute("set search_path = public")
    conn.execute("insert into t values (1, 't', '{t}')")
    assert [(c.row["of"], c.row["many"]) for c in changes(conn)] == [("public.t", ["public.t"])]


def test_junk_in_the_schema_of_functions_is_harmless(
    conn: Connection, queue: str, shop: str, as_role: AsRole
) -> None:
    owner = as_role(shop)
    for name, header in {
        "a": "{not json",
        "b": "[]",
        "c": '{"queue": 1}',
        "item_test_queue": '{"queue": "x", "format": "", "operations": [], "table_oid": 1}',
    }.items():
        owner.execute(
            f"create function shop.{name}() returns trigger language plpgsql as"
            f" $$-- pgq.capture {header}\nbegin return null; end$$;"
            f"create trigger {name} after insert on shop.item execute function shop.{name}()"
        )
    owner.execute("select pgq.capture_table('shop.item', %s)", [queue])
    owner.execute("insert into shop.item values (1)")
    assert short(conn) == [("I", 1)]
    conn.execute("select * from pgq.capture_info()")
    conn.execute("select pgq.maint_capture()")
