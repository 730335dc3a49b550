"""Rights of roles. Asserted over the catalog where possible, so that new functions are
covered automatically.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import LiteralString

import psycopg
import pytest
from psycopg import errors

from pgqpy.schema._database import NODE_SCHEMA
from pgqpy.schema._database import SCHEMAS as ALWAYS
from tests.fixtures import queue_ops as ops
from tests.fixtures.fix_db import Connect, Connection
from tools import site_pages

pytestmark = pytest.mark.smoke

SCHEMAS = (*ALWAYS, NODE_SCHEMA)

INFO_FUNCTIONS = {
    "version",
    "quote_fqname",
    "seq_getval",
    "get_queue_info",
    "get_consumer_info",
    "capture_info",
    "row_count",
    "queue_relation",
    *("get_contract", "get_contract_info", "contract_errors"),
    "get_shard_info",
    *("is_root_node", "is_leaf_node"),
    # in the defaults of relations of queues
    *("_cluster_tag", "_require_type"),
    # in the rules of event tables
    "_refuse_insert",
}

# Their speed matters more. All names in them have a schema, and operators have one, too.
FAST = {
    "pgq.insert_event(text,text,text)",
    "pgq.insert_event(text,text,text,text,text,text,text)",
    "pgq._insert_event_slowly(text,text,text,text,text,text,text)",
}

As = Callable[[str], Connection]


@pytest.fixture
def conn(node: Connection) -> Connection:
    """With the optional schema."""
    return node


@pytest.fixture
def as_role(connect: Connect) -> As:
    """A connection that acts as a role which has nothing but that role."""

    def open_one(role: str) -> Connection:
        conn = connect()
        conn.execute(f"set role {role}".encode())
        return conn

    return open_one


@pytest.fixture
def stranger(conn: Connection, as_role: As) -> Connection:
    """A role that is in none of ours; it stays, so its name is none of `make_role`'s."""
    conn.execute(
        "do $$ begin if to_regrole('the_stranger') is null then create role the_stranger;"
        " end if; end $$"
    )
    return as_role("the_stranger")


@pytest.fixture
def used(conn: Connection) -> Connection:
    """A database with objects that are created while queues are used."""
    conn.execute("create table t (id int primary key)")
    conn.execute("select pgq.create_queue('q'), pgq_task.create_queue('t')")
    conn.execute("select pgq.create_group('q', 'g', 2, 'lower(ev_data)')")
    conn.execute("select pgq.capture_table('t', 'q'), pgq.create_staging('job')")
    return conn


def test_every_definer_function_pins_its_search_path(used: Connection) -> None:
    """In our schemas, and whatever runs as the owner in any other."""
    loose = used.execute(
        "select p.oid::regprocedure::text from pg_proc p"
        " where prosecdef and (proowner = 'pgq_owner'::regrole"
        "                      or pronamespace = any (%s::regnamespace[]))"
        " and coalesce(array_to_string(proconfig, ';'), '')"
        '     !~ \'(^|;)search_path="?pg_catalog"?, "?pg_temp"?($|;)\'',
        [list(SCHEMAS)],
    ).fetchall()
    assert {name for (name,) in loose} == FAST
    count: LiteralString = "select count(*) from pg_proc where prosecdef and proowner = %s::regrole"
    assert ops.value(used, count, "pgq_owner") > 30


def test_public_may_execute_the_info_functions_only(conn: Connection) -> None:
    functions = conn.execute(
        "select distinct proname from pg_proc p,"
        " aclexplode(coalesce(proacl, acldefault('f', proowner))) a"
        " where pronamespace = any (%s::regnamespace[]) and a.grantee = 0",
        [list(SCHEMAS)],
    ).fetchall()
    assert {name for (name,) in functions} == INFO_FUNCTIONS


def test_a_function_without_an_underscore_is_in_the_sql_reference_and_granted(
    conn: Connection,
) -> None:
    """It is public. All others are called by functions only."""
    public = conn.execute(
        "select distinct pronamespace::regnamespace || '.' || proname,"
        " exists (select from aclexplode(proacl) a where a.grantee <> proowner)"
        " from pg_proc where pronamespace = any (%s::regnamespace[]) and proname !~ '^_'",
        [list(SCHEMAS)],
    ).fetchall()
    pages = "".join(site_pages.sql_pages().values())
    assert {name for name, _ in public} == set(re.findall(r"^## (\S+)", pages, re.MULTILINE))
    assert [name for name, granted in public if not granted] == []


def test_an_internal_function_is_granted_if_code_needs_it_that_runs_as_its_caller(
    conn: Connection,
) -> None:
    """Code of functions, of views, rules and defaults, and code that functions generate."""
    conn.execute("select pgq.create_queue('q')")
    needless = conn.execute(
        "with code as ("
        " select oid, prosrc as text from pg_proc"
        "  where pronamespace = any (%(schemas)s::regnamespace[])"
        "    and not prosecdef"
        " union all select r.oid, pg_get_ruledef(r.oid) from pg_rewrite r"
        "  join pg_class c on c.oid = ev_class"
        "  where relnamespace = any (%(schemas)s::regnamespace[])"
        " union all select oid, pg_get_expr(adbin, adrelid) from pg_attrdef)"
        " select p.oid::regprocedure::text from pg_proc p"
        " where pronamespace = any (%(schemas)s::regnamespace[]) and proname ~ '^_'"
        " and exists (select from aclexplode(proacl) a where a.grantee <> proowner)"
        " and not exists (select from code where code.oid <> p.oid"
        "  and code.text ~ (p.pronamespace::regnamespace || '\\.' || proname || '\\M'))",
        {"schemas": list(SCHEMAS)},
    ).fetchall()
    # PgQ has it under this name.
    assert needless == [("pgq._grant_perms_from(text,text,text,text)",)]


def test_every_object_belongs_to_a_role_that_cannot_log_in_and_is_no_superuser(
    used: Connection,
) -> None:
    owners = used.execute(
        "with ours as (select * from pg_namespace where nspname like 'pgq%')"
        " select relowner::regrole::text from pg_class join ours on ours.oid = relnamespace"
        " union select proowner::regrole::text from pg_proc join ours on ours.oid = pronamespace"
        " union select nspowner::regrole::text from ours"
    ).fetchall()
    assert owners == [("pgq_owner",)]
    rights = used.execute(
        "select rolcanlogin, rolsuper, rolcreaterole, rolcreatedb, rolbypassrls from pg_roles"
        " where rolname = 'pgq_owner'"
    ).fetchone()
    assert rights == (False,) * 5


def test_only_the_owner_may_create_in_any_schema_of_ours(used: Connection, as_role: As) -> None:
    """Objects that others could create there are found by name, and then trusted."""
    grantees = used.execute(
        "select distinct a.grantee::regrole::text from pg_namespace n, aclexplode(nspacl) a"
        " where nspname like 'pgq%' and a.privilege_type = 'CREATE'"
    ).fetchall()
    assert grantees == [("pgq_owner",)]
    found = used.execute(
        "select nspname, rolname from pg_namespace cross join pg_roles"
        " where nspname like 'pgq%' and not rolsuper and rolname <> 'pgq_owner'"
        " and not pg_has_role(rolname, 'pgq_owner', 'member')"
        " and has_schema_privilege(rolname, nspname, 'create')"
    ).fetchall()
    assert found == []
    for role in ("pgq_reader", "pgq_writer", "pgq_admin"):
        with pytest.raises(errors.InsufficientPrivilege):
            as_role(role).execute("create table pgq.mine ()")


def test_no_role_is_granted_what_only_the_owner_needs(conn: Connection) -> None:
    """Rows of the event core are written by its functions; PgQ's tools write these columns."""
    grants = conn.execute(
        "select c.relname, a.grantee::regrole::text, a.privilege_type"
        " from pg_class c, aclexplode(relacl) a"
        " where relnamespace = any (%s::regnamespace[]) and a.grantee <> relowner"
        " and a.privilege_type not in ('SELECT', 'USAGE')"
        " and c.relname !~ '^event_[0-9]+_[0-9]+$'",
        [list(SCHEMAS)],
    ).fetchall()
    assert [grant for grant in grants if grant[1] != "pgq_admin"] == [
        ("inbox", "pgq_writer", "INSERT")
    ]


def test_a_stranger_can_only_look(conn: Connection, queue: str, stranger: Connection) -> None:
    ops.register(conn, queue, "c")
    ops.tick(conn, queue)
    batch = ops.next_batch(conn, queue, "c")
    assert ops.value(stranger, "select queue_name from pgq.get_queue_info()") == queue
    assert ops.value(stranger, "select consumer_name from pgq.get_consumer_info()") == "c"
    assert ops.value(stranger, "select pgq.version()")
    for call in (
        "pgq.insert_event('test_queue', 't', 'd')",
        "pgq.current_event_table('test_queue')",
        "pgq.next_batch('test_queue', 'c')",
        f"pgq.get_batch_events({batch})",
        f"pgq.batch_event_sql({batch})",
        f"pgq.finish_batch({batch})",
        "pgq.register_consumer('test_queue', 'x')",
        "pgq.create_queue('mine')",
        "pgq.drop_queue('test_queue', true)",
        "pgq.ticker()",
        "pgq.maint_rotate_tables_step1('test_queue')",
        "pgq.adopt_restored()",
        "pgq._make_ticks(array[1], array[false], array[0], null, null)",
        "pgq._lock_position(1)",
    ):
        with pytest.raises(errors.InsufficientPrivilege):
            stranger.execute(f"select {call}".encode())
    for table in ("event_template", "event_1", "event_1_0", "event", "retry_queue", "tick_0"):
        with pytest.raises(errors.InsufficientPrivilege):
            stranger.execute(f"select * from pgq.{table}".encode())


def test_a_writer_can_only_produce(conn: Connection, queue: str, as_role: As) -> None:
    ops.register(conn, queue, "c")
    writer = as_role("pgq_writer")
    ops.insert(writer, queue, "inserted")
    writer.execute("select pgq.insert_events(%s, array['t'], array['in bulk'])", [queue])
    ops.copy(writer, ops.value(writer, "select pgq.current_event_table(%s)", queue), ["copied"])
    assert ops.deliver(conn, queue, "c") == ["inserted", "in bulk", "copied"]
    for query in (
        "select pgq.next_batch('test_queue', 'c')",
        "select pgq.register_consumer('test_queue', 'x')",
        "select pgq.drop_queue('test_queue')",
        "select pgq.ticker()",
        "select * from pgq.event_template",
        "select * from pgq.event_1_0",
        "delete from pgq.event_1_0",
        "truncate pgq.event_1_0",
        "update pgq.event set ev_data = ''",
    ):
        with pytest.raises(errors.InsufficientPrivilege):
            writer.execute(query.encode())


@pytest.mark.usefixtures("queue")
def test_a_writer_cannot_choose_the_readers_of_an_event(as_role: As) -> None:
    """An event with a past transaction id is never delivered, one with a future id unexpectedly."""
    writer = as_role("pgq_writer")
    for target in (
        *(
            f"{table} (ev_data, {column})"
            for table in ("event_1_0", "event")
            for column in ("ev_txid", "ev_owner")
        ),
        "event_1_0 (ev_data, ev_slot)",
    ):
        with pytest.raises(errors.InsufficientPrivilege):
            writer.execute(f"insert into pgq.{target} values ('x', 1)".encode())


def test_a_reader_can_only_consume(conn: Connection, queue: str, as_role: As) -> None:
    reader = as_role("pgq_reader")
    ops.register(reader, queue, "c")
    ops.insert_ticked(conn, queue, "event")
    batch = ops.next_batch(reader, queue, "c")
    assert ops.payloads(reader, batch) == ["event"]
    query = ops.value(reader, "select pgq.batch_event_sql(%s)", batch)
    assert len(reader.execute(query.encode()).fetchall()) == 1
    with reader.transaction():
        fetched = reader.execute("select * from pgq.get_batch_cursor(%s, 'x', 10)", [batch])
        assert len(fetched.fetchall()) == 1
    assert ops.value(reader, "select pgq.batch_retry(%s, 0)", batch) == 1
    assert ops.value(reader, "select queue_name from pgq.get_batch_info(%s)", batch) == queue
    ops.finish(reader, batch)
    assert ops.value(reader, "select count(*) from pgq.event_template") == 1
    assert ops.value(reader, "select pgq.unregister_consumer(%s, 'c')", queue) == 1
    for denied in (
        "select pgq.insert_event('test_queue', 't', 'd')",
        "select pgq.current_event_table('test_queue')",
        "insert into pgq.event_1_0 (ev_data) values ('x')",
        "select pgq.create_queue('mine')",
        "select pgq.set_queue_config('test_queue', 'ticker_paused', 'true')",
        "select pgq.ticker()",
        "select pgq.ticker_round()",
        "select pgq.maint_rotate_tables_step2()",
        "update pgq.queue set queue_ticker_paused = true",
        "delete from pgq.subscription",
    ):
        with pytest.raises(errors.InsufficientPrivilege):
            reader.execute(denied.encode())


def test_an_admin_can_do_all_of_it_and_run_the_ticker(conn: Connection, as_role: As) -> None:
    admin = as_role("pgq_admin")
    assert ops.value(admin, "select pgq.create_queue('q')") == 1
    ops.rotate_whenever_asked(admin, "q")
    ops.register(admin, "q", "c")
    ops.insert(admin, "q", "event")
    assert ops.deliver(admin, "q", "c") == ["event"]
    ops.deliver(admin, "q", "c")
    admin.execute("select * from pgq.ticker_round()")
    admin.execute("select pgq.ticker_sleep(), pgq.ticker_awake()")
    for func, argument in admin.execute("select * from pgq.maint_operations()").fetchall():
        if func != "vacuum":
            given = [] if argument is None else [argument]
            admin.execute(f"select {func}({'%s' if given else ''})".encode(), given)
    admin.execute("select pgq.maint_retry_events(), pgq.maint_rotate_logs()")
    assert ops.rotations(admin, "q") == 1
    assert ops.value(admin, "select pgq.unregister_consumer('q', 'c')") == 1
    assert ops.value(admin, "select pgq.drop_queue('q')") == 1


SHADOWS = """
create table public.hit (what text);
create function public.caught(text) returns boolean language plpgsql as
    $$ begin insert into public.hit values ($1); return true; end $$;
create function public.shadow(a text, b text) returns text language sql as
    $$ insert into public.hit values ('||'); select pg_catalog.textcat(a, b) $$;
create operator public.|| (leftarg = text, rightarg = text, function = public.shadow);
create function public.same(a text, b text) returns boolean language sql as
    $$ insert into public.hit values ('='); select pg_catalog.texteq(a, b) $$;
create operator public.= (leftarg = text, rightarg = text, function = public.same);
create function public.less(a int, b int) returns boolean language sql as
    $$ insert into public.hit values ('<'); select pg_catalog.int4lt(a, b) $$;
create operator public.< (leftarg = int, rightarg = int, function = public.less);
create function public.more(a int, b int) returns boolean language sql as
    $$ insert into public.hit values ('>'); select pg_catalog.int4gt(a, b) $$;
create operator public.> (leftarg = int, rightarg = int, function = public.more);
create function public.now() returns timestamptz language sql as
    $$ insert into public.hit values ('now'); select pg_catalog.now() $$;
create function public.nextval(regclass) returns bigint language sql as
    $$ insert into public.hit values ('nextval'); select pg_catalog.nextval($1) $$;
create function public.txid_current() returns bigint language sql as
    $$ insert into public.hit values ('txid_current'); select pg_catalog.txid_current() $$;
create function public.format(text, variadic text[]) returns text language sql as
    $$ insert into public.hit values ('format'); select pg_catalog.format($1, variadic $2) $$;
create function public.quote_literal(text) returns text language sql as
    $$ insert into public.hit values ('quote_literal'); select pg_catalog.quote_literal($1) $$;
create function public.pg_notify(text, text) returns void language sql as
    $$ insert into public.hit values ('pg_notify') $$;
create function public.octet_length(text) returns int language sql as
    $$ insert into public.hit values ('octet_length'); select 1 $$;
-- Operators that fit better than PostgreSQL's wherever they are, and those that it has, too: these
-- fit as well, so the first on the search_path is taken.
do $do$
declare
    a text; b text; o text;
    types constant text[] :=
        '{text,name,regclass,oid,int2,int4,int8,bool,timestamptz,interval,jsonb}';
begin
    foreach a in array types loop
        execute pg_catalog.format('create domain public.%1$I as pg_catalog.%1$I'
            ' check (public.caught(%1$L))', a);
        foreach b in array types loop
            execute pg_catalog.format('create function'
                ' public.caught(pg_catalog.%1$I, pg_catalog.%2$I) returns boolean'
                ' language sql as $$ select public.caught(%3$L) $$', a, b, a || ' ? ' || b);
            foreach o in array '{=,<>,<,>,<=,>=,||,+,-,*,/,%,&,|,->,->>,?,~,~~}'::text[] loop
                if not exists (select from pg_operator
                                where oprnamespace = 'public'::regnamespace and oprname = o
                                  and oprleft = to_regtype('pg_catalog.' || a)
                                  and oprright = to_regtype('pg_catalog.' || b)) then
                    execute pg_catalog.format('create operator public.%s (function = public.caught,'
                        ' leftarg = pg_catalog.%I, rightarg = pg_catalog.%I)', o, a, b);
                end if;
            end loop;
        end loop;
    end loop;
end;
$do$;
"""


@pytest.mark.parametrize(
    "search_path", ["public, pg_catalog", "pg_temp, public, pg_catalog, pgq", "pgq, public"]
)
def test_what_lies_on_the_callers_search_path_is_never_called(
    conn: Connection, connect: Connect, search_path: str
) -> None:
    """A superuser that calls pgq must not run code that others left in public or pg_temp."""
    conn.execute(SHADOWS)
    victim = connect()
    victim.execute(
        "create temporary table queue (queue_id int, queue_name text);"
        "create temporary table tick (tick_id int); create temporary table event (x int);"
        "create temporary table consumer (x int); create temporary table retry_queue (x int)"
    )
    victim.execute(f"set search_path = {search_path}".encode())
    assert ops.value(victim, "select pgq.create_queue('q')") is not None
    ops.rotate_whenever_asked(victim, "q")
    ops.register(victim, "q", "c")
    for call in (
        "pgq.insert_event('q', 't', 'd')",
        "pgq.insert_event('q', 't', 'd', null, null, null, null)",
        "pgq.insert_events('q', array['t'], array['d'])",
        "pgq.current_event_table('q')",
        "pgq.insert_event_raw('q', null, null, null, null, 't', 'd', null, null, null, null)",
        "pgq.event_retry_raw('q','c',pg_catalog.now(),1,pg_catalog.now(),1,'t','d',null,null,null,null)",
        "pgq.force_tick('q')",
        "pgq.ticker('q')",
        "pgq.next_batch_custom('q', 'c', '0 s', 1, '1 s')",
        "pgq.next_batch_upto('q', 'c', 10)",
        "pgq.next_batch_info('q', 'c')",
        "pgq.get_batch_events(1)",
        "pgq.get_batch_info(1)",
        "pgq.batch_event_tables(1)",
        "pgq.batch_event_sql(1)",
        "pgq.batch_retry(1, 0)",
        "pgq.get_queue_info()",
        "pgq.get_consumer_info()",
        "pgq.maint_retry_events()",
        "pgq.maint_operations()",
        "pgq.finish_batch(1)",
        "pgq.maint_rotate_tables_step1('q')",
        "pgq.maint_rotate_tables_step2()",
        "pgq.maint_rotate_logs()",
        "pgq.ticker_round()",
        "pgq.ticker()",
        "pgq.quote_fqname('a.b')",
        "pgq.seq_getval('pgq.batch_id_seq')",
        "pgq.seq_setval('pgq.batch_id_seq', 5)",
        "pgq.tick_range_sql('q', 1, 2)",
        "pgq.snapshot_range_sql('q', 1, '1:1:', 2, '2:2:')",
        "pgq.unregister_consumer('q', 'c')",
        "pgq.grant_perms('q')",
        "pgq.tune_storage('q')",
        "pgq.drop_queue('q')",
        "pgq_task.create_queue('q')",
        "pgq_task.push('q', '1')",
        "pgq_task.push('q', '1', priority => 1, order_key => 'k')",
        "pgq_task.set_waiting('{q}')",
        "pgq_task.push('q', '1', unique_key => 'k')",
        "pgq_task.push('q', '1')",
        "pgq_task.drop_queue('q', true)",
    ):
        victim.execute(f"select {call}".encode())
    assert conn.execute("select distinct what from public.hit").fetchall() == []


@pytest.mark.parametrize("search_path", ["public", "public, pg_catalog"])
def test_neither_is_it_by_triggers_counts_and_queries_that_are_handed_out(
    conn: Connection, connect: Connect, queue: str, search_path: str
) -> None:
    conn.execute("create table public.t (id int primary key, v varchar)")
    conn.execute("select pgq.capture_table('public.t', %s)", [queue])
    for number, function in enumerate(("sqltriga", "logutriga", "jsontriga")):
        conn.execute(
            f"create trigger t{number} after insert or update or delete on public.t for each row"
            f" execute function pgq.{function}('{queue}', 'when=true', 'ev_extra3=v')".encode()
        )
    ops.tick(conn, queue)
    ops.register(conn, queue, "c")
    conn.execute("select pgq.create_group(%s, 'g', 1, 'lower(ev_extra1)')", [queue])
    member = ops.value(conn, "select (j).member_id from pgq.join_group(%s, 'g', 'w') j", queue)
    conn.execute(SHADOWS)
    victim = connect()
    victim.execute(f"set search_path = {search_path}".encode())
    victim.execute("insert into public.t select 1, 'x'")
    victim.execute("update public.t set v = null")
    victim.execute("delete from public.t")
    victim.execute("truncate public.t")
    ops.tick(conn, queue)
    [(grouped,)] = victim.execute(
        "select batch_sql from pgq.next_group_batch(%s, 100)", [member]
    ).fetchall()
    assert len(victim.execute(grouped.encode()).fetchall()) == 13
    batch = ops.next_batch(victim, queue, "c")
    query = ops.value(victim, "select pgq.batch_event_sql(%s)", batch)
    assert len(victim.execute(query.encode()).fetchall()) == 13
    with victim.transaction():
        fetched = victim.execute(
            "select ev_id from pgq.get_batch_cursor(%s, 'x', 20, 'ev_id is not null')", [batch]
        )
        events = fetched.fetchall()
    assert len(events) == 13
    # A retry has an owner, which the query compares.
    victim.execute("select pgq.event_retry(%s, %s, 0)", [batch, *events[0]])
    victim.execute("select pgq.finish_batch(%s)", [batch])
    conn.execute("select pgq.maint_retry_events()")
    ops.tick(conn, queue)
    batch = ops.next_batch(victim, queue, "c")
    query = ops.value(victim, "select pgq.batch_event_sql(%s)", batch)
    assert len(victim.execute(query.encode()).fetchall()) == 1
    victim.execute("select pgq.find_counted_tables('{public.t}')")
    victim.execute(
        "select pgq.start_row_count(%s, 'c', 'public.t', 0, txid_current_snapshot())", [queue]
    )
    assert ops.value(victim, "select pgq.row_count('public.t')") == 0
    for call in (
        "pgq.key_partition('k', 3)",
        "pgq.get_queue_info()",
        "pgq_task._time_of(9223372036854775807)",
        "pgq_task._time_of(0)",
        "pgq_task._position_of(pg_catalog.now())",
        "pgq_task._is_parked(1)",
    ):
        victim.execute(f"select {call}".encode())
    assert conn.execute("select distinct what from public.hit").fetchall() == []


def test_a_cursor_has_its_declarers_rights(conn: Connection, queue: str, as_role: As) -> None:
    conn.execute("create table public.secret (data text)")
    conn.execute(
        "create function public.leak() returns text language sql"
        " as 'select data from public.secret'"
    )
    ops.register(conn, queue, "c")
    batch = ops.open_batch(conn, queue, "c", "event")
    reader = as_role("pgq_reader")
    with pytest.raises(psycopg.errors.InsufficientPrivilege), reader.transaction():
        reader.execute(
            "select * from pgq.get_batch_cursor(%s, 'x', 1, 'ev_data <> public.leak()')", [batch]
        )


TRAPS = """
create schema evil authorization the_keeper;
create sequence evil.ran;
grant usage on schema evil to public;
grant all on sequence evil.ran to public;
create function evil.spring(text) returns boolean language plpgsql immutable as
    $$ begin perform pg_catalog.setval('evil.ran', 2); return true; end $$;
create function evil.joined(text, text) returns text language plpgsql immutable as
    $$ begin perform pg_catalog.setval('evil.ran', 2); return ''; end $$;
create operator evil.|| (function = evil.joined, leftarg = text, rightarg = text);
create domain evil.checked as text check (evil.spring(value));
create type evil.pair as (part evil.checked);
create domain pg_temp.trap as text check (evil.spring(value));
create type pg_temp."Trap" as (part pg_temp.trap);
create type pg_temp."like" as (part pg_temp.trap);
create type pg_temp.data as (part pg_temp.trap);
create type pg_temp."ends with ""\" as (part pg_temp.trap);
"""


KEYS = [
    "evil.spring('x')::text",
    "evil . spring('x')::text",
    '"evil"."spring"(\'x\')::text',
    "public.spring('x')::text",
    "coalesce(ev_data, evil.joined('a', 'b'))",
    "'a' operator(evil.||) 'b'",
    # The types of literals are determined while they are parsed.
    "'x'::evil.checked",
    "'(x)'::evil.pair::text",
    "evil.pair '(x)'::text",
    "'{x}'::evil.checked[]::text",
    "('{x}'::trap[])[1]",
    "('{x}'::\"trap\"[])[1]",
    "('(x)'::\"Trap\")::text",
    "(trap 'x')::text",
    '(\'(x)\'::"ends with """)::text',
    "('{x}'::_trap)[1]",
    "(like '(x)')::text",
    "('(x)'::data)::text",
    "cast('(x)' as data)::text",
    "'(x)'::pg_temp.data::text",
    "ev_data::trap",
    "E'\\' || '::text || evil.spring(/*'*/'x')",
    "ev_data)::text)); select evil.spring('x'); --",
    "ev_data)::text)); select evil.spring('x') where (('a' = 'a",
    "(ev_data).evil.spring",
    "$$x$$ || evil.spring('x')",
    "U&'\\0027' || evil.spring('x')::text",
    "(select evil.spring('x')::text)",
    "'evil.spring'::regproc::text",
]


@pytest.mark.parametrize("backslashes", ["on", "off"])
def test_the_key_of_a_group_runs_nothing_of_its_author_as_the_owner(
    conn: Connection, queue: str, as_role: As, backslashes: str, subtests: pytest.Subtests
) -> None:
    """Not even while it is parsed or planned: a sequence's count would survive the refusal."""
    conn.execute(
        "do $$ begin if to_regrole('the_keeper') is null then create role the_keeper; end if;"
        " grant pgq_reader to the_keeper;"
        " execute format('grant create, temp on database %I to the_keeper', current_database());"
        " end $$"
    )
    keeper = as_role("the_keeper")
    keeper.execute(TRAPS.encode())
    keeper.execute(f"set standard_conforming_strings = {backslashes}".encode())
    for key in KEYS:
        with subtests.test(key):
            with ops.refused("PQ011"):
                keeper.execute("select pgq.create_group(%s, 'g', 1, %s)", [queue, key])
            assert ops.value(conn, "select last_value from evil.ran") == 1


# captured tables and staging tables


def test_no_text_of_a_function_gets_into_a_statement_of_another_role(conn: Connection) -> None:
    """A function's text is what its owner wrote, and its options too: they can be forged."""
    readers = conn.execute(
        "select p.proname, p.prosecdef from pg_proc p join pg_namespace n on n.oid = pronamespace"
        " where nspname like 'pgq%' and prosrc ~* '\\mexecute\\M' and prosrc ~"
        " '(prosrc|pg_get_functiondef|capture_options\\(|(from|join) pgq\\.capture\\M)' order by 1"
    ).fetchall()
    # They take a yes or no from it; what they execute names functions and tables by their oids.
    assert readers == [
        ("_capture_drop_unused", False),
        ("_capture_regenerate", False),
        ("capture_table", False),
        ("release_table", False),
    ]


def test_rows_that_are_staged_are_the_jobs_alone(conn: Connection, connect: Connect) -> None:
    for role in ("test_stager", "test_other"):
        conn.execute(f"drop role if exists {role}; create role {role} in role pgq_writer".encode())
    try:
        job, other = connect(), connect()
        job.execute("set session authorization test_stager")
        other.execute("set session authorization test_other")
        with job.transaction():
            table = ops.value(job, "select pgq.create_staging('job')")
            job.execute(f"insert into {table} (ev_data) values ('secret')".encode())
        assert table in {name for (name,) in other.execute("select pgq.staging_tables('job')")}
        for statement in (
            "select from {}",
            "insert into {} values ('t')",
            "update {} set ev_data = ''",
            "delete from {}",
            "truncate {}",
            "drop table {}",
            "begin; lock table {} in share mode",
            "create index on {} (ev_type)",
            "alter table {} add x int",
            "grant all on {} to test_other",
            "create table pgq_staging.mine ()",
            "create view pgq_staging.mine as select 1",
            "create function pgq_staging.mine() returns int return 1",
        ):
            with pytest.raises(errors.InsufficientPrivilege):
                other.execute(statement.format(table).encode())
            other.rollback()
        with pytest.raises(errors.ObjectInUse, match="is not empty"):
            other.execute("select pgq.drop_staging(%s)", [table])
        # Only by its name in its schema, and only by that of a role that there is.
        for name in ("pgq.event", "pgq_staging.x; drop table t", "job", "", None):
            assert ops.value(other, "select pgq.drop_staging(%s)", name) is False
        for name in ("public", "none", "", "test_other; alter role test_other superuser", None):
            with ops.refused("PQ003"):
                other.execute("select pgq.create_staging('job', %s)", [name])
        # In the name of another it is that one's table.
        made = ops.value(other, "select pgq.create_staging('job', 'test_stager')")
        with pytest.raises(errors.InsufficientPrivilege):
            other.execute(f"select from {made}".encode())
        with job.transaction():
            assert job.execute(f"select ev_data from {table}".encode()).fetchall() == [("secret",)]
            job.execute(f"truncate {table}".encode())
            assert ops.value(job, "select pgq.drop_staging(%s)", table) is True
    finally:
        conn.execute("drop owned by test_stager, test_other; drop role test_stager, test_other")


# functions of the owner

EXECUTE_TEXT = """
pgq._apply_contracts pgq.batch_retry pgq._check_group_key pgq._claim_event_keys
pgq.count_batch_rows pgq._create_event_table pgq.create_queue pgq._create_relation
pgq.create_staging pgq._drop_event_keys pgq.drop_group
pgq.drop_staging pgq.event_dead_letter_many pgq.event_retry_many pgq._execute_soon
pgq.grant_perms pgq.group_batch_keys pgq.maint_rotate_delayed pgq.maint_rotate_keys
pgq.maint_rotate_logs pgq.maint_rotate_tables_step1 pgq.maint_staging pgq._make_group_key
pgq._node_here pgq._park_events pgq._remove_queue pgq._rename_sequences pgq._revoke_all
pgq.revoke_queue
pgq._set_event_keys pgq.set_group_config pgq.set_queue_config pgq.tune_storage
pgq.where_is_event
pgq_ext.rotate pgq_node.demote_root pgq_node.get_rest_events pgq_node.promote_branch
pgq_task._add_counted pgq_task._add_pushed pgq_task._begin_limited_claim
pgq_task._count_limited pgq_task._counts_of pgq_task.create_queue
pgq_task.drop_payload_index pgq_task.drop_queue pgq_task._estimate_total
pgq_task._expire_finished pgq_task.finished_tasks pgq_task.get_result pgq_task._grant_sequences
pgq_task.index_payload pgq_task._keep_finished pgq_task._last_of_limit pgq_task.list_tasks
pgq_task._lock_found pgq_task._log_limited_claim pgq_task._make_finished_tables
pgq_task._next_of_limit pgq_task._retire_pushed pgq_task._rotate_limits pgq_task.set_limits
pgq_task.set_queue_config
"""


def test_the_owner_executes_no_text_but_what_is_listed_here(conn: Connection) -> None:
    """A function of the owner that executes text is new: look where each part of that text comes
    from, and that names are quoted by %I, values by %L or given by USING. Then list it."""
    found = conn.execute(
        "select n.nspname || '.' || p.proname from pg_proc p"
        " join pg_namespace n on n.oid = pronamespace"
        " where prosecdef and proowner = 'pgq_owner'::regrole and nspname like 'pgq%'"
        " and prosrc ~* '\\m(execute|query_to_xml|dblink|cursor_to_xml)\\M'"
        " order by 1"
    ).fetchall()
    assert {name for (name,) in found} == set(EXECUTE_TEXT.split())


def test_readers_see_how_many_replicated_changes_wait_and_not_what_they_hold(
    conn: Connection,
) -> None:
    conn.execute("set role pgq_reader")
    count = "select count(*) from pgq_ext.replica_event where rpe_table = 1"
    assert ops.value(conn, count) == 0
    for column in ("*", "ev_data", "ev_extra1"):
        with ops.refused("42501"):
            conn.execute(f"select {column} from pgq_ext.replica_event".encode())
